//! Forwarding checks: the sysctls, firewall rules of other programs, and reverse-path filters.

use tweed_netlink::nftables::{FilterChain, TableFamily};

use super::facts::{Host, Needs, Routing};
use super::links::MODULES;
use super::{DropIn, Finding, Level};
use crate::model::entry::{Condition, LinkName, Match, Rule, Side, Verdict};
use crate::model::policy::Forward;
use crate::model::prefix::{Family, Prefix};

pub(super) const SYSCTLS: &str = "sysctl.d/90-tweed.conf";
pub(crate) const BRIDGE_NETFILTER: &str = "net/bridge/bridge-nf-call-iptables";
/// The chain of kube-proxy in its iptables mode.
const SERVICES: &str = "KUBE-SERVICES";
/// The maximum depth of jumps to follow. The kernel has its own limit.
const MAX_DEPTH: usize = 16;
pub(crate) const ALL_FILTERS: &str = "net/ipv4/conf/all/rp_filter";
const STRICT: usize = 1;
const LOOSE: usize = 2;

/// Reports whether the host forwards packets, and passes those of bridges through iptables.
pub(super) fn forwarding_settings(needs: &Needs, host: &Host) -> Vec<Finding> {
    let is_off = |family: &Family| host.number(forwarding_sysctl(*family)) == Some(0);
    let off = needs.families.iter().copied().filter(is_off);
    off.map(forwarding_off).chain(bridge_netfilter_off(host)).collect()
}

pub(crate) const fn forwarding_sysctl(family: Family) -> &'static str {
    match family {
        Family::V4 => "net/ipv4/ip_forward",
        Family::V6 => "net/ipv6/conf/all/forwarding",
    }
}

fn forwarding_off(family: Family) -> Finding {
    let sysctl = forwarding_sysctl(family);
    // A kernel that forwards IPv6 ignores router advertisements unless `accept_ra` is 2.
    let before = match family {
        Family::V4 => "",
        Family::V6 => {
            "; if this host's default route is from the kernel's router advertisements, before it: \
             sysctl -w net/ipv6/conf/INTERFACE/accept_ra=2"
        }
    };
    Finding {
        what: format!("this host does not forward {family}"),
        why: "packets between pods of different nodes are dropped".to_owned(),
        fix: format!("sysctl -w {sysctl}=1{before}"),
        drop_in: Some(DropIn::new(SYSCTLS, [format!("{sysctl} = 1")])),
        ..Finding::of(Level::Warning, "forwarding-off", sysctl)
    }
}

fn bridge_netfilter_off(host: &Host) -> Option<Finding> {
    let services = host.chains.iter().find(|chain| chain.name == SERVICES)?;
    let passed = host.number(BRIDGE_NETFILTER) == Some(1);
    (!passed).then(|| Finding {
        what: "iptables does not see packets between pods of this node".to_owned(),
        why: format!(
            "services are translated (NAT) in table {}: if client and endpoint of a service are on \
             this node, the client may get answers from the wrong address",
            services.table
        ),
        fix: format!("modprobe br_netfilter && sysctl -w {BRIDGE_NETFILTER}=1"),
        drop_in: Some(DropIn::new(MODULES, ["br_netfilter"])),
        ..Finding::of(Level::Note, "bridge-netfilter-off", BRIDGE_NETFILTER)
    })
}

/// A set of packets: all that have this source and this destination; none matches any.
type Traffic = (Option<Prefix>, Option<Prefix>);

/// Reports chains of other programs that drop packets of pods.
pub(super) fn chains(needs: &Needs, host: &Host) -> Vec<Finding> {
    let dropped = host.chains.iter().filter(|chain| chain.policy.is_some()).flat_map(|chain| {
        let concerned =
            needs.networks.iter().filter(|network| chain.family.includes(network.family()));
        concerned.filter_map(|network| {
            let finding = dropped(chain, *network, host)?;
            if !is_opened(chain, *network, needs, host) {
                return Some(finding);
            }
            let fix = "start tweedd: it appends rules that accept packets of pods".to_owned();
            Some(Finding { level: Level::Note, fix, ..finding })
        })
    });
    dropped.chain(legacy(host)).collect()
}

/// Whether the rules that the daemon appends to `FORWARD` of iptables are enough: only the policy
/// of the chain drops, and no earlier rule.
fn is_opened(chain: &FilterChain, network: Prefix, needs: &Needs, host: &Host) -> bool {
    let is_of_iptables =
        chain.family != TableFamily::Both && chain.table == "filter" && chain.name == "FORWARD";
    let opened = FilterChain { policy: Some(Verdict::Accept), ..chain.clone() };
    needs.forward == Forward::Accept && is_of_iptables && dropped(&opened, network, host).is_none()
}

