//! Nodes of the tests, in a short notation.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use tokio::time::timeout;
use tweed::model::lease::{LeaseAttributes, LeaseUpdate};
use tweed::store::claim::Previous;
use tweed::store::etcd::{EtcdOptions, EtcdSubnetManager};

use crate::server::{EtcdServer, TIMEOUT};
pub(crate) use crate::subnets::{attributes, config, shown, subnets};

pub(crate) const MAC: &str = "c6:d2:32:6f:8f:44";
pub(crate) const V4: &str = r#"{"Network":"10.5.0.0/16"}"#;
pub(crate) const SUBNETS: &str = "/coreos.com/network/subnets/";
pub(crate) const CONFIG: &str = "/coreos.com/network/config";

/// A vxlan node with these public IPs.
pub(crate) fn vxlan(public_ips: &[&str]) -> LeaseAttributes {
    crate::subnets::vxlan(MAC, public_ips)
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
    let subnet_file = "/run/flannel/subnet.env".to_owned();
    Previous { subnets, grant, created: None, public_ips: Vec::new(), subnet_file }
}

pub(crate) fn manager_of(options: EtcdOptions, previous: Previous) -> EtcdSubnetManager {
    EtcdSubnetManager::new(options, previous, Duration::from_secs(3600))
}

pub(crate) fn manager(server: &EtcdServer) -> EtcdSubnetManager {
    manager_of(options(&[server.endpoint()]), Previous::default())
}

pub(crate) type Updates = BoxStream<'static, LeaseUpdate>;

/// The next update in one line.
pub(crate) async fn next(updates: &mut Updates) -> String {
    let update = timeout(TIMEOUT, updates.next()).await.expect("no update");
    shown(&update.unwrap())
}
