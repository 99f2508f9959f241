//! The peak memory of a plugin.
//!
//! The kernel's own account of a child that has ended (`ru_maxrss`) begins with the memory of
//! its parent. So the plugin is measured while it runs, as late as possible: when it writes its
//! result into a pipe that is full.

use std::fs::{read_dir, read_to_string};
use std::io::{Read, Write, pipe};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::fcntl::{FcntlArg, fcntl};
use tweed_lab::{eventually, peak_kib};

use super::call::Call;

const TIMEOUT: Duration = Duration::from_secs(20);
const FILLING: u8 = b' ';

/// The peak memory in KiB of the program itself, without the programs that it starts.
pub(super) fn most(call: &Call<'_>) -> Result<u64> {
    let (mut reader, mut writer) = pipe()?;
    let room = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096))?;
    writer.write_all(&vec![FILLING; usize::try_from(room)?])?;
    let mut command = call.command();
    let mut child = call.start(command.stdout(writer))?;
    // It also holds the write end: with it, the reader would never see the end of the pipe.
    drop(command);
    let found = eventually(TIMEOUT, || is_writing(child.id())).and_then(|_| peak_kib(child.id()));
    let mut output_text = String::new();
    reader.read_to_string(&mut output_text)?;
    let status = child.wait()?;
    ensure!(status.success(), "{}: {}", call.described(), output_text.trim());
    found.with_context(|| call.described())
}

/// Whether one of its threads is in a system call on its standard output.
fn is_writing(pid: u32) -> Result<bool> {
    for thread in read_dir(format!("/proc/{pid}/task"))? {
        let call = read_to_string(thread?.path().join("syscall")).unwrap_or_default();
        if call.split_whitespace().nth(1) == Some("0x1") {
            return Ok(true);
        }
    }
    Ok(false)
}
