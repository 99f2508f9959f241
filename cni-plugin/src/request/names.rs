//! Which names a command needs, and what a name may look like.

use super::Command;
use crate::attachment::Attachment;
use crate::error::Error;
use crate::excerpt;

/// The kernel's limit for the name of an interface, in bytes.
const LONGEST_INTERFACE: usize = 15;

pub(super) fn check_present(
    command: Command,
    value: &impl Fn(&str) -> Option<String>,
) -> Result<(), Error> {
    let missing: Vec<_> =
        needed(command).iter().copied().filter(|name| value(name).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(",");
    Err(Error::bad_environment(format!("required env variables [{names}] missing")))
}

const fn needed(command: Command) -> &'static [&'static str] {
    match command {
        Command::Add | Command::Check => {
            &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"]
        }
        Command::Del => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
        Command::Gc | Command::Status => &["CNI_PATH"],
        Command::Version => &[],
    }
}

/// A DEL takes every name that another plugin may have added.
pub(super) fn attachment(
    command: Command,
    value: &impl Fn(&str) -> Option<String>,
) -> Result<Attachment, Error> {
    let container_id = value("CNI_CONTAINERID").unwrap_or_default();
    if !is_identifier(&container_id) {
        return Err(Error::bad_environment(format!(
            "CNI_CONTAINERID: invalid characters in {}",
            excerpt::quoted(&container_id)
        )));
    }
    let interface = value("CNI_IFNAME").unwrap_or_default();
    let is_new = command != Command::Del;
    let unprintable = (is_new && !is_legible(&interface)).then_some("is not printable");
    match flaw_of_interface(&interface).or(unprintable) {
        Some(flaw) => {
            let shown = excerpt::quoted(&interface);
            Err(Error::bad_environment(format!("CNI_IFNAME {shown} {flaw}")))
        }
        None => Ok(Attachment { container_id, interface }),
    }
}

/// # Errors
/// A network without a name, or with one that cannot be the name of a directory.
pub fn check_network_name(name: &str) -> Result<(), Error> {
    match name {
        "" => Err(Error::invalid_config("missing network name")),
        _ if is_identifier(name) => Ok(()),
        _ => {
            let name = excerpt::quoted(name);
            Err(Error::invalid_config(format!("invalid characters found in network name {name}")))
        }
    }
}

fn is_identifier(text: &str) -> bool {
    let follows = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && text.bytes().all(follows)
}

/// What is no text is shown by a mark in its place.
fn is_legible(name: &str) -> bool {
    excerpt::is_printable(name) && !name.contains(char::REPLACEMENT_CHARACTER)
}

/// What the kernel does not take as the name of an interface.
pub(crate) fn flaw_of_interface(name: &str) -> Option<&'static str> {
    let is_forbidden = |c: char| c == '/' || c == ':' || c.is_whitespace();
    match name {
        "" => Some("is empty"),
        "." | ".." => Some("is . or .."),
        _ if name.len() > LONGEST_INTERFACE => Some("is too long: at most 15 bytes"),
        _ if name.contains(is_forbidden) => Some("contains / or : or white space"),
        _ => None,
    }
}
