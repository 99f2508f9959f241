//! The chains of the table, as data. Their number depends on how many different numbers of endpoints
//! there are, and not on the number of services.

use std::fmt;

use ipnetwork::IpNetwork;
use tweed_netlink::Family;
use tweed_netlink::nftables::{
    Condition, Field, Hook, Key, Match, Ports, Rule, Side, Tracking, Verdict,
};

use crate::state::{Flag, List, Set};

pub const TABLE: &str = "tweed-proxy";

/// What operators decide about the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Networks of pods: connections to cluster IPs from elsewhere are masqueraded. No condition in a
    /// family that has none.
    pub pods: Vec<IpNetwork>,
    /// All connections to cluster IPs are masqueraded.
    pub masquerades_all: bool,
    /// The ranges of cluster IPs: packets to those that no service has are dropped.
    pub services: Vec<IpNetwork>,
    /// The bit by which other programs know that a packet will be masqueraded.
    pub mark: u32,
}

impl Policy {
    /// Whether it names networks of this family.
    pub fn concerns(&self, family: Family) -> bool {
        let networks = [&self.pods, &self.services];
        networks.into_iter().any(|all| of_family(all, family).next().is_some())
    }
}

/// A chain that is to be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    pub name: String,
    pub hook: Option<Hook>,
    pub rules: Vec<Rule>,
}

/// A number of endpoints that frontends have in a list.
pub type Count = (List, u32);

/// The key of all sets of frontends.
pub fn frontend_key(family: Family) -> Key {
    let address = Field::Address(Side::Destination);
    Key::of(family, [address, Field::Protocol, Field::DestinationPort])
}

/// The key of the map of endpoints, where one of `count` is chosen.
pub fn slot_key(family: Family, count: u32) -> Key {
    let mut key = frontend_key(family);
    key.fields.push(Field::Random(count));
    key
}

/// The value of the map of endpoints.
pub fn endpoint_key(family: Family) -> Key {
    Key::of(family, [Field::Address(Side::Destination), Field::DestinationPort])
}

/// The key of the clients of restricted frontends.
pub fn client_key(family: Family) -> Key {
    let mut key = frontend_key(family);
    key.fields.push(Field::Address(Side::Source));
    key
}

/// The key of connections from an endpoint to itself.
pub fn hairpin_key(family: Family) -> Key {
    let addresses = [Field::Address(Side::Source), Field::Address(Side::Destination)];
    Key::of(family, addresses.into_iter().chain([Field::Protocol, Field::DestinationPort]))
}

/// The number whose chain has this name.
pub fn count_of(chain: &str) -> Option<Count> {
    let count = |list: List| {
        let count = chain.strip_prefix(&with_prefix(list))?.parse().ok();
        count.filter(|count| *count > 0).map(|count| (list, count))
    };
    List::ALL.into_iter().find_map(count)
}

/// All chains, each behind those that it leads to. `counts`: the numbers of endpoints that frontends
/// have, in the order of their rules. No name is a keyword of nft(8): administrators load its listings.
pub fn chains(family: Family, policy: &Policy, counts: &[Count]) -> Vec<Chain> {
    let choices = counts.iter().map(|(list, count)| {
        let key = slot_key(family, *count);
        let map = Set::Endpoints(*list).to_string();
        chain(&with(*list, *count), None, [Rule::of([], Verdict::DestinationNat(key, map))])
    });
    let served = || [Rule::of([is_in(family, Set::Flag(Flag::Served))], goto("frontend"))];
    let new = |chain| [Rule::of([Condition::Connection(Tracking::New)], goto(chain))];
    let masquerade = [
        Rule::of([], Verdict::Unmark(policy.mark)),
        Rule::of([], Verdict::Masquerade(Ports::FullyRandom)),
    ];
    choices
        .chain([
            chain("local-frontend", None, choose(family, counts, List::Local)),
            chain("frontend", None, frontend(family, policy, counts)),
            chain("untranslated", None, untranslated(family, policy)),
            chain("masquerading", None, masquerade),
            chain("admission", None, [admission(family)]),
            chain("incoming", Some(Hook::Untranslated), new("admission")),
            chain("outgoing", Some(Hook::OutputUntranslated), new("admission")),
            chain("prerouting", Some(Hook::EarlyDestinationNat), served()),
            chain("output", Some(Hook::EarlyOutputNat), served()),
            chain("translated", Some(Hook::Translated), new("untranslated")),
            chain("output-translated", Some(Hook::OutputTranslated), new("untranslated")),
            chain("postrouting", Some(Hook::EarlySourceNat), postrouting(family, policy)),
        ])
        .collect()
}

