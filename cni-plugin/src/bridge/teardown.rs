//! What DEL and GC take away from a network of a bridge and host-local addresses.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;

use serde_json::Value;

use super::identity::Identity;
use super::{inside, masquerade, open, port};
use crate::host_local::{self, Location};
use crate::netns::{Found, Netns};
use crate::protocol::error::Error;
use crate::protocol::json::{self, Object};
use crate::protocol::request::{Attachment, NetnsRule};

/// The part of a config that removal needs: the config may be one that ADD does not accept here.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Teardown {
    /// Whether the config asks for masquerading.
    has_rules: bool,
    location: Location,
}

impl Teardown {
    /// None if `config` names no network.
    pub(crate) fn parse(config: &Object) -> Option<Self> {
        let location = Location::parse(config).ok()?;
        let masquerades = json::get(config, "ipMasq");
        let has_rules = masquerades.is_some_and(|value| *value != Value::Bool(false));
        Some(Self { has_rules, location })
    }

    /// Removes the interface, then its rules, then its addresses, so that no other container gets them
    /// before. `reserved` are the addresses in the record of `attachment`.
    pub(crate) fn del(
        &self,
        attachment: &Attachment,
        reserved: Option<&[IpAddr]>,
        netns: Option<&Path>,
        rule: NetnsRule,
    ) -> Result<(), Error> {
        let identity = Identity::new(&self.location.network, attachment);
        let found = netns.map_or(Ok(Found::Gone), |path| Netns::find(path, rule))?;
        let was_inside = match found {
            Found::Foreign(netns) => inside::remove(&netns, &identity)?,
            Found::Own | Found::Gone => false,
        };
        if !was_inside {
            port::remove(&mut open()?, &identity)?;
        }
        if self.has_rules {
            masquerade::remove(&identity)?;
        }
        host_local::release(&self.location, attachment, reserved)
    }

    /// Removes what belongs to none of `valid`. `stale` have a record, and perhaps a port without alias.
    pub(crate) fn gc(&self, valid: &[Attachment], stale: &[Attachment]) -> Result<(), Error> {
        let network = &self.location.network;
        let lives: HashSet<_> = valid.iter().collect();
        let stale: Vec<_> = stale.iter().map(|it| Identity::new(network, it)).collect();
        port::collect(&mut open()?, network, &lives, &stale)?;
        if self.has_rules {
            masquerade::collect(network, valid)?;
        }
        host_local::collect(&self.location, valid).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(config: &str) -> Option<Teardown> {
        Teardown::parse(&serde_json::from_str(config).unwrap())
    }

    #[test]
    fn a_config_that_an_add_refuses_can_be_removed() {
        for odd in [
            r#""mtu": -1, "ipMasq": true, "ipMasqBackend": "ebtables""#,
            r#""ipMasqBackend": "ipvs", "ipMasq": "true", "ipam": {"ranges": 7}"#,
            r#""runtimeConfig": {"mac": "0211.2233.4455"}, "IPMASQ": true, "ipam": []"#,
            r#""hairpinMode": true, "promiscMode": true, "bridge": 3, "ipMasq": true"#,
        ] {
            let teardown = parse(&format!(r#"{{"name": "cbr0", {odd}}}"#)).unwrap();
            assert_eq!(
                (teardown.location.network.as_str(), teardown.has_rules),
                ("cbr0", true),
                "{odd}"
            );
            assert!(teardown.location.directory().ends_with("networks/cbr0"));
        }
        let elsewhere = parse(r#"{"name": "a", "ipam": {"dataDir": "/d"}, "ipMasq": false}"#);
        let elsewhere = elsewhere.unwrap();
        assert_eq!(elsewhere.location.directory(), Path::new("/d/a"));
        assert!(!elsewhere.has_rules);
        assert_eq!(parse(r#"{"name": "../a"}"#), None);
        assert_eq!(parse("{}"), None);
    }
}
