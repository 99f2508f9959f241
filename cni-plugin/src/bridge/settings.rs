//! The config of the bridge and of its ports.

use tweed_netlink::mac::MacAddr;
use tweed_netlink::rtnl::link::PortRules;

use crate::excerpt;
use crate::protocol::error::Error;
use crate::protocol::json::{self, Object};
use crate::protocol::request::{Request, flaw_of_interface};
use crate::protocol::result::Dns;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) network: String,
    pub(super) bridge: String,
    pub(super) gateway: Gateway,
    /// Whether another address of the bridge is removed although containers may use it.
    pub(super) replaces_addresses: bool,
    /// None if the daemon masquerades.
    pub(super) masquerade: Option<Backend>,
    /// Bytes; the kernel's choice if none.
    pub(super) mtu: Option<u32>,
    pub(super) rules: PortRules,
    pub(super) is_promiscuous: bool,
    /// Whether containers look for duplicates of their IPv6 addresses.
    pub(super) detects_duplicates: bool,
    /// What the container's interface is to have; the kernel's choice if none.
    pub(super) mac: Option<MacAddr>,
    /// Instead of that of address management.
    pub(super) dns: Dns,
}

/// Whether containers leave by the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gateway {
    /// It has no address.
    Absent,
    /// It has one; routes decide what goes there.
    Present,
    /// Everything goes there.
    Default,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    /// Nftables, and iptables on a kernel without NAT in such tables.
    Any,
    Nftables,
    Iptables,
}

const BRIDGE: &str = "cni0";

/// Whether `config` asks for what is left to the plugin `bridge`.
pub(super) fn is_beyond_us(config: &Object) -> bool {
    let is_set = |key| {
        json::get(config, key).is_some_and(|value| match value {
            serde_json::Value::Bool(flag) => *flag,
            serde_json::Value::Number(number) => number.as_u64() != Some(0),
            serde_json::Value::Array(list) => !list.is_empty(),
            _ => true,
        })
    };
    ["vlan", "vlanTrunk", "macspoofchk", "disableContainerInterface"].into_iter().any(is_set)
}

impl Settings {
    /// Fails if a value has another type, or two exclude each other.
    pub(super) fn parse(config: &Object, request: &Request) -> Result<Self, Error> {
        Self::read(config, request).map_err(|error| error.context("failed to load netconf"))
    }

    fn read(config: &Object, request: &Request) -> Result<Self, Error> {
        let flag = |key| json::flag(config, key).map(Option::unwrap_or_default);
        let text = |key| json::filled_text(config, key);
        let settings = Self {
            network: text("name")?.unwrap_or_default().to_owned(),
            bridge: bridge(text("bridge")?.unwrap_or(BRIDGE))?,
            gateway: match (flag("isDefaultGateway")?, flag("isGateway")?) {
                (true, _) => Gateway::Default,
                (false, true) => Gateway::Present,
                (false, false) => Gateway::Absent,
            },
            replaces_addresses: flag("forceAddress")?,
            masquerade: match (flag("ipMasq")?, Backend::parse(text("ipMasqBackend")?)?) {
                (true, backend) => Some(backend),
                (false, _) => None,
            },
            mtu: json::number(config, "mtu")?.filter(|mtu| *mtu > 0),
            rules: PortRules { hairpin: flag("hairpinMode")?, isolated: flag("portIsolation")? },
            is_promiscuous: flag("promiscMode")?,
            detects_duplicates: flag("enabledad")?,
            mac: mac(config, request)?,
            dns: json::object(config, "dns")?.map(Dns::parse).transpose()?.unwrap_or_default(),
        };
        if settings.rules.hairpin && settings.is_promiscuous {
            return Err(Error::invalid_config(
                "cannot set hairpin mode and promiscuous mode at the same time",
            ));
        }
        Ok(settings)
    }
}

impl Backend {
    fn parse(text: Option<&str>) -> Result<Self, Error> {
        match text {
            None => Ok(Self::Any),
            Some("nftables") => Ok(Self::Nftables),
            Some("iptables") => Ok(Self::Iptables),
            Some(other) => {
                let other = excerpt::quoted(other);
                Err(Error::invalid_config(format!("unknown ipmasq backend {other}")))
            }
        }
    }
}

fn bridge(name: &str) -> Result<String, Error> {
    match flaw_of_interface(name) {
        None => Ok(name.to_owned()),
        Some(flaw) => {
            let name = excerpt::quoted(name);
            Err(Error::invalid_config(format!("the name of the bridge {name} {flaw}")))
        }
    }
}

