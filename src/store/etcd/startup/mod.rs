//! Admission control at start-up: limits the load of nodes that start at once on a busy etcd.

mod codec;
mod queue;
mod reserve;
mod snapshot;

#[doc(hidden)]
pub use codec::read_snapshot;
pub(super) use reserve::{Reserved, Since, is_confirmed};
pub(super) use snapshot::Proof;
