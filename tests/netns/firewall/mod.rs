//! Tables of nftables, chains of iptables, and the guard of the tunnel.

mod chains;
pub(crate) mod guard;
mod tables;
