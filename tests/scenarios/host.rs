//! Changes on the host by other programs.

use tweed::model::entry::{Base, BasePolicy, ChainName, Key, LinkName};
use tweed::model::node::Sysctls;
use tweed_model::ModelKernel;

use crate::notation::{entry, interface};
use crate::stage::duration;

/// Runs a command such as `lose route 10.244.3.0/24` or `link-down eth0`.
pub(crate) fn perform(kernel: &ModelKernel, words: &str) {
    let (verb, rest) = words.split_once(' ').unwrap_or((words, ""));
    let rest = rest.trim();
    match verb {
        "set" => kernel.set(entry(rest)),
        "lose" => kernel.lose(&key(kernel, rest)),
        "silently" => perform_silently(kernel, rest),
        "link-up" => kernel.link_up(&LinkName::new(rest)),
        "link-down" => kernel.link_down(&LinkName::new(rest)),
        "remove-interface" => kernel.remove_interface(&LinkName::new(rest)),
        "rename-interface" => {
            let (link, name) = rest.split_once(' ').unwrap();
            kernel.rename_interface(&LinkName::new(link), &LinkName::new(name));
        }
        "change-interface" => {
            let changed = interface(rest);
            kernel.change_interface(&changed.name.clone(), |interface| *interface = changed);
        }
        "sysctls" => kernel.set_sysctls(match rest {
            "read-only" => Sysctls::ReadOnly,
            "writable" => Sysctls::Writable,
            other => panic!("settings are not {other}"),
        }),
        "refuse" => {
            let (words, reason) = rest.split_once(": ").unwrap();
            kernel.refuse(words, reason);
        }
        "allow" => kernel.allow(rest),
        "overrun" => kernel.overrun(),
        "interrupt" => kernel.interrupt(rest),
        "hang" => kernel.hang(duration(rest)),
        "policy" => {
            let (program, policy) = rest.split_once(' ').unwrap();
            let dropped = policy == "DROP";
            let base_policy = if dropped { BasePolicy::Drop } else { BasePolicy::Accept };
            kernel.set_policy(forward(program), base_policy);
        }
        "deafen" => kernel.deafen(rest.parse().unwrap()),
        other => panic!("unknown kernel command: {other}"),
    }
}

/// The chain behind `FORWARD` of, for example, iptables-nft.
fn forward(program: &str) -> ChainName {
    let is_meant = |name: &ChainName| name.base == Base::Forward && name.program() == program;
    ChainName::all().find(is_meant).unwrap_or_else(|| panic!("there is no {program}"))
}

fn perform_silently(kernel: &ModelKernel, words: &str) {
    match words.split_once(' ') {
        Some(("set", rest)) => kernel.set_silently(entry(rest.trim())),
        Some(("lose", rest)) => kernel.lose_silently(&key(kernel, rest.trim())),
        _ => panic!("this cannot be done silently: {words}"),
    }
}

/// The one entry whose text begins with `words`.
fn key(kernel: &ModelKernel, words: &str) -> Key {
    let state = kernel.state();
    let mut entries = state.entries().filter(|entry| entry.to_string().starts_with(words));
    match (entries.next(), entries.next()) {
        (Some(entry), None) => entry.key(),
        (None, _) => panic!("the kernel holds no {words}"),
        (Some(one), Some(other)) => panic!("{words} may be {one} or {other}"),
    }
}
