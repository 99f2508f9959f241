//! The invariants that hold at the end of a history, once faults are over.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use tweed::model::entry::{Entry, Key, PROTOCOL, RouteKind};
use tweed::model::path::Path;
use tweed::model::prefix::{Family, Prefix};
use tweed::model::status::Status;
use tweed::plan::diff::Op;

use super::{Judge, Violation, is_running, violation};
use crate::act::Backend;
use crate::cluster::Cluster;
use crate::node::{Node, PANICKED};
use crate::packets::stack::{Pods, address, tunnel};

pub(super) const TABLE: &str =
    "each path is that of the backends of its nodes once faults are over";
pub(super) const RUNNING: &str = "no daemon ends by itself";
const COPIES: &str = "a copy of a machine ends while the original runs";
pub(super) const READY: &str = "each node is ready once faults are over";
pub(super) const CONFIG: &str = "each node has applied the config once faults are over";
const VIEWS: &str = "the views of a daemon agree with the packets once faults are over";
pub(super) const LEASES: &str = "each node has one lease";
const CHECKPOINTS: &str = "each checkpoint has the lease of its node once faults are over";
pub(super) const FOREIGN: &str = "nothing foreign is touched";
pub(super) const LEFTOVERS: &str = "nothing is left over";
const RESTART: &str = "a daemon that starts again after the faults changes nothing";

impl Judge {
    /// Judges the end of a history, after its faults.
    pub async fn end(&mut self, cluster: &mut Cluster) -> Option<Violation> {
        let found = self
            .ended(cluster)
            .or_else(|| self.leases(cluster))
            .or_else(|| foreign(cluster))
            .or_else(|| self.stopped(cluster))
            .or_else(|| self.copies(cluster));
        if found.is_some() {
            return found;
        }
        let found = self.views(cluster).await.or_else(|| self.checkpoints(cluster));
        let found = found.or_else(|| self.leftovers(cluster)).or_else(|| self.strays(cluster));
        found.or_else(|| self.table(cluster))
    }

    /// Of a machine and its copies, those stay that run when the first copy is made.
    fn copies(&self, cluster: &Cluster) -> Option<Violation> {
        let mut copied = self.copied.iter().filter(|(_, original)| !self.moved.contains(original));
        let (copy, original) = copied.find(|(copy, _)| is_running(&cluster.nodes[*copy]))?;
        let ends = cluster.nodes[*original].ends.join("; ");
        let detail = format!("n{} runs, and n{} {ends}", copy + 1, original + 1);
        Some(violation(COPIES, cluster, detail))
    }

    fn ended(&self, cluster: &Cluster) -> Option<Violation> {
        let has_panicked = |reason: &&String| reason.contains(PANICKED);
        let wrong = |node: &&Node| {
            let mut ends = node.ends.iter();
            if self.may_end(node) { ends.find(has_panicked).cloned() } else { ends.next().cloned() }
        };
        let (index, reason) =
            cluster.nodes.iter().find_map(|node| Some((node.index, wrong(&node)?)))?;
        Some(violation(RUNNING, cluster, format!("n{}: {reason}", index + 1)))
    }

    fn stopped(&self, cluster: &Cluster) -> Option<Violation> {
        let mut nodes = cluster.members().filter(|node| !self.may_end(node));
        let node = nodes.find(|node| !is_running(node))?;
        Some(violation(READY, cluster, format!("n{} does not run", node.index + 1)))
    }

    /// The number of peers that each node has. The lease of a node that has ended stays until its
    /// TTL is over, and so may that of a machine which was installed again or has left.
    fn peers(&self, cluster: &Cluster) -> RangeInclusive<usize> {
        let (leases, running) = (cluster.leases(), self.lasting(cluster).count().saturating_sub(1));
        let holders = cluster.members().filter(|node| cluster.leases_of(node).next().is_some());
        let may_stay = !self.forgotten.is_empty() || cluster.nodes.iter().any(|node| node.has_left);
        let is_left = may_stay && leases.len() > holders.count();
        let is_known = self.moved.is_empty() && !is_left;
        running..=if is_known { running } else { running.max(leases.len() - 1) }
    }

