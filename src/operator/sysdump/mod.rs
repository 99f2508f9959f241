//! `tweedctl sysdump`: one archive of the state of this node for a report, without secrets.

mod parts;
mod redact;

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use serde::Serialize;

use self::parts::{Need, Part};
use self::redact::Redactor;
use super::layout::{counted, wrap};
use super::node::Files;
use super::output::Output;
use super::store::StoreFlags;
use super::{Answer, Error, ExitStatus, write};
use crate::kernel::{Kernel, host};

#[derive(Debug, Args)]
#[command(after_help = CONTENT)]
pub(super) struct SysdumpOptions {
    /// Archive, - for standard output [default: tweed-NODE-TIME.tar.gz]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Adds config, leases and reports of all nodes
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    store: StoreFlags,
}

const CONTENT: &str = "\
The archive has the state of the daemon, the kernel and the host, and no
passwords, tokens and keys. Read it before you pass it on: it has the addresses
of your network. An existing file is not replaced.

Exit codes:
  0  all parts are in the archive
  2  the command line is invalid, or the file cannot be written
  3  parts are missing: each has its reason in the archive and on standard error";

/// Only its owner may read the archive: it describes the network.
const MODE: u32 = 0o600;

/// What was written.
#[derive(Serialize)]
struct WrittenDump {
    file: String,
    parts: Vec<String>,
    missing: Vec<MissingPart>,
    #[serde(skip)]
    exit_status: ExitStatus,
}

#[derive(Serialize)]
struct MissingPart {
    part: String,
    reason: String,
}

pub(super) async fn run<K: Kernel>(
    files: &Files,
    options: &SysdumpOptions,
    open: impl Fn() -> Result<K, Error>,
    output: Output,
    out: &mut impl Write,
) -> Result<ExitStatus, Error> {
    let now = Timestamp::now();
    let name = usual_name(now);
    let file = options.file.clone().unwrap_or_else(|| format!("{name}.tar.gz").into());
    let redactor = Redactor::new().map_err(|error| Error::Unavailable(error.to_string()))?;
    let mut parts = parts::gather(files, options, &open).await;
    for part in &mut parts {
        let redacted = |text: &String| redactor.redacted(text);
        part.content = part.content.as_ref().map(redacted).map_err(redacted);
    }
    let written = WrittenDump::of(&file, &parts);
    let summary = format!("{}{written}", written.reasons());
    let archive = gzip(&archive(&parts, &summary, &name, now)?);
    let mut errors = io::stderr();
    errors.write_all(written.reasons().as_bytes())?;
    if file == Path::new("-") {
        out.write_all(&archive)?;
        out.flush()?;
        return write(&mut errors, output, &written);
    }
    save(&file, &archive)?;
    write(out, output, &written)
}

impl WrittenDump {
    fn of(file: &Path, parts: &[Part]) -> Self {
        let is_missing = |part: &&Part| part.content.is_err();
        let found = parts.iter().filter(|part| !is_missing(part)).map(|part| part.name.clone());
        let missing = parts.iter().filter_map(|Part { name, content, .. }| {
            let reason = content.as_ref().err()?.clone();
            Some(MissingPart { part: name.clone(), reason })
        });
        let lacks = parts.iter().filter(is_missing).any(|part| part.need == Need::Required);
        Self {
            file: file.display().to_string(),
            parts: found.collect(),
            missing: missing.collect(),
            exit_status: if lacks { ExitStatus::Unexamined } else { ExitStatus::Done },
        }
    }

    /// A line for each missing part.
    fn reasons(&self) -> String {
        let line = |MissingPart { part, reason }: &MissingPart| {
            format!("{}\n", wrap(&format!("missing: {part}: {reason}"), 2))
        };
        self.missing.iter().map(line).collect()
    }
}

impl Answer for WrittenDump {
    fn exit_status(&self) -> ExitStatus {
        self.exit_status
    }
}

impl fmt::Display for WrittenDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = counted(self.parts.len(), "part");
        let text = format!(
            "wrote {parts} to {}: addresses, routes, rules and logs of this node, without \
             passwords, tokens and keys; read it before you pass it on",
            self.file
        );
        writeln!(f, "{}", wrap(&text, 2))
    }
}

/// The archives of several nodes can be unpacked in one place.
fn usual_name(now: Timestamp) -> String {
    let time = now.strftime("%Y%m%dT%H%M%SZ");
    format!("tweed-{}-{time}", host::name())
}

/// A tar archive of all parts, and of the reason for each that is missing, in a folder.
fn archive(parts: &[Part], summary: &str, folder: &str, now: Timestamp) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |name: &str, text: &str| {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(MODE);
        header.set_mtime(now.as_second().unsigned_abs());
        archive.append_data(&mut header, format!("{folder}/{name}"), text.as_bytes())
    };
    add("summary.txt", summary)?;
    for Part { name, content, .. } in parts {
        match content {
            Ok(text) => add(name, text)?,
            Err(reason) => add(&format!("{name}.missing"), &format!("{reason}\n"))?,
        }
    }
    archive.into_inner()
}

fn save(file: &Path, archive: &[u8]) -> Result<(), Error> {
    let mut options = OpenOptions::new();
    let created = options.write(true).create_new(true).mode(MODE).open(file);
    let written = created.and_then(|mut it| it.write_all(archive));
    written.map_err(|error| Error::Usage(format!("{} cannot be written: {error}", file.display())))
}

/// `data` in the format of gzip (RFC 1952): header, deflated data, checksum and length.
fn gzip(data: &[u8]) -> Vec<u8> {
    const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    const LEVEL: u8 = 6;
    let deflated = miniz_oxide::deflate::compress_to_vec(data, LEVEL);
    let checksum = crc32fast::hash(data).to_le_bytes();
    // The length modulo 2³².
    let length = (data.len() as u64).to_le_bytes();
    [&HEADER, deflated.as_slice(), &checksum, length.get(..4).unwrap_or_default()].concat()
}
