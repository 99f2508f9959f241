//! The notation of nodes and leases for the tests of both subnet managers.

use tweed::model::config::BackendType;
use tweed::model::config::NetworkConfig;
use tweed::model::lease::{EndpointAttributes, Lease, LeaseAttributes, LeaseUpdate, Record, Vtep};

pub(crate) fn config(json: &str) -> NetworkConfig {
    NetworkConfig::parse(json.as_bytes()).unwrap()
}

/// A vxlan node with this MAC address and these public IPs.
pub(crate) fn vxlan(mac: &str, public_ips: &[&str]) -> LeaseAttributes {
    let vtep = Some(Vtep { vni: Some(1), mac: mac.parse().unwrap(), source: None, mixed: false });
    attributes(BackendType::Vxlan, public_ips, vtep)
}

pub(crate) fn attributes(
    backend: BackendType,
    public_ips: &[&str],
    vtep: Option<Vtep>,
) -> LeaseAttributes {
    let endpoint = |ip: &&str| EndpointAttributes { public_ip: ip.parse().unwrap(), vtep };
    LeaseAttributes { backend, endpoints: public_ips.iter().map(endpoint).collect() }
}

pub(crate) fn subnets(lease: &Lease) -> Vec<String> {
    lease.subnets().map(|subnet| subnet.to_string()).collect()
}

/// An update in one line.
pub(crate) fn shown(update: &LeaseUpdate) -> String {
    match update {
        LeaseUpdate::Snapshot(records) => {
            let ids: Vec<String> = records.iter().map(record).collect();
            format!("snapshot [{}]", ids.join(" "))
        }
        LeaseUpdate::Put(put) => format!("put {}", record(put)),
        LeaseUpdate::Remove(id) => format!("remove {id}"),
        LeaseUpdate::DeleteNode(id) => format!("delete node {id}"),
    }
}

fn record(record: &Record) -> String {
    let holder = match &record.lease {
        Ok(lease) => lease.endpoints[0].public_ip.to_string(),
        Err(error) => format!("malformed: {error}"),
    };
    format!("{}@{holder}", record.id)
}
