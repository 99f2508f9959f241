//! Both rivals on stores with the same number of reservations, in turns.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use tweed_lab::Lab;

use super::call::{Container, Verb};
use super::host::Host;
use super::rival::Rival;
use crate::report::sample::Sample;

pub(super) struct Contest<'a> {
    pub(super) reservations: u32,
    pub(super) ours: Lane<'a>,
    pub(super) theirs: Lane<'a>,
}

/// A rival's node, and what calls took there.
pub(super) struct Lane<'a> {
    pub(super) host: Host<'a>,
    pub(super) alone: Figures,
    pub(super) crowd: Figures,
}

#[derive(Default)]
pub(super) struct Figures {
    pub(super) add: Sample<Duration>,
    pub(super) del: Sample<Duration>,
}

impl<'a> Contest<'a> {
    /// With files in `home`, which both find empty.
    pub(super) fn prepare(
        lab: &Lab,
        rivals: [Rival<'a>; 2],
        home: &Path,
        reservations: u32,
    ) -> Result<Self> {
        let lane = |rival: Rival<'a>, label: &str| {
            let name = format!("{label}-{reservations}");
            let host = Host::build(lab, &name, rival, &home.join(label), reservations)?;
            let (alone, crowd) = Default::default();
            anyhow::Ok(Lane { host, alone, crowd })
        };
        let [ours, theirs] = rivals;
        let (ours, theirs) = (lane(ours, "ours")?, lane(theirs, "theirs")?);
        Ok(Self { reservations, ours, theirs })
    }

    /// `container` comes and goes, twice in each round on either side.
    pub(super) fn run_alone(&mut self, container: &Container, rounds: usize) -> Result<()> {
        (0..rounds).try_for_each(|_| self.round(|lane| lane.call_alone(container)))
    }

    /// All of `containers` come, and then all of them go; else the same.
    pub(super) fn run_at_once(&mut self, containers: &[Container], rounds: usize) -> Result<()> {
        (0..rounds).try_for_each(|_| self.round(|lane| lane.call_at_once(containers)))
    }

    /// Who comes second may still feel what the first has left to the kernel: so both do.
    fn round(&mut self, run: impl Fn(&mut Lane<'a>) -> Result<()>) -> Result<()> {
        let Self { ours, theirs, .. } = self;
        run(ours)?;
        run(theirs)?;
        run(theirs)?;
        run(ours)
    }
}

impl Lane<'_> {
    fn call_alone(&mut self, container: &Container) -> Result<()> {
        self.alone.add.add(self.host.time(Verb::Add, container)?);
        self.alone.del.add(self.host.time(Verb::Del, container)?);
        Ok(())
    }

    fn call_at_once(&mut self, containers: &[Container]) -> Result<()> {
        let Self { host, crowd, .. } = self;
        host.time_all(Verb::Add, containers)?.into_iter().for_each(|took| crowd.add.add(took));
        host.time_all(Verb::Del, containers)?.into_iter().for_each(|took| crowd.del.add(took));
        Ok(())
    }
}

impl Figures {
    pub(super) const fn of(&self, verb: Verb) -> &Sample<Duration> {
        match verb {
            Verb::Add => &self.add,
            Verb::Del => &self.del,
        }
    }
}
