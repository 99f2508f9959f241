//! Flags of flanneld that change nothing here, and need not: changes of rules are told, and logs are not klog's.

use clap::{Arg, Command};

use super::flags::integer;

/// Adds them to `command`, for its help and its syntax.
pub(super) fn declare(command: Command) -> Command {
    let resync = argument("iptables-resync", "Seconds between two looks at the rules")
        .value_name("NUMBER")
        .default_value("5")
        .value_parser(|text: &str| integer(text).ok_or("a number"));
    let vmodule = argument("vmodule", "Log levels by file").value_name("TEXT");
    let backtrace = argument("log_backtrace_at", "Log stack traces").value_name("TEXT");
    command.next_help_heading("Taken as flanneld takes them, without effect").args([
        resync,
        vmodule,
        backtrace.default_value(":0"),
    ])
}

fn argument(flag: &'static str, help: &'static str) -> Arg {
    Arg::new(flag).long(flag).help(help)
}
