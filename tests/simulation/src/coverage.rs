//! Which faults met each other, and which met which state of a flip.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use clap::ValueEnum;

use crate::act::{Act, Backend, Config};
use crate::dice::{AROUND, Script};
use crate::fault::Fault;

/// What the dice have thrown in all histories so far.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    faults: Vec<Fault>,
    flips: BTreeMap<(Fault, Flip), u64>,
    meetings: BTreeMap<(Fault, Fault), u64>,
}

/// The state of the migration at the time of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Flip {
    Vxlan,
    DirectRouting,
    HostGw,
    Rollout,
    /// Without `Mixed`.
    Finished,
    /// The config was edited a moment ago.
    Begun,
    /// There is no valid config.
    Mistake,
}

const FLIPS: [(Flip, &str); 7] = [
    (Flip::Vxlan, "vxlan"),
    (Flip::DirectRouting, "direct"),
    (Flip::HostGw, "host-gw"),
    (Flip::Rollout, "rollout"),
    (Flip::Finished, "finished"),
    (Flip::Begun, "edited"),
    (Flip::Mistake, "invalid"),
];
/// The number of pairs that are listed if they never met.
const LISTED: usize = 10;

impl Coverage {
    /// For dice with these faults.
    pub fn new(faults: &[Fault]) -> Self {
        let mut faults = faults.to_vec();
        faults.sort_unstable();
        faults.dedup();
        Self { faults, ..Self::default() }
    }

    pub fn add(&mut self, script: &Script) {
        for (number, (at, fault)) in script.thrown.iter().enumerate() {
            *self.flips.entry((*fault, flip(script, *at))).or_default() += 1;
            for (_, other) in
                script.thrown.iter().skip(number + 1).filter(|it| it.0.abs_diff(*at) <= AROUND)
            {
                let pair = (*fault.min(other), *fault.max(other));
                *self.meetings.entry(pair).or_default() += 1;
            }
        }
    }

    /// All pairs of faults, a fault with itself included.
    fn pairs(&self) -> impl Iterator<Item = (Fault, Fault)> + '_ {
        let faults = self.faults.iter().enumerate();
        faults.flat_map(|(number, one)| {
            self.faults.iter().skip(number).map(move |other| (*one, *other))
        })
    }
}

/// Before this moment.
fn flip(script: &Script, at: Duration) -> Flip {
    let mut edits = script.steps.iter().filter_map(|step| match step.act {
        Act::Configure(config) => Some((step.at, config)),
        _ => None,
    });
    match edits.rfind(|(edited, _)| *edited < at) {
        Some((_, Config::Missing | Config::Malformed(_) | Config::OtherNetwork)) => Flip::Mistake,
        Some((edited, _)) if at.saturating_sub(edited) <= AROUND => Flip::Begun,
        None | Some((_, Config::Mixed(Backend::Vxlan))) => Flip::Vxlan,
        Some((_, Config::Mixed(Backend::DirectRouting))) => Flip::DirectRouting,
        Some((_, Config::Mixed(Backend::HostGw))) => Flip::HostGw,
        Some((_, Config::Rollout(_))) => Flip::Rollout,
        Some((_, Config::Finished(_))) => Flip::Finished,
    }
}

fn name(fault: Fault) -> String {
    fault.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default()
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<19}", "fault while")?;
        FLIPS.iter().try_for_each(|(_, name)| write!(f, "{name:>9}"))?;
        writeln!(f)?;
        for fault in &self.faults {
            write!(f, "{:<19}", name(*fault))?;
            for (flip, _) in FLIPS {
                write!(f, "{:>9}", self.flips.get(&(*fault, flip)).copied().unwrap_or_default())?;
            }
            writeln!(f)?;
        }
        let all = self.pairs().count();
        let never: Vec<_> = self.pairs().filter(|pair| !self.meetings.contains_key(pair)).collect();
        let seconds = AROUND.as_secs();
        write!(f, "{} of {all} pairs of faults met within {seconds} s", all - never.len())?;
        if let Some(least) = self.meetings.values().min().filter(|_| never.is_empty()) {
            write!(f, ", each at least {least} times")?;
        }
        let listed: Vec<String> = never
            .iter()
            .take(LISTED)
            .map(|(one, other)| format!("{} and {}", name(*one), name(*other)))
            .collect();
        if !listed.is_empty() {
            write!(f, "; not, for example: {}", listed.join(", "))?;
        }
        writeln!(f)
    }
}
