//! Settings below /proc/sys/net of the namespace that this process is in.

use std::fs;
use std::io;

/// Sets `name` unless it is so already.
pub(crate) fn ensure(name: &str, value: &str) -> io::Result<()> {
    let path = format!("/proc/sys/net/{name}");
    if fs::read_to_string(&path)?.trim() == value { Ok(()) } else { fs::write(&path, value) }
}
