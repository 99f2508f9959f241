//! How far a migration has come: who follows the new backend.

use std::fmt;

use super::picture::{Member, Picture};
use crate::model::config::{Kind, Rollout};

/// The nodes that follow: so many percent of all, and those that are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stage {
    pub percent: u8,
    pub nodes: Vec<String>,
}

/// What comes after the canaries, in percent.
const STEPS: [u8; 3] = [25, 50, 100];

/// Share of everybody.
pub const ALL: u8 = 100;

impl Stage {
    pub const fn percent(percent: u8) -> Self {
        Self { percent, nodes: Vec::new() }
    }

    /// The next stage by the rule; none once everybody follows.
    pub fn next(&self) -> Option<Self> {
        let percent = STEPS.into_iter().find(|step| *step > self.percent)?;
        Some(self.at(percent))
    }

    /// The stage before by the rule: fewer nodes, then the canaries alone, then nobody.
    #[must_use]
    pub fn previous(&self) -> Self {
        match STEPS.into_iter().rfind(|step| *step < self.percent) {
            Some(percent) => self.at(percent),
            None if self.percent > 0 => self.at(0),
            None => Self::default(),
        }
    }

    #[must_use]
    pub fn at(&self, percent: u8) -> Self {
        Self { percent, nodes: self.nodes.clone() }
    }

    /// How many nodes follow at this stage; those that do not report never do.
    pub fn taken(&self, picture: &Picture) -> usize {
        let reporting = picture.members.iter().filter(|member| member.report.is_some());
        reporting.filter(|member| self.takes(member)).count()
    }

    fn takes(&self, member: &Member) -> bool {
        let Self { percent, nodes } = self.clone();
        // Whence does not matter.
        Rollout { from: Kind::Vxlan, percent, nodes }.follows(member.names())
    }

    pub fn is_nobody(&self) -> bool {
        self.percent == 0 && self.nodes.is_empty()
    }

    pub const fn is_all(&self) -> bool {
        self.percent >= ALL
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes = self.nodes.join(", ");
        match (self.percent, nodes.as_str()) {
            (0, "") => f.write_str("nobody"),
            (0, nodes) => f.write_str(nodes),
            (ALL.., _) => f.write_str("all nodes"),
            (percent, "") => write!(f, "{percent} %"),
            (percent, nodes) => write!(f, "{percent} % and {nodes}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(stages: impl IntoIterator<Item = Stage>) -> Vec<String> {
        stages.into_iter().map(|stage| stage.to_string()).collect()
    }

    #[test]
    fn canaries_come_first_and_stay_on() {
        let canaries = Stage { percent: 0, nodes: vec!["10.0.0.7".into()] };
        let stages = std::iter::successors(Some(canaries), Stage::next);
        assert_eq!(
            told(stages),
            ["10.0.0.7", "25 % and 10.0.0.7", "50 % and 10.0.0.7", "all nodes"]
        );
    }

    #[test]
    fn a_share_of_ones_own_goes_on_with_the_next_larger_one() {
        let next = |percent| Stage::percent(percent).next().map(|stage| stage.percent);
        let cases = [(0, 25), (10, 25), (25, 50), (60, 100)];
        assert_eq!(cases.map(|(percent, _)| next(percent)), cases.map(|(_, then)| Some(then)));
        assert_eq!(next(100), None);
    }

    #[test]
    fn the_way_back_ends_with_nobody() {
        let all = Stage { percent: 100, nodes: vec!["n".into()] };
        let back = std::iter::successors(Some(all), |stage| {
            Some(stage.previous()).filter(|_| !stage.is_nobody())
        });
        assert_eq!(told(back), ["all nodes", "50 % and n", "25 % and n", "n", "nobody"]);
    }
}
