//! The kernel of this host, as `diff` and `cleanup` reach it.

use super::Error;
use crate::kernel::{Kernel, NetlinkKernel};
use crate::model::entry::KernelState;
use crate::plan::scope::Scope;

pub(super) fn open() -> Result<impl Kernel, Error> {
    NetlinkKernel::open()
        .map_err(|error| Error::CannotTell(format!("the kernel cannot be asked: {error}")))
}

/// What the kernel holds of `scope`.
pub(super) async fn dump(kernel: &mut impl Kernel, scope: &Scope) -> Result<KernelState, Error> {
    let unread = |error| Error::CannotTell(format!("the kernel cannot be read: {error}"));
    kernel.dump(scope, &KernelState::default()).await.map_err(unread)
}
