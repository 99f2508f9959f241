//! What this process uses, and what the CNI plugin keeps for pods: read for each page of metrics.

use std::net::IpAddr;
use std::path::Path;
use std::time::SystemTime;

use tweed_cni::host_local;
use tweed_cni::state::States;
use tweed_http::process::Process;

use crate::model::measurements::SubnetUsage;
use crate::model::prefix::{Family, Prefix};

/// The parts that can be read.
#[derive(Clone, Debug, Default)]
pub struct Resources {
    pub process: Option<Process>,
    pub pods: Option<PodUsage>,
}

/// The containers of this node.
#[derive(Clone, Debug, PartialEq)]
pub struct PodUsage {
    pub attachments: usize,
    pub addresses: Vec<SubnetUsage>,
}

/// Where the CNI plugin keeps its state unless its config names other folders.
const RECORDS: &str = "/var/lib/cni/flannel";
const ADDRESSES: &str = "/var/lib/cni/networks";

/// The addresses of a subnet that no container gets: its base, its gateway, and its last one.
const UNUSED: u128 = 3;

impl Resources {
    /// Reads files, which may take long. `subnets` are those of this node.
    pub(super) fn read(started: SystemTime, subnets: &[Prefix]) -> Self {
        let (records, addresses) = (Path::new(RECORDS), Path::new(ADDRESSES));
        Self {
            process: Process::read(started).ok(),
            pods: PodUsage::read(records, addresses, subnets),
        }
    }
}

impl PodUsage {
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
    use std::fs;

    use super::*;

    #[test]
    fn addresses_of_the_own_subnets_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let (records, addresses) = (folder.path().join("records"), folder.path().join("networks"));
        let subnets = ["10.244.3.0/24".parse().unwrap(), "fd00:3::/64".parse().unwrap()];
        let none = PodUsage::read(&records, &addresses, &subnets).unwrap();
        assert_eq!((none.attachments, none.addresses[0].used), (0, 0));
        let network = addresses.join("cbr0");
        fs::create_dir_all(&network).unwrap();
        for name in ["lock", "10.244.3.2", "10.244.3.9", "10.9.9.9", "fd00:3::2", "x"] {
            fs::write(network.join(name), "").unwrap();
        }
        fs::create_dir(&records).unwrap();
        fs::write(records.join("abc:eth0"), "{}").unwrap();
        let some = PodUsage::read(&records, &addresses, &subnets).unwrap();
        assert_eq!(some.attachments, 1);
        let [v4, v6] = some.addresses[..] else { panic!("{some:?}") };
        assert_eq!((v4.used, v4.free), (2, 251));
        assert_eq!((v6.used, v6.free), (1, (1 << 64) - 4));
    }
}
