//! Decides whether a subnet can be reserved or released. Pure.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use serde::Serialize;

use crate::model::config::{NetworkConfig, Pool};
use crate::model::lease::{Lease, LeaseId};
use crate::model::prefix::{Family, Prefix};
use crate::operator::layout::{listed, wrap};
use crate::operator::nodes::Holder;
use crate::operator::nodes::evidence::NodeState;
use crate::operator::{Answer, Error};
use crate::store::etcd::{key, value};
use crate::store::operator::{LeaseChange, LeaseContents, StoredLease};

/// What an operator wants to reserve.
#[derive(Debug)]
pub(super) struct Reservation {
    pub(super) subnets: Vec<Prefix>,
    /// Of the node that gets them; none to keep them free.
    pub(super) public_ips: Vec<IpAddr>,
}

/// What is done, once `change` is written.
#[derive(Debug, Serialize)]
pub(super) struct Decision {
    action: Action,
    lease: LeaseId,
    subnets: Vec<Prefix>,
    public_ips: Vec<IpAddr>,
    notes: Vec<String>,
    #[serde(skip)]
    pub(super) change: Option<LeaseChange>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Action {
    Reserved,
    /// The lease of a node has no term any more.
    Kept,
    /// It was a reservation already.
    Unchanged,
    Released,
    /// There was no such lease any more.
    Gone,
}

impl Reservation {
    pub(super) fn decide(
        &self,
        contents: &LeaseContents,
        config: &NetworkConfig,
    ) -> Result<Decision, Error> {
        self.check(&config.pools)?;
        if let Some(found) = contents.leases.iter().find(|lease| self.is_of(lease)) {
            return self.of_existing(found);
        }
        let subnets = self.completed(&config.pools)?;
        if let Some(found) = contents.leases.iter().find(|lease| overlaps(lease, &subnets)) {
            let (all, its) = (listed(&subnets, ""), listed(&found.held.subnets, ""));
            let why = format!("{all} overlaps {its}, the lease of {}", holder(found));
            return Err(Error::Refused(why));
        }
        let id = key::encode(&subnets);
        let value = value::reserve(&subnets, &self.public_ips);
        let change = LeaseChange::Create { id: id.clone(), value, seen: contents.revision };
        Ok(Decision {
            action: Action::Reserved,
            lease: id,
            subnets,
            public_ips: self.public_ips.clone(),
            notes: self.notes(contents),
            change: Some(change),
        })
    }

    fn check(&self, pools: &[Pool]) -> Result<(), Error> {
        let mut subnets = self.subnets.iter();
        if let Some(subnet) = subnets.find(|it| !pools.iter().any(|pool| pool.assigns(**it))) {
            let of_nodes = |pool: &Pool| {
                let Pool { network, subnet_len, min, max } = pool;
                format!("{network}, each a /{subnet_len} from {} to {}", min.base(), max.base())
            };
            let all: Vec<String> = pools.iter().map(of_nodes).collect();
            return Err(Error::Usage(format!(
                "{subnet} is no subnet for a node: these are in {}",
                all.join(", and in ")
            )));
        }
        let families = self.subnets.iter().map(|subnet| subnet.family());
        once_each(families, "subnet")?;
        once_each(self.public_ips.iter().copied().map(Family::of), "public IP")?;
        let is_of_pool =
            |ip: &IpAddr| pools.iter().any(|it| it.network.family() == Family::of(*ip));
        match self.public_ips.iter().find(|ip| !is_of_pool(ip) || ip.is_unspecified()) {
            Some(ip) => {
                Err(Error::Usage(format!("{ip} is no public IP of a node of this network")))
            }
            None => Ok(()),
        }
    }

    /// Whether `lease` has exactly the subnets that are named.
    fn is_of(&self, lease: &StoredLease) -> bool {
        self.subnets.iter().all(|subnet| lease.held.subnets.contains(subnet))
    }

    /// A subnet of each pool: the same slot of all pools, as nodes choose them.
    fn completed(&self, pools: &[Pool]) -> Result<Vec<Prefix>, Error> {
        let slot = |pool: &Pool| self.subnets.iter().find_map(|subnet| pool.index(*subnet));
        let index = pools.iter().find_map(slot);
        let subnet = |pool: &Pool| {
            let named = self.subnets.iter().copied().find(|subnet| pool.assigns(*subnet));
            named.or_else(|| Some(pool.subnet(index.filter(|index| *index < pool.count())?)))
        };
        let subnets: Option<Vec<Prefix>> = pools.iter().map(subnet).collect();
        let unpaired = || Error::Usage("name a subnet of each address family".to_owned());
        subnets.ok_or_else(unpaired)
    }

