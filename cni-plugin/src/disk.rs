//! Files: written at once, read without harm, locked for a limited time, on a disk with space.

pub mod atomic_file;
pub(crate) mod lock;
pub(crate) mod plain_file;
pub(crate) mod room;
