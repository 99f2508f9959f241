//! The cable between a namespace and a switch, which can be cut.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use ipnetwork::IpNetwork;

use crate::network::namespace::Namespace;
use crate::wait::{PATIENCE, eventually};

/// One end in a namespace (`eth0`), the other a port of the bridge of a segment.
#[derive(Clone, Debug)]
pub struct Wire {
    /// The addresses given to the device when it was connected.
    pub addresses: Vec<IpNetwork>,
    namespace: Namespace,
    device: String,
    switch: Namespace,
    port: String,
}

impl Wire {
    pub(crate) fn plug(
        (switch, port): (&Namespace, String),
        (namespace, device): (&Namespace, &str),
        mtu: u32,
        addresses: Vec<IpNetwork>,
    ) -> Result<Self> {
        let far = namespace.name();
        switch.ip_batch(&format!(
            "link add {port} mtu {mtu} type veth peer name {device} mtu {mtu} netns {far}\n\
             link set {port} master br0 up\n"
        ))?;
        let mut lines = format!("link set {device} up\n");
        for address in &addresses {
            writeln!(lines, "address add {address} dev {device} nodad")?;
        }
        namespace.ip_batch(&lines)?;
        Ok(Self {
            addresses,
            namespace: namespace.clone(),
            device: device.to_owned(),
            switch: switch.clone(),
            port,
        })
    }

    /// The name of the device on the namespace's side.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// At both ends; the MTU of the bridge stays.
    pub fn set_mtu(&self, mtu: u32) -> Result<()> {
        self.namespace.ip(&format!("link set {} mtu {mtu}", self.device))?;
        self.port(&format!("mtu {mtu}"))
    }

    /// Drops every packet silently: the carrier stays, and no notification is sent.
    pub fn cut(&self) -> Result<()> {
        self.port("nomaster")
    }

    /// Disconnects the cable: no packet passes, and the device has lost its carrier on return.
    pub fn unplug(&self) -> Result<()> {
        self.port("down")?;
        // The kernel notes it a moment later.
        eventually(PATIENCE, || {
            let shown = self.namespace.ip(&format!("link show {}", self.device))?;
            ensure!(shown.contains("NO-CARRIER"), "{} has a carrier: {shown}", self.device);
            Ok(())
        })
        .map(drop)
    }

    /// Drops packets between two isolated wires of a segment; all others pass.
    pub fn isolate(&self) -> Result<()> {
        self.switch.bridge(&format!("link set dev {} isolated on", self.port)).map(drop)
    }

    /// Undoes [`cut`](Self::cut), [`unplug`](Self::unplug) and [`isolate`](Self::isolate).
    pub fn restore(&self) -> Result<()> {
        self.port("master br0 up")?;
        self.switch.bridge(&format!("link set dev {} isolated off", self.port)).map(drop)
    }

    fn port(&self, words: &str) -> Result<()> {
        self.switch.ip(&format!("link set {} {words}", self.port)).map(drop)
    }
}
