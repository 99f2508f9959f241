//! Some servers are dead, some hang, some leave: the others are used.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::{sleep, timeout};
use tweed::model::status::StoreState;
use tweed::store::claim::Previous;
use tweed::store::etcd::EtcdSubnetManager;
use tweed::store::{Documents, Leases};

use crate::fixture::log::Log;
use crate::fixture::node::{SUBNETS, V4, config, manager_of, next, options, value, vxlan};
use crate::fixture::refusal::{Calls, LEARNER, refuse_all};
use crate::fixture::server::{EtcdServer, TIMEOUT, port};

fn manager(endpoints: &[String]) -> Arc<EtcdSubnetManager> {
    manager_of(options(endpoints), Previous::default())
}

fn dead() -> String {
    format!("http://127.0.0.1:{}", port())
}

/// Starts several nodes, because each begins with another server.
async fn assert_all_get_a_lease(endpoints: &[String]) {
    for node in 1..=10 {
        let manager = manager(endpoints);
        let mut state = manager.state();
        let (config, node) = (config(V4), vxlan(&[format!("192.168.0.{node}").as_str()]));
        let away = state.wait_for(|state| matches!(state, StoreState::Unreachable(_)));
        tokio::select! {
            lease = timeout(TIMEOUT, manager.acquire(&config, &node)) => drop(lease.expect("no lease").unwrap()),
            away = away => panic!("{:?}", *away.unwrap()),
        }
        for _ in 0..20 {
            manager.acquire(&config, &node).await.unwrap();
        }
        assert_eq!(*manager.state().borrow(), StoreState::Reachable);
    }
}

#[tokio::test]
async fn one_dead_server_of_two_delays_nothing() {
    let server = EtcdServer::start().await;
    assert_all_get_a_lease(&[dead(), server.endpoint()]).await;
}

#[tokio::test]
async fn two_dead_servers_of_three_delay_nothing() {
    let server = EtcdServer::start().await;
    assert_all_get_a_lease(&[dead(), server.endpoint(), dead()]).await;
}

#[tokio::test]
async fn a_server_that_accepts_and_never_answers_is_replaced() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    let server = EtcdServer::start().await;
    for _ in 0..4 {
        let manager = manager(&[silent.clone(), server.endpoint()]);
        let (config, node) = (config(V4), vxlan(&["192.168.0.9"]));
        timeout(TIMEOUT / 2, manager.acquire(&config, &node)).await.unwrap().unwrap();
    }
}

/// It serves no request before it is promoted to a member.
#[tokio::test]
async fn a_learner_among_several_servers_is_skipped() {
    let server = EtcdServer::start().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let learner = format!("http://{}", listener.local_addr().unwrap());
    let calls = Calls::default();
    let refuses = refuse_all(listener, LEARNER, Calls::clone(&calls));
    let acquires = async {
        // Until the learner is tried first.
        while calls.borrow().is_empty() {
            let manager = manager(&[learner.clone(), server.endpoint()]);
            let (config, node) = (config(V4), vxlan(&["192.168.0.9"]));
            timeout(TIMEOUT / 2, manager.acquire(&config, &node)).await.expect("no lease").unwrap();
            assert_eq!(*manager.state().borrow(), StoreState::Reachable);
        }
    };
    LocalSet::new()
        .run_until(async {
            tokio::select! {
                () = refuses => {}
                () = acquires => {}
            }
        })
        .await;
}

#[tokio::test]
async fn unreachable_servers_and_their_return_are_logged_once() {
    let mut server = EtcdServer::start().await;
    let log = Log::catch();
    let manager = manager(&[server.endpoint()]);
    let (config, node) = (config(V4), vxlan(&["192.168.0.9"]));
    manager.acquire(&config, &node).await.unwrap();
    server.kill();
    let expected = StoreState::Unreachable(format!(
        "etcd at {}: tcp connect error: Connection refused (os error 111)",
        server.endpoint()
    ));
    let mut state = manager.state();
    let away = async {
        state.wait_for(|state| *state == expected).await.unwrap();
        // The request is retried, and nothing more is logged.
        sleep(Duration::from_secs(3)).await;
    };
    tokio::select! {
        lease = manager.acquire(&config, &node) => panic!("{lease:?}"),
        away = timeout(TIMEOUT, away) => away.unwrap_or_else(|_| panic!("{:?}", *manager.state().borrow())),
    }
    assert_eq!(*manager.state().borrow(), expected);
    server.run();
    timeout(TIMEOUT, manager.acquire(&config, &node)).await.unwrap().unwrap();
    assert_eq!(*manager.state().borrow(), StoreState::Reachable);
    let lines = log.lines();
    assert_eq!(lines.len(), 2, "{lines:#?}");
}

