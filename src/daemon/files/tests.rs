//! What the daemon writes into its files, and removes from them.

use std::cell::Cell;
use std::fs::File;
use std::path::PathBuf;
use std::pin::pin;
use std::time::SystemTime;

use tempfile::TempDir;

use super::*;
use crate::model::config::NetworkConfig;
use crate::model::entry::LinkName;
use crate::model::lease::{Lease, LeaseId};
use crate::model::node::{Firewalls, Node, Release, Sysctls};
use crate::model::node_inputs::NodeInputs;

#[test]
fn a_checkpoint_with_another_subnet_than_the_subnet_file_is_older() {
    let subnets = |texts: &[&str]| -> Vec<Prefix> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    };
    let are_others = |own: &[&str], written: &[&str]| {
        super::are_others(subnets(own).into_iter(), &subnets(written))
    };
    assert!(are_others(&["10.244.1.0/24"], &["10.244.2.0/24"]));
    assert!(!are_others(&["10.244.1.0/24"], &["10.244.1.0/24"]));
    assert!(!are_others(&["10.244.1.0/24"], &[]), "a reboot has taken the file");
    assert!(!are_others(&["10.244.1.0/24", "fd00:1::/64"], &["10.244.1.0/24"]));
}

#[test]
fn a_file_of_before_does_not_make_a_node_ready() {
    let progress = |subnet: Option<&str>, mtu| {
        let usable = subnet.map(|subnet| Usable {
            networks: vec!["10.244.0.0/16".parse().unwrap()],
            subnets: vec![subnet.parse().unwrap()],
            mtu,
        });
        Progress { has_no_subnet: usable.is_none(), usable, ..Progress::default() }
    };
    let policy = Policy::default();
    let lacks = |written: &Progress, wanted: &Progress| {
        let content = Content::of(written, &policy).unwrap();
        content.lacks(wanted, &policy).is_some()
    };
    let (none, own) = (progress(None, 1450), progress(Some("10.244.1.0/24"), 1450));
    assert!(lacks(&none, &own));
    assert!(lacks(&own, &progress(Some("10.244.9.0/24"), 1450)));
    assert!(!lacks(&own, &own));
    assert!(!lacks(&own, &progress(Some("10.244.1.0/24"), 1500)), "another MTU");
    // What the node lacks then is another reason.
    assert!(!lacks(&own, &none));
    assert!(!lacks(&own, &Progress::default()));
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_cannot_be_saved_is_retried() {
    let (change, changed) = watch::channel(());
    let tries = Cell::new(0);
    let save = async || {
        tries.set(tries.get() + 1);
        let is_full = tries.get() < 3;
        Ok(if is_full { Err(io::Error::from(io::ErrorKind::StorageFull)) } else { Ok(()) })
    };
    change.send_replace(());
    let is_missing = async || Ok(false);
    let kept = keep_saved(changed, Path::new("state.json"), save, is_missing);
    // No other change triggers a save.
    timeout(RETRY_SAVE * 10, kept).await.unwrap_err();
    assert_eq!(tries.get(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_is_removed_is_saved_again() {
    let (change, changed) = watch::channel(());
    let (is_there, saved) = (Cell::new(true), Cell::new(0));
    let save = async || {
        is_there.set(true);
        saved.set(saved.get() + 1);
        Ok(Ok(()))
    };
    let is_missing = async || Ok(!is_there.get());
    let mut kept = pin!(keep_saved(changed, Path::new("state.json"), save, is_missing));
    is_there.set(false);
    timeout(CHECK * 3, &mut kept).await.unwrap_err();
    assert_eq!(saved.get(), 0, "it may not be known yet what to save");
    change.send_replace(());
    timeout(CHECK * 3, &mut kept).await.unwrap_err();
    assert_eq!(saved.get(), 1);
    is_there.set(false);
    timeout(CHECK * 3, &mut kept).await.unwrap_err();
    assert_eq!(saved.get(), 2);
}

/// With a reverse path filter that was strict before `Mixed` relaxed it.
fn relaxed() -> NodeInputs {
    let config = r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"vxlan"}}"#;
    let link = LinkName::new("eth0");
    NodeInputs {
        config: NetworkConfig::parse(config.as_bytes()).unwrap(),
        node: Node {
            interface: link.clone(),
            mtu: 1500,
            layer2: true,
            on_link: Vec::new(),
            uplinks: Vec::new(),
            nexthops: false,
            firewalls: Firewalls::default(),
            sysctls: Sysctls::default(),
            kernel: Release::default(),
            on_segment: Vec::new(),
        },
        macs: [].into(),
        own: None,
        strict: [link].into(),
        leaving: [].into(),
        was_on_host_gw: false,
        policy: Policy::default(),
    }
}

#[test]
fn a_node_keeps_the_subnet_of_its_pods_until_a_boot() {
    let (_folder, file, _) = files();
    let file = format!("--subnet-file={}", file.display());
    let this = checkpoint::this_host();
    let name = |variable: &str| (variable == "NODE_NAME").then(|| "n1".to_owned());
    let cases = [
        (vec![file.clone()], this.clone(), true),
        (vec![file.clone()], HostId::default(), false),
        (vec![file, "--kube-subnet-mgr".to_owned()], this.clone(), true),
    ];
    for (flags, host, is_kept) in cases {
        let options = Options::parse(flags.clone(), name).unwrap();
        let (local, fallbacks) = (relaxed(), [].into());
        let saved = Checkpoint { local, leases: Vec::new(), fallbacks, host };
        checkpoint::save(&options.state_file, &saved).unwrap();
        let loaded = load_checkpoint(&options, &this).unwrap();
        assert_eq!(loaded.pods_may_remain(), is_kept, "{flags:?}");
    }
}

#[test]
fn strict_filters_are_remembered_until_a_boot_at_any_clock() {
    let (_folder, _, options) = files();
    let (now, year) = (SystemTime::now(), Duration::from_secs(365 * 24 * 3600));
    let this = checkpoint::this_host();
    for (host, is_remembered) in [(this.clone(), true), (HostId::default(), false)] {
        let (local, fallbacks) = (relaxed(), [].into());
        let checkpoint = Checkpoint { local, leases: Vec::new(), fallbacks, host };
        checkpoint::save(&options.state_file, &checkpoint).unwrap();
        for saved in [now - year, now, now + year] {
            let file = File::options().write(true).open(&options.state_file).unwrap();
            file.set_modified(saved).unwrap();
            let loaded = load_checkpoint(&options, &this).unwrap();
            assert_eq!(!loaded.local.strict.is_empty(), is_remembered, "{saved:?}");
        }
    }
}

fn files() -> (TempDir, PathBuf, Options) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("subnet.env");
    let options = [format!("--subnet-file={}", file.display())];
    (folder, file, Options::parse(options, |_| None).unwrap())
}

fn holding_a_lease() -> Checkpoint {
    let (id, endpoints) = (LeaseId::new("10.244.1.0-24"), Vec::new());
    let own = Some(Lease { id, endpoints, created: 5, grant: Some(7) });
    let (local, fallbacks) = (NodeInputs { own, ..relaxed() }, [].into());
    Checkpoint { local, leases: Vec::new(), fallbacks, host: checkpoint::this_host() }
}

#[tokio::test]
async fn a_subnet_file_is_withdrawn_even_if_the_checkpoint_cannot_be_saved() {
    let (folder, file, options) = files();
    let saved = holding_a_lease();
    let grant = || {
        let loaded = checkpoint::load::<Checkpoint>(&options.state_file).unwrap().unwrap();
        loaded.local.own.unwrap().grant
    };
    // In the way of the file that replaces the checkpoint.
    let name = options.state_file.file_name().unwrap().to_str().unwrap();
    let obstacle = folder.path().join(format!(".{name}.tmp"));
    for (is_savable, known) in [(false, Some(7)), (true, None)] {
        checkpoint::save(&options.state_file, &saved).unwrap();
        std::fs::write(&file, "").unwrap();
        if !is_savable {
            std::fs::create_dir_all(obstacle.join("not empty")).unwrap();
        }
        let files = (Blocking::Inline, &Turns::default());
        withdraw_subnet_file(&options, files, WithdrawalReason::Taken, None).await;
        assert!(!file.exists(), "{is_savable}");
        assert_eq!(grant(), known, "{is_savable}");
        let _ = std::fs::remove_dir_all(&obstacle);
    }
    std::fs::write(&file, "").unwrap();
    let files = (Blocking::Inline, &Turns::default());
    assert!(withdraw_subnet_file(&options, files, WithdrawalReason::Released, None).await);
    let loaded = checkpoint::load::<Checkpoint>(&options.state_file).unwrap().unwrap();
    assert!(!file.exists() && loaded.local.own.is_none());
}

#[tokio::test]
async fn a_subnet_file_of_this_daemon_is_withdrawn_without_a_checkpoint() {
    let (_folder, file, options) = files();
    let of = |subnet: &str| {
        let [networks, subnets] = ["10.244.0.0/16", subnet].map(|it| vec![it.parse().unwrap()]);
        Content::Subnets(SubnetEnv { networks, subnets, mtu: 1450, ip_masq: true })
    };
    of("10.244.1.1/24").put(&file).unwrap();
    for (subnet, is_gone) in [("10.244.2.1/24", false), ("10.244.1.1/24", true)] {
        let (files, taken) = ((Blocking::Inline, &Turns::default()), WithdrawalReason::Taken);
        withdraw_subnet_file(&options, files, taken, Some(of(subnet))).await;
        assert_eq!(!file.exists(), is_gone);
    }
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_late_ends_before_the_subnet_file_is_withdrawn() {
    let (_folder, file, options) = files();
    let saved = holding_a_lease();
    checkpoint::save(&options.state_file, &saved).unwrap();
    std::fs::write(&file, "").unwrap();
    let turns = Turns::default();
    let (go_on, wait) = std::sync::mpsc::channel();
    let turn = Arc::clone(&turns.checkpoint).lock_owned().await;
    let (state_file, late) = (options.state_file.clone(), saved.clone());
    let write = in_turn(Blocking::Threads, turn, move || {
        wait.recv().unwrap();
        checkpoint::save(&state_file, &late).unwrap();
    });
    // The task ends, and its thread goes on.
    let mut write = Box::pin(write);
    assert!(futures::poll!(&mut write).is_pending());
    drop(write);
    let files = (Blocking::Threads, &turns);
    let mut withdrawal =
        Box::pin(withdraw_subnet_file(&options, files, WithdrawalReason::Taken, None));
    assert!(futures::poll!(&mut withdrawal).is_pending());
    go_on.send(()).unwrap();
    assert!(withdrawal.await);
    let loaded = checkpoint::load::<Checkpoint>(&options.state_file).unwrap().unwrap();
    assert_eq!(loaded.local.own.unwrap().grant, None);
}

#[test]
fn a_key_that_other_users_may_read_or_write_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("client.key");
    assert_eq!(open_to_others(&key), None, "there is no such file");
    std::fs::write(&key, "").unwrap();
    for (mode, is_reported) in [(0o600, false), (0o640, false), (0o666, true), (0o602, true)] {
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(open_to_others(&key).is_some(), is_reported, "{mode:o}");
    }
}
