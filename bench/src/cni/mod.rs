//! The time that a pod waits for the CNI plugin: tweed's against Debian's `bridge` and
//! `host-local`.

// What is measured.
mod calls;
mod programs;

// What it is measured with.
mod call;
mod comparison;
mod host;
mod memory;
mod plugin;
mod store;

use std::path::Path;

use anyhow::{Context, Result};
use tweed_lab::Lab;

use crate::report::sheet::Sheet;
use call::Container;
use comparison::Comparison;
use plugin::Plugin;

/// The number of containers that start at once.
const AT_ONCE: usize = 50;

/// The number of reservations before each call, from an empty node to one with room for ten more;
/// and the divisor of the number of rounds, because `host-local` reads every reservation.
const STORES: [(u32, usize); 4] = [(0, 1), (USUAL, 1), (20_000, 5), (store::ALL - 10, 20)];
/// The number of reservations on a full node.
const USUAL: u32 = 250;
/// A store with more reservations than this has no room for many containers at once.
const LARGEST: u32 = 20_000;

/// All stores are in memory, so that no disk is measured.
pub(crate) fn run(flannel: &Path, rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let flannel = flannel.canonicalize().with_context(|| flannel.display().to_string())?;
    let lab = Lab::bare()?;
    let containers = containers(&lab, AT_ONCE)?;
    let container = containers.first().context("no container")?;
    let mut comparisons = Vec::new();
    for (reservations, part) in STORES {
        let plugins = [Plugin::Flannel(&flannel), Plugin::Bridge];
        let home = lab.folder().join(reservations.to_string());
        let mut comparison = Comparison::prepare(&lab, plugins, &home, reservations)?;
        comparison.run_alone(container, rounds.div_ceil(part))?;
        if reservations <= LARGEST {
            comparison.run_at_once(&containers, rounds.div_ceil(part * 20))?;
        }
        comparisons.push(comparison);
    }
    calls::show(&comparisons, sheet)?;
    let usual = comparisons.iter().find(|comparison| comparison.reservations == USUAL);
    programs::run(usual.context("no usual node")?, container, rounds.div_ceil(10), sheet)
}

fn containers(lab: &Lab, count: usize) -> Result<Vec<Container>> {
    let container = |number| {
        let namespace = lab.namespace(&format!("pod{number}"))?;
        Ok(Container { id: format!("{number:0>64}"), namespace })
    };
    (0..count).map(container).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides are Debian's plugins, so that the test needs no build.
    #[test]
    fn every_call_of_a_comparison_is_timed_and_leaves_the_store_unchanged() -> Result<()> {
        let lab = Lab::bare()?;
        let containers = containers(&lab, 3)?;
        let mut comparison = Comparison::prepare(&lab, [Plugin::Bridge; 2], lab.folder(), 5)?;
        comparison.run_alone(&containers[0], 1)?;
        comparison.run_at_once(&containers, 1)?;
        for side in [&comparison.tweed, &comparison.debian] {
            for figures in [&side.alone, &side.at_once] {
                assert!(!figures.add.min().is_zero() && !figures.del.min().is_zero());
            }
            let memory = side.host.memory(side.host.plugin.program(), &containers[0])?;
            assert!((500..100_000).contains(&memory), "{memory} KiB");
        }
        let records = std::fs::read_dir(lab.folder().join("tweed/networks/cbr0"))?.count();
        assert_eq!(records, 5 + ["lock", "last_reserved_ip.0"].len());
        Ok(())
    }
}
