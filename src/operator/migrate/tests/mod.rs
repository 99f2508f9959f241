//! Orders on a cluster in memory: the output, the config and the outcome.

#![allow(clippy::unwrap_used)]

mod decision;
mod harm;
mod operators;
mod outage;
mod plan;
mod reachability;
mod stages;
mod state;
mod status;
mod store;
mod world;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::mem;
use std::time::Duration;

use clap::Parser;
use expect_test::{Expect, expect};

use self::world::{Access, Listens, MIXED, Runs, VXLAN, World, note, percent, step};
use super::carry_out::{Author, carry_out};
use super::options::{MigrateCommand, MigrateOptions, Order};
use super::plan::{MigrationPlan, Shown};
use super::state::{Note, Stage, Step};
use super::status::MigrationStatus;
use super::{Error, answer, read};
use crate::model::config::BackendType;
use crate::model::lease::LeaseId;
use crate::model::path::Path;
use crate::model::prefix::Family;
use crate::operator::{Answer, Arguments, Command};
use crate::store::ClusterStore;
use crate::store::operator::{StoreContents, StoreLocation, Swap, Unavailable, Written};

/// Happens to the cluster at the read with this number.
type Event = (usize, fn(&mut World));

/// A store in memory; its nodes apply a change at the second read after it.
struct Memory {
    world: RefCell<World>,
    reads: RefCell<usize>,
    events: Vec<Event>,
}

impl Memory {
    fn new(world: World, events: &[Event]) -> Self {
        Self { world: RefCell::new(world), reads: RefCell::new(0), events: events.to_vec() }
    }
}

impl ClusterStore for Memory {
    fn config_name(&self) -> String {
        "key /coreos.com/network/config".to_owned()
    }

    fn hint(&self) -> &'static str {
        "name the servers"
    }

    async fn read(&self) -> Result<StoreContents, Unavailable> {
        let (mut world, mut reads) = (self.world.borrow_mut(), self.reads.borrow_mut());
        *reads += 1;
        let due = self.events.iter().filter(|(at, _)| *at == *reads);
        due.for_each(|(_, event)| event(&mut world));
        if world.access == Access::Unreachable {
            return Err(no_answer());
        }
        let config = Some(Written { text: world.text.clone(), revision: world.revision });
        let holdings = StoreContents { config, records: world.records(), reports: world.reports() };
        world.follow();
        Ok(holdings)
    }

    async fn swap(&self, seen: i64, text: &str) -> Result<Swap, Unavailable> {
        let mut world = self.world.borrow_mut();
        if [Access::Unreachable, Access::ReadOnly].contains(&world.access) {
            return Err(no_answer());
        }
        let access = mem::replace(&mut world.access, Access::Answers);
        if access == Access::ChangesRevision {
            changes_revision(&mut world);
        }
        if world.revision != seen {
            return Ok(Swap::Outdated);
        }
        world.put(text);
        if access == Access::LosesAnswer {
            Err(no_answer())
        } else {
            Ok(Swap::Done(world.revision))
        }
    }
}

fn no_answer() -> Unavailable {
    Unavailable("no answer from etcd".to_owned())
}

/// In Kubernetes, another key of the ConfigMap changes.
fn changes_revision(world: &mut World) {
    world.revision += 1;
}

fn options(line: &str) -> MigrateOptions {
    let words = ["tweedctl", "migrate"].into_iter().chain(line.split(' '));
    match Arguments::try_parse_from(words).unwrap().command {
        Command::Migrate(options) => options,
        other => panic!("{other:?}"),
    }
}

fn order(line: &str) -> Order {
    match options(line).command {
        MigrateCommand::Order(order) => order,
        other => panic!("{other:?}"),
    }
}

/// Runs the orders one after the other, each as a new process, and compares all output.
async fn check(world: World, lines: &[(&str, &[Event])], expected: &Expect) -> World {
    let mut world = world;
    let mut output = String::new();
    for (line, events) in lines {
        let memory = Memory::new(world, events);
        let author = Author::new(note(0));
        let mut progress = Vec::new();
        let ended = carry_out(&memory, author, &order(line), &mut progress).await.unwrap();
        let progress = String::from_utf8(progress).unwrap();
        writeln!(output, "# {line}\n{progress}{ended}{:?}", ended.exit_status()).unwrap();
        world = memory.world.into_inner();
    }
    assert!(output.lines().all(|line| line.chars().count() <= 80), "{output}");
    expected.assert_eq(&output);
    world
}

