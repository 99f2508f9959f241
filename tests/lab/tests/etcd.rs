//! etcd and its faults.

use anyhow::Result;
use tweed_lab::{EtcdPlan, Lab, PATIENCE, eventually};

#[test]
fn keys_are_written_read_listed_and_deleted() -> Result<()> {
    let lab = Lab::bare()?;
    let etcd = lab.etcd()?;
    assert_eq!(etcd.get("/a/1")?, None);
    etcd.put("/a/1", r#"{"PublicIP":"1.2.3.4"}"#)?;
    let lease = etcd.grant(600)?;
    etcd.put_with_lease("/a/2", "-two\nlines", lease)?;
    let entries = etcd.list("/a/")?;
    assert_eq!(etcd.count("/a/")?, entries.len());
    let pairs: Vec<_> = entries.iter().map(|it| (it.key.as_str(), it.value.as_str())).collect();
    assert_eq!(pairs, [("/a/1", r#"{"PublicIP":"1.2.3.4"}"#), ("/a/2", "-two\nlines")]);
    assert_eq!((entries[0].lease, entries[1].lease), (0, lease));
    assert_eq!(entries[1].mod_revision, etcd.revision()?);
    etcd.delete("/a/1")?;
    etcd.delete("/a/1").unwrap_err();
    etcd.revoke(lease)?;
    assert_eq!((etcd.list("/a/")?, etcd.count("/a/")?), (vec![], 0));
    Ok(())
}

#[test]
fn a_thousand_keys_take_a_few_transactions() -> Result<()> {
    let lab = Lab::bare()?;
    let etcd = lab.etcd()?;
    let value = r#"{"PublicIP":"1.2.3.4","BackendData":{"VNI":1}}"#;
    let pairs: Vec<_> = (0..1000).map(|n| (format!("/k/{n:04}"), value.to_owned())).collect();
    etcd.put_all(&pairs)?;
    let entries = etcd.list("/k/")?;
    assert_eq!(entries.len(), 1000);
    assert_eq!((entries[999].key.as_str(), entries[999].value.as_str()), ("/k/0999", value));
    assert!(etcd.revision()? < 20);
    Ok(())
}

#[test]
fn compaction_forgets_history() -> Result<()> {
    let lab = Lab::bare()?;
    let etcd = lab.etcd()?;
    etcd.put("/a", "1")?;
    let old = etcd.revision()?;
    etcd.put("/a", "2")?;
    etcd.compact()?;
    let error = etcd.etcdctl(&["get", "/a", &format!("--rev={old}")]).unwrap_err();
    assert!(format!("{error:#}").contains("compacted"), "{error:#}");
    Ok(())
}

#[test]
fn a_restarted_etcd_keeps_its_data_and_a_wiped_one_does_not() -> Result<()> {
    let lab = Lab::bare()?;
    let mut etcd = lab.etcd()?;
    etcd.put("/a", "1")?;
    etcd.stop()?;
    etcd.get("/a").unwrap_err();
    etcd.start()?;
    etcd.kill()?;
    etcd.start()?;
    assert_eq!(etcd.get("/a")?.unwrap().value, "1");
    etcd.wipe()?;
    assert_eq!(etcd.get("/a")?, None);
    Ok(())
}

#[test]
fn a_cluster_of_three_survives_its_leader() -> Result<()> {
    let lab = Lab::bare()?;
    let mut etcd = lab.etcd_cluster()?;
    etcd.put("/a", "1")?;
    let leader = etcd.leader()?;
    etcd.member(leader)?.freeze()?;
    eventually(PATIENCE, || etcd.leader().map(|now| now != leader))?;
    eventually(PATIENCE, || etcd.put("/a", "2"))?;
    etcd.member(leader)?.thaw()?;
    etcd.wait_ready()?;
    etcd.member(leader)?.kill()?;
    assert_eq!(etcd.get("/a")?.unwrap().value, "2");
    etcd.start()?;
    assert_eq!(etcd.endpoints().len(), 3);
    Ok(())
}

#[test]
fn every_client_but_the_lab_needs_a_password() -> Result<()> {
    let lab = Lab::bare()?;
    let mut etcd = lab.etcd_with(&EtcdPlan::new(1).argument("--auth-token-ttl=5"))?;
    etcd.require_password("secret")?;
    etcd.put_all(&[("/a".to_owned(), "1".to_owned())])?;
    assert_eq!(etcd.get("/a")?.unwrap().value, "1");
    let endpoint = format!("--endpoints={}", etcd.endpoints()[0]);
    let namespace = etcd.members()[0].namespace();
    let error = namespace.run("etcdctl", &[&endpoint, "get", "/a"]).unwrap_err();
    assert!(format!("{error:#}").contains("user name is empty"), "{error:#}");
    Ok(())
}

#[test]
fn a_node_reaches_etcd_by_its_management_wire_alone() -> Result<()> {
    let lab = Lab::bare()?;
    let etcd = lab.etcd()?;
    let segment = lab.segment("10.99.1.0/24")?;
    let node = lab.node("n1", &segment)?;
    let endpoint = format!("--endpoints={}", etcd.endpoints()[0]);
    let ask = |limit| {
        let (dial, command) =
            (format!("--dial-timeout={limit}"), format!("--command-timeout={limit}"));
        node.namespace().run("etcdctl", &[&endpoint, &dial, &command, "get", "/"])
    };
    ask("20s")?;
    node.underlay().cut()?;
    ask("20s")?;
    node.management().cut()?;
    ask("1s").unwrap_err();
    node.management().restore()?;
    ask("20s").map(drop)
}
