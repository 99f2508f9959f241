//! The keys in etcd, and the subnets in their names.

use std::net::IpAddr;

use crate::model::lease::LeaseId;
use crate::model::prefix::{Family, Prefix};

/// The keys of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub config: String,
    pub subnets: String,
    /// The prefix of the keys of all node reports; the lease's id follows.
    pub reports: String,
    /// The key of the secret of path probes.
    pub probe_secret: String,
    /// The key of the snapshot of all leases, which one node writes for the others.
    pub snapshot: String,
}

impl Layout {
    /// The keys below `prefix`, without its double and trailing slashes.
    pub fn below(prefix: &str) -> Self {
        let root = cleaned(prefix);
        let below = |name: &str| format!("{root}{name}");
        Self {
            config: below("config"),
            subnets: below("subnets/"),
            reports: below("tweed/nodes/"),
            probe_secret: below("tweed/probe-secret"),
            snapshot: below("tweed/snapshot"),
        }
    }

    pub fn lease_key(&self, id: &LeaseId) -> String {
        format!("{}{id}", self.subnets)
    }

    pub fn report_key(&self, id: &LeaseId) -> String {
        format!("{}{id}", self.reports)
    }

    /// The lease of `key`; none if the key is not below the prefix of the leases.
    pub fn lease_id(&self, key: &[u8]) -> Option<LeaseId> {
        let name = key.strip_prefix(self.subnets.as_bytes())?;
        Some(LeaseId::new(String::from_utf8_lossy(name)))
    }

    /// The range of the keys of all leases that hold `subnet` and an IPv6 subnet; the end is
    /// exclusive.
    pub fn paired_with(&self, subnet: Prefix) -> (String, String) {
        let key = self.lease_key(&encode(&[subnet]));
        // In ASCII, the apostrophe follows the ampersand.
        (format!("{key}&"), format!("{key}'"))
    }
}

/// `prefix` as flannel's path joins normalise it, with a slash at its end.
fn cleaned(prefix: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in prefix.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    let root = if prefix.starts_with('/') { "/" } else { "" };
    parts.iter().fold(root.to_owned(), |path, part| format!("{path}{part}/"))
}

/// The placeholder for the IPv4 subnet in the key of a lease without one.
const NO_IPV4: &str = "0.0.0.0-0";

/// `10.5.52.0-24`, or `10.5.52.0-24&fd00:0:0:34::-64` for both families.
pub fn encode(subnets: &[Prefix]) -> LeaseId {
    let part = |family| {
        let subnet = subnets.iter().find(|subnet| subnet.family() == family);
        subnet.map(|subnet| format!("{}-{}", subnet.base(), subnet.prefix_len()))
    };
    let v4 = part(Family::V4).unwrap_or_else(|| NO_IPV4.to_owned());
    LeaseId::new(part(Family::V6).map_or_else(|| v4.clone(), |v6| format!("{v4}&{v6}")))
}

/// The subnets of a lease, IPv4 first; none if flannel does not write such a key.
pub fn decode(id: &LeaseId) -> Option<Vec<Prefix>> {
    let (v4, v6) = match id.as_str().split_once('&') {
        Some((v4, v6)) => (v4, Some(v6)),
        None => (id.as_str(), None),
    };
    let v6 = v6.map(|text| subnet(text, Family::V6).ok_or(())).transpose().ok()?;
    if v4 == NO_IPV4 {
        return v6.map(|v6| vec![v6]);
    }
    Some(std::iter::once(subnet(v4, Family::V4)?).chain(v6).collect())
}

/// The subnets that a record under `id` reserves: all, or at least the first valid one.
pub fn claimed(id: &LeaseId) -> Vec<Prefix> {
    let first = || id.as_str().split('&').next().and_then(|v4| subnet(v4, Family::V4));
    decode(id).unwrap_or_else(|| first().into_iter().collect())
}