fn falls_back(world: &mut World) {
    world.reports_path(1, 2, Some(Path::Tunnel), "its direct path did not answer");
}

#[test]
fn times_are_read_as_people_write_them() {
    let hold = |text: &str| order(&format!("next --hold {text}")).options().hold;
    assert_eq!(hold("90s"), Duration::from_secs(90));
    assert_eq!(hold("1m30s"), Duration::from_secs(90));
    assert_eq!(hold("10m"), Duration::from_secs(600));
    assert_eq!(hold("2h"), Duration::from_secs(7200));
    // A number alone would be seconds for one reader and minutes for another.
    for wrong in ["90", "10d", "-5s", "soon"] {
        let hold = format!("--hold={wrong}");
        assert!(
            Arguments::try_parse_from(["tweedctl", "migrate", "next", &hold]).is_err(),
            "{hold}"
        );
    }
}

/// The store of a daemon that has a client certificate.
fn location(username: Option<&str>) -> StoreLocation {
    StoreLocation::Etcd {
        endpoints: vec!["https://10.0.0.1:2379".into(), "https://10.0.0.2:2379".into()],
        prefix: "/net".into(),
        ca_file: Some("/etc/ca.pem".into()),
        cert_file: Some("/etc/cert.pem".into()),
        key_file: Some("/etc/key.pem".into()),
        username: username.map(str::to_owned),
    }
}

#[test]
fn what_is_not_given_is_the_store_of_the_daemon() {
    let located = |line: &str, variables: &'static [(&str, &str)]| {
        let environment = |name: &str| {
            let value = variables.iter().find(|(variable, _)| *variable == name);
            value.map(|(_, value)| (*value).to_owned())
        };
        options(line).store.etcd.located(&location(None), environment).unwrap()
    };
    let all = located("status", &[]);
    assert_eq!(all.endpoints, ["https://10.0.0.1:2379", "https://10.0.0.2:2379"]);
    assert_eq!((all.prefix.as_str(), all.ca_file), ("/net", Some("/etc/ca.pem".into())));
    assert_eq!(all.cert_file.zip(all.key_file).unwrap().1, std::path::Path::new("/etc/key.pem"));
    let by_flag = located("status --etcd-prefix /other", &[("FLANNELD_ETCD_PREFIX", "/third")]);
    assert_eq!((by_flag.prefix.as_str(), by_flag.endpoints.len()), ("/other", 2));
    let by_variable = located("status", &[("FLANNELD_ETCD_PREFIX", "/third")]);
    assert_eq!(by_variable.prefix, "/third");
}

/// Its store may be another one than the default, which would be read and changed instead.
#[tokio::test(start_paused = true)]
async fn a_daemon_that_does_not_answer_leaves_the_store_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("tweed.sock");
    let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let etcd = options("status").store.etcd;
    let error = etcd.near(&socket).await.err().map(|error| error.to_string());
    let expected = format!("the daemon on {} does not answer: name its store", socket.display());
    assert!(error.as_ref().is_some_and(|error| error.starts_with(&expected)), "{error:?}");
    std::fs::remove_file(&socket).unwrap();
    assert!(etcd.near(&socket).await.is_ok(), "without a daemon, there is a default");
}

#[test]
fn a_store_that_needs_more_is_explained() {
    let nothing = |_: &str| None;
    let explained = |location| {
        let located = options("status").store.etcd.located(&location, nothing);
        located.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(explained(StoreLocation::Kubernetes).ends_with("add --kube-subnet-mgr"));
    assert!(
        explained(location(Some("net"))).ends_with("user net of etcd: set FLANNELD_ETCD_PASSWORD")
    );
    let password = |name: &str| (name == "FLANNELD_ETCD_PASSWORD").then(|| "secret".to_owned());
    let with_password =
        options("status").store.etcd.located(&location(Some("net")), password).unwrap();
    assert!(with_password.credentials.is_some());
}
