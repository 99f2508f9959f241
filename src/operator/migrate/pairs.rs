//! Every pair of nodes, with its path now and later. The pairs of nodes that plan alike are counted
//! once: thousands of nodes have millions of pairs.

use std::rc::Rc;

use serde::Serialize;

use super::cluster::{ClusterView, Member};
use super::reachability::{Backends, Reachability, Reaches};
use crate::model::path::Path;
use crate::model::prefix::Family;

/// The path of one node to one other in one address family, now and later.
#[derive(Debug, Serialize)]
pub(super) struct Pair<'a> {
    pub(super) from: &'a str,
    pub(super) to: &'a str,
    family: Family,
    pub(super) now: Option<Path>,
    pub(super) then: Option<Path>,
    pub(super) reason: Option<Rc<str>>,
    /// Whether it will not take the preferred path of the backend.
    #[serde(skip)]
    pub(super) is_special: bool,
    #[serde(skip)]
    pub(super) both_report: bool,
    /// Whether peers do not reach one of the two nodes.
    #[serde(skip)]
    pub(super) has_outage: bool,
}

/// The pairs from one node.
#[derive(Debug)]
pub(super) struct PairsFrom<'a> {
    view: &'a ClusterView,
    from: &'a Member,
    now: Reaches,
    then: Reaches,
    pub(super) figures: PairTotals,
}

/// The numbers of pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PairTotals {
    pub(super) now: Counts,
    pub(super) then: Counts,
    /// Those that change their path.
    pub(super) changed: usize,
    /// Those without the preferred path of the backend.
    pub(super) special: usize,
    /// Those that lose their path.
    pub(super) cut: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    pub(super) direct: usize,
    pub(super) tunnel: usize,
    pub(super) none: usize,
}

/// Every pair, with its path once the nodes are on `then`, by the nodes from which the paths lead.
pub(super) fn by_node(view: &ClusterView, then: Backends) -> impl Iterator<Item = PairsFrom<'_>> {
    let mut now = Reachability::new(view, Backends::AsReported);
    let mut then = Reachability::new(view, then);
    let mut order: Vec<usize> = (0..view.members.len()).collect();
    // Nodes that plan alike, one after the other.
    order.sort_by_key(|at| (now.class_of(*at), then.class_of(*at)));
    let mut last: Option<PairsFrom<'_>> = None;
    order.into_iter().filter_map(move |at| {
        let from = view.members.get(at)?;
        let (now, then) = (now.from(at), then.from(at));
        let pairs = PairsFrom { view, from, now, then, figures: PairTotals::default() };
        let alike = last.take().filter(|last| last.is_like(&pairs));
        let alike = alike.unwrap_or_else(|| pairs.alike());
        let figures = pairs.figures_by(&alike);
        last = Some(alike);
        Some(PairsFrom { figures, ..pairs })
    })
}

/// The pairs that lose their path once the nodes are on `then`.
pub(super) fn cut(view: &ClusterView, then: Backends) -> impl Iterator<Item = Pair<'_>> {
    let cut = by_node(view, then).filter(|from| from.figures.cut > 0);
    cut.flat_map(|from| from.iter().filter(Pair::is_cut).collect::<Vec<_>>())
}

impl<'a> PairsFrom<'a> {
    pub(super) fn iter(&self) -> impl Iterator<Item = Pair<'a>> {
        let ends = (0..self.view.members.len()).flat_map(|to| Family::ALL.map(|it| (to, it)));
        ends.filter_map(|(to, family)| self.pair(to, family))
    }

    fn pair(&self, to: usize, family: Family) -> Option<Pair<'a>> {
        let then = self.then.to(to, family)?;
        let now = self.now.to(to, family);
        let (from, to) = (self.from, self.view.members.get(to)?);
        Some(Pair {
            from: &from.name,
            to: &to.name,
            family,
            now: now.and_then(|now| now.path),
            then: then.path,
            is_special: then.reason.is_some(),
            reason: then.reason.clone().or_else(|| now?.reason.clone()),
            both_report: from.report.is_some() && to.report.is_some(),
            has_outage: from.outage.is_some() || to.outage.is_some(),
        })
    }

    fn is_like(&self, other: &Self) -> bool {
        self.now.is_like(&other.now) && self.then.is_like(&other.then)
    }

    /// The pairs from any node that plans like this one, also to the node itself.
    fn alike(&self) -> Self {
        let (view, from) = (self.view, self.from);
        let (now, then) = (self.now.common(), self.then.common());
        let alike = Self { view, from, now, then, figures: PairTotals::default() };
        let mut figures = PairTotals::default();
        alike.iter().for_each(|pair| figures.add(&pair));
        Self { figures, ..alike }
    }

    /// The figures of `alike`, without what differs from it.
    fn figures_by(&self, alike: &Self) -> PairTotals {
        let mut figures = alike.figures;
        for (to, family) in self.now.own_ends().chain(self.then.own_ends_but(&self.now)) {
            alike.pair(to, family).iter().for_each(|pair| figures.remove(pair));
            self.pair(to, family).iter().for_each(|pair| figures.add(pair));
        }
        figures
    }
}

impl Pair<'_> {
    /// Whether it loses its path.
    pub(super) const fn is_cut(&self) -> bool {
        self.now.is_some() && self.then.is_none()
    }
}

impl PairTotals {
    pub(super) fn add(&mut self, pair: &Pair<'_>) {
        self.change(pair, |count| *count += 1);
    }

    fn remove(&mut self, pair: &Pair<'_>) {
        self.change(pair, |count| *count -= 1);
    }

    fn change(&mut self, pair: &Pair<'_>, change: fn(&mut usize)) {
        change(self.now.of(pair.now));
        change(self.then.of(pair.then));
        for (is_so, count) in [
            (pair.now != pair.then, &mut self.changed),
            (pair.is_special, &mut self.special),
            (pair.is_cut(), &mut self.cut),
        ] {
            if is_so {
                change(count);
            }
        }
    }
}

impl Counts {
    pub(super) fn add(&mut self, other: Self) {
        self.direct += other.direct;
        self.tunnel += other.tunnel;
        self.none += other.none;
    }

    const fn of(&mut self, path: Option<Path>) -> &mut usize {
        match path {
            Some(Path::Direct) => &mut self.direct,
            Some(Path::Tunnel) => &mut self.tunnel,
            None => &mut self.none,
        }
    }
}
