//! All services and their endpoints, and what this node programs for them.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::iter;
use std::mem;
use std::net::IpAddr;

use tweed_netlink::{Family, excerpt};

use super::conntrack::{self, Leaving, Stale};
use super::diff::Part;
use crate::objects::endpoints::{self, Chosen, Slice, SliceName};
use crate::objects::service::{Reach, Service, ServiceName};
use crate::state::{Element, Endpoint, Entry, Flag, Frontend, List, Slots, State, Transport};

/// The view of the cluster. A change costs as much as the service has frontends and endpoints.
#[derive(Debug, Default)]
pub struct Cluster {
    addresses: NodeAddresses,
    affinity: Affinity,
    services: BTreeMap<ServiceName, Service>,
    slices: BTreeMap<(ServiceName, SliceName), Slice>,
    /// The service of each slice.
    services_of: BTreeMap<SliceName, ServiceName>,
    /// Which services have a frontend, in their order; the first of them gets it.
    claims: BTreeSet<(Frontend, Claim)>,
    /// The hairpins that a frontend needs.
    hairpins: HashMap<Frontend, Box<[Element]>>,
    /// How many frontends need a hairpin.
    uses: HashMap<Element, usize>,
    desired: State,
    leaving: Leaving,
    changed: BTreeSet<Frontend>,
    /// Addresses that have become cluster IPs, or are none any more.
    internal: BTreeSet<IpAddr>,
}

/// The addresses of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAddresses {
    /// The first of each family.
    pub primary: Vec<IpAddr>,
    /// Those that have node ports.
    pub for_node_ports: Vec<IpAddr>,
}

/// What becomes of services with session affinity, which is not supported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// Another proxy on this node serves them.
    #[default]
    LeftToOthers,
    /// They are served without it.
    Ignored,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    reach: Reach,
    service: ServiceName,
    /// The index of the port.
    port: usize,
}

/// What is planned for a frontend.
struct Plan {
    entry: Entry,
    /// For its endpoints that may be on this node.
    hairpins: Box<[Element]>,
    /// See [`Chosen::serving`].
    serving: BTreeSet<Endpoint>,
}

/// The most services and frontends that warnings name at once.
const MOST_WARNINGS: usize = 1000;

impl Cluster {
    pub fn new(addresses: NodeAddresses) -> Self {
        Self { addresses, ..Self::default() }
    }

    /// `actual`: what the sets hold. Endpoints keep their indexes, so that a restart changes nothing.
    pub fn adopt(addresses: NodeAddresses, affinity: Affinity, actual: State) -> Self {
        let changed = actual.frontends.keys().copied().collect();
        let desired = State { frontends: actual.frontends, ..State::default() };
        Self { addresses, affinity, desired, changed, ..Self::default() }
    }

    /// `actual`: what the sets hold, after another program may have written them. Endpoints that are
    /// there keep the indexes that they have there.
    pub fn resume(&mut self, actual: &State) {
        for (frontend, have) in &actual.frontends {
            let known = self.desired.frontends.get_mut(frontend);
            if let Some(known) = known.filter(|known| *known != have) {
                known.clone_from(have);
                self.changed.insert(*frontend);
            }
        }
    }

    /// None if there is no such service any more.
    pub fn set_service(&mut self, name: &ServiceName, service: Option<Service>) {
        if self.services.get(name) == service.as_ref() {
            return;
        }
        self.withdraw(name);
        match service {
            Some(service) => self.services.insert(name.clone(), service),
            None => self.services.remove(name),
        };
        self.claim(name);
    }

    /// None if there is no such slice any more, or if it belongs to no service.
    pub fn set_slice(&mut self, name: &SliceName, slice: Option<(ServiceName, Slice)>) {
        let service = slice.as_ref().map(|(service, _)| service);
        let before = self.services_of.get(name).filter(|before| Some(*before) != service);
        if let Some(before) = before.cloned() {
            self.put_slice(&before, name, None);
            self.services_of.remove(name);
        }
        if let Some((service, slice)) = slice {
            self.put_slice(&service, name, Some(slice));
            self.services_of.insert(name.clone(), service);
        }
    }

