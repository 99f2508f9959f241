//! The parts of a network config that tests vary: backend and address families.

use crate::network::address::Family;
use crate::network::segment::SegmentPlan;

/// The backend of a cluster or a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backend {
    Vxlan,
    HostGw,
}

/// The address families of nodes and pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    V4,
    V6,
    Dual,
}

impl Backend {
    pub const BOTH: [Self; 2] = [Self::Vxlan, Self::HostGw];

    /// As in configs and leases.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vxlan => "vxlan",
            Self::HostGw => "host-gw",
        }
    }
}

impl Stack {
    pub fn families(self) -> &'static [Family] {
        match self {
            Self::V4 => &[Family::V4],
            Self::V6 => &[Family::V6],
            Self::Dual => &[Family::V4, Family::V6],
        }
    }

    /// The config, with `rest` after the networks: `"Mixed":true,"Backend":{"Type":"vxlan"}`.
    pub fn config(self, rest: &str) -> String {
        let networks = match self {
            Self::V4 => r#""Network":"10.244.0.0/16""#,
            Self::V6 => r#""EnableIPv4":false,"EnableIPv6":true,"IPv6Network":"fd00:244::/48""#,
            Self::Dual => {
                r#""Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48""#
            }
        };
        format!("{{{networks},{rest}}}")
    }

    /// Segment number `number` of the nodes.
    pub fn segment(self, number: usize) -> SegmentPlan {
        let (v4, v6) = (format!("10.99.{number}.0/24"), format!("fd99:{number}::/64"));
        match self {
            Self::V4 => SegmentPlan::new(&v4),
            Self::V6 => SegmentPlan::new(&v6),
            Self::Dual => SegmentPlan::new(&v4).and(&v6),
        }
    }
}
