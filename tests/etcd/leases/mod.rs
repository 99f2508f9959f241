//! Leases: acquired, held, watched, and thousands at once.

mod acquire;
mod families;
mod hold;
mod reserve;
mod scale;
mod snapshot;
mod watch;
