//! Histories of leases: only the final state matters.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tweed::control::Inputs;
use tweed::mac::MacAddr;
use tweed::model::entry::Key;
use tweed::model::lease::{Lease, LeaseId, LeaseUpdate, Rules, Vtep, Withdrawal};
use tweed::model::node_inputs::NodeInputs;
use tweed::plan::backend::{self, Backend};
use tweed::plan::desired::{Desired, plan_leases};

use crate::any::{node, peer};
use crate::cases;
use crate::notation::{lease, local, malformed, record};

/// Keeps a plan up to date, as the loop does.
struct Planner {
    inputs: Inputs,
    backends: Vec<Backend>,
    desired: Desired,
    affected: BTreeSet<LeaseId>,
    touched: BTreeSet<Key>,
}

impl Planner {
    fn new(local: &NodeInputs) -> Self {
        let backends = backend::backends(local);
        let mut planner = Self {
            inputs: Inputs {
                policy: local.policy.clone(),
                config: Some(local.config.clone()),
                node: Some(local.node.clone()),
                macs: local.macs.clone(),
                own: local.own.clone(),
                ..Inputs::default()
            },
            desired: Desired::new(backend::plan_local(local), Vec::new()),
            backends,
            affected: BTreeSet::new(),
            touched: BTreeSet::new(),
        };
        planner.inputs.peers.validate_by(local.rules());
        planner.take(Step::Snapshot(vec![]));
        planner
    }

    fn take(&mut self, step: Step) {
        self.take_burst([step]);
    }

    /// Applies any number of steps, and updates the plan once.
    fn take_burst(&mut self, steps: impl IntoIterator<Item = Step>) {
        let peers = &mut self.inputs.peers;
        self.affected = BTreeSet::new();
        for step in steps {
            match step {
                Step::Put(lease) => peers.update(LeaseUpdate::Put(record(lease))),
                Step::Spoil(id) => peers.update(LeaseUpdate::Put(malformed(id, "it is no JSON"))),
                Step::Remove(id) => peers.update(LeaseUpdate::Remove(id)),
                Step::Snapshot(leases) => {
                    let records = leases.into_iter().map(record).collect();
                    peers.update(LeaseUpdate::Snapshot(records));
                }
                Step::Withdraw => match peers.withdraw(100) {
                    Withdrawal::Done(affected) => self.affected.extend(affected),
                    Withdrawal::Limited { .. } => panic!("the store named us all along"),
                },
            }
        }
        self.affected.extend(peers.take_affected());
        let peers = &self.inputs.peers;
        let changes = self.affected.iter().map(|id| (id, peers.peer(id)));
        let changes = plan_leases(changes, &self.backends, &self.inputs.fallbacks);
        self.touched = self.desired.revise(changes);
    }

    /// The same plan, computed at once.
    fn planned_again(&self) -> Desired {
        let mut peers = self.inputs.peers.clone();
        // Once no lease is valid, no earlier claim remains.
        peers.validate_by(Rules::default());
        Desired::plan(&self.inputs.local().unwrap(), &mut peers, &self.inputs.fallbacks)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Put(Lease),
    Spoil(LeaseId),
    Remove(LeaseId),
    Snapshot(Vec<Lease>),
    Withdraw,
}

fn id() -> impl Strategy<Value = LeaseId> {
    select(vec!["a", "b", "c", "d", "e"]).prop_map(LeaseId::new)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => peer().prop_map(Step::Put),
        1 => id().prop_map(Step::Spoil),
        2 => id().prop_map(Step::Remove),
        1 => vec(peer(), 0..5).prop_map(Step::Snapshot),
        2 => Just(Step::Withdraw),
    ]
}

/// Such leases contest no MAC address.
fn undisputed() -> impl Strategy<Value = Lease> {
    peer().prop_map(|mut lease| {
        for endpoint in &mut lease.endpoints {
            if let Some(vtep) = &mut endpoint.vtep {
                vtep.mac = Vtep::derived_mac(endpoint.public_ip, 1);
            }
        }
        lease
    })
}

/// A lease with one of a few MAC addresses, which may belong to its public IP, to another one or to
/// none.
fn claim() -> impl Strategy<Value = Lease> {
    let owners = ["172.16.0.6", "172.16.0.7"].map(|ip| Vtep::derived_mac(ip.parse().unwrap(), 1));
    let macs = [owners[0], owners[1], MacAddr::new([2, 0, 0, 0, 0, 1])];
    (peer(), select(macs.to_vec())).prop_map(|(mut lease, mac)| {
        for vtep in lease.endpoints.iter_mut().filter_map(|endpoint| endpoint.vtep.as_mut()) {
            vtep.mac = mac;
        }
        lease
    })
}

