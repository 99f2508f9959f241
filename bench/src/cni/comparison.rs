//! Both plugins, alternately, on stores with the same number of reservations.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use tweed_lab::Lab;

use super::call::{Container, Verb};
use super::host::Host;
use super::plugin::Plugin;
use crate::report::sample::Sample;

pub(super) struct Comparison<'a> {
    pub(super) reservations: u32,
    pub(super) tweed: Side<'a>,
    pub(super) debian: Side<'a>,
}

/// The node of one plugin, and the times of its calls.
pub(super) struct Side<'a> {
    pub(super) host: Host<'a>,
    pub(super) alone: Figures,
    pub(super) at_once: Figures,
}

#[derive(Default)]
pub(super) struct Figures {
    pub(super) add: Sample<Duration>,
    pub(super) del: Sample<Duration>,
}

impl<'a> Comparison<'a> {
    /// Both nodes find the files in `home` empty.
    pub(super) fn prepare(
        lab: &Lab,
        plugins: [Plugin<'a>; 2],
        home: &Path,
        reservations: u32,
    ) -> Result<Self> {
        let side = |plugin: Plugin<'a>, label: &str| {
            let name = format!("{label}-{reservations}");
            let host = Host::build(lab, &name, plugin, &home.join(label), reservations)?;
            let (alone, at_once) = Default::default();
            anyhow::Ok(Side { host, alone, at_once })
        };
        let [tweed, debian] = plugins;
        let (tweed, debian) = (side(tweed, "tweed")?, side(debian, "debian")?);
        Ok(Self { reservations, tweed, debian })
    }

    /// Each side adds and removes `container` twice in each round.
    pub(super) fn run_alone(&mut self, container: &Container, rounds: usize) -> Result<()> {
        (0..rounds).try_for_each(|_| self.round(|side| side.call_alone(container)))
    }

    /// Each side adds all `containers` at once, and then removes all at once.
    pub(super) fn run_at_once(&mut self, containers: &[Container], rounds: usize) -> Result<()> {
        (0..rounds).try_for_each(|_| self.round(|side| side.call_at_once(containers)))
    }

    /// The second plugin may be slowed by work that the first one has left to the kernel, so both
    /// take each place once.
    fn round(&mut self, run: impl Fn(&mut Side<'a>) -> Result<()>) -> Result<()> {
        let Self { tweed, debian, .. } = self;
        run(tweed)?;
        run(debian)?;
        run(debian)?;
        run(tweed)
    }
}

impl Side<'_> {
    fn call_alone(&mut self, container: &Container) -> Result<()> {
        self.alone.add.add(self.host.time(Verb::Add, container)?);
        self.alone.del.add(self.host.time(Verb::Del, container)?);
        Ok(())
    }

    fn call_at_once(&mut self, containers: &[Container]) -> Result<()> {
        let Self { host, at_once, .. } = self;
        host.time_all(Verb::Add, containers)?.into_iter().for_each(|took| at_once.add.add(took));
        host.time_all(Verb::Del, containers)?.into_iter().for_each(|took| at_once.del.add(took));
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
