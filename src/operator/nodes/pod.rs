//! A throw-away pod of this node: a network namespace that the CNI plugins of the runtime join.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Context;
use serde_json::Value;
use tweed_cni::delegate::list::{Container, INTERFACE, PluginList};
use tweed_cni::netns::Netns;
use tweed_cni::protocol::error::Error as CniError;
use tweed_netlink::rtnl::address::{self, Detection};
use tweed_netlink::rtnl::link;
use tweed_netlink::{Protocol, Socket};

use crate::kernel::host::{self, Places};
use crate::model::prefix::Family;
use crate::operator::Error;
use crate::probe::EchoWire;
use crate::random::random;

/// Its namespace has no name, and ends with it. What the plugins have added is removed only by
/// [`leave`](Self::leave).
pub(super) struct ThrowAwayPod {
    netns: Netns,
    plugins: PluginList,
    folders: Vec<PathBuf>,
    id: String,
    result: Option<Value>,
}

/// What the plugins have given to the pod.
pub(super) struct PodInterface {
    pub(super) mtu: u32,
    pub(super) addresses: Vec<IpAddr>,
    /// One for each family of the addresses.
    pub(super) wires: Vec<EchoWire>,
}

impl ThrowAwayPod {
    /// Creates a pod as the runtimes of this host do. After an error, nothing of it is left, or
    /// the error names what is left.
    pub(super) fn join(places: &Places) -> Result<Self, Error> {
        let plugins = plugin_list(places)?;
        let netns = Netns::create().map_err(|error| Error::Unavailable(error.to_string()))?;
        let id = format!("tweedctl-{:016x}", random::<u64>());
        let folders = places.cni_plugins.clone();
        let mut pod = Self { netns, plugins, folders, id, result: None };
        match pod.run(PluginList::add) {
            Ok(result) => {
                pod.result = result;
                Ok(pod)
            }
            Err(error) => {
                let left = pod.leave();
                let reasons = [vec![error.to_string()], left].concat().join("; ");
                Err(Error::Refused(format!("no pod can be created: {reasons}")))
            }
        }
    }

    /// The interface, with sockets in the namespace.
    pub(super) fn interface(&self) -> Result<PodInterface, Error> {
        let within = self.netns.within(|| -> anyhow::Result<_> {
            let mut socket = Socket::open(Protocol::Route)?;
            let link = link::find(&mut socket, INTERFACE)?;
            let link = link.with_context(|| format!("it has no {INTERFACE}"))?;
            let listed = socket.list(&address::list(), address::read)?;
            let is_used = |it: &address::Address| {
                it.link == link.index && it.is_global && it.detection == Detection::Done
            };
            let addresses: Vec<IpAddr> =
                listed.into_iter().filter(is_used).map(|it| it.network.ip()).collect();
            let families = Family::ALL.into_iter();
            let families = families.filter(|it| addresses.iter().any(|ip| Family::of(*ip) == *it));
            let wires = families.map(EchoWire::open).collect::<Result<_, _>>()?;
            Ok(PodInterface { mtu: link.mtu, addresses, wires })
        });
        let interface = within.map_err(anyhow::Error::from).and_then(|interface| interface);
        interface.map_err(|why| Error::Refused(format!("the pod cannot send pings: {why}")))
    }

    /// Removes what the plugins have added, then the namespace; returns what is left.
    pub(super) fn leave(self) -> Vec<String> {
        let result = self.result.as_ref();
        let errors = self.run(|plugins, container| plugins.delete(container, result));
        let (id, network) = (&self.id, self.plugins.name());
        let left = |error: CniError| {
            format!(
                "what the CNI plugins added for the container {id} in the network {network} may \
                 be left ({error}): see tweedctl ipam check"
            )
        };
        errors.into_iter().map(left).collect()
    }

    fn run<T>(&self, command: impl FnOnce(&PluginList, &Container<'_>) -> T) -> T {
        let netns = self.netns.path();
        command(&self.plugins, &Container { id: &self.id, netns: &netns, path: &self.folders })
    }
}

/// The plugins that runtimes use, if tweed's is one of them.
fn plugin_list(places: &Places) -> Result<PluginList, Error> {
    let folder = places.cni_configs.display();
    let config = host::cni_config(places)
        .map_err(|error| Error::Unavailable(format!("the CNI config in {folder}: {error}")))?;
    let Some((config, text)) = config else {
        return Err(Error::Unavailable(format!(
            "{folder} has no CNI config: name its directory with --cni-conf-dir"
        )));
    };
    let plugins = PluginList::parse(&text)
        .map_err(|error| Error::Unavailable(format!("{}: {error}", config.path)))?;
    if config.is_own() {
        Ok(plugins)
    } else {
        let path = &config.path;
        Err(Error::Unavailable(format!("{path}, which runtimes use, is not flannel's CNI config")))
    }
}
