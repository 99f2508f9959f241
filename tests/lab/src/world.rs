//! The objects that a lab has created, for removal at its end.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};

use crate::Binaries;
use crate::network::namespace::Namespace;
use crate::network::pod::Pod;
use crate::process::Process;
use crate::wait::lock;

static LABS: AtomicUsize = AtomicUsize::new(1);

/// Shared by a lab and its handles.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) binaries: Binaries,
    /// Files of this lab; on a tmpfs that ends with the sandbox.
    pub(crate) folder: PathBuf,
    prefix: String,
    numbers: AtomicUsize,
    namespaces: Mutex<Vec<Namespace>>,
    processes: Mutex<Vec<Process>>,
    pods: Mutex<Vec<Pod>>,
}

impl World {
    pub(crate) fn create(binaries: Binaries) -> Result<Self> {
        ensure!(
            std::env::var_os("TWEED_SANDBOX").is_some(),
            "a lab changes the network, so it wants to run inside tests/lab/sandbox"
        );
        let prefix = format!("lab{}", LABS.fetch_add(1, Ordering::Relaxed));
        let folder = PathBuf::from(format!("/run/tweed-{}-{prefix}", std::process::id()));
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let (numbers, namespaces, processes, pods) = Default::default();
        Ok(Self { binaries, folder, prefix, numbers, namespaces, processes, pods })
    }

    pub(crate) fn namespace(&self, name: &str) -> Result<Namespace> {
        let namespace = Namespace::create(&format!("{}-{name}", self.prefix))?;
        lock(&self.namespaces).push(namespace.clone());
        Ok(namespace)
    }

    /// A handle to the namespace of a process.
    pub(crate) fn attach(&self, name: &str, pid: &str) -> Result<Namespace> {
        let namespace = Namespace::attach(&format!("{}-{name}", self.prefix), pid)?;
        lock(&self.namespaces).push(namespace.clone());
        Ok(namespace)
    }

    /// A number that is unique in this lab.
    pub(crate) fn number(&self) -> usize {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Logs to `NAME.log` in the folder of the lab.
    pub(crate) fn start(
        &self,
        command: &mut Command,
        namespace: &Namespace,
        name: &str,
    ) -> Result<Process> {
        let log = self.folder.join(format!("{name}.log"));
        let process = Process::start(command, namespace, &log)?;
        lock(&self.processes).push(process.clone());
        Ok(process)
    }

    pub(crate) fn add_pod(&self, pod: &Pod) {
        lock(&self.pods).push(pod.clone());
    }

    pub(crate) fn pods(&self) -> Vec<Pod> {
        lock(&self.pods).clone()
    }

    /// The last log lines of each process, youngest first: older processes are shared, and rarely
    /// the cause of a failure.
    pub(crate) fn last_words(&self) -> String {
        let words =
            |it: &Process| format!("--- {} ---\n{}\n", it.log_file().display(), it.last_words());
        lock(&self.processes).iter().rev().map(words).collect()
    }

    /// Ends every process and deletes every namespace and file; a missing one is no error.
    pub(crate) fn clear(&self) -> Result<()> {
        lock(&self.pods).clear();
        let killed: Result<Vec<_>> = lock(&self.processes).drain(..).map(|it| it.kill()).collect();
        let deleted: Result<Vec<_>> =
            lock(&self.namespaces).drain(..).map(|it| it.delete()).collect();
        let saved = self.save_logs();
        std::fs::remove_dir_all(&self.folder).with_context(|| self.folder.display().to_string())?;
        killed?;
        deleted?;
        saved
    }

    fn save_logs(&self) -> Result<()> {
        let Some(target) = std::env::var_os("TWEED_LAB_LOGS").map(PathBuf::from) else {
            return Ok(());
        };
        let program = std::env::current_exe()?;
        let program = program.file_name().unwrap_or_default().display();
        let target = target.join(format!("{program}-{}", self.prefix));
        std::fs::create_dir_all(&target).with_context(|| target.display().to_string())?;
        for file in std::fs::read_dir(&self.folder)? {
            let file = file?;
            if file.path().extension().is_some_and(|it| it == "log") {
                std::fs::copy(file.path(), target.join(file.file_name()))?;
            }
        }
        Ok(())
    }
}