    /// The nodes that run, without those that end again once they read who holds their lease.
    fn lasting<'a>(&self, cluster: &'a Cluster) -> impl Iterator<Item = &'a Node> {
        let ends: BTreeSet<usize> = cluster
            .nodes
            .iter()
            .filter(|node| self.may_end(node) && !node.ends.is_empty())
            .map(|node| node.index)
            .collect();
        running(cluster).filter(move |node| !ends.contains(&node.index))
    }

    fn leases(&self, cluster: &Cluster) -> Option<Violation> {
        let wrong = self.lasting(cluster).find_map(|node| {
            let own: Vec<String> = cluster.leases_of(node).map(|(key, _)| key).collect();
            // The lease of the node that had the address before ends with its TTL, and so does one that
            // a machine wrote just before it was installed once more.
            let allowed = self.forgotten.get(&node.index).copied().unwrap_or_default();
            let is_single = own.len() <= allowed.max(1) || self.moved.contains(&node.index);
            let is_right = is_single && cluster.holds_lease(node);
            let name = node.lease_name();
            (!is_right).then(|| format!("n{} with {name:?} has {own:?}", node.index + 1))
        });
        wrong.map(|detail| violation(LEASES, cluster, detail))
    }

    /// Whether the status of any daemon is so.
    pub async fn any(&self, cluster: &mut Cluster, is_so: impl Fn(&Status) -> bool) -> bool {
        let indices: Vec<usize> = self.lasting(cluster).map(|node| node.index).collect();
        for index in indices {
            let Some(run) = cluster.nodes[index].run.as_ref() else { continue };
            let status = run.status();
            if cluster.answer(status).await.is_some_and(|status| is_so(&status)) {
                return true;
            }
        }
        false
    }

    async fn views(&self, cluster: &mut Cluster) -> Option<Violation> {
        let peers = self.peers(cluster);
        let indices: Vec<usize> = self.lasting(cluster).map(|node| node.index).collect();
        for index in indices {
            let Some(run) = cluster.nodes[index].run.as_ref() else { continue };
            let status = run.status();
            let Some(status) = cluster.answer(status).await else {
                return Some(violation(READY, cluster, format!("n{} does not answer", index + 1)));
            };
            if !status.ready || !status.refused.is_empty() {
                let detail = format!("n{}: {:?} {:?}", index + 1, status.reasons, status.refused);
                return Some(violation(READY, cluster, detail));
            }
            if let Some(detail) = unlike_config(&status, cluster) {
                return Some(violation(CONFIG, cluster, format!("n{}: {detail}", index + 1)));
            }
            let reached = status.reachability.reachable + status.reachability.degraded;
            let is_reached = reached >= *peers.start();
            let is_counted = peers.contains(&status.peers.total()) && status.peers.missing == 0;
            if !is_reached || !is_counted {
                let detail =
                    format!("n{}: {:?} {:?}", index + 1, status.reachability, status.peers);
                return Some(violation(VIEWS, cluster, detail));
            }
        }
        None
    }

    fn checkpoints(&self, cluster: &Cluster) -> Option<Violation> {
        self.lasting(cluster).find_map(|node| {
            let saved = node.checkpoint().and_then(|it| it.local.own.clone());
            let backends = saved.iter().flat_map(|own| &own.endpoints);
            let backends: Vec<&str> = backends.map(|end| end.backend.as_str()).collect();
            let mut leases = cluster.leases_of(node);
            let is_saved =
                |value: &str| backends.iter().all(|it| value.contains(&format!("\"{it}\"")));
            let is_right = saved.is_some() && leases.any(|(_, value)| is_saved(&value));
            let detail = || format!("n{} has saved {backends:?}", node.index + 1);
            (!is_right).then(|| violation(CHECKPOINTS, cluster, detail()))
        })
    }

    fn leftovers(&self, cluster: &Cluster) -> Option<Violation> {
        // All nodes are on one segment.
        let is_direct = cluster.has_only(Backend::HostGw) || cluster.has_direct_routing();
        let has_tunnel = self.is_mixed || !is_direct;
        let peers = if has_tunnel { self.peers(cluster) } else { 0..=0 };
        self.lasting(cluster).find_map(|node| {
            let mut counts =
                cluster.setup.stack.families().iter().map(|it| forwarding_entries(node, *it));
            let counted = counts.find(|counted| !peers.contains(counted))?;
            let detail =
                format!("n{} has {counted} forwarding entries for {peers:?} peers", node.index + 1);
            Some(violation(LEFTOVERS, cluster, detail))
        })
    }

    /// Each kernel is as the plan of its daemon wants it, whatever the daemon before it had done: after
    /// `end`, all daemons were started again.
    pub fn restarted(&self, cluster: &Cluster) -> Option<Violation> {
        let found = self.ended(cluster).or_else(|| self.stopped(cluster));
        if found.is_some() {
            return found;
        }
        let (places, known) = (self.places(cluster), self.peers(cluster));
        let has_stale = known.start() != known.end();
        self.lasting(cluster).find_map(|node| {
            // Whether a peer of a stale lease has answered directly is not known after a start. Its
            // nexthop may have the address that another node has now.
            let of_nobody = |op: &Result<Op, _>| {
                let Ok(entry) = op.as_ref().map(Op::entry) else { return false };
                let of_stale = || of_peer(entry).is_some_and(|at| !places.has(at));
                has_stale && (matches!(entry, Entry::Nexthop(_)) || of_stale())
            };
            let op = node.kernel.take_log().into_iter().find(|op| !of_nobody(op))?;
            let op = op.map_or_else(|refused| refused.to_string(), |op| op.to_string());
            Some(violation(RESTART, cluster, format!("n{}: {op}", node.index + 1)))
        })
    }

    /// Where the nodes and their pods are.
    fn places(&self, cluster: &Cluster) -> Places {
        let families = cluster.setup.stack.families();
        let addresses =
            self.lasting(cluster).flat_map(|it| families.iter().map(|f| address(*f, it.address)));
        let subnets = self.lasting(cluster).filter_map(Node::pods).flat_map(Pods::all);
        Places { addresses: addresses.collect(), subnets: subnets.collect() }
    }

    /// After a mistake of an operator, some nodes may still have what was published meanwhile.
    fn strays(&self, cluster: &Cluster) -> Option<Violation> {
        let known = self.peers(cluster);
        if known.start() != known.end() {
            return None;
        }
        let places = self.places(cluster);
        self.lasting(cluster).find_map(|node| {
            let is_stray = |entry: &&Entry| of_peer(entry).is_some_and(|at| !places.has(at));
            let stray =
                node.kernel.read_state(|it| it.entries().find(is_stray).map(Entry::to_string));
            let detail = format!("n{} has {}, and no node has that", node.index + 1, stray?);
            Some(violation(LEFTOVERS, cluster, detail))
        })
    }

    /// Packets to a node with host-gw are sent directly, and so are those of such a node, and of one
    /// with `DirectRouting`.
    fn table(&self, cluster: &Cluster) -> Option<Violation> {
        let is_direct =
            |node: &Node| cluster.leases_of(node).any(|(_, value)| value.contains("\"host-gw\""));
        let nodes: Vec<&Node> = running(cluster).filter(|node| !self.may_end(node)).collect();
        let pairs = nodes.iter().flat_map(|from| nodes.iter().map(move |to| (*from, *to)));
        pairs.filter(|(from, to)| from.index != to.index).find_map(|(from, to)| {
            let is_direct =
                is_direct(from) || is_direct(to) || from.routes_directly() == Some(true);
            let wanted = if is_direct { Path::Direct } else { Path::Tunnel };
            let (from, to) = (from.index, to.index);
            let path = |family| cluster.send(from, to, family).map(|arrival| arrival.path);
            let paths = cluster.setup.stack.families().iter().map(|family| path(*family));
            let found = paths.into_iter().find(|found| *found != Ok(wanted))?;
            let (from, to) = (from + 1, to + 1);
            let detail = format!("n{from} → n{to}: {found:?} and not {wanted:?}");
            Some(violation(TABLE, cluster, detail))
        })
    }
}