/// The runtime's word counts most, then that of the operator, then that of the pod.
fn mac<'a>(config: &'a Object, request: &'a Request) -> Result<Option<MacAddr>, Error> {
    let mac = |object: Option<&'a Object>| {
        object.map(|object| json::filled_text(object, "mac")).transpose().map(Option::flatten)
    };
    let sources = [
        mac(json::object(config, "runtimeConfig")?)?,
        mac(json::cni_args(config)?)?,
        request.argument("MAC")?.filter(|text| !text.is_empty()),
    ];
    let parse = |text: &str| {
        text.replace('-', ":").parse().map_err(|_| {
            let text = excerpt::quoted(text);
            Error::invalid_config(format!("{text} is not a MAC address"))
        })
    };
    sources.into_iter().flatten().next().map(parse).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(config: &str, arguments: &str) -> Result<Settings, Error> {
        let variable = |name: &str| match name {
            "CNI_COMMAND" => Some("STATUS".to_owned()),
            "CNI_PATH" => Some("/opt/cni/bin".to_owned()),
            "CNI_ARGS" => Some(arguments.to_owned()),
            _ => None,
        };
        let request = Request::parse(variable).unwrap().unwrap();
        Settings::parse(&serde_json::from_str(config).unwrap(), &request)
    }

    #[test]
    fn a_bare_config_is_a_bridge_without_gateway() {
        let settings = parse(r#"{"name":"a"}"#, "").unwrap();
        assert_eq!(settings.bridge, "cni0");
        assert_eq!(settings.gateway, Gateway::Absent);
        assert_eq!(settings.masquerade, None);
        assert_eq!(settings.mtu, None);
    }

    #[test]
    fn a_default_gateway_is_a_gateway() {
        let settings = parse(r#"{"name":"a","isDefaultGateway":true,"isGateway":false}"#, "");
        assert_eq!(settings.unwrap().gateway, Gateway::Default);
    }

    #[test]
    fn the_mac_of_the_runtime_precedes_those_of_operator_and_pod() {
        let mac = |config: &str| {
            let settings = parse(config, "IgnoreUnknown=1;MAC=0a:00:00:00:00:03").unwrap();
            settings.mac.unwrap().to_string()
        };
        let args = r#""args":{"cni":{"mac":"0a:00:00:00:00:02"}}"#;
        let runtime = r#""runtimeConfig":{"mac":"0a:00:00:00:00:01"}"#;
        assert_eq!(mac(r#"{"name":"a"}"#), "0a:00:00:00:00:03");
        assert_eq!(mac(&format!(r#"{{"name":"a",{args}}}"#)), "0a:00:00:00:00:02");
        assert_eq!(mac(&format!(r#"{{"name":"a",{args},{runtime}}}"#)), "0a:00:00:00:00:01");
    }

    #[test]
    fn conflicting_keys_and_wrong_types_are_refused() {
        for (config, word) in [
            (r#"{"hairpinMode":true,"promiscMode":true}"#, "hairpin"),
            (r#"{"hairpinMode":"true"}"#, "hairpinMode is \"true\""),
            (r#"{"ipMasqBackend":"ebtables"}"#, "ebtables"),
            (r#"{"args":{"cni":{"mac":"x"}}}"#, "\"x\" is not a MAC address"),
            (
                r#"{"bridge":"the-bridge-of-pods"}"#,
                "the name of the bridge \"the-bridge-of-pods\" is too long: at most 15 bytes",
            ),
        ] {
            let error = parse(config, "").unwrap_err();
            assert_eq!(error.code, 7);
            assert!(error.msg.starts_with("failed to load netconf: "), "{error}");
            assert!(error.msg.contains(word), "{error}");
        }
    }

    #[test]
    fn vlans_and_spoof_checks_need_debians_plugin() {
        let beyond = |config: &str| is_beyond_us(&serde_json::from_str(config).unwrap());
        assert!(beyond(r#"{"vlan":7}"#));
        assert!(beyond(r#"{"vlanTrunk":[{"id":7}]}"#));
        assert!(beyond(r#"{"macspoofchk":true}"#));
        assert!(!beyond(r#"{"vlan":0,"vlanTrunk":[],"macspoofchk":false,"hairpinMode":true}"#));
    }
}
