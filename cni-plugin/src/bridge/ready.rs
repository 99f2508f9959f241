//! Waits until the kernel answers for IPv6 addresses that were added.

use std::io;
use std::time::Duration;

use ipnetwork::IpNetwork;
use tweed_netlink::Socket;
use tweed_netlink::rtnl::address::{self, Detection};

use crate::deadline::Deadline;

/// The kernel needs a part of a millisecond, and longer while links come and go. A packet that is
/// too early waits as long as this.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits until the kernel has told `listener`, which was opened before they were added to `link`,
/// of all of `addresses` that are of IPv6.
///
/// Also where it looks for nobody else with an address, the kernel takes it into use a moment after
/// it has said that it has it; its notification follows that. A kernel that does not notify is not
/// waited for: there the first packets are late, and nothing else.
pub(super) fn wait(
    listener: &mut Socket,
    link: u32,
    addresses: impl Iterator<Item = IpNetwork>,
) -> io::Result<()> {
    let deadline = Deadline::after(PATIENCE);
    let mut pending: Vec<_> = addresses.filter(IpNetwork::is_ipv6).collect();
    while !pending.is_empty() && deadline.readable(listener)? {
        let Some(told) = listener.hear(address::read_new)? else { break };
        pending.retain(|address| {
            !told.iter().any(|one| {
                one.link == link && one.network == *address && one.detection == Detection::Done
            })
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::Ipv6Addr;
    use std::process::Command;

    use super::*;
    use tweed_netlink::Protocol;

    /// Whether packets to `address` reach this host: the kernel has a route to itself then.
    fn is_in_use(address: Ipv6Addr) -> bool {
        let destination = format!("{:032x} 80 ", address.to_bits());
        let routes = fs::read_to_string("/proc/thread-self/net/ipv6_route").unwrap();
        routes.lines().any(|line| line.starts_with(&destination))
    }

    #[test]
    fn an_address_is_in_use_once_it_was_waited_for() {
        let ip = |line: &str| {
            assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "{line}");
        };
        ip("link add ready0 type bridge");
        ip("link set ready0 up");
        let mut host = Socket::open(Protocol::Route).unwrap();
        let found =
            host.get(tweed_netlink::rtnl::link::get("ready0"), tweed_netlink::rtnl::link::read);
        let link = found.unwrap().unwrap().unwrap().index;
        for number in 1..=50 {
            let address = Ipv6Addr::from_bits(0xfd77_u128 << 112 | number);
            let network = IpNetwork::new(address.into(), 64).unwrap();
            let mut listener = Socket::listen_for_ipv6().unwrap();
            assert_eq!(host.execute(vec![address::add(link, network)]).unwrap(), []);
            wait(&mut listener, link, [network].into_iter()).unwrap();
            assert!(is_in_use(address), "{address}");
        }
        ip("link delete ready0");
    }
}
