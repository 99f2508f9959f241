//! One node with many peers: how soon it is ready, and how much memory it takes.

use std::time::Duration;

use anyhow::Result;
use tweed_lab::{Binaries, Files, Lab, eventually};

use super::sheet::{Sheet, time};

const CONFIG: &str = "/coreos.com/network/config";
const SUBNETS: &str = "/coreos.com/network/subnets";
/// Room for thousands of subnets, and none of the lab's own networks.
const NETWORK: &str = r#"{"Network":"10.128.0.0/9","SubnetLen":24,"Backend":{"Type":"vxlan"}}"#;
const SIZES: [usize; 4] = [3, 100, 1000, 5000];
/// What a start needs for a moment has been given back by then.
const SETTLED: Duration = Duration::from_secs(5);
const FOLLOWED: Duration = Duration::from_secs(30);

pub(super) fn run(binaries: &Binaries, sheet: &mut Sheet) -> Result<()> {
    let head = ["peers", "cold start until all are programmed", "restart", "resident memory"];
    sheet.table("Start and memory by number of peers (vxlan)", &head)?;
    let lab = Lab::new(binaries.clone())?;
    let (etcd, segment) = (lab.etcd()?, lab.segment("10.99.1.0/24")?);
    etcd.put(CONFIG, NETWORK)?;
    let node = lab.node("n1", &segment)?;
    let mut daemon = node.daemon(&etcd).start()?;
    daemon.wait_ready()?;
    let mut known = 0;
    for size in SIZES {
        etcd.put_all(&(known..size).map(lease).collect::<Vec<_>>())?;
        known = size;
        eventually(FOLLOWED, || Ok::<_, anyhow::Error>(node.fdb("flannel.1")?.len() == size))?;
        daemon.stop()?;
        node.wipe(Files::Kept)?;
        daemon.start()?;
        let cold = daemon.wait_ready()?;
        let warm = daemon.restart()?;
        std::thread::sleep(SETTLED);
        let memory = mebibytes(daemon.resident_kib()?);
        sheet.row(&[&size, &time(cold), &time(warm), &memory])?;
    }
    Ok(())
}

fn mebibytes(kib: u64) -> String {
    let tenths = kib * 10 / 1024;
    format!("{}.{} MiB", tenths / 10, tenths % 10)
}

/// Of a node that is nowhere.
fn lease(number: usize) -> (String, String) {
    let (high, low) = (number / 250, number % 250 + 1);
    let key = format!("{SUBNETS}/10.{}.{low}.0-24", 200 + high);
    let data = format!(r#"{{"VNI":1,"VtepMAC":"02:00:00:00:{high:02x}:{low:02x}"}}"#);
    let ip = format!(r#""PublicIP":"10.98.{high}.{low}","PublicIPv6":null"#);
    (key, format!(r#"{{{ip},"BackendType":"vxlan","BackendData":{data}}}"#))
}
