//! Admission control at start-up: nodes that start at once take turns at a busy etcd. A node that
//! starts alone needs none of it; each part can be switched off by [`is_on`](super::pace::is_on).

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