    fn put_slice(&mut self, service: &ServiceName, name: &SliceName, slice: Option<Slice>) {
        let key = (service.clone(), name.clone());
        if self.slices.get(&key) == slice.as_ref() {
            return;
        }
        match slice {
            Some(slice) => self.slices.insert(key, slice),
            None => self.slices.remove(&key),
        };
        let frontends: Vec<_> = self.claims_of(service).map(|(frontend, _)| frontend).collect();
        self.changed.extend(frontends);
    }

    /// These services, and no others.
    pub fn set_services(&mut self, services: HashMap<ServiceName, Service>) {
        let gone = self.services.keys().filter(|name| !services.contains_key(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.set_service(&name, None);
        }
        for (name, service) in services {
            self.set_service(&name, Some(service));
        }
    }

    /// These slices, and no others.
    pub fn set_slices(&mut self, slices: HashMap<SliceName, (ServiceName, Slice)>) {
        let gone = self.services_of.keys().filter(|name| !slices.contains_key(*name));
        for name in gone.cloned().collect::<Vec<_>>() {
            self.set_slice(&name, None);
        }
        for (name, slice) in slices {
            self.set_slice(&name, Some(slice));
        }
    }

    pub fn set_addresses(&mut self, addresses: NodeAddresses) {
        if self.addresses == addresses {
            return;
        }
        let names: Vec<ServiceName> = self.services.keys().cloned().collect();
        for name in &names {
            self.withdraw(name);
        }
        self.addresses = addresses;
        for name in &names {
            self.claim(name);
        }
    }

    /// The addresses with adopted frontends that are node ports of the services that are known, and
    /// nothing else: of use before the first [`Self::revise`].
    pub fn adopted_for_node_ports(&self) -> BTreeSet<IpAddr> {
        let any = [IpAddr::from([0; 4]), IpAddr::from([0; 16])];
        let all = self.services.values().flat_map(|service| service.frontends(&any));
        let ports = all.filter(|(_, reach, _)| *reach == Reach::NodePort);
        let ports: BTreeSet<(Transport, u16)> =
            ports.map(|(frontend, ..)| (frontend.transport, frontend.port)).collect();
        let is_node_port = |frontend: &&Frontend| {
            let owner = self.claim_of(**frontend);
            ports.contains(&(frontend.transport, frontend.port))
                && owner.is_none_or(|claim| claim.reach == Reach::NodePort)
        };
        self.desired.frontends.keys().filter(is_node_port).map(|it| it.address).collect()
    }

    /// What is to be programmed, as of the last [`Self::revise`].
    pub const fn desired(&self) -> &State {
        &self.desired
    }

    /// Objects and frontends that are not programmed as their objects ask for it.
    pub fn warnings(&self) -> Vec<String> {
        let of_services = self.services.iter().flat_map(|(name, service)| {
            let of_fields = service.warnings.iter().map(String::as_str);
            let of_affinity = service.has_affinity.then(|| self.affinity.warning());
            let all = of_fields.chain(of_affinity);
            all.map(move |warning| format!("Service {name}: {warning}"))
        });
        let of_slices = self.slices.iter().flat_map(|((_, name), slice)| {
            slice.warnings.iter().map(move |warning| format!("EndpointSlice {name}: {warning}"))
        });
        let mut first = None::<&(Frontend, Claim)>;
        let conflicts = self.claims.iter().filter_map(|one| {
            let owner = first.filter(|first| first.0 == one.0);
            first = owner.or(Some(one));
            let (frontend, Claim { service, .. }) = one;
            let Claim { service: owner, .. } = &owner.filter(|it| it.1.service != *service)?.1;
            Some(format!("Service {service}: {frontend} belongs to Service {owner}"))
        });
        let mut warnings: Vec<String> = of_services.chain(of_slices).chain(conflicts).collect();
        warnings.sort();
        warnings.dedup();
        let more = warnings.len().saturating_sub(MOST_WARNINGS);
        warnings.truncate(MOST_WARNINGS);
        let rest = (more > 0).then(|| format!("and {more} more of these"));
        warnings.iter().map(|warning| excerpt::sentence(warning)).chain(rest).collect()
    }

    /// Plans what changed since the last time. Returns the parts that may differ from before.
    pub fn revise(&mut self) -> BTreeSet<Part> {
        let mut changed = BTreeSet::new();
        for frontend in mem::take(&mut self.changed) {
            let (entry, hairpins, serving) = match self.plan(frontend) {
                Some(Plan { entry, hairpins, serving }) => (Some(entry), hairpins, serving),
                None => Default::default(),
            };
            let before = self.desired.entry(&frontend);
            if frontend.transport == Transport::Udp {
                let [known, listed] = [before, entry.as_ref()].map(conntrack::endpoints);
                self.leaving.note(frontend, known, &listed, &serving);
            }
            if before != entry.as_ref() {
                changed.insert(Part::Frontend(frontend));
            }
            match entry {
                Some(entry) => self.desired.frontends.insert(frontend, Box::new(entry)),
                None => self.desired.frontends.remove(&frontend),
            };
            // What both have is not removed in between.
            for element in &hairpins {
                self.add_use(*element, &mut changed);
            }
            let before = if hairpins.is_empty() {
                self.hairpins.remove(&frontend)
            } else {
                self.hairpins.insert(frontend, hairpins)
            };
            for element in before.unwrap_or_default() {
                self.remove_use(element, &mut changed);
            }
        }
        for address in mem::take(&mut self.internal) {
            let element = Element::ClusterIp(address);
            let is_changed = if self.is_cluster_ip(address) {
                self.desired.shared.insert(element)
            } else {
                self.desired.shared.remove(&element)
            };
            changed.extend(is_changed.then_some(Part::Shared(element)));
        }
        changed
    }

    fn is_cluster_ip(&self, address: IpAddr) -> bool {
        let first = Frontend { address, transport: Transport::Tcp, port: 0 };
        let claims = self.claims.range((first, Claim::default())..);
        let claims = claims.take_while(|(frontend, _)| frontend.address == address);
        let mut services = claims.filter(|(_, claim)| claim.reach == Reach::ClusterIp);
        services.any(|(_, claim)| self.served(&claim.service).is_some())
    }

    /// None if no service that is served here has it.
    fn plan(&self, frontend: Frontend) -> Option<Plan> {
        let (service, reach, chosen) = self.choose(frontend)?;
        let family = Family::of(frontend.address);
        let have = self.desired.entry(&frontend);
        let mut entry = program(have, &chosen, reach, service.is_local(reach));
        let mut own = self.addresses.primary.iter().filter(|one| Family::of(**one) == family);
        let clients = service.clients(&frontend, reach, own.next().copied());
        // Without endpoints, too: others are not to learn even that.
        if let Some(clients) = clients {
            entry.flags.insert(Flag::Restricted);
            entry.clients = clients;
        }
        let here = chosen.here.into_iter();
        let hairpins = here.map(|one| Element::Hairpin(frontend.transport, one));
        Some(Plan { entry, hairpins: hairpins.collect(), serving: chosen.serving })
    }

    /// None if another proxy serves it: what it claims is not translated here, for no other service.
    fn served(&self, name: &ServiceName) -> Option<&Service> {
        self.services.get(name).filter(|service| self.affinity.serves(service))
    }

    /// The service that has a frontend, and its endpoints.
    fn choose(&self, frontend: Frontend) -> Option<(&Service, Reach, Chosen)> {
        let Claim { reach, service: name, port } = self.claim_of(frontend)?;
        let slices = self.slices.range((name.clone(), SliceName::default())..);
        let slices = slices.take_while(|((of, _), _)| of == name).map(|(_, slice)| slice);
        let service = self.served(name)?;
        let port = service.ports.get(*port)?;
        Some((service, *reach, endpoints::choose(slices, port, Family::of(frontend.address))))
    }

    /// `found`: connections of UDP, maybe of a time of which nothing is known. Those to frontends are
    /// stale, unless their endpoint serves.
    pub fn review(&mut self, found: &BTreeSet<Stale>) {
        for (frontend, mut known) in conntrack::by_frontend(found) {
            let Some(entry) = self.desired.entry(&frontend) else { continue };
            if !conntrack::is_served(entry) {
                // Those that were not translated have nowhere else to go.
                known.remove(&Endpoint { address: frontend.address, port: frontend.port });
            }
            let listed = conntrack::endpoints(Some(entry));
            let serving = self.serving(frontend);
            self.leaving.note(frontend, known, &listed, &serving);
        }
    }

    /// Those of `stale` whose endpoint has not come back meanwhile.
    pub fn still_stale(&self, stale: &BTreeSet<Stale>) -> BTreeSet<Stale> {
        let mut left = BTreeSet::new();
        for (frontend, mut endpoints) in conntrack::by_frontend(stale) {
            let listed = conntrack::endpoints(self.desired.entry(&frontend));
            let serving = self.serving(frontend);
            endpoints.retain(|one| !listed.contains(one) && !serving.contains(one));
            left.extend(endpoints.into_iter().map(|one| Stale::left(&frontend, one)));
        }
        left
    }

    fn claim_of(&self, frontend: Frontend) -> Option<&Claim> {
        let (found, claim) = self.claims.range((frontend, Claim::default())..).next()?;
        (*found == frontend).then_some(claim)
    }

    /// The endpoints of a frontend of UDP that answer the connections that they have, whether or not
    /// new ones go there.
    fn serving(&self, frontend: Frontend) -> BTreeSet<Endpoint> {
        self.choose(frontend).map(|(_, _, chosen)| chosen.serving).unwrap_or_default()
    }

    /// The connections of UDP that have lost their endpoint by changes that [`Self::revise`] planned
    /// since the last call.
    pub fn take_stale(&mut self) -> BTreeSet<Stale> {
        self.leaving.take_stale()
    }

    fn add_use(&mut self, element: Element, changed: &mut BTreeSet<Part>) {
        let uses = self.uses.entry(element).or_default();
        *uses += 1;
        if *uses == 1 {
            self.desired.shared.insert(element);
            changed.insert(Part::Shared(element));
        }
    }

    fn remove_use(&mut self, element: Element, changed: &mut BTreeSet<Part>) {
        let Some(uses) = self.uses.get_mut(&element) else { return };
        *uses -= 1;
        if *uses == 0 {
            self.uses.remove(&element);
            self.desired.shared.remove(&element);
            changed.insert(Part::Shared(element));
        }
    }

    /// Adds the claims of a service.
    fn claim(&mut self, name: &ServiceName) {
        for (frontend, claim) in self.claims_of(name).collect::<Vec<_>>() {
            self.note_change(&frontend, claim.reach);
            self.claims.insert((frontend, claim));
        }
    }

    /// Removes the claims of a service.
    fn withdraw(&mut self, name: &ServiceName) {
        for (frontend, claim) in self.claims_of(name).collect::<Vec<_>>() {
            self.note_change(&frontend, claim.reach);
            self.claims.remove(&(frontend, claim));
        }
    }

    fn note_change(&mut self, frontend: &Frontend, reach: Reach) {
        self.changed.insert(*frontend);
        if reach == Reach::ClusterIp {
            self.internal.insert(frontend.address);
        }
    }

    fn claims_of(&self, name: &ServiceName) -> impl Iterator<Item = (Frontend, Claim)> {
        let node = &self.addresses.for_node_ports;
        let frontends = self.services.get(name).into_iter().flat_map(|it| it.frontends(node));
        frontends
            .map(|(frontend, reach, port)| (frontend, Claim { reach, service: name.clone(), port }))
    }
}

impl Affinity {
    /// Whether `service` is served here.
    pub fn serves(self, service: &Service) -> bool {
        !service.has_affinity || self == Self::Ignored
    }

