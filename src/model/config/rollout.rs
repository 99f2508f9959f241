//! A staged change of backend: some nodes use the new backend, the others still the previous one.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tweed_netlink::mac::stable_hash;

use super::{BackendType, Invalid, parse_kind, within, wrong};
use crate::model::json::Fields;

/// The stages of a change of backend. Each node decides by itself whether it follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    /// The backend of the nodes that do not follow yet.
    pub from: BackendType,
    /// The approximate percentage of nodes that follow.
    pub percent: u8,
    /// Nodes that always follow: public IPs, or names if the store has names.
    pub nodes: Vec<String>,
}

impl Rollout {
    /// Whether the node with these names follows: its public IPs, IPv4 first, then other names. The
    /// first name determines its share.
    ///
    /// A higher percentage only adds nodes.
    pub fn follows(&self, names: impl IntoIterator<Item = impl ToString>) -> bool {
        let names: Vec<String> = names.into_iter().map(|name| name.to_string()).collect();
        let is_named = names.iter().any(|name| self.nodes.contains(name));
        is_named || names.first().is_some_and(|first| share(first) < self.percent)
    }
}

/// The share of the node with this name, from 0 to 99: the 64-bit FNV-1a hash of the name, modulo
/// 100. All versions must compute the same value.
pub fn share(name: &str) -> u8 {
    u8::try_from(stable_hash(name) % 100).unwrap_or_default()
}

/// The rollout of a config; none means that all nodes follow.
pub(super) fn parse(fields: &Fields) -> Result<Option<Rollout>, Invalid> {
    let Some(rollout) = fields.object("Rollout")? else { return Ok(None) };
    let percent = within("Rollout.Percent", rollout.u32("Percent")?.unwrap_or(0), 0..=100)?;
    let nodes = rollout.texts("Nodes")?.unwrap_or_default();
    let nodes = nodes.into_iter().map(canonical).collect();
    Ok(Some(Rollout { from: parse_from(&rollout)?, percent, nodes }))
}

fn parse_from(rollout: &Fields) -> Result<BackendType, Invalid> {
    let from = rollout.object("From")?.ok_or_else(|| {
        wrong("Rollout.From", "missing", "the backend of the nodes that stay".to_owned())
    })?;
    // Nodes on both backends share one tunnel, so `From` cannot change its options.
    let shared = TUNNEL_KEYS.iter().find(|key| from.get(key).is_some());
    if let Some(key) = shared {
        let expected = "only a Type: tunnel parameters belong in Backend, for all nodes";
        return Err(wrong("Rollout.From", format!("given with {key}"), expected.to_owned()));
    }
    parse_kind(&from, "Rollout.From.Type")
}

const TUNNEL_KEYS: [&str; 6] = ["VNI", "Port", "MTU", "GBP", "Learning", "DirectRouting"];

/// An IP address in its canonical form, as nodes write it; other names are unchanged.
pub fn canonical(name: String) -> String {
    name.parse::<IpAddr>().map_or(name, |ip| ip.to_string())
}
