//! The MAC address of each tunnel device: kept where that is safe, replaced where another node may
//! use it.

use std::net::IpAddr;

use super::Inputs;
use crate::mac::MacAddr;
use crate::model::entry::{Entry, KernelState, Key, LinkKind, LinkName};
use crate::model::lease::Vtep;
use crate::model::node::{Node, Uplink};

impl Inputs {
    /// Whether the MAC address of any tunnel device is not chosen yet.
    pub fn lack_macs(&self) -> bool {
        let uplinks = self.node.iter().flat_map(|node| &node.uplinks);
        uplinks.into_iter().any(|uplink| !self.macs.contains_key(&uplink.family()))
    }

    /// Keeps the MAC address of each tunnel device that exists or is remembered, and derives the
    /// others. A MAC address derived from a former public IP of this node is replaced: another node
    /// may use it now.
    pub fn settle_macs(&mut self, actual: &KernelState) {
        let Some(local) = self.local() else { return };
        let vni = local.config.backend.tunnel.vni;
        for uplink in &local.node.uplinks {
            let device = existing(actual, &LinkName::tunnel(uplink.family(), vni));
            let kept = device.map(|(mac, _)| mac).or_else(|| self.remembered_mac(uplink));
            let bound_to = device.and_then(|(_, address)| address);
            let former = bound_to.into_iter().chain(self.remembered_address(uplink));
            let mut former = former.filter(|address| *address != uplink.public_ip);
            let mut belongs_to = |mac| former.any(|address| mac == Vtep::derived_mac(address, vni));
            let kept = kept.filter(|mac| !belongs_to(*mac));
            let mac = kept.unwrap_or_else(|| Vtep::derived_mac(uplink.public_ip, vni));
            self.macs.entry(uplink.family()).or_insert(mac);
        }
    }

    /// Applies the new node. A MAC address derived from its old public IP is replaced. Returns
    /// whether one was.
    pub fn move_to(&mut self, node: Node) -> bool {
        let before = self.node.replace(node).zip(self.local());
        let Some((before, now)) = before else { return false };
        let vni = now.config.backend.tunnel.vni;
        let known = self.macs.clone();
        for old in &before.uplinks {
            let derived = Vtep::derived_mac(old.public_ip, vni);
            let new = now.node.uplink(old.family()).filter(|new| new.public_ip != old.public_ip);
            let mac = self.macs.get_mut(&old.family()).filter(|mac| **mac == derived);
            if let Some((mac, new)) = mac.zip(new) {
                *mac = Vtep::derived_mac(new.public_ip, vni);
            }
        }
        self.macs != known
    }

    /// Replaces `mac` by the MAC address derived from this node's public IP, which no other lease
    /// can claim. Returns the new MAC addresses.
    pub(in crate::control) fn yield_mac(&mut self, mac: MacAddr) -> Vec<MacAddr> {
        let Some(local) = self.local() else { return Vec::new() };
        let vni = local.config.backend.tunnel.vni;
        let mut taken = Vec::new();
        for uplink in &local.node.uplinks {
            let fresh = Vtep::derived_mac(uplink.public_ip, vni);
            let ours = self.macs.get_mut(&uplink.family());
            if let Some(ours) = ours.filter(|ours| **ours == mac && fresh != mac) {
                *ours = fresh;
                taken.push(fresh);
            }
        }
        taken
    }

    /// Only while the public IP is unchanged: two copies of a machine remember the same MAC
    /// address.
    fn remembered_mac(&self, uplink: &Uplink) -> Option<MacAddr> {
        let same = self.remembered_address(uplink) == Some(uplink.public_ip);
        self.remembered.as_ref()?.macs.get(&uplink.family()).copied().filter(|_| same)
    }

    fn remembered_address(&self, uplink: &Uplink) -> Option<IpAddr> {
        Some(self.remembered.as_ref()?.node.uplink(uplink.family())?.public_ip)
    }
}

/// The MAC address of an existing tunnel device, and its local address.
fn existing(actual: &KernelState, device: &LinkName) -> Option<(MacAddr, Option<IpAddr>)> {
    let Entry::Link(link) = actual.get(&Key::Link(device.clone()))? else { return None };
    let LinkKind::Vxlan(vxlan) = &link.kind else { return None };
    Some((link.mac, vxlan.local))
}
