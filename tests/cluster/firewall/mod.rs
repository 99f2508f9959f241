//! Rules of tweed: forwarding, masquerading, services, and the guard of the tunnel.

mod change;
mod forged;
mod forward;
mod guard;
mod injection;
mod masquerade;
mod services;
