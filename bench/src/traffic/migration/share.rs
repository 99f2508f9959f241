//! The nodes on host-gw, and the config that selects them.

use std::net::IpAddr;

use tweed::model::config::{BackendType, Rollout};

/// The first `near` nodes of the segment as names, and the percentage of the rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    named: u8,
    percent: u8,
}

pub(super) const NO_NODE: Share = Share { named: 0, percent: 0 };
pub(super) const ALL: Share = Share { named: 0, percent: 100 };

const NETWORK: &str = r#""Network":"10.244.0.0/16""#;
const FIRST: u8 = 11;

/// Without `Mixed`: all nodes on one backend.
pub(super) fn plain(backend: &str) -> String {
    format!(r#"{{{NETWORK},"Backend":{{"Type":"{backend}"}}}}"#)
}

impl Share {
    pub(super) const fn named(named: u8) -> Self {
        Self { named, percent: 0 }
    }

    pub(super) const fn and_percent(self, percent: u8) -> Self {
        Self { percent, ..self }
    }

    pub(super) fn follows(self, node: IpAddr) -> bool {
        self.rollout().follows([node])
    }

    /// The config with `Mixed`.
    pub(super) fn config(self) -> String {
        let Rollout { percent, nodes, .. } = self.rollout();
        let rollout = match self {
            NO_NODE => {
                return format!(r#"{{{NETWORK},"Mixed":true,"Backend":{{"Type":"vxlan"}}}}"#);
            }
            ALL => String::new(),
            Self { .. } => format!(
                r#","Rollout":{{"From":{{"Type":"vxlan"}},"Percent":{percent},"Nodes":{nodes:?}}}"#
            ),
        };
        format!(r#"{{{NETWORK},"Mixed":true,"Backend":{{"Type":"host-gw"}}{rollout}}}"#)
    }

    fn rollout(self) -> Rollout {
        let nodes = (FIRST..FIRST + self.named).map(|last| format!("10.99.1.{last}")).collect();
        Rollout { from: BackendType::Vxlan, percent: self.percent, nodes }
    }
}
