//! What the tests say of nodes, in few words.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::timeout;
use tweed::config::NetworkConfig;
use tweed::lease::{
    BackendType, EndpointAttributes, Lease, LeaseAttributes, LeaseUpdate, Record, Vtep,
};
use tweed::prefix::Prefix;
use tweed::subnet::claim::Previous;
use tweed::subnet::etcd::{EtcdOptions, EtcdSubnetManager};

use crate::server::EtcdServer;

pub(crate) const MAC: &str = "c6:d2:32:6f:8f:44";
pub(crate) const V4: &str = r#"{"Network":"10.5.0.0/16"}"#;
pub(crate) const SUBNETS: &str = "/coreos.com/network/subnets/";
pub(crate) const CONFIG: &str = "/coreos.com/network/config";

pub(crate) fn config(json: &str) -> NetworkConfig {
    NetworkConfig::parse(json.as_bytes()).unwrap()
}

/// A vxlan node with these public IPs.
pub(crate) fn vxlan(public_ips: &[&str]) -> LeaseAttributes {
    let vtep = Some(Vtep { vni: Some(1), mac: MAC.parse().unwrap(), source: None });
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

pub(crate) fn value(public_ip: &str) -> String {
    format!(
        r#"{{"PublicIP":"{public_ip}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"{MAC}"}}}}"#
    )
}

pub(crate) fn options(endpoints: &[String]) -> EtcdOptions {
    let prefix = "/coreos.com/network".to_owned();
    EtcdOptions { endpoints: endpoints.to_vec(), prefix, ..EtcdOptions::default() }
}

pub(crate) fn previous(subnets: &[&str], grant: Option<i64>) -> Previous {
    let subnets = subnets.iter().map(|subnet| subnet.parse().unwrap()).collect();
    Previous { subnets, grant, subnet_file: "/run/flannel/subnet.env".to_owned() }
}

pub(crate) fn manager_of(options: EtcdOptions, previous: Previous) -> EtcdSubnetManager {
    EtcdSubnetManager::new(options, previous, Duration::from_secs(3600))
}

pub(crate) fn manager(server: &EtcdServer) -> EtcdSubnetManager {
    manager_of(options(&[server.endpoint()]), Previous::default())
}

pub(crate) fn subnets(lease: &Lease) -> Vec<String> {
    lease.subnets().map(|subnet: Prefix| subnet.to_string()).collect()
}

pub(crate) type Updates = BoxStream<'static, LeaseUpdate>;

/// The next update in one line; fails if none comes within half a minute.
pub(crate) async fn next(updates: &mut Updates) -> String {
    let update = timeout(Duration::from_secs(30), updates.next()).await.expect("no update");
    shown(&update.unwrap())
}

pub(crate) fn shown(update: &LeaseUpdate) -> String {
    match update {
        LeaseUpdate::Snapshot(records) => {
            let ids: Vec<String> = records.iter().map(record).collect();
            format!("snapshot [{}]", ids.join(" "))
        }
        LeaseUpdate::Put(put) => format!("put {}", record(put)),
        LeaseUpdate::Remove(id) => format!("remove {id}"),
    }
}

fn record(record: &Record) -> String {
    let holder = match &record.lease {
        Ok(lease) => lease.endpoints[0].public_ip.to_string(),
        Err(error) => format!("malformed: {error}"),
    };
    format!("{}@{holder}", record.id)
}
