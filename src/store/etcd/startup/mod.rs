//! Admission control at start-up: limits the load of nodes that start at once on a busy etcd. Each
//! part can be switched off by [`is_on`](super::pace::is_on).

mod burst;
mod codec;
mod queue;
mod reserve;
mod snapshot;

pub(super) use burst::Burst;
#[doc(hidden)]
pub use codec::read_snapshot;
pub(super) use reserve::{Reserved, Since, is_confirmed};
pub(super) use snapshot::Proof;
