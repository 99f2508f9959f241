//! Starts this program again in new namespaces.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result};

const SCRIPT: &str = include_str!("../sandbox");

pub fn is_inside() -> bool {
    std::env::var_os("TWEED_SANDBOX").is_some()
}

/// Runs this program in the sandbox to its end. If the caller is killed, the sandbox ends too.
pub fn enter() -> Result<ExitCode> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]);
    let status = add_sandbox(&mut command, std::env::args_os().skip(1))?.status();
    exit_code(status.context("starting the sandbox by setpriv")?)
}

/// This program in the sandbox, with these arguments; it may outlive the caller.
pub fn command(arguments: impl IntoIterator<Item = OsString>) -> Result<Command> {
    let mut command = Command::new("env");
    add_sandbox(&mut command, arguments)?;
    Ok(command)
}

fn add_sandbox(
    command: &mut Command,
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<&mut Command> {
    let program = std::env::current_exe().context("finding this program")?;
    Ok(command.args(["sh", "-c", SCRIPT, "sandbox"]).arg(program).args(arguments))
}

fn exit_code(status: ExitStatus) -> Result<ExitCode> {
    let signal = || status.signal().map(|signal| 128 + signal);
    let code = status.code().or_else(signal).context("the sandbox ended without a status")?;
    Ok(ExitCode::from(u8::try_from(code)?))
}
