//! Forwarding checks: the sysctls, firewall rules of other programs, and reverse-path filters.

use super::facts::{ForeignChain, ForeignRule, Host, Needs, Routing, RuleVerdict};
use super::{DropIn, Finding, Level};
use crate::model::entry::{LinkName, nft_family};
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
    let off =
        needs.families.iter().filter(|family| host.number(forwarding_sysctl(**family)) == Some(0));
    off.map(|family| forwarding_off(*family)).chain(bridge_netfilter_off(host)).collect()
}

pub(crate) const fn forwarding_sysctl(family: Family) -> &'static str {
    match family {
        Family::V4 => "net/ipv4/ip_forward",
        Family::V6 => "net/ipv6/conf/all/forwarding",
    }
}

fn forwarding_off(family: Family) -> Finding {
    let sysctl = forwarding_sysctl(family);
    Finding {
        id: "forwarding-off",
        level: Level::Warning,
        what: format!("this host does not forward {family}"),
        place: sysctl.to_owned(),
        why: "packets between pods of different nodes are dropped".to_owned(),
        fix: format!("sysctl -w {sysctl}=1"),
        drop_in: Some(DropIn { file: SYSCTLS, lines: vec![format!("{sysctl} = 1")] }),
    }
}

fn bridge_netfilter_off(host: &Host) -> Option<Finding> {
    let services = host.chains.iter().find(|chain| chain.name == SERVICES)?;
    let passed = host.number(BRIDGE_NETFILTER) == Some(1);
    (!passed).then(|| Finding {
        id: "bridge-netfilter-off",
        level: Level::Note,
        what: "iptables does not see packets between pods of this node".to_owned(),
        place: BRIDGE_NETFILTER.to_owned(),
        why: format!(
            "services are translated (NAT) in table {}: if client and endpoint of a service are on \
             this node, the client may get answers from the wrong address",
            services.table
        ),
        fix: format!("modprobe br_netfilter && sysctl -w {BRIDGE_NETFILTER}=1"),
        drop_in: Some(DropIn {
            file: "modules-load.d/tweed.conf",
            lines: vec!["br_netfilter".to_owned()],
        }),
    })
}

/// A set of packets: all that have this source and destination; none matches any.
#[derive(Clone, Copy, Debug)]
struct Traffic {
    source: Option<Prefix>,
    destination: Option<Prefix>,
}

/// Reports chains of other programs that drop packets of pods.
pub(super) fn chains(needs: &Needs, host: &Host) -> Vec<Finding> {
    let dropped = host.chains.iter().filter(|chain| chain.policy.is_some()).flat_map(|chain| {
        let concerned = needs.networks.iter().filter(|network| chain.sees(network.family()));
        concerned.filter_map(|network| {
            let finding = dropped(chain, *network, host)?;
            Some(if is_opened(chain, *network, needs, host) { noted(finding) } else { finding })
        })
    });
    dropped.chain(legacy(host)).collect()
}

/// Whether the rules that the daemon appends to `FORWARD` of iptables are enough: only the policy
/// of the chain drops, and no earlier rule.
fn is_opened(chain: &ForeignChain, network: Prefix, needs: &Needs, host: &Host) -> bool {
    let is_of_iptables = chain.family.is_some()
        && (chain.table.as_str(), chain.name.as_str()) == ("filter", "FORWARD");
    let opened = ForeignChain { policy: Some(RuleVerdict::Accept), ..chain.clone() };
    needs.forward == Forward::Accept && is_of_iptables && dropped(&opened, network, host).is_none()
}

fn noted(finding: Finding) -> Finding {
    let fix = "start tweedd: it appends rules that accept packets of pods".to_owned();
    Finding { level: Level::Note, fix, ..finding }
}

fn dropped(chain: &ForeignChain, network: Prefix, host: &Host) -> Option<Finding> {
    let is_lost = |(source, destination)| {
        let traffic = Traffic { source, destination };
        outcome(chain, traffic, &host.chains, MAX_DEPTH) == Some(RuleVerdict::Drop)
    };
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
        id: "forward-drop",
        level,
        what: format!(
            "packets {lost} {network} are dropped unless a more specific rule accepts them"
        ),
        place: format!("chain {} of table {}", chain.name, chain.full_table()),
        why: why.to_owned(),
        fix: fix(chain, network),
        drop_in: None,
    })
}

