//! Files: written at once, read without harm, locked for a limited time, on a disk with space.

pub mod atomic_file;
pub(crate) mod lock;
pub(crate) mod plain_file;

use std::fs;
use std::io;
use std::path::Path;

use nix::sys::statvfs::{Statvfs, statvfs};
use nix::unistd::{AccessFlags, access};

use crate::protocol::error::Error;

/// Removes a file; it may be gone already. A file whose name is too long cannot exist.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let is_absent = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename)
    };
    fs::remove_file(path).or_else(|error| if is_absent(&error) { Ok(()) } else { Err(error) })
}

/// None if `done` failed because there is no such file.
pub(crate) fn if_present<T>(done: io::Result<T>) -> io::Result<Option<T>> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        done => done.map(Some),
    }
}

/// What a directory holds; nothing if there is none.
pub(crate) fn names(directory: &Path) -> io::Result<Vec<String>> {
    let Some(entries) = if_present(fs::read_dir(directory))? else { return Ok(Vec::new()) };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

/// Fails with the code of STATUS if the disk of `directory`, which may be absent, is read-only or full.
pub(crate) fn check_room(directory: &Path) -> Result<(), Error> {
    let refused = |cause: io::Error| {
        let shown = directory.display();
        Error::not_available(format!("cannot write to {shown}: {cause}"))
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
