//! Files: written at once, read without harm, locked for a limited time, on a disk with space.

pub mod atomic_file;
pub(crate) mod lock;
pub(crate) mod plain_file;

use std::io;
use std::path::Path;

use nix::sys::statvfs::{Statvfs, statvfs};
use nix::unistd::{AccessFlags, access};

use crate::protocol::error::Error;

/// Whether `directory` takes files: an ADD that could not keep what it made is refused before.
///
/// # Errors
/// Answer of STATUS: the disk of `directory`, which need not exist yet, is read-only or full.
pub(crate) fn check_room(directory: &Path) -> Result<(), Error> {
    let refused = |cause: io::Error| {
        let shown = directory.display();
        Error::not_available(format!("nothing can be written into {shown}: {cause}"))
    };
    let place = directory.ancestors().find(|place| place.is_dir()).unwrap_or(Path::new("/"));
    access(place, AccessFlags::W_OK).map_err(|errno| refused(errno.into()))?;
    let disk = statvfs(place).map_err(|errno| refused(errno.into()))?;
    if is_full(&disk) { Err(refused(io::ErrorKind::StorageFull.into())) } else { Ok(()) }
}

/// Some file systems do not count one of the two.
fn is_full(disk: &Statvfs) -> bool {
    (disk.blocks() > 0 && disk.blocks_free() == 0) || (disk.files() > 0 && disk.files_free() == 0)
}