#[tokio::test]
async fn a_watch_continues_after_the_loss_of_the_leader() {
    let mut members = EtcdServer::start_cluster(3).await;
    let endpoints: Vec<String> = members.iter().map(EtcdServer::endpoint).collect();
    let managers: Vec<_> = (0..6).map(|_| manager(&endpoints)).collect();
    let node = vxlan(&["192.168.0.9"]);
    managers[0].acquire(&config(V4), &node).await.unwrap();
    let mut watches: Vec<_> = managers.iter().map(Leases::watch).collect();
    assert_eq!(next(&mut watches[0]).await, "snapshot []");
    assert_eq!(next(&mut watches[0]).await, "put 10.5.115.0-24@192.168.0.9");
    for updates in &mut watches[1..] {
        assert_eq!(next(updates).await, "snapshot [10.5.115.0-24@192.168.0.9]");
    }
    let mut leader = 0;
    for (index, member) in members.iter().enumerate() {
        leader = if member.is_leader().await { index } else { leader };
    }
    members[leader].kill();
    let survivor = &members[(leader + 1) % 3];
    put_once_possible(survivor).await;
    for updates in &mut watches {
        assert_eq!(next(updates).await, "put 10.5.4.0-24@10.0.0.4");
    }
    managers[0].acquire(&config(V4), &node).await.unwrap();
}

/// Puts a lease as soon as the member has a leader again.
async fn put_once_possible(member: &EtcdServer) {
    let (key, value) = (format!("{SUBNETS}10.5.4.0-24"), value("10.0.0.4"));
    while member.client().await.put(key.as_str(), value.as_str(), None).await.is_err() {}
}

#[tokio::test]
async fn a_member_that_hangs_is_replaced() {
    let members = EtcdServer::start_cluster(3).await;
    let endpoints: Vec<String> = members.iter().map(EtcdServer::endpoint).collect();
    let managers: Vec<_> = (0..6).map(|_| manager(&endpoints)).collect();
    let mut watches: Vec<_> = managers.iter().map(Leases::watch).collect();
    for updates in &mut watches {
        assert_eq!(next(updates).await, "snapshot []");
    }
    members[0].hang();
    put_once_possible(&members[1]).await;
    for updates in &mut watches {
        assert_eq!(next(updates).await, "put 10.5.4.0-24@10.0.0.4");
    }
    members[0].wake();
}

#[tokio::test]
async fn a_cluster_without_a_quorum_is_unreachable_although_one_member_answers() {
    let mut members = EtcdServer::start_cluster(3).await;
    let manager = manager(&[members[0].endpoint()]);
    let (mut updates, mut state) = (manager.watch(), manager.state());
    members[0].put(&format!("{SUBNETS}10.5.3.0-24"), &value("10.0.0.3")).await;
    assert_eq!(next(&mut updates).await, "snapshot [10.5.3.0-24@10.0.0.3]");
    members[0].put(&format!("{SUBNETS}10.5.4.0-24"), &value("10.0.0.4")).await;
    assert_eq!(next(&mut updates).await, "put 10.5.4.0-24@10.0.0.4");
    members[1].kill();
    members[2].kill();
    let away = state.wait_for(|state| matches!(state, StoreState::Unreachable(_)));
    tokio::select! {
        away = timeout(TIMEOUT, away) => drop(away.expect("nothing noticed").unwrap()),
        update = next(&mut updates) => panic!("{update}"),
    }
    members[1].run();
    members[1].answers().await;
    members[1].put(&format!("{SUBNETS}10.5.5.0-24"), &value("10.0.0.5")).await;
    assert_eq!(next(&mut updates).await, "put 10.5.5.0-24@10.0.0.5");
}
