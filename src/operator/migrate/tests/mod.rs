//! Orders on a cluster in memory: the output, the config and the outcome.

#![allow(clippy::unwrap_used)]

mod decision;
mod harm;
mod operators;
mod plan;
mod reachability;
mod stages;
mod state;
mod status;
mod world;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::time::Duration;

use clap::Parser;
use expect_test::{Expect, expect};

use self::world::{Listens, MIXED, Runs, VXLAN, World, note, step};
use super::carry_out::{Author, carry_out};
use super::options::{MigrateCommand, Order};
use super::plan::MigrationPlan;
use super::state::{Note, Stage, Step};
use super::status::MigrationStatus;
use super::{Error, read};
use crate::model::config::BackendType;
use crate::model::path::Path;
use crate::operator::{Answer, Arguments, Command};
use crate::store::ClusterStore;
use crate::store::operator::{StoreContents, Swap, Unavailable, Written};

/// Happens to the cluster at the read with this number.
type Event = (usize, fn(&mut World));

/// A store in memory; its nodes apply a change at the second read after it.
struct Memory {
    world: RefCell<World>,
    reads: RefCell<usize>,
    events: Vec<Event>,
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
        let config = Some(Written { text: world.text.clone(), revision: world.revision });
        let holdings = StoreContents { config, records: world.records(), reports: world.reports() };
        world.follow();
        Ok(holdings)
    }

    async fn swap(&self, seen: i64, text: &str) -> Result<Swap, Unavailable> {
        let mut world = self.world.borrow_mut();
        if world.revision != seen {
            return Ok(Swap::Outdated);
        }
        world.put(text);
        Ok(Swap::Done(world.revision))
    }
}

fn order(line: &str) -> Order {
    let words = ["tweedctl", "migrate"].into_iter().chain(line.split(' '));
    match Arguments::try_parse_from(words).unwrap().command {
        Command::Migrate(options) => match options.command {
            MigrateCommand::Order(order) => order,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Runs the orders one after the other, each as a new process, and compares all output.
async fn check(world: World, lines: &[(&str, &[Event])], expected: &Expect) -> World {
    let mut world = world;
    let mut output = String::new();
    for (line, events) in lines {
        let memory =
            Memory { world: RefCell::new(world), reads: RefCell::new(0), events: events.to_vec() };
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
    assert_eq!(hold("90"), Duration::from_secs(90));
    assert_eq!(hold("90s"), Duration::from_secs(90));
    assert_eq!(hold("10m"), Duration::from_secs(600));
    assert_eq!(hold("2h"), Duration::from_secs(7200));
    let refused = Arguments::try_parse_from(["tweedctl", "migrate", "next", "--hold", "10d"]);
    assert!(refused.is_err());
}