fn subnet(text: &str, family: Family) -> Option<Prefix> {
    let (address, len) = text.split_once('-')?;
    let address: IpAddr = address.parse().ok().filter(|ip| Family::of(*ip) == family)?;
    let digits = !len.is_empty() && len.bytes().all(|byte| byte.is_ascii_digit());
    let len: u8 = digits.then(|| len.parse().ok()).flatten()?;
    // A single address is no subnet, which flannel's parser does not accept either.
    let subnet = Prefix::holding(address, len).filter(|_| len < family.width())?;
    (subnet.base() == address).then_some(subnet)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(key: &str) -> Option<String> {
        let subnets = decode(&LeaseId::new(key))?;
        Some(subnets.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_key_names_its_subnets() {
        let cases = [
            ("10.5.52.0-24", "10.5.52.0/24"),
            ("10.12.13.0-24&fd00:12:13::-56", "10.12.13.0/24 fd00:12:13::/56"),
            ("0.0.0.0-0&fd00:12:13::-64", "fd00:12:13::/64"),
        ];
        for (key, subnets) in cases {
            assert_eq!(decoded(key).as_deref(), Some(subnets), "{key}");
            assert_eq!(encode(&decode(&LeaseId::new(key)).unwrap()).as_str(), key);
        }
    }

    #[test]
    fn keys_that_flannel_rejects_are_rejected() {
        for key in [
            "10",
            "10.12.13.0",
            "10.12.13-24",
            "10.12.13.300-24",
            "10.12.13.0-24hi",
            "&2001::-56",
            "10.12.13.0-24&:12:13:-56",
            "10.12.13.0-24&20011::-56",
            "10.12.13.0-24&2001-56",
            "10.12.13.0-24&2001::",
            "10.12.13.0-24&2001::-56hi",
        ] {
            assert_eq!(decoded(key), None, "{key}");
        }
    }

    #[test]
    fn keys_without_a_subnet_are_rejected() {
        for key in [
            "",
            "10.5.52.0-32",
            "10.5.52.7-24",
            "10.5.52.0-+24",
            "10.5.52.0-",
            "0.0.0.0-0",
            "10.5.52.0-24&fd00::-128",
            "10.5.52.0-24&fd00::1-64",
            "10.5.52.0-24&10.5.53.0-24",
            "10.5.52.0-24/x",
        ] {
            assert_eq!(decoded(key), None, "{key}");
        }
    }

    #[test]
    fn a_partly_valid_key_still_reserves_its_subnet() {
        let claims = |key| claimed(&LeaseId::new(key));
        assert_eq!(claims("10.5.52.0-24&?"), ["10.5.52.0/24".parse().unwrap()]);
        assert_eq!(claims("10.5.52.0-24hi"), []);
        assert_eq!(claims("10.5.52.0-24&fd00::-64").len(), 2);
    }

    #[test]
    fn slashes_in_the_prefix_do_not_matter() {
        for prefix in
            ["/coreos.com/network", "/coreos.com/network/", "//coreos.com/./x/../network//"]
        {
            let layout = Layout::below(prefix);
            assert_eq!(layout.config, "/coreos.com/network/config");
            assert_eq!(layout.subnets, "/coreos.com/network/subnets/");
        }
        assert_eq!(Layout::below("coreos.com").config, "coreos.com/config");
        assert_eq!(Layout::below("/").config, "/config");
        assert_eq!(Layout::below("").config, "config");
    }

    #[test]
    fn a_lease_and_its_key_name_each_other() {
        let layout = Layout::below("/n");
        let id = LeaseId::new("10.5.52.0-24");
        assert_eq!(layout.lease_key(&id), "/n/subnets/10.5.52.0-24");
        assert_eq!(layout.lease_id(b"/n/subnets/10.5.52.0-24"), Some(id));
        assert_eq!(layout.lease_id(b"/n/config"), None);
    }

    #[test]
    fn keys_with_the_same_ipv4_subnet_form_a_range() {
        let layout = Layout::below("/n");
        let (first, last) = layout.paired_with("10.5.52.0/24".parse().unwrap());
        let inside = "/n/subnets/10.5.52.0-24&fd00::-64".to_owned();
        let outside = "/n/subnets/10.5.52.0-24".to_owned();
        assert!((first.clone()..last.clone()).contains(&inside));
        assert!(!(first..last).contains(&outside));
    }

    proptest! {
        #[test]
        fn every_pair_of_subnets_is_decoded_as_encoded(
            v4: u32, v4_len in 1_u8..32, v6: u128, v6_len in 1_u8..128, families in 1_u8..4,
        ) {
            let v4 = Prefix::holding(Family::V4.address(v4.into()), v4_len);
            let v6 = Prefix::holding(Family::V6.address(v6), v6_len);
            let subnets: Vec<Prefix> = [v4.filter(|_| families & 1 != 0), v6.filter(|_| families & 2 != 0)]
                .into_iter()
                .flatten()
                .collect();
            prop_assert_eq!(decode(&encode(&subnets)), Some(subnets));
        }

        #[test]
        fn no_key_makes_the_reader_panic(key: String) {
            decode(&LeaseId::new(key));
        }
    }
}
