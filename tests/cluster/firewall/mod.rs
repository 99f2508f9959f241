//! Rules of tweed: forwarding, masquerading, and the guard of the tunnel.

mod change;
mod forged;
mod forward;
mod guard;
mod injection;
mod masquerade;
