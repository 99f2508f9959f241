//! A process of the lab: started in a namespace, logged to a file, ended by pid.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::network::namespace::Namespace;
use crate::wait::lock;

const POLL: Duration = Duration::from_millis(1);

/// How a process ended.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    pub status: ExitStatus,
    /// The time from the signal to the end.
    pub took: Duration,
}

/// A process, running or ended. The [`Lab`](crate::Lab) kills it at its end.
#[derive(Clone, Debug)]
pub struct Process {
    name: String,
    log: PathBuf,
    child: Arc<Mutex<Child>>,
}

impl Process {
    /// Appends the output of the process to `log`.
    pub(crate) fn start(command: &mut Command, namespace: &Namespace, log: &Path) -> Result<Self> {
        let name = command.get_program().display().to_string();
        let (stdout, stderr) = (append(log)?, append(log)?);
        let child = namespace.spawn(command.stdin(Stdio::null()).stdout(stdout).stderr(stderr))?;
        Ok(Self { name, log: log.to_owned(), child: Arc::new(Mutex::new(child)) })
    }

    pub fn pid(&self) -> u32 {
        lock(&self.child).id()
    }

    /// `None` while it runs.
    pub fn status(&self) -> Result<Option<ExitStatus>> {
        lock(&self.child).try_wait().with_context(|| self.name.clone())
    }

    pub fn is_running(&self) -> bool {
        matches!(self.status(), Ok(None))
    }

    /// Sends a signal; an error if the process has exited.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let mut child = lock(&self.child);
        match child.try_wait()? {
            Some(status) => Err(anyhow!("{} has ended: {status}", self.name)),
            None => Ok(kill(pid_of(&child)?, signal)?),
        }
    }

    /// SIGTERM and wait; SIGKILL and an error after `timeout`.
    pub fn stop(&self, timeout: Duration) -> Result<Ended> {
        let start = Instant::now();
        self.signal(Signal::SIGTERM)?;
        while start.elapsed() < timeout {
            if let Some(status) = self.status()? {
                return Ok(Ended { status, took: start.elapsed() });
            }
            std::thread::sleep(POLL);
        }
        self.kill()?;
        Err(anyhow!("{} ignored SIGTERM for {timeout:?}", self.name))
    }

    /// SIGKILL and wait. A process that has exited is no error.
    pub fn kill(&self) -> Result<Ended> {
        let start = Instant::now();
        let mut child = lock(&self.child);
        child.kill().with_context(|| self.name.clone())?;
        Ok(Ended { status: child.wait()?, took: start.elapsed() })
    }

    /// All its output so far, and that of earlier processes with the same log.
    pub fn log(&self) -> Result<String> {
        let bytes = std::fs::read(&self.log).with_context(|| self.log.display().to_string())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) fn log_file(&self) -> &Path {
        &self.log
    }

    /// The last lines of the log, for error messages.
    pub fn last_words(&self) -> String {
        let log = self.log().unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(30)..).unwrap_or_default().join("\n")
    }

    /// Resident memory at present, in KiB.
    pub fn resident_kib(&self) -> Result<u64> {
        memory_kib(self.pid(), "VmRSS:")
    }

    /// Peak resident memory, in KiB.
    pub fn peak_kib(&self) -> Result<u64> {
        peak_kib(self.pid())
    }

    /// Processor time so far of its children that have exited.
    pub fn processor_time_of_children(&self) -> Result<Duration> {
        let path = format!("/proc/{}/stat", self.pid());
        let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        // The preceding name may contain spaces.
        let (_, behind) = text.rsplit_once(')').with_context(|| path.clone())?;
        let ticks = behind.split_whitespace().skip(13).take(2).map(str::parse::<u32>);
        Ok(TICK * ticks.sum::<Result<u32, _>>().context(path)?)
    }

    /// Processor time so far of its threads, without threads that have exited.
    pub fn processor_time(&self) -> Result<Duration> {
        let path = format!("/proc/{}/task", self.pid());
        let threads = std::fs::read_dir(&path).context(path)?;
        threads.map(|thread| time_of_thread(&thread?.path().join("schedstat"))).sum()
    }
}

/// Writes a program. A child process does it: other threads may start children while the file is open
/// for writing, and the kernel does not execute it as long as one of them has it.
pub fn install(program: impl AsRef<[u8]>, path: &Path) -> Result<()> {
    let mut command = Command::new("install");
    command.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut child = command.spawn().context("install")?;
    child.stdin.take().context("no standard input")?.write_all(program.as_ref())?;
    let status = child.wait()?;
    ensure!(status.success(), "installing {}: {status}", path.display());
    Ok(())
}

/// The kernel reports times of processes in hundredths of a second on all machines.
const TICK: Duration = Duration::from_millis(10);

/// Peak resident memory of a process, in KiB.
pub fn peak_kib(pid: u32) -> Result<u64> {
    memory_kib(pid, "VmHWM:")
}

fn memory_kib(pid: u32, field: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).context(path)?;
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    Ok(number.context("the process has ended")?.parse()?)
}

fn time_of_thread(path: &Path) -> Result<Duration> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let nanos = text.split_whitespace().next().with_context(|| path.display().to_string())?;
    Ok(Duration::from_nanos(nanos.parse()?))
}

fn pid_of(child: &Child) -> Result<Pid> {
    Ok(Pid::from_raw(i32::try_from(child.id())?))
}

fn append(path: &Path) -> Result<File> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.with_context(|| path.display().to_string())
}
