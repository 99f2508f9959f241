//! What was sent between pairs of nodes when they were looked at last: it is sent again only after a
//! change.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use tweed::model::prefix::Family;

use crate::cluster::Cluster;
use crate::packets::connection::{Broken, Client, Connection};
use crate::packets::walk::{Arrival, Lost, Outline};

#[derive(Default)]
pub(crate) struct Arrivals {
    outline: Outline,
    /// The pairs whose packets arrived, with the numbers of changes of the kernels of sender and
    /// receiver.
    known: BTreeMap<(usize, usize, Family), (u64, Arrival, u64)>,
    /// By way of a node to a pod of another one.
    open: BTreeMap<(usize, usize, Client, Family), Open>,
}

struct Open {
    connection: Connection,
    /// Whether it was opened before the rules of tweed were there, after flanneld: what others
    /// masquerade ends with a change of path.
    is_of_flannel: bool,
    /// The numbers of changes of the kernels of both nodes at the last exchange; none if it has to
    /// be repeated.
    seen: Option<[u64; 2]>,
}

/// A connection that is no longer open, or could not be opened.
#[derive(Debug)]
pub(crate) struct Failed {
    client: Client,
    /// None if it could not be opened.
    connection: Option<Connection>,
    reason: Broken,
}

impl Arrivals {
    /// Only connections between the `judged` nodes stay open.
    pub(crate) fn check(&mut self, outline: Outline, judged: &[usize]) {
        self.open.retain(|(from, to, ..), _| judged.contains(from) && judged.contains(to));
        if self.outline != outline {
            self.outline = outline;
            self.known.clear();
            self.open.values_mut().for_each(|it| it.seen = None);
        }
    }

    /// A packet between pods.
    pub(crate) fn send(
        &mut self,
        cluster: &Cluster,
        (from, to): (usize, usize),
        family: Family,
    ) -> Result<(), Lost> {
        let changes = |index: usize| cluster.nodes[index].kernel.changes();
        let is_known =
            self.known.get(&(from, to, family)).is_some_and(|(sender, arrival, receiver)| {
                *sender == changes(from) && *receiver == changes(arrival.host)
            });
        if !is_known {
            let arrival = cluster.send(from, to, family)?;
            let pair = (from, to, family);
            self.known.insert(pair, (changes(from), arrival, changes(arrival.host)));
        }
        Ok(())
    }

    /// A request and its answer on the connections of all clients, which are opened if they are not.
    pub(crate) fn exchange(
        &mut self,
        cluster: &Cluster,
        (from, to): (usize, usize),
        family: Family,
    ) -> Result<(), Failed> {
        let segment = cluster.network.segment.borrow();
        let now = Some([from, to].map(|index| cluster.nodes[index].kernel.changes()));
        for client in Client::ALL {
            let key = (from, to, client, family);
            let open = match self.open.entry(key) {
                Entry::Occupied(open) => open.into_mut(),
                Entry::Vacant(place) => {
                    let opened = segment.connect(client, (from, to), family);
                    let failed = |reason| Failed { client, connection: None, reason };
                    let connection = opened.map_err(failed)?;
                    let is_of_flannel =
                        cluster.setup.flannel.is_some() && !cluster.nodes[from].has_rules(family);
                    place.insert(Open { connection, is_of_flannel, seen: None })
                }
            };
            if open.seen == now {
                continue;
            }
            match segment.exchange(&open.connection) {
                Ok(()) => open.seen = now,
                Err(Broken::OtherLink) if open.is_of_flannel => {
                    self.open.remove(&key);
                }
                Err(reason) => {
                    let connection = Some(open.connection.clone());
                    return Err(Failed { client, connection, reason });
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, connection, reason } = self;
        match connection {
            Some(connection) => write!(f, "{client:?}: {reason:?} of {connection:?}"),
            None => write!(f, "{client:?}: {reason:?}, when it is opened"),
        }
    }
}