    /// Of a service that asks for it.
    const fn warning(self) -> &'static str {
        match self {
            Self::LeftToOthers => {
                "sessionAffinity: ClientIP is not supported: left to another proxy"
            }
            Self::Ignored => {
                "sessionAffinity: ClientIP is ignored: each connection goes to a random endpoint"
            }
        }
    }
}

/// What the sets have of a frontend with these endpoints.
fn program(have: Option<&Entry>, chosen: &Chosen, reach: Reach, is_local: bool) -> Entry {
    let nothing = BTreeSet::new();
    let is_inside = reach == Reach::ClusterIp;
    let (all, local) = match (is_inside, is_local) {
        (_, false) => (&chosen.all, &nothing),
        (true, true) => (&chosen.local, &nothing),
        (false, true) => (&chosen.all, &chosen.local),
    };
    let is_local_only = is_local && !is_inside;
    let is_served = !all.is_empty() || !local.is_empty();
    let is_unanswered = if is_local_only { local.is_empty() } else { all.is_empty() };
    let is_refused = chosen.all.is_empty();
    let flags = [
        (Flag::Served, is_served),
        (Flag::External, is_served && !is_inside && !is_local),
        (Flag::LocalOnly, is_served && is_local_only),
        (Flag::Refused, is_refused),
        (Flag::Unanswered, is_unanswered && !is_refused),
    ];
    let slots = |list| have.map(|entry| entry.list(list).slots.as_slice()).unwrap_or_default();
    Entry {
        all: Slots::of(arrange(slots(List::All), all)),
        local: Slots::of(arrange(slots(List::Local), local)),
        clients: BTreeSet::new(),
        flags: flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag).collect(),
    }
}

