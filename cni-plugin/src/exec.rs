//! Runs another plugin, as a runtime would.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Child, Command as Program, Output, Stdio};

use serde_json::Value;

use crate::error::Error;
use crate::json::{self, Object};
use crate::request::Command;

/// Another plugin with the config that it gets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delegate<'a> {
    pub(crate) kind: &'a str,
    /// Where it is looked for, in this order.
    pub(crate) path: &'a [PathBuf],
    pub(crate) config: &'a Object,
}

impl Delegate<'_> {
    /// Has it carry out `command` in the environment of this process but for `changes`.
    ///
    /// Returns what it printed. Its standard error is ours.
    ///
    /// # Errors
    /// There is no such plugin, it cannot be run, or it says that it failed: then in its own words.
    pub(crate) fn run(&self, command: Command, changes: &[(&str, &str)]) -> Result<Vec<u8>, Error> {
        let program = self.find()?;
        let failure = |error| Error::failed(format!("running {}: {error}", program.display()));
        let mut process = Program::new(&program);
        process.env("CNI_COMMAND", command.as_str()).envs(changes.iter().copied());
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let output = process.spawn().and_then(|child| self.converse(child)).map_err(failure)?;
        if output.status.success() { Ok(output.stdout) } else { Err(self.refusal(&output)) }
    }

    fn find(&self) -> Result<PathBuf, Error> {
        if self.kind.contains('/') {
            return Err(Error::invalid_config(format!("invalid plugin name: {}", self.kind)));
        }
        let mut places = self.path.iter().map(|directory| directory.join(self.kind));
        places.find(|place| place.is_file()).ok_or_else(|| {
            let places: Vec<_> = self.path.iter().map(|place| place.to_string_lossy()).collect();
            let places = places.join(" ");
            // A runtime takes "not found" for "gone already" and would not try again.
            Error::failed(format!("failed to find plugin {:?} in path [{places}]", self.kind))
        })
    }

    fn converse(&self, mut child: Child) -> io::Result<Output> {
        if let Some(mut stdin) = child.stdin.take() {
            let written =
                stdin.write_all(Value::Object(self.config.clone()).to_string().as_bytes());
            // A plugin that does not read its config still says what it has to say.
            written.or_else(|error| match error.kind() {
                io::ErrorKind::BrokenPipe => Ok(()),
                _ => Err(error),
            })?;
        }
        child.wait_with_output()
    }

    fn refusal(&self, output: &Output) -> Error {
        let told = serde_json::from_slice::<Object>(&output.stdout);
        told.ok().and_then(|told| decode(&told)).unwrap_or_else(|| {
            let said = String::from_utf8_lossy(&output.stdout);
            Error::failed(format!(
                "plugin {} failed ({}): {}",
                self.kind,
                output.status,
                said.trim()
            ))
        })
    }
}

fn decode(told: &Object) -> Option<Error> {
    let text = |key| json::text(told, key).ok().flatten().unwrap_or_default().to_owned();
    Some(Error {
        code: json::number(told, "code").ok()??,
        msg: text("msg"),
        details: text("details"),
    })
}