fn dropped(chain: &FilterChain, network: Prefix, host: &Host) -> Option<Finding> {
    let is_lost = |traffic| outcome(chain, traffic, &host.chains, MAX_DEPTH) == Some(Verdict::Drop);
    let pods = Some(network);
    let (level, lost, why) = match [(pods, pods), (pods, None), (None, pods)].map(is_lost) {
        [true, ..] => (
            Level::Warning,
            "between pods of",
            "an accept in one chain does not prevent a drop in another: pods of different nodes \
             cannot reach each other",
        ),
        [false, true, _] => {
            (Level::Note, "from", "pods reach each other, but no other destinations")
        }
        [false, false, true] => {
            (Level::Note, "to", "pods reach each other, but other sources do not reach them")
        }
        [false, false, false] => return None,
    };
    Some(Finding {
        what: format!(
            "packets {lost} {network} are dropped unless a more specific rule accepts them"
        ),
        why: why.to_owned(),
        fix: fix(chain, network),
        ..Finding::of(
            level,
            "forward-drop",
            format!("chain {} of table {}", chain.name, full_table(chain)),
        )
    })
}

fn fix(chain: &FilterChain, network: Prefix) -> String {
    if chain.table == "firewalld" {
        return format!(
            "firewall-cmd --permanent --zone=trusted --add-source={network} && firewall-cmd --reload"
        );
    }
    let word = network.family().keyword();
    let (table, name) = (full_table(chain), &chain.name);
    let rule = |side| format!("nft insert rule {table} {name} {word} {side} {network} accept");
    format!("{} && {}", rule("saddr"), rule("daddr"))
}

fn full_table(chain: &FilterChain) -> String {
    format!("{} {}", chain.family.keyword(), chain.table)
}

/// What the chain does with all packets of `traffic`, if that is known; none if they return from
/// it.
fn outcome(
    chain: &FilterChain,
    traffic: Traffic,
    all: &[FilterChain],
    depth: usize,
) -> Option<Verdict> {
    let follow = |name: &String| {
        let is_target = |other: &&FilterChain| {
            (&other.name, &other.table, other.family) == (name, &chain.table, chain.family)
        };
        outcome(all.iter().find(is_target)?, traffic, all, depth.checked_sub(1)?)
    };
    for rule in chain.rules.iter().filter(|rule| matches(rule, traffic)) {
        match &rule.verdict {
            end @ (Verdict::Accept | Verdict::Drop) => return Some(end.clone()),
            Verdict::Reject => return Some(Verdict::Drop),
            Verdict::Return => break,
            Verdict::Jump(name) => match follow(name) {
                None => {}
                end => return end,
            },
            Verdict::Goto(name) => return follow(name).or_else(|| chain.policy.clone()),
            // The packet goes on.
            Verdict::Untrack
            | Verdict::Mark(_)
            | Verdict::Unmark(_)
            | Verdict::DestinationNat(..)
            | Verdict::Masquerade(_)
            | Verdict::SourceNat { .. } => {}
        }
    }
    chain.policy.clone()
}

/// Whether the addresses alone show that `rule` matches all packets of `traffic`.
fn matches(rule: &Rule, (source, destination): Traffic) -> bool {
    rule.conditions.iter().all(|condition| match condition {
        Condition::Address(side, Match::Is, network) => {
            let known = if *side == Side::Source { source } else { destination };
            known.is_some_and(|known| Prefix::from(*network).covers(known))
        }
        _ => false,
    })
}

fn legacy(host: &Host) -> Option<Finding> {
    let filters = host.legacy_tables.iter().any(|table| table == "filter");
    filters.then(|| Finding {
        what: "there are rules of iptables-legacy, which this check does not read".to_owned(),
        why: "if they drop forwarded packets, pods of different nodes cannot reach each other"
            .to_owned(),
        fix: "check iptables-legacy -S FORWARD and ip6tables-legacy -S FORWARD".to_owned(),
        ..Finding::of(Level::Note, "legacy-iptables", "table filter of iptables-legacy")
    })
}

/// Reports reverse-path filters that drop packets of peers.
pub(super) fn reverse_path_filters(needs: &Needs, host: &Host) -> Vec<Finding> {
    let links = needs.underlay.iter().chain(&needs.tunnels);
    let filtered = links.filter(|link| link.filters(needs.families.iter().copied()));
    let strict = filtered.filter(|link| is_strict(link, host));
    strict.map(|link| strict_reverse_path(link, needs.routing)).collect()
}

pub(crate) fn filter_sysctl(link: &LinkName) -> String {
    format!("net/ipv4/conf/{link}/rp_filter")
}

/// The kernel uses the larger of the link's own value and that of `all`.
fn is_strict(link: &LinkName, host: &Host) -> bool {
    let own = host.number(&filter_sysctl(link));
    own.is_some_and(|own| own.max(host.number(ALL_FILTERS).unwrap_or(0)) == STRICT)
}

fn strict_reverse_path(link: &LinkName, routing: Routing) -> Finding {
    let (level, why) = match routing {
        Routing::Asymmetric => (
            Level::Warning,
            "packets are dropped if answers leave by another path, for example while a peer changes \
             between tunnel and direct path",
        ),
        Routing::Symmetric => (
            Level::Note,
            "no packets are lost as long as no peer changes between tunnel and direct path; with \
             Mixed, tweedd sets the filter to loose if it may write the sysctl",
        ),
    };
    Finding {
        what: format!("the reverse-path filter of {link} is strict"),
        why: why.to_owned(),
        fix: format!("sysctl -w {}={LOOSE}", filter_sysctl(link)),
        ..Finding::of(level, "strict-reverse-path", filter_sysctl(link))
    }
}
