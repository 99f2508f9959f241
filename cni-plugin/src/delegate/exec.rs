//! Runs another plugin, as a runtime would.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Child, Command as Program, Output, Stdio};

use nix::errno::Errno;
use nix::unistd::{AccessFlags, access};
use serde_json::Value;

use crate::excerpt;
use crate::protocol::error::Error;
use crate::protocol::json::{self, Object};
use crate::protocol::request::Command;

/// Why a plugin did not do what it was run for.
#[derive(Debug)]
pub(crate) enum Failure {
    /// There is none of its name that this host can run, so that it has done nothing.
    NotInstalled(Error),
    /// In its own words, where it has any.
    Failed(Error),
}

/// Another plugin with the config that it gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delegate<'a> {
    pub(crate) kind: &'a str,
    /// Where it is looked for, in this order.
    pub(crate) path: &'a [PathBuf],
    pub(crate) config: &'a Object,
}

impl Delegate<'_> {
    /// Runs `command` in the environment of this process but for `changes`; returns what it printed.
    pub(crate) fn run(
        &self,
        command: Command,
        changes: &[(&str, &str)],
    ) -> Result<Vec<u8>, Failure> {
        let program = self.find().map_err(Failure::NotInstalled)?;
        let failure = |cause: io::Error| {
            let error = Error::failed(format!("running {}: {cause}", program.display()));
            if cannot_be_run(&cause) {
                Failure::NotInstalled(error)
            } else {
                Failure::Failed(error)
            }
        };
        let mut process = Program::new(&program);
        process.env("CNI_COMMAND", command.as_str()).envs(changes.iter().copied());
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let child = process.spawn().map_err(failure)?;
        let output = self.converse(child).map_err(failure)?;
        if output.status.success() {
            Ok(output.stdout)
        } else {
            Err(Failure::Failed(self.refusal(&output)))
        }
    }

    /// Where it is installed.
    pub(crate) fn find(&self) -> Result<PathBuf, Error> {
        let kind = excerpt::quoted(self.kind);
        if self.kind.contains('/') {
            return Err(Error::invalid_config(format!("invalid plugin name: {kind}")));
        }
        let is_program =
            |place: &PathBuf| place.is_file() && access(place.as_path(), AccessFlags::X_OK).is_ok();
        let mut places = self.path.iter().map(|directory| directory.join(self.kind));
        places.find(is_program).ok_or_else(|| {
            let places: Vec<_> = self.path.iter().map(|place| place.to_string_lossy()).collect();
            let places = excerpt::sentence(&places.join(" "));
            // A runtime takes "not found" for "gone already" and would not try again.
            Error::failed(format!("failed to find plugin {kind} in path [{places}]"))
        })
    }

    fn converse(&self, mut child: Child) -> io::Result<Output> {
        if let Some(mut stdin) = child.stdin.take() {
            let written =
                stdin.write_all(Value::Object(self.config.clone()).to_string().as_bytes());
            // A plugin that does not read its config still prints its answer.
            written.or_else(|error| match error.kind() {
                io::ErrorKind::BrokenPipe => Ok(()),
                _ => Err(error),
            })?;
        }
        child.wait_with_output()
    }

    fn refusal(&self, output: &Output) -> Error {
        let answer = serde_json::from_slice::<Object>(&output.stdout);
        answer.ok().and_then(|answer| decode(&answer)).unwrap_or_else(|| {
            let text = String::from_utf8_lossy(&output.stdout);
            let (kind, text) = (excerpt::value(self.kind), excerpt::sentence(text.trim()));
            Error::failed(format!("plugin {kind} failed ({}): {text}", output.status))
        })
    }
}

/// Whether the kernel cannot run the program at all: it was removed meanwhile, is for another
/// architecture, or may not be executed.
fn cannot_be_run(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::ENOENT | Errno::ENOEXEC | Errno::EACCES))
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotInstalled(error) | Failure::Failed(error) => error,
        }
    }
}

fn decode(answer: &Object) -> Option<Error> {
    let text = |key| excerpt::sentence(json::lenient_text(answer, key).unwrap_or_default());
    Some(Error {
        code: json::number(answer, "code").ok()??,
        msg: text("msg"),
        details: text("details"),
    })
}