fn fix(chain: &ForeignChain, network: Prefix) -> String {
    if chain.table == "firewalld" {
        return format!(
            "firewall-cmd --permanent --zone=trusted --add-source={network} && firewall-cmd --reload"
        );
    }
    let word = nft_family(network.family());
    let rule = |side: &str| {
        format!(
            "nft insert rule {} {} {word} {side} {network} accept",
            chain.full_table(),
            chain.name
        )
    };
    format!("{} && {}", rule("saddr"), rule("daddr"))
}

/// What the chain does with all packets of `traffic`, if that is known; none if they return from
/// it.
fn outcome(
    chain: &ForeignChain,
    traffic: Traffic,
    chains: &[ForeignChain],
    depth: usize,
) -> Option<RuleVerdict> {
    for rule in chain.rules.iter().filter(|rule| rule.matches(traffic)) {
        match &rule.then {
            end @ (RuleVerdict::Accept | RuleVerdict::Drop) => return Some(end.clone()),
            RuleVerdict::Return => break,
            RuleVerdict::Jump(name) => match chain.follow(name, traffic, chains, depth) {
                None => {}
                end => return end,
            },
            RuleVerdict::Goto(name) => {
                return chain.follow(name, traffic, chains, depth).or_else(|| chain.policy.clone());
            }
        }
    }
    chain.policy.clone()
}

impl ForeignChain {
    fn sees(&self, family: Family) -> bool {
        self.family.is_none_or(|own| own == family)
    }

    fn full_table(&self) -> String {
        format!("{} {}", self.family.map_or("inet", nft_family), self.table)
    }

    fn follow(
        &self,
        name: &str,
        traffic: Traffic,
        all: &[ForeignChain],
        depth: usize,
    ) -> Option<RuleVerdict> {
        let is_target = |chain: &&ForeignChain| {
            chain.name == name && chain.table == self.table && chain.family == self.family
        };
        let next = all.iter().find(is_target)?;
        outcome(next, traffic, all, depth.checked_sub(1)?)
    }
}

impl ForeignRule {
    fn matches(&self, traffic: Traffic) -> bool {
        let holds = |asked: Option<Prefix>, known: Option<Prefix>| match (asked, known) {
            (None, _) => true,
            (Some(asked), Some(known)) => asked.covers(known),
            (Some(_), None) => false,
        };
        holds(self.source, traffic.source) && holds(self.destination, traffic.destination)
    }
}

fn legacy(host: &Host) -> Option<Finding> {
    let filters = host.legacy_tables.iter().any(|table| table == "filter");
    filters.then(|| Finding {
        id: "legacy-iptables",
        level: Level::Note,
        what: "there are rules of iptables-legacy, which this check does not read".to_owned(),
        place: "table filter of iptables-legacy".to_owned(),
        why: "if they drop forwarded packets, pods of different nodes cannot reach each other"
            .to_owned(),
        fix: "check iptables-legacy -S FORWARD and ip6tables-legacy -S FORWARD".to_owned(),
        drop_in: None,
    })
}

/// Reports reverse-path filters that drop packets of peers.
pub(super) fn reverse_path_filters(needs: &Needs, host: &Host) -> Vec<Finding> {
    let tunnels = needs.tunnels.iter().map(|(tunnel, _)| tunnel);
    let links = needs.underlay.iter().chain(tunnels);
    links
        .filter(|link| is_strict(link, host))
        .map(|link| strict_reverse_path(link, needs.routing))
        .collect()
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
        id: "strict-reverse-path",
        level,
        what: format!("the reverse-path filter of {link} is strict"),
        place: filter_sysctl(link),
        why: why.to_owned(),
        fix: format!("sysctl -w {}={LOOSE}", filter_sysctl(link)),
        drop_in: None,
    }
}
