//! Tables of nftables, chains of iptables, and the guard of the tunnel.

mod chains;
mod guard;
mod tables;
