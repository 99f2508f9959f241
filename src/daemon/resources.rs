//! What this process uses, and what the CNI plugin keeps for pods: read for each page of metrics.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tweed_cni::host_local;
use tweed_cni::state::States;

use crate::model::measurements::SubnetUsage;
use crate::model::prefix::{Family, Prefix};

/// The parts that can be read.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    pub process: Option<Process>,
    pub pods: Option<Pods>,
}

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

/// The containers of this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Pods {
    pub attachments: usize,
    pub addresses: Vec<SubnetUsage>,
}

/// Where the CNI plugin keeps its state unless its config names other folders.
const RECORDS: &str = "/var/lib/cni/flannel";
const ADDRESSES: &str = "/var/lib/cni/networks";

/// Programs see this many clock ticks per second on every Linux.
const TICKS: f64 = 100.0;

/// The addresses of a subnet that no container gets: its base, its gateway, and its last one.
const UNUSED: u128 = 3;

impl Resources {
    /// Reads files, which may take long. `subnets` are those of this node.
    pub(super) fn read(started: SystemTime, subnets: &[Prefix]) -> Self {
        let (records, addresses) = (Path::new(RECORDS), Path::new(ADDRESSES));
        Self {
            process: Process::read(Path::new("/proc/self"), started).ok(),
            pods: Pods::read(records, addresses, subnets),
        }
    }
}

impl Process {
    fn read(process: &Path, started: SystemTime) -> io::Result<Self> {
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

impl Pods {
    /// None if the folders cannot be read.
    fn read(records: &Path, addresses: &Path, subnets: &[Prefix]) -> Option<Self> {
        let reserved = host_local::reserved_addresses(addresses).ok()?;
        let usage = |family: Family| {
            let own = subnets.iter().filter(move |subnet| subnet.family() == family);
            let is_own = |address: &&IpAddr| own.clone().any(|subnet| subnet.contains(**address));
            let used = reserved.iter().filter(is_own).count() as u128;
            let all: u128 = own.clone().map(|subnet| subnet.size().saturating_sub(UNUSED)).sum();
            SubnetUsage { family, used, free: all.saturating_sub(used) }
        };
        let has = |family: &Family| subnets.iter().any(|subnet| subnet.family() == *family);
        let addresses = Family::ALL.into_iter().filter(has).map(usage).collect();
        Some(Self { attachments: States::at(records).count().ok()?, addresses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_read() {
        let process = Process::read(Path::new("/proc/self"), SystemTime::now()).unwrap();
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

    #[test]
    fn addresses_of_the_own_subnets_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let (records, addresses) = (folder.path().join("records"), folder.path().join("networks"));
        let subnets = ["10.244.3.0/24".parse().unwrap(), "fd00:3::/64".parse().unwrap()];
        let none = Pods::read(&records, &addresses, &subnets).unwrap();
        assert_eq!((none.attachments, none.addresses[0].used), (0, 0));
        let network = addresses.join("cbr0");
        fs::create_dir_all(&network).unwrap();
        for name in ["lock", "10.244.3.2", "10.244.3.9", "10.9.9.9", "fd00:3::2", "x"] {
            fs::write(network.join(name), "").unwrap();
        }
        fs::create_dir(&records).unwrap();
        fs::write(records.join("abc:eth0"), "{}").unwrap();
        let some = Pods::read(&records, &addresses, &subnets).unwrap();
        assert_eq!(some.attachments, 1);
        let [v4, v6] = some.addresses[..] else { panic!("{some:?}") };
        assert_eq!((v4.used, v4.free), (2, 251));
        assert_eq!((v6.used, v6.free), (1, (1 << 64) - 4));
    }
}