    fn of_existing(&self, lease: &StoredLease) -> Result<Decision, Error> {
        let StoredLease { held, value, revision, .. } = lease;
        let is_for = |ip: &IpAddr| held.public_ips.contains(ip);
        let subnets = listed(&held.subnets, "");
        if !self.public_ips.iter().all(is_for) {
            let whose = if held.grant.is_none() { "reserved for" } else { "the lease of" };
            let why = format!("{subnets} is {whose} {}: release it first", holder(lease));
            return Err(Error::Refused(why));
        }
        if held.grant.is_none() {
            return Ok(of_lease(Action::Unchanged, lease));
        }
        if held.public_ips.is_empty() {
            return Err(Error::Refused(format!(
                "{subnets} is the lease of {}, whose record cannot be read: release it first",
                holder(lease)
            )));
        }
        let (id, value) = (held.id.clone(), value.clone());
        let change = Some(LeaseChange::Keep { id, value, seen: *revision });
        Ok(Decision { change, ..of_lease(Action::Kept, lease) })
    }

    /// The other leases of the node, which it keeps.
    fn notes(&self, contents: &LeaseContents) -> Vec<String> {
        let is_its = |lease: &&StoredLease| {
            lease.held.public_ips.iter().any(|ip| self.public_ips.contains(ip))
        };
        let note = |lease: &StoredLease| {
            format!(
                "{} has {} already, and keeps it until that is released",
                holder(lease),
                listed(&lease.held.subnets, "")
            )
        };
        contents.leases.iter().filter(is_its).map(note).collect()
    }
}

/// Deletes the lease of `subnet`, unless a node may still use it.
pub(super) fn release(
    contents: &LeaseContents,
    subnet: Prefix,
    node: impl FnOnce(&LeaseId) -> Option<Holder>,
    force: bool,
) -> Result<Decision, Error> {
    let found = contents.leases.iter().find(|lease| lease.held.subnets.contains(&subnet));
    let absent = || Error::Refused(format!("no lease has the subnet {subnet}"));
    let lease = found.ok_or_else(absent)?;
    let is_free = lease.is_vacant || force;
    if let Some(user) = (!is_free).then(|| user(lease, node(&lease.held.id))).flatten() {
        return Err(Error::Refused(format!(
            "{subnet} is the lease of {user}; if that node is gone, add --force"
        )));
    }
    let change = LeaseChange::Delete { id: lease.held.id.clone(), seen: lease.revision };
    Ok(Decision { change: Some(change), ..of_lease(Action::Released, lease) })
}

/// Deletes `own`, the lease of this node, unless it is another node's by now.
pub(super) fn give_back(contents: &LeaseContents, own: &Lease) -> Result<Decision, Error> {
    let Some(found) = contents.leases.iter().find(|lease| lease.held.id == own.id) else {
        if contents.config.is_none() {
            let why = "there is no network config in etcd: name the prefix of its keys with \
                       --etcd-prefix, or run the command without --lease";
            return Err(Error::Refused(why.to_owned()));
        }
        let subnets = own.subnets().collect();
        let (lease, public_ips) = (own.id.clone(), Vec::new());
        let (action, notes, change) = (Action::Gone, Vec::new(), None);
        return Ok(Decision { action, lease, subnets, public_ips, notes, change });
    };
    let is_own = |ip: &IpAddr| own.endpoints.iter().any(|it| it.public_ip == *ip);
    let subnets = listed(&found.held.subnets, "");
    if found.held.grant.is_none() {
        return Err(Error::Refused(format!(
            "{subnets} is reserved for {}: release it with tweedctl leases release",
            holder(found)
        )));
    }
    if !found.held.public_ips.iter().any(is_own) {
        let why = format!("{subnets} is now the lease of {}, and stays", holder(found));
        return Err(Error::Refused(format!("{why}: run the command without --lease")));
    }
    let change = LeaseChange::Delete { id: found.held.id.clone(), seen: found.revision };
    Ok(Decision { change: Some(change), ..of_lease(Action::Released, found) })
}

/// The node that may use `lease`, with its state; none if it is dead.
fn user(lease: &StoredLease, node: Option<Holder>) -> Option<String> {
    let Some(Holder { name, state, reason }) = node else {
        return Some(format!("{}, whose record cannot be read", holder(lease)));
    };
    let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    (state != NodeState::Dead).then(|| format!("node {name}, which is {state}{reason}"))
}

fn of_lease(action: Action, lease: &StoredLease) -> Decision {
    let held = lease.held.clone();
    Decision {
        action,
        lease: held.id,
        subnets: held.subnets,
        public_ips: held.public_ips,
        notes: Vec::new(),
        change: None,
    }
}

fn overlaps(lease: &StoredLease, subnets: &[Prefix]) -> bool {
    subnets.iter().any(|subnet| lease.held.overlaps(*subnet))
}

fn once_each(mut families: impl Iterator<Item = Family>, what: &str) -> Result<(), Error> {
    let mut known = BTreeSet::new();
    if families.all(|family| known.insert(family)) {
        return Ok(());
    }
    Err(Error::Usage(format!("name at most one {what} per address family")))
}

fn holder(lease: &StoredLease) -> String {
    match &lease.held.public_ips[..] {
        [] if lease.is_vacant => "no node".to_owned(),
        _ => lease.held.holder(),
    }
}

impl Answer for Decision {}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (subnets, node) = (listed(&self.subnets, ""), listed(&self.public_ips, "no node"));
        let done = match self.action {
            Action::Reserved => format!("{subnets} is reserved for {node}"),
            Action::Kept => {
                format!("{subnets} is reserved for {node}, which has it: it does not expire")
            }
            Action::Unchanged => format!("{subnets} is reserved for {node} already"),
            Action::Released => format!("{subnets} is released"),
            Action::Gone => format!("{subnets} was released before"),
        };
        writeln!(f, "{}", wrap(&done, 2))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "{}", wrap(&format!("note: {note}"), 2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::config::BackendType;
    use crate::model::lease::Endpoint;
    use crate::store::claim::HeldLease;
    use crate::store::operator::Written;

    const V4: &str = r#"{"Network":"10.5.0.0/16"}"#;
    const DUAL: &str = r#"{"Network":"10.5.0.0/16","EnableIPv6":true,"IPv6Network":"fd00::/48"}"#;

    fn lease(id: &str, public_ips: &[&str], grant: Option<i64>) -> StoredLease {
        let id = LeaseId::new(id);
        let public_ips = public_ips.iter().map(|ip| ip.parse().unwrap()).collect();
        let held = HeldLease { subnets: key::claimed(&id), id, public_ips, grant, created: 1 };
        StoredLease { held, is_vacant: grant.is_none(), value: b"value".to_vec(), revision: 7 }
    }

    fn contents(leases: &[StoredLease]) -> LeaseContents {
        LeaseContents { config: None, leases: leases.to_vec(), revision: 40 }
    }

    fn prefixes(texts: &[&str]) -> Vec<Prefix> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// What `reserve` prints, and the change that it makes.
    fn reserved(
        config: &str,
        leases: &[StoredLease],
        subnets: &[&str],
        public_ips: &[&str],
    ) -> (String, Option<LeaseChange>) {
        let config = NetworkConfig::parse(config.as_bytes()).unwrap();
        let public_ips = public_ips.iter().map(|ip| ip.parse().unwrap()).collect();
        let wanted = Reservation { subnets: prefixes(subnets), public_ips };
        match wanted.decide(&contents(leases), &config) {
            Ok(decision) => (decision.to_string().trim_end().to_owned(), decision.change),
            Err(error) => (error.to_string(), None),
        }
    }

    fn create(id: &str, value: &str) -> LeaseChange {
        let value = value.as_bytes().to_vec();
        LeaseChange::Create { id: LeaseId::new(id), value, seen: 40 }
    }

    #[test]
    fn a_free_subnet_is_reserved_for_a_node_or_for_none() {
        assert_eq!(
            reserved(V4, &[], &["10.5.7.0/24"], &["192.168.0.7"]),
            (
                "10.5.7.0/24 is reserved for 192.168.0.7".to_owned(),
                Some(create("10.5.7.0-24", r#"{"PublicIP":"192.168.0.7"}"#))
            )
        );
        assert_eq!(
            reserved(V4, &[], &["10.5.7.0/24"], &[]),
            (
                "10.5.7.0/24 is reserved for no node".to_owned(),
                Some(create("10.5.7.0-24", r#"{"PublicIP":"0.0.0.0"}"#))
            )
        );
    }

    #[test]
    fn the_other_family_gets_the_same_slot_unless_it_is_named() {
        let value = r#"{"PublicIP":"192.168.0.7","PublicIPv6":"::"}"#;
        let (_, change) = reserved(DUAL, &[], &["10.5.7.0/24"], &["192.168.0.7"]);
        assert_eq!(change, Some(create("10.5.7.0-24&fd00:0:0:7::-64", value)));
        let named = ["10.5.7.0/24", "fd00:0:0:9::/64"];
        let (_, change) = reserved(DUAL, &[], &named, &["192.168.0.7"]);
        assert_eq!(change, Some(create("10.5.7.0-24&fd00:0:0:9::-64", value)));
    }

    #[test]
    fn what_no_node_could_use_is_not_reserved() {
        let refused = |subnets: &[&str], ips: &[&str]| reserved(V4, &[], subnets, ips).0;
        for subnet in ["10.6.7.0/24", "10.5.7.0/25", "10.5.0.0/24", "fd00::/64"] {
            let why = refused(&[subnet], &[]);
            assert!(why.starts_with(&format!("{subnet} is no subnet for a node")), "{why}");
        }
        let twice = "name at most one subnet per address family";
        assert_eq!(refused(&["10.5.7.0/24", "10.5.8.0/24"], &[]), twice);
        for ip in ["fd00::7", "0.0.0.0"] {
            let why = refused(&["10.5.7.0/24"], &[ip]);
            assert_eq!(why, format!("{ip} is no public IP of a node of this network"));
        }
    }

    #[test]
    fn a_lease_becomes_a_reservation_only_of_its_own_node() {
        let leases = [lease("10.5.7.0-24", &["192.168.0.7"], Some(1))];
        let keep = LeaseChange::Keep {
            id: LeaseId::new("10.5.7.0-24"),
            value: b"value".to_vec(),
            seen: 7,
        };
        for public_ips in [&["192.168.0.7"][..], &[]] {
            let (text, change) = reserved(V4, &leases, &["10.5.7.0/24"], public_ips);
            assert_eq!(change.as_ref(), Some(&keep), "{text}");
        }
        let (text, change) = reserved(V4, &leases, &["10.5.7.0/24"], &["192.168.0.8"]);
        let why = "10.5.7.0/24 is the lease of the node with public IP 192.168.0.7: \
                   release it first";
        assert_eq!((text.as_str(), change), (why, None));
        let unreadable = [lease("10.5.7.0-24", &[], Some(1))];
        let (text, change) = reserved(V4, &unreadable, &["10.5.7.0/24"], &[]);
        assert!(text.contains("cannot be read") && change.is_none(), "{text}");
    }

    #[test]
    fn a_reservation_is_made_once() {
        let leases = [lease("10.5.7.0-24", &["192.168.0.7"], None)];
        let (text, change) = reserved(V4, &leases, &["10.5.7.0/24"], &["192.168.0.7"]);
        let done = "10.5.7.0/24 is reserved for 192.168.0.7 already";
        assert_eq!((text.as_str(), change), (done, None));
        let (text, change) = reserved(V4, &leases, &["10.5.7.0/24"], &["192.168.0.8"]);
        assert!(text.contains("release it first") && change.is_none(), "{text}");
    }

    #[test]
    fn nothing_that_overlaps_a_lease_is_reserved() {
        let wide = [lease("10.5.4.0-22", &["192.168.0.7"], Some(1))];
        let (text, change) = reserved(V4, &wide, &["10.5.7.0/24"], &[]);
        let why = "10.5.7.0/24 overlaps 10.5.4.0/22, the lease of the node with public IP \
                   192.168.0.7";
        assert_eq!((text.as_str(), change), (why, None));
        let other = [lease("10.5.9.0-24&fd00:0:0:7::-64", &["192.168.0.7"], Some(1))];
        let (text, change) = reserved(DUAL, &other, &["10.5.7.0/24"], &[]);
        assert!(text.contains("overlaps") && change.is_none(), "{text}");
    }

    #[test]
    fn the_lease_that_the_node_keeps_is_named() {
        let leases = [lease("10.5.3.0-24", &["192.168.0.7"], Some(1))];
        let (text, change) = reserved(V4, &leases, &["10.5.7.0/24"], &["192.168.0.7"]);
        assert!(change.is_some());
        assert!(
            text.contains("note: the node with public IP 192.168.0.7 has 10.5.3.0/24"),
            "{text}"
        );
    }

    /// What `release` prints, if the node of the lease has this state.
    fn released(lease: &StoredLease, state: Option<NodeState>, force: bool) -> String {
        let node =
            |_: &LeaseId| Some(Holder { name: "worker-7".to_owned(), state: state?, reason: None });
        let subnet = "10.5.7.0/24".parse().unwrap();
        match release(&contents(std::slice::from_ref(lease)), subnet, node, force) {
            Ok(decision) => {
                let (id, seen) = (lease.held.id.clone(), lease.revision);
                assert_eq!(decision.change, Some(LeaseChange::Delete { id, seen }));
                decision.to_string()
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_node_gives_back_only_its_own_lease() {
        let endpoint = |ip: &str| Endpoint {
            subnet: "10.5.7.0/24".parse().unwrap(),
            public_ip: ip.parse().unwrap(),
            backend: BackendType::HostGw.into(),
            vtep: None,
        };
        let (id, endpoints) = (LeaseId::new("10.5.7.0-24"), vec![endpoint("192.168.0.7")]);
        let own = Lease { id: id.clone(), endpoints, created: 1, grant: Some(1) };
        let config = Some(Written { text: "{}".to_owned(), revision: 1 });
        let stored = |leases: &[StoredLease]| {
            let config = config.clone();
            LeaseContents { config, ..contents(leases) }
        };
        let given = |leases: &[StoredLease]| match give_back(&stored(leases), &own) {
            Ok(decision) => (decision.to_string().trim_end().to_owned(), decision.change),
            Err(error) => (error.to_string(), None),
        };
        let mine = lease("10.5.7.0-24", &["192.168.0.7"], Some(2));
        let delete = LeaseChange::Delete { id, seen: 7 };
        assert_eq!(given(&[mine]), ("10.5.7.0/24 is released".to_owned(), Some(delete)));
        assert_eq!(given(&[]), ("10.5.7.0/24 was released before".to_owned(), None));
        let elsewhere = give_back(&contents(&[]), &own).unwrap_err().to_string();
        assert!(elsewhere.contains("--etcd-prefix"), "{elsewhere}");
        for (stored, why) in [
            (lease("10.5.7.0-24", &["192.168.0.8"], Some(2)), "is now the lease of"),
            (lease("10.5.7.0-24", &[], Some(2)), "is now the lease of"),
            (lease("10.5.7.0-24", &["192.168.0.7"], None), "is reserved for"),
        ] {
            let (text, change) = given(&[stored]);
            assert!(text.contains(why) && change.is_none(), "{text}");
        }
    }

    #[test]
    fn a_lease_that_a_node_may_use_is_released_only_by_force() {
        use NodeState::{Dead, NoReport, Ready, Stale, Unreachable};
        let used = lease("10.5.7.0-24", &["192.168.0.7"], Some(1));
        for state in [Ready, Stale, Unreachable, NoReport] {
            let why = released(&used, Some(state), false);
            let name = format!("is the lease of node worker-7, which is {state}");
            assert!(why.contains(&name) && why.ends_with("--force"), "{why}");
            assert_eq!(released(&used, Some(state), true), "10.5.7.0/24 is released\n");
        }
        assert!(released(&used, None, false).contains("cannot be read"));
        assert_eq!(released(&used, Some(Dead), false), "10.5.7.0/24 is released\n");
        let taken =
            StoredLease { is_vacant: false, ..lease("10.5.7.0-24", &["192.168.0.7"], None) };
        assert!(released(&taken, Some(Ready), false).contains("--force"));
        let vacant = lease("10.5.7.0-24", &["192.168.0.7"], None);
        assert_eq!(released(&vacant, None, false), "10.5.7.0/24 is released\n");
        let other = lease("10.5.0.0-16", &["192.168.0.7"], Some(1));
        assert_eq!(released(&other, None, true), "no lease has the subnet 10.5.7.0/24");
    }
}
