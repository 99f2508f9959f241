//! Decides which parts of an edited network config a running node applies.

use std::fmt;
use std::net::IpAddr;

use crate::model::config::{BackendType, NetworkConfig, differing_key};
use crate::model::prefix::{Family, Prefix};

/// The part of an edit that is applied now, and the reason why the rest is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub applied: NetworkConfig,
    pub pending: Option<PendingReason>,
}

/// The inputs of the decision in addition to the two configs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Situation {
    pub reload: Reload,
    /// The names of this node, its public IPs first.
    pub names: Vec<String>,
    /// The backend that the node is kept on, which overrides the applied config.
    pub kept: Option<BackendType>,
    /// Whether a strict reverse-path filter would drop packets while paths change.
    pub is_filtered: bool,
    /// The peers that need `Mixed`; none before all peers are known.
    pub needing_mixed: Option<NeedingMixed>,
}

/// The public IPs of the peers that would lose their path without `Mixed`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NeedingMixed {
    /// They would have no path.
    pub unreachable: Vec<IpAddr>,
    /// They would have a direct path instead of the tunnel, and direct probes to them are not
    /// answered.
    pub unanswered: Vec<IpAddr>,
}

impl NeedingMixed {
    /// Why `Mixed` stays on, if it does.
    fn reason(&self) -> Option<PendingReason> {
        let Self { unreachable, unanswered } = self.clone();
        if !unreachable.is_empty() {
            return Some(PendingReason::ForPeers { unreachable });
        }
        (!unanswered.is_empty()).then_some(PendingReason::ForAnswers { unanswered })
    }
}

/// When an edit is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reload {
    #[default]
    Live,
    /// At the next start, as flannel does.
    AtStart,
}

/// Why an edit is not applied, or only in part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PendingReason {
    #[error(
        "the network config was edited, but --config-reload is off: restart tweedd to apply it"
    )]
    ForStart,
    #[error("{key} cannot change on a running node: restore its value")]
    ForKey { key: &'static str },
    #[error(
        "{key} cannot change while pods have addresses of {subnet}: restore its value, or drain this node and reboot it"
    )]
    ForPods { key: &'static str, subnet: Prefix },
    #[error(
        "{key} cannot change while another node has {subnet}: restore its value, or remove that node and restart tweedd"
    )]
    ForNodes { key: &'static str, subnet: Prefix },
    #[error("staying on {ours}: without Mixed, {} is applied at the next start", wanted.unlike(*ours))]
    ForMixed { ours: BackendMode, wanted: BackendMode },
    #[error(
        "staying on {ours}: Mixed must be on at all nodes before {} changes; then edit the config again (a space is enough) or restart tweedd",
        wanted.key_unlike(*ours)
    )]
    ForMixedElsewhere { ours: BackendMode, wanted: BackendMode },
    #[error(
        "staying on {ours} with Mixed: change {} first, and remove Mixed when all nodes have applied it",
        wanted.key_unlike(*ours)
    )]
    ForTwoEdits { ours: BackendMode, wanted: BackendMode },
    #[error("keeping Mixed until the leases of the peers are read")]
    ForLeases,
    #[error("keeping Mixed: without it there is no path to {}", few(unreachable))]
    ForPeers { unreachable: Vec<IpAddr> },
    #[error("keeping Mixed until direct probes to {} are answered", few(unanswered))]
    ForAnswers { unanswered: Vec<IpAddr> },
}

/// The path that a node uses to a peer of the same backend. Both ends have to use the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackendMode {
    kind: BackendType,
    /// Whether peers on the same link are reached without the tunnel. Always false for `host-gw`.
    direct_routing: bool,
}

impl BackendMode {
    fn new(kind: BackendType, config: &NetworkConfig) -> Self {
        let direct_routing = kind == BackendType::Vxlan && config.backend.tunnel.direct_routing;
        Self { kind, direct_routing }
    }

    fn key_unlike(self, ours: Self) -> &'static str {
        if self.kind == ours.kind { "Backend.DirectRouting" } else { "Backend.Type" }
    }

    /// The config key that differs from `ours`, with its value here.
    fn unlike(self, ours: Self) -> String {
        let key = self.key_unlike(ours);
        if self.kind == ours.kind {
            format!("{key} {}", self.direct_routing)
        } else {
            format!("{key} {}", self.kind.as_str())
        }
    }
}

impl fmt::Display for BackendMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direct_routing = if self.direct_routing { " (DirectRouting)" } else { "" };
        write!(f, "{}{direct_routing}", self.kind.as_str())
    }
}

impl PendingReason {
    /// Whether the wait can end without another edit and without a restart.
    pub const fn may_end_by_itself(&self) -> bool {
        self.is_for_mixed() || matches!(self, Self::ForTwoEdits { .. })
    }

    /// Whether a strict reverse-path filter may be one of the reasons.
    pub const fn waits_for_filters(&self) -> bool {
        matches!(self, Self::ForTwoEdits { .. })
    }

    /// Whether only the removal of `Mixed` waits.
    const fn is_for_mixed(&self) -> bool {
        matches!(self, Self::ForPeers { .. } | Self::ForAnswers { .. } | Self::ForLeases)
    }
}

