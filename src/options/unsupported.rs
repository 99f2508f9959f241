//! Flags of flanneld that change nothing here: some would have to and are refused, some need not.

use clap::{Arg, ArgMatches, Command};

use super::argv::Settings;
use super::flags::boolean;
use super::stop::Stop;

struct Unsupported {
    flag: &'static str,
    default: &'static str,
    kind: Kind,
    help: &'static str,
}

#[derive(Clone, Copy)]
enum Kind {
    Boolean,
    Text,
}

/// To ignore these would cut pods off, or leave a cluster without the daemon it was promised.
const LATER: [Unsupported; 5] = [
    boolean_flag("kube-subnet-mgr", "false", "Kubernetes instead of etcd"),
    text_flag("kube-api-url", "", "Its API server"),
    text_flag("kubeconfig-file", "", "How to reach it"),
    text_flag("kube-annotation-prefix", "flannel.alpha.coreos.com", "Prefix of node annotations"),
    text_flag("net-config-path", "/etc/kube-flannel/net-conf.json", "The config with Kubernetes"),
];

/// Nothing is lost without these: no node is patched, and logs are not klog's.
const WITHOUT_EFFECT: [Unsupported; 3] = [
    boolean_flag("set-node-network-unavailable", "true", "Tell Kubernetes that the network works"),
    text_flag("vmodule", "", "Log levels by file"),
    text_flag("log_backtrace_at", ":0", "Log stack traces"),
];

/// Adds them to `command`, for its help and its syntax.
pub(super) fn declare(command: Command) -> Command {
    command
        .next_help_heading("Not yet in this version")
        .args(LATER.iter().map(argument))
        .next_help_heading("Taken as flanneld takes them, without effect")
        .args(WITHOUT_EFFECT.iter().map(argument))
}

/// Stops at what was asked for and cannot be had yet. A flag at its default asks for nothing.
pub(super) fn refuse(matches: &ArgMatches, settings: &Settings) -> Result<(), Stop> {
    let asked = |known: &&Unsupported| {
        matches.get_one::<String>(known.flag).is_some_and(|value| value != known.default)
    };
    match LATER.iter().find(asked) {
        Some(known) => Err(Stop::Unsupported { name: settings.name(known.flag) }),
        None => Ok(()),
    }
}

const fn boolean_flag(
    flag: &'static str,
    default: &'static str,
    help: &'static str,
) -> Unsupported {
    Unsupported { flag, default, kind: Kind::Boolean, help }
}

const fn text_flag(flag: &'static str, default: &'static str, help: &'static str) -> Unsupported {
    Unsupported { flag, default, kind: Kind::Text, help }
}

fn argument(known: &Unsupported) -> Arg {
    let kind = known.kind;
    let argument = Arg::new(known.flag)
        .long(known.flag)
        .help(known.help)
        .value_parser(move |text: &str| canonical(kind, text));
    let argument = match kind {
        Kind::Boolean => argument.value_name("BOOL").num_args(0..=1).require_equals(true),
        Kind::Text => argument.value_name("TEXT"),
    };
    if known.default.is_empty() { argument } else { argument.default_value(known.default) }
}

/// One spelling per value, so that it can be compared with the default.
fn canonical(kind: Kind, text: &str) -> Result<String, &'static str> {
    match kind {
        Kind::Boolean => boolean(text).map(|value| value.to_string()),
        Kind::Text => Ok(text.to_owned()),
    }
}