/// These endpoints by index. An endpoint keeps its index as long as there is no gap in front of it: a
/// new one fills the first gap, and then the last one does.
fn arrange(have: &[Option<Endpoint>], chosen: &BTreeSet<Endpoint>) -> Vec<Endpoint> {
    let mut known = BTreeSet::new();
    // The sets may have one twice: its former index is removed later than it gets its new one.
    let mut is_kept = |endpoint: &Endpoint| chosen.contains(endpoint) && known.insert(*endpoint);
    let kept: Vec<_> = have.iter().map(|slot| slot.filter(&mut is_kept)).collect();
    let mut new = chosen.difference(&known).copied();
    let slots = kept.into_iter().map(|slot| slot.or_else(|| new.next()));
    let mut slots: VecDeque<_> = slots.collect();
    slots.extend(new.map(Some));
    let mut arranged = Vec::with_capacity(chosen.len());
    while let Some(slot) = slots.pop_front() {
        let last = || iter::from_fn(|| slots.pop_back()).flatten().next();
        arranged.extend(slot.or_else(last));
    }
    arranged
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn service(cluster_ip: &str, external_ips: &[&str]) -> Service {
        let object = json!({
            "metadata": {"namespace": "default", "name": "any"},
            "spec": {
                "clusterIP": cluster_ip, "externalIPs": external_ips, "ports": [{"port": 80}],
                "internalTrafficPolicy": "Local",
            },
        });
        Service::of(&serde_json::from_value(object).unwrap()).unwrap()
    }

    /// The flags of a cluster IP of the policy `Local` with one endpoint.
    fn flags(node: &str, conditions: &Value) -> BTreeSet<Flag> {
        let slice = json!({
            "metadata": {
                "namespace": "default", "name": "any-1",
                "labels": {"kubernetes.io/service-name": "any"},
            },
            "addressType": "IPv4",
            "ports": [{"port": 8080}],
            "endpoints": [
                {"addresses": ["10.1.0.1"], "nodeName": node, "conditions": conditions},
            ],
        });
        let slice = serde_json::from_value(slice).unwrap();
        let mut cluster = Cluster::new(NodeAddresses::default());
        let name = ServiceName::of("default", "any");
        cluster.set_service(&name, Some(service("10.96.0.1", &[])));
        cluster.set_slice(&SliceName::of(&slice), Slice::of(&slice, "here"));
        cluster.revise();
        let address = "10.96.0.1".parse().unwrap();
        let frontend = Frontend { address, transport: Transport::Tcp, port: 80 };
        cluster.desired().frontends[&frontend].flags.clone()
    }

    #[test]
    fn a_cluster_ip_without_local_endpoints_is_unanswered_as_long_as_another_node_has_one() {
        let ready = json!({"ready": true});
        let ending = json!({"ready": false, "serving": true, "terminating": true});
        let unable = json!({"ready": false, "serving": false});
        for able in [&ready, &ending] {
            assert_eq!(flags("here", able), BTreeSet::from([Flag::Served]), "{able}");
            assert_eq!(flags("there", able), BTreeSet::from([Flag::Unanswered]), "{able}");
        }
        for node in ["here", "there"] {
            assert_eq!(flags(node, &unable), BTreeSet::from([Flag::Refused]), "{node}");
        }
    }

    /// Between the change of a frontend and the removal of its last slot, the sets have one endpoint
    /// twice: a proxy that starts then does not take it for two.
    #[test]
    fn an_endpoint_that_the_sets_have_twice_gets_one_index() {
        let endpoint = |number| Endpoint { address: [10, 1, 0, number].into(), port: 80 };
        let [a, b, c] = [1, 2, 3].map(endpoint);
        assert_eq!(arrange(&[Some(c), Some(b), Some(c)], &[b, c].into()), [c, b]);
        assert_eq!(arrange(&[Some(c), Some(b), Some(c)], &[a, b, c].into()), [c, b, a]);
    }

    #[test]
    fn nothing_of_a_service_with_session_affinity_is_translated_unless_it_is_ignored() {
        for (affinity, served) in [
            (Affinity::LeftToOthers, &["10.96.0.2"][..]),
            (Affinity::Ignored, &["10.96.0.1", "10.96.0.2"]),
        ] {
            let mut cluster = Cluster::adopt(NodeAddresses::default(), affinity, State::default());
            let mut with_affinity = service("10.96.0.1", &[]);
            with_affinity.has_affinity = true;
            cluster.set_service(&ServiceName::of("default", "sticky"), Some(with_affinity));
            let other = service("10.96.0.2", &["10.96.0.1"]);
            cluster.set_service(&ServiceName::of("default", "other"), Some(other));
            cluster.revise();
            let State { frontends, shared } = cluster.desired();
            let served: BTreeSet<IpAddr> = served.iter().map(|it| it.parse().unwrap()).collect();
            assert_eq!(frontends.keys().map(|it| it.address).collect::<BTreeSet<_>>(), served);
            assert_eq!(*shared, served.into_iter().map(Element::ClusterIp).collect());
            assert_eq!(
                cluster.warnings(),
                [
                    "Service default/other: TCP 10.96.0.1:80 belongs to Service default/sticky",
                    &format!("Service default/sticky: {}", affinity.warning()),
                ]
            );
        }
    }

    #[test]
    fn two_services_with_one_address_do_not_share_it() {
        let mut cluster = Cluster::new(NodeAddresses::default());
        let [first, second, third] =
            ["first", "second", "third"].map(|name| ServiceName::of("default", name));
        cluster.set_service(&third, Some(service("10.96.0.3", &["10.96.0.1"])));
        cluster.set_service(&second, Some(service("10.96.0.2", &["192.0.2.1"])));
        cluster.set_service(&first, Some(service("10.96.0.1", &["192.0.2.1"])));
        cluster.revise();
        assert_eq!(
            cluster.warnings(),
            [
                "Service default/second: TCP 192.0.2.1:80 belongs to Service default/first",
                "Service default/third: TCP 10.96.0.1:80 belongs to Service default/first",
            ]
        );
        let cluster_ip = |address: &str| Element::ClusterIp(address.parse().unwrap());
        assert!(cluster.desired().shared.contains(&cluster_ip("10.96.0.1")));
        cluster.set_service(&first, None);
        cluster.revise();
        assert_eq!(cluster.warnings(), [] as [&str; 0]);
        let taken =
            Frontend { address: "10.96.0.1".parse().unwrap(), transport: Transport::Tcp, port: 80 };
        assert!(cluster.desired().frontends.contains_key(&taken));
        assert!(!cluster.desired().shared.contains(&cluster_ip("10.96.0.1")));
    }
}
