//! The config that the delegate gets: flannel's rules over the operator's config and subnet.env.

pub(crate) mod exec;
pub mod list;

use serde_json::{Value, json};
use tweed_netlink::rtnl::route::Route;

use crate::protocol::error::Error;
use crate::protocol::json::{self, Object};
use crate::protocol::network_config::NetworkConfig;
use crate::protocol::result;
use crate::subnet_env::{SubnetEnv, masked};

/// The default delegate of flannel.
pub const BRIDGE: &str = "bridge";
/// The default address management of flannel.
pub const HOST_LOCAL: &str = "host-local";

/// The delegate's config on a node with this subnet.env; fails if it has keys that only flannel sets.
pub fn build(config: &NetworkConfig, env: &SubnetEnv) -> Result<Object, Error> {
    check(&config.delegate)?;
    let mut delegate = base(config);
    default(&mut delegate, "ipMasq", !env.ip_masq);
    default(&mut delegate, "mtu", env.mtu);
    delegate.insert("ipam".into(), ipam(config, env)?.into());
    Ok(delegate)
}

/// The delegate's config as far as it is known without subnet.env: enough to clean up by.
pub fn build_without_subnets(config: &NetworkConfig) -> Object {
    let mut delegate = base(config);
    let mut ipam = config.ipam.clone();
    default(&mut ipam, "type", HOST_LOCAL);
    delegate.insert("ipam".into(), ipam.into());
    // Whether the plugin masqueraded was in subnet.env.
    default(&mut delegate, "ipMasq", true);
    delegate
}

/// The program that does the delegate's work.
pub fn kind(delegate: &Object) -> &str {
    json::lenient_text(delegate, "type").unwrap_or(BRIDGE)
}

/// The program that manages addresses for it; none without one.
pub fn ipam_kind(delegate: &Object) -> Option<&str> {
    let ipam = json::get(delegate, "ipam")?.as_object()?;
    json::lenient_text(ipam, "type").filter(|kind| !kind.is_empty())
}

fn base(config: &NetworkConfig) -> Object {
    let mut delegate = config.delegate.clone();
    if let Some(runtime_config) = &config.runtime_config {
        delegate.insert("runtimeConfig".into(), runtime_config.clone().into());
    }
    delegate.insert("name".into(), config.name.clone().into());
    default(&mut delegate, "type", BRIDGE);
    if kind(&delegate) == BRIDGE {
        default(&mut delegate, "isGateway", true);
    }
    if config.has_version {
        delegate.insert("cniVersion".into(), config.version.as_str().into());
    }
    delegate
}

/// The keys that only flannel sets are looked for in their own spelling, as flannel does.
fn check(delegate: &Object) -> Result<(), Error> {
    if delegate.get("type").is_some_and(|kind| !kind.is_string()) {
        return Err(Error::invalid_config(
            "'delegate' dictionary, if present, must have (string) 'type' field",
        ));
    }
    for key in ["name", "ipam"] {
        if delegate.contains_key(key) {
            return Err(Error::invalid_config(format!(
                "'delegate' dictionary must not have '{key}' field, it'll be set by flannel"
            )));
        }
    }
    Ok(())
}

fn ipam(config: &NetworkConfig, env: &SubnetEnv) -> Result<Object, Error> {
    let mut ipam = config.ipam.clone();
    default(&mut ipam, "type", HOST_LOCAL);
    let ranges: Vec<_> =
        env.subnets.iter().map(|subnet| json!([{"subnet": masked(*subnet).to_string()}])).collect();
    ipam.insert("ranges".into(), ranges.into());
    let written = json::objects(&config.ipam, "routes")?.into_iter().map(result::parse_route);
    let mut routes: Vec<_> =
        written.collect::<Result<_, _>>().map_err(|error: Error| error.context("ipam.routes"))?;
    routes.extend(env.networks.iter().map(|network| Route::to(*network)));
    ipam.insert("routes".into(), result::without_unset(result::list_routes(&routes)));
    Ok(ipam)
}

fn default(map: &mut Object, key: &str, value: impl Into<Value>) {
    map.entry(key).or_insert_with(|| value.into());
}

#[cfg(test)]
mod tests;