struct Places {
    addresses: Vec<IpAddr>,
    subnets: Vec<Prefix>,
}

impl Places {
    fn has(&self, at: IpAddr) -> bool {
        self.addresses.contains(&at) || self.subnets.iter().any(|it| it.contains(at))
    }
}

/// How a daemon differs from the network config.
fn unlike_config(status: &Status, cluster: &Cluster) -> Option<String> {
    if let Some(why) = status.config.pending.as_ref().or(status.config.invalid.as_ref()) {
        return Some(why.clone());
    }
    let (backend, text) = (status.backend.clone().unwrap_or_default(), cluster.config()?);
    let has_backend = status.config.rollout.is_some() || text.contains(&format!("\"{backend}\""));
    let is_like = has_backend && Some(status.mixed) == cluster.is_mixed();
    (!is_like).then(|| format!("{backend}, mixed: {}, with {text}", status.mixed))
}

/// The address in an entry of tweed for a peer, or in the subnet of that.
fn of_peer(entry: &Entry) -> Option<IpAddr> {
    match entry {
        Entry::Route(route) if route.protocol == PROTOCOL && route.kind == RouteKind::Unicast => {
            Some(route.destination.base())
        }
        Entry::Nexthop(nexthop) if nexthop.protocol == PROTOCOL => nexthop.gateway,
        Entry::Neighbour(neighbour) if neighbour.link.is_tunnel() => Some(neighbour.address),
        Entry::Fdb(fdb) => Some(fdb.destination),
        Entry::Element(element) => Some(element.address),
        _ => None,
    }
}

fn forwarding_entries(node: &Node, family: Family) -> usize {
    let device = tunnel(family);
    node.kernel.read_state(|state| {
        let entries = state.entries();
        entries.filter(|entry| matches!(entry.key(), Key::Fdb(link, _) if link == device)).count()
    })
}

fn running(cluster: &Cluster) -> impl Iterator<Item = &Node> {
    cluster.nodes.iter().filter(|node| is_running(node))
}

fn foreign(cluster: &Cluster) -> Option<Violation> {
    let route = cluster.setup.stack.foreign_route()?;
    let key = Entry::Route(route.clone()).key();
    let is_there = |node: &&Node| {
        node.kernel
            .read_state(|state| matches!(state.get(&key), Some(Entry::Route(it)) if *it == route))
    };
    let touched = cluster.members().find(|node| !is_there(node))?;
    Some(violation(FOREIGN, cluster, format!("n{} lost {route}", touched.index + 1)))
}