/// The states of one lease, in order.
fn fate(lease: impl Strategy<Value = Lease>) -> impl Strategy<Value = Vec<Option<Lease>>> {
    vec(proptest::option::weighted(0.8, lease), 1..4)
}

/// The final state of `fates`.
fn end(fates: &[Vec<Option<Lease>>]) -> Vec<Lease> {
    let last = |fate: &Vec<Option<Lease>>| fate.last().cloned().flatten();
    let names = ["a", "b", "c", "d", "e"].map(LeaseId::new);
    let end = names.into_iter().zip(fates);
    end.filter_map(|(id, fate)| Some(Lease { id, ..last(fate)? })).collect()
}

/// Each lease keeps its own order; `draws` determines how they mix. Every step is sent twice.
fn interleaved(fates: &[Vec<Option<Lease>>], draws: &[usize]) -> Vec<Step> {
    let mut left: Vec<_> = fates.iter().map(|fate| fate.iter()).collect();
    let mut steps = Vec::new();
    let mut draw = |number: usize| {
        let name = LeaseId::new(["a", "b", "c", "d", "e"][number]);
        let next = left[number].next();
        let step = next.map(|lease| match lease {
            Some(lease) => Step::Put(Lease { id: name.clone(), ..lease.clone() }),
            None => Step::Remove(name),
        });
        steps.extend(step.iter().cloned().chain(step.clone()));
    };
    draws.iter().map(|number| number % fates.len()).for_each(&mut draw);
    (0..fates.len()).cycle().take(4 * fates.len()).for_each(draw);
    steps
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn an_updated_plan_equals_a_new_plan(
        local in node(),
        bursts in vec(vec(step(), 1..4), 1..16),
    ) {
        let mut planner = Planner::new(&local);
        for burst in bursts {
            let before = planner.desired.state().clone();
            planner.take_burst(burst);
            let again = planner.planned_again();
            prop_assert_eq!(planner.desired.state(), again.state());
            prop_assert_eq!(planner.desired.peers(), again.peers());
            let keys: BTreeSet<_> = before.keys().chain(again.state().keys()).collect();
            for key in keys {
                let changed = before.get(&key) != again.state().get(&key);
                prop_assert!(!changed || planner.touched.contains(&key), "{:?}", key);
            }
        }
    }

    #[test]
    fn only_the_end_of_a_history_counts(
        local in node(),
        fates in vec(fate(undisputed()), 5),
        one in vec(0..5_usize, 0..20),
        other in vec(0..5_usize, 0..20),
    ) {
        let mut planners = [one, other].map(|draws| {
            let mut planner = Planner::new(&local);
            for step in interleaved(&fates, &draws) {
                planner.take(step);
            }
            planner.take(Step::Withdraw);
            planner
        });
        let mut at_once = Planner::new(&local);
        at_once.take(Step::Snapshot(end(&fates)));
        for planner in &mut planners {
            prop_assert_eq!(planner.desired.state(), at_once.desired.state());
            prop_assert_eq!(planner.desired.peers(), at_once.desired.peers());
        }
    }

    /// The holder of a contested MAC address may depend on the history until all leases are listed.
    #[test]
    fn observers_of_different_histories_agree_once_they_have_listed_the_same(
        local in node(),
        fates in vec(fate(claim()), 5),
        one in vec(0..5_usize, 0..20),
        other in vec(0..5_usize, 0..20),
    ) {
        let listing = end(&fates);
        let planners = [one, other].map(|draws| {
            let mut planner = Planner::new(&local);
            for step in interleaved(&fates, &draws) {
                planner.take(step);
                let again = planner.planned_again();
                prop_assert_eq!(planner.desired.state(), again.state());
            }
            planner.take(Step::Snapshot(listing.clone()));
            planner.take(Step::Withdraw);
            Ok(planner)
        });
        let mut starts = Planner::new(&local);
        starts.take(Step::Snapshot(listing));
        for planner in planners {
            let planner = planner?;
            prop_assert_eq!(planner.desired.state(), starts.desired.state());
            prop_assert_eq!(planner.desired.peers(), starts.desired.peers());
        }
    }
}

#[test]
fn one_changed_peer_costs_one_peers_plan() {
    let local = local(r#"{"Network":"10.0.0.0/8"}"#, "eth0 172.16.0.5/16", "10.0.1.0/24");
    let peer = |number: u32, backend: &str| {
        let (high, low) = (number / 250 + 1, number % 250 + 1);
        lease(&format!("10.{high}.{low}.0/24@172.16.{high}.{low} {backend}"))
    };
    let mut planner = Planner::new(&local);
    planner.take(Step::Snapshot((0..5000).map(|number| peer(number, "")).collect()));
    assert_eq!(planner.affected.len(), 5000);
    planner.take(Step::Put(peer(2500, "host-gw")));
    assert_eq!(planner.affected, [peer(2500, "").id].into());
    assert_eq!(planner.touched.len(), 4);
}