/// Drops connections to restricted frontends from other networks than those of their clients.
fn admission(family: Family) -> Rule {
    let unknown = Condition::KeyIn(client_key(family), Match::IsNot, Set::Clients.to_string());
    Rule::of([is_in(family, Set::Flag(Flag::Restricted)), unknown], Verdict::Drop)
}

/// Marks what is masqueraded, and chooses an endpoint.
fn frontend(family: Family, policy: &Policy, counts: &[Count]) -> Vec<Rule> {
    let local_only = || is_in(family, Set::Flag(Flag::LocalOnly));
    let mark = Verdict::Mark(policy.mark);
    let mut rules = Vec::new();
    if policy.masquerades_all {
        rules.push(Rule::of([is_cluster_ip(family)], mark.clone()));
    } else if of_family(&policy.pods, family).next().is_some() {
        let elsewhere = from_elsewhere(family, policy);
        rules.push(Rule::of([is_cluster_ip(family)].into_iter().chain(elsewhere), mark.clone()));
    }
    let outside = [local_only()].into_iter().chain(from_elsewhere(family, policy));
    let outside = outside.chain([Condition::LocalSource(Match::IsNot)]);
    rules.push(Rule::of(outside, goto("local-frontend")));
    let own = [local_only(), Condition::LocalSource(Match::Is)];
    rules.push(Rule::of(own, mark.clone()));
    rules.push(Rule::of([is_in(family, Set::Flag(Flag::External))], mark));
    rules.extend(choose(family, counts, List::All));
    rules
}

fn choose(family: Family, counts: &[Count], list: List) -> Vec<Rule> {
    let of_list = counts.iter().filter(|(other, _)| *other == list);
    let rules = of_list.map(|(list, count)| {
        Rule::of([is_in(family, Set::Count(*list, *count))], goto(&with(*list, *count)))
    });
    rules.collect()
}

/// What becomes of packets to services that have no endpoint for them.
fn untranslated(family: Family, policy: &Policy) -> Vec<Rule> {
    let ranges = of_family(&policy.services, family);
    let dropped = ranges.map(|range| Condition::destination(Match::Is, range));
    [
        Rule::of([is_in(family, Set::Flag(Flag::Refused))], Verdict::Reject),
        Rule::of([is_in(family, Set::Flag(Flag::Unanswered))], Verdict::Drop),
        Rule::of([is_cluster_ip(family)], Verdict::Reject),
    ]
    .into_iter()
    .chain(dropped.map(|range| Rule::of([range], Verdict::Drop)))
    .collect()
}

fn postrouting(family: Family, policy: &Policy) -> [Rule; 2] {
    let hairpin = Condition::KeyIn(hairpin_key(family), Match::Is, Set::Hairpins.to_string());
    let translated = Condition::Connection(Tracking::Translated);
    [
        Rule::of([Condition::Marked(Match::Is, policy.mark)], goto("masquerading")),
        Rule::of([translated, hairpin], Verdict::Masquerade(Ports::FullyRandom)),
    ]
}

/// The packet goes to a frontend of this set.
fn is_in(family: Family, set: Set) -> Condition {
    Condition::KeyIn(frontend_key(family), Match::Is, set.to_string())
}

fn is_cluster_ip(family: Family) -> Condition {
    let set = Set::ClusterIps.to_string();
    Condition::AddressIn(Side::Destination, Match::Is, set, family)
}

/// The packet comes from no pod.
fn from_elsewhere(family: Family, policy: &Policy) -> impl Iterator<Item = Condition> {
    of_family(&policy.pods, family).map(|network| Condition::source(Match::IsNot, network))
}

fn goto(chain: &str) -> Verdict {
    Verdict::Goto(chain.to_owned())
}

/// The chain that chooses one of `count` endpoints.
fn with(list: List, count: u32) -> String {
    format!("{}{count}", with_prefix(list))
}

fn with_prefix(list: List) -> String {
    format!("{}with-", list.prefix())
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chain {} {{", self.name)?;
        self.rules.iter().try_for_each(|rule| write!(f, " {rule};"))?;
        f.write_str(" }")
    }
}

fn of_family(networks: &[IpNetwork], family: Family) -> impl Iterator<Item = IpNetwork> {
    networks.iter().filter(move |network| Family::of(network.ip()) == family).copied()
}

fn chain(name: &str, hook: Option<Hook>, rules: impl IntoIterator<Item = Rule>) -> Chain {
    Chain { name: name.to_owned(), hook, rules: rules.into_iter().collect() }
}
