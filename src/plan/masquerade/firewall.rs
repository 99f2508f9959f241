//! By which firewall of the host packets are masqueraded and let through, and why.

use crate::model::config::NetworkConfig;
use crate::model::node::Firewalls;
use crate::model::policy::{Forward, Policy, Preference};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firewall {
    Nftables,
    Iptables,
}

/// The firewall that is taken, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    pub firewall: Firewall,
    pub reason: &'static str,
}

impl Firewall {
    /// The word in logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
        }
    }
}

/// None if there is nothing for it to do. A chain of nftables that accepts saves no packet that
/// another drops: it comes along with those that masquerade, and is worth no table by itself. What
/// only `Mixed` needs is no reason to depend on programs that the operator did not ask for.
pub fn choice(policy: &Policy, config: &NetworkConfig, host: &Firewalls) -> Option<Choice> {
    use Firewall::{Iptables, Nftables};
    let (firewall, reason) = match policy.firewall {
        Preference::Iptables => (Iptables, "--iptables asks for it"),
        Preference::Any if !host.nftables => (Iptables, "this kernel lacks nftables"),
        Preference::Any if config.nftables => (Nftables, "EnableNFTables asks for it"),
        Preference::Any => (Nftables, "this kernel has it"),
    };
    let accepts = firewall == Iptables && policy.forward == Forward::Accept;
    let is_at_hand = host.nftables || policy.firewall == Preference::Iptables;
    let is_needed = policy.masquerade.is_some() || accepts || (config.mixed && is_at_hand);
    is_needed.then_some(Choice { firewall, reason })
}
