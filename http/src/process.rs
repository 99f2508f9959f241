//! What this process uses, for its page of metrics.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::page::{Page, number as text_of};

#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    /// Of user and system together.
    pub cpu_seconds: f64,
    pub open_files: usize,
    /// Infinite without a limit.
    pub max_files: f64,
    /// In bytes.
    pub virtual_memory: u64,
    pub resident_memory: u64,
    pub threads: u64,
    /// In seconds since 1970.
    pub started: f64,
}

/// Programs see this many clock ticks per second on every Linux.
const TICKS: f64 = 100.0;

impl Process {
    /// Reads files, which may take long. `started`: when this process began.
    pub fn read(started: SystemTime) -> io::Result<Self> {
        let process = Path::new("/proc/self");
        let text = |name: &str| fs::read_to_string(process.join(name));
        let (stat, status, limits) = (text("stat")?, text("status")?, text("limits")?);
        let started = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Ok(Self {
            cpu_seconds: cpu_seconds(&stat).unwrap_or_default(),
            open_files: fs::read_dir(process.join("fd"))?.count(),
            max_files: max_files(&limits),
            virtual_memory: number(&status, "VmSize:") << 10,
            resident_memory: number(&status, "VmRSS:") << 10,
            threads: number(&status, "Threads:"),
            started: started.as_secs_f64(),
        })
    }

    /// Adds these figures, under the names that all programs use.
    pub fn add_to(&self, page: &mut Page) {
        let help = "Processor time of this daemon, in seconds.";
        page.counter("process_cpu_seconds_total", help, self.cpu_seconds);
        let help = "Open file descriptors.";
        page.gauge("process_open_fds", help, self.open_files);
        let help = "Maximum number of open file descriptors.";
        page.gauge("process_max_fds", help, text_of(self.max_files));
        let help = "Virtual memory, in bytes.";
        page.gauge("process_virtual_memory_bytes", help, self.virtual_memory);
        let help = "Resident memory, in bytes.";
        page.gauge("process_resident_memory_bytes", help, self.resident_memory);
        page.gauge("process_threads", "Threads.", self.threads);
        let help = "Start of this daemon, in seconds since 1970.";
        page.gauge("process_start_time_seconds", help, self.started);
    }
}

/// The fields after the name of the program, which may contain spaces and parentheses.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    ticks.sum::<Result<f64, _>>().ok().map(|ticks| ticks / TICKS)
}

/// The number after `key`, in kilobytes for memory.
fn number(status: &str, key: &str) -> u64 {
    let value = status.lines().find_map(|line| line.strip_prefix(key));
    value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

fn max_files(limits: &str) -> f64 {
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = soft.and_then(|values| values.split_whitespace().next());
    soft.and_then(|soft| soft.parse().ok()).unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read() {
        let process = Process::read(SystemTime::now()).unwrap();
        assert!(process.resident_memory > 1 << 20, "{process:?}");
        assert!(process.virtual_memory >= process.resident_memory, "{process:?}");
        assert!(process.open_files >= 3 && process.max_files >= 3.0, "{process:?}");
        assert!(process.threads >= 1 && process.started > 1.7e9, "{process:?}");
    }

    #[test]
    fn the_files_of_proc_are_understood() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 5 0 0 0 120 30 0 0 20 0 1 0 99 1000 10";
        assert_eq!(cpu_seconds(stat), Some(1.5));
        let status = "Name:\ttweedd\nVmSize:\t  65536 kB\nVmRSS:\t 18432 kB\nThreads:\t2\n";
        assert_eq!((number(status, "VmRSS:"), number(status, "Threads:")), (18_432, 2));
        let limits =
            |soft| format!("Limit  Soft  Hard\nMax open files   {soft}   1048576  files\n");
        assert!((max_files(&limits("1024")) - 1024.0).abs() < 1e-9);
        assert!(max_files(&limits("unlimited")).is_infinite());
    }
}
