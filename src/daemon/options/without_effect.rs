//! Flags of flanneld that change nothing here, and need not: our logs are not klog's.

use clap::{Arg, Command};

/// Adds them to `command`, for its help and its syntax.
pub(super) fn declare(command: Command) -> Command {
    let vmodule = argument("vmodule", "Log levels by file");
    let backtrace = argument("log_backtrace_at", "Log stack traces").default_value(":0");
    command
        .next_help_heading("Taken as flanneld takes them, without effect")
        .args([vmodule, backtrace])
}

fn argument(flag: &'static str, help: &'static str) -> Arg {
    Arg::new(flag).long(flag).help(help).value_name("TEXT")
}
