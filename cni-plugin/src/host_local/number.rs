//! Addresses as numbers: both families on one line, IPv4 where IPv6 maps it.

use std::net::{IpAddr, Ipv6Addr};

pub(super) fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

pub(super) fn address(number: u128) -> IpAddr {
    Ipv6Addr::from_bits(number).to_canonical()
}

/// Reads an address as Go does; `None` for anything else.
pub(crate) fn parse(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_the_address_again() {
        for text in ["0.0.0.0", "10.244.7.2", "255.255.255.255", "::", "fd00:10:244:7::2"] {
            let before = parse(text).unwrap();
            assert_eq!(address(number(before)), before);
        }
    }

    #[test]
    fn a_mapped_address_is_the_one_that_it_maps() {
        assert_eq!(parse("::ffff:10.0.0.1"), parse("10.0.0.1"));
        assert_eq!(parse("10.0.0.01"), None);
        assert_eq!(parse("10.0.0.1/24"), None);
    }
}
