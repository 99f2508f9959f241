//! Leases that a writer of the store may put there. Each function returns how many it wrote.

use anyhow::{Context, Result};
use tweed_lab::Family;

use super::scene::Scene;
use crate::instruments::peer::{Peer, SUBNETS, peers};

const ONE_MAC: &str = "02:00:00:00:aa:aa";

/// Leases with many kinds of faults; the victim must accept none of them.
pub(super) fn hostile(scene: &Scene, count: u32) -> Result<u64> {
    let our_ip = scene.victim.address(Family::V4)?.to_string();
    let their_mac = scene.peer.link("flannel.1")?.context("the peer has no tunnel")?.mac;
    let lease = |(number, peer): (u32, Peer)| {
        let (base, address, mac) = (peer.base(), peer.address().to_string(), peer.mac());
        let key = format!("{base}-24");
        match number % 10 {
            0 => (key, "{".to_owned()),
            1 => (key, r#"{"PublicIP":5}"#.to_owned()),
            2 => (format!("garbage-{number}"), vxlan(&address, &mac)),
            3 => (format!("{base}-24&fd00::{number:x}-64"), vxlan(&address, &mac)),
            4 => (format!("11.{}", key.trim_start_matches("10.")), vxlan(&address, &mac)),
            5 => (key, vxlan("127.0.0.1", &mac)),
            6 => (key, vxlan(&our_ip, &mac)),
            7 => (key, vxlan(&address, "ff:ff:ff:ff:ff:ff")),
            8 => (key, vxlan(&address, &their_mac)),
            _ => (format!("{base}-31"), vxlan(&address, &mac)),
        }
    };
    put(scene, (0..).zip(peers(0..count)).map(lease))
}

/// At most one of them can be accepted.
pub(super) fn of_one_mac(scene: &Scene, count: u32) -> Result<u64> {
    let lease = |peer: Peer| {
        let address = peer.address().to_string();
        (format!("{}-24", peer.base()), vxlan(&address, ONE_MAC))
    };
    put(scene, peers(0..count).map(lease))
}

/// Leases with values of `bytes` bytes.
pub(super) fn long(scene: &Scene, count: u32, bytes: usize) -> Result<u64> {
    let mut writer = scene.writer()?;
    for peer in peers(0..count) {
        let long = "a".repeat(bytes);
        let value = format!(r#"{{"PublicIP":"{}","BackendType":"{long}"}}"#, peer.address());
        writer.put(&format!("{SUBNETS}/{}-24", peer.base()), &value)?;
    }
    Ok(count.into())
}

fn vxlan(address: &str, mac: &str) -> String {
    let data = format!(r#""BackendData":{{"VNI":1,"VtepMAC":"{mac}"}}"#);
    format!(r#"{{"PublicIP":"{address}","PublicIPv6":null,"BackendType":"vxlan",{data}}}"#)
}

fn put(scene: &Scene, leases: impl Iterator<Item = (String, String)>) -> Result<u64> {
    let pairs: Vec<_> = leases.map(|(id, value)| (format!("{SUBNETS}/{id}"), value)).collect();
    scene.etcd.put_all(&pairs)?;
    Ok(pairs.len() as u64)
}