/// The config to apply when `current` is applied and `wanted` is requested. Every part that has no
/// reason to wait is applied.
pub fn change(current: &NetworkConfig, wanted: &NetworkConfig, situation: &Situation) -> Change {
    let nothing = |pending| Change { applied: current.clone(), pending: Some(pending) };
    if situation.reload == Reload::AtStart && current != wanted {
        return nothing(PendingReason::ForStart);
    }
    if let Some(key) = fixed_key(current, wanted) {
        return nothing(PendingReason::ForKey { key });
    }
    let pending = held_back(current, wanted, situation);
    let mut applied = wanted.clone();
    match &pending {
        None => {}
        Some(reason) if reason.is_for_mixed() => applied.mixed = true,
        Some(_) => {
            // `Rollout` refers to the backend that is not applied yet.
            applied.rollout = None;
            applied.backend.kind = situation.kind(current);
            applied.backend.tunnel.direct_routing = current.backend.tunnel.direct_routing;
            applied.mixed = current.mixed || wanted.mixed;
        }
    }
    Change { applied, pending }
}

/// Pods of before a start that may still run, by how their node got its subnet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FormerPods {
    #[default]
    None,
    /// The node has leased it.
    Leased,
    /// The store assigns the subnets, as Kubernetes does.
    Assigned,
}

impl FormerPods {
    /// Whether a daemon that starts keeps `subnets` although `wanted` lacks some of them. If it lacks
    /// all that the store has assigned, the cluster was built again with others.
    pub fn keep(self, wanted: &NetworkConfig, mut subnets: impl Iterator<Item = Prefix>) -> bool {
        match self {
            Self::None => false,
            Self::Leased => true,
            Self::Assigned => subnets.any(|subnet| wanted.contains(subnet)),
        }
    }
}

/// Why a daemon does not begin with `wanted`: pods of this host have addresses of one of `subnets`,
/// which the remembered config has and `wanted` lacks.
pub fn stranded_pods(
    remembered: &NetworkConfig,
    wanted: &NetworkConfig,
    mut subnets: impl Iterator<Item = Prefix>,
) -> Option<PendingReason> {
    let subnet = subnets.find(|it| remembered.assigns(*it) && !wanted.assigns(*it))?;
    let key = key_of_pool(subnet, [remembered, wanted])?;
    Some(PendingReason::ForPods { key, subnet })
}

/// Why a daemon does not begin with `wanted`: a peer has one of `subnets`, which the networks of the
/// remembered config contain and those of `wanted` do not.
pub fn stranded_peers(
    remembered: &NetworkConfig,
    wanted: &NetworkConfig,
    mut subnets: impl Iterator<Item = Prefix>,
) -> Option<PendingReason> {
    let subnet = subnets.find(|it| remembered.contains(*it) && !wanted.contains(*it))?;
    let key = key_of_pool(subnet, [remembered, wanted])?;
    Some(PendingReason::ForNodes { key, subnet })
}

/// The key in which the pools of a subnet's family differ.
fn key_of_pool(subnet: Prefix, configs: [&NetworkConfig; 2]) -> Option<&'static str> {
    let [before, now] = configs.map(|config| config.pool(subnet.family()));
    differing_key(subnet.family(), before, now)
}

impl Situation {
    /// The backend of this node while `current` is applied.
    fn kind(&self, current: &NetworkConfig) -> BackendType {
        self.kept.unwrap_or_else(|| current.kind_of(&self.names))
    }

    /// Whether all peers have changed to another backend already: this node follows, as if it were
    /// restarted. If it stayed, those without `Mixed` would have no path to it.
    fn follows_peers(&self, ours: BackendMode, theirs: BackendMode) -> bool {
        let have_changed = |needing: &NeedingMixed| needing.unreachable.is_empty();
        let may_change = ours.kind != theirs.kind && !self.is_filtered;
        may_change && self.needing_mixed.as_ref().is_some_and(have_changed)
    }
}

/// Why `Backend.Type`, `Backend.DirectRouting` or `Mixed` is not applied yet, if so.
fn held_back(
    current: &NetworkConfig,
    wanted: &NetworkConfig,
    situation: &Situation,
) -> Option<PendingReason> {
    let ours = BackendMode::new(situation.kind(current), current);
    let theirs = BackendMode::new(wanted.kind_of(&situation.names), wanted);
    match (current.mixed, wanted.mixed) {
        (true, false) if ours != theirs && !situation.follows_peers(ours, theirs) => {
            Some(PendingReason::ForTwoEdits { ours, wanted: theirs })
        }
        (false, true) if ours != theirs => {
            Some(PendingReason::ForMixedElsewhere { ours, wanted: theirs })
        }
        (false, false) if ours != theirs => Some(PendingReason::ForMixed { ours, wanted: theirs }),
        (true, false) => match &situation.needing_mixed {
            None => Some(PendingReason::ForLeases),
            Some(needing) => needing.reason(),
        },
        (true, true) | (false, true | false) => None,
    }
}

/// The first key that differs and cannot change while pods, leases or the device depend on it.
fn fixed_key(current: &NetworkConfig, wanted: &NetworkConfig) -> Option<&'static str> {
    let of_pool = |family| differing_key(family, current.pool(family), wanted.pool(family));
    let (ours, theirs) = (&current.backend.tunnel, &wanted.backend.tunnel);
    let of_tunnel = [
        ("Backend.VNI", ours.vni != theirs.vni),
        ("Backend.Port", ours.port != theirs.port),
        ("Backend.GBP", ours.gbp != theirs.gbp),
    ];
    let of_tunnel = || of_tunnel.iter().find_map(|(key, differs)| differs.then_some(*key));
    Family::ALL.into_iter().find_map(of_pool).or_else(of_tunnel)
}

/// How many peers a message names.
const NAMED: usize = 3;

fn few(peers: &[IpAddr]) -> String {
    let named: Vec<String> = peers.iter().take(NAMED).map(ToString::to_string).collect();
    let named = named.join(", ");
    match peers.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

#[cfg(test)]
mod tests;
