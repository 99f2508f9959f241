//! A small storm, with the properties that a large one needs.
#![allow(clippy::unwrap_used, reason = "for tests")]

use std::time::Duration;

use anyhow::Result;
use tweed_lab::storm::{Settings, run};

const NODES: usize = 50;

/// The storm itself requires that all nodes have their own subnets and see all others after every
/// phase.
#[test]
fn a_storm_costs_one_read_per_node_and_no_conflict() -> Result<()> {
    let settings = Settings {
        nodes: NODES,
        // About as many subnets as nodes.
        network: "10.244.0.0/18".to_owned(),
        changes: 3,
        calm: Duration::from_secs(3),
        renewal: Duration::from_secs(1),
        ..Settings::default()
    };
    let report = run(&settings)?;
    let nodes = u64::try_from(NODES)?;
    let [bare, leases, cold, churn, away, restart] = &report.phases[..] else { panic!("{report}") };
    assert_eq!(leases.conflicts(), 0, "{report}");
    let asked = ["Range", "LeaseGrant", "Txn"].map(|method| bare.cost.calls(method));
    assert_eq!(asked, [nodes; 3], "these requests are the minimum\n{report}");
    assert_eq!(cold.conflicts(), 0, "{report}");
    assert_eq!(cold.listings, nodes, "{report}");
    assert_eq!(churn.listings, 1, "only a node that joins reads all leases\n{report}");
    assert_eq!(away.listings, 0, "{report}");
    // A node that finds etcd busy writes its reading for the others.
    let written = restart.cost.calls("Txn");
    assert!(written < nodes / 5, "what is published already was written again\n{report}");
    Ok(())
}
