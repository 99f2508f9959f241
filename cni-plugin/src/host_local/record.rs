//! What a file of the store says: who holds the address that it is named after.

use crate::protocol::request::Attachment;

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Record {
    Of(Attachment),
    /// Written before interfaces were: any interface of this container.
    OfContainer(String),
    /// Created and never filled, or lost with the power: it says nothing.
    Damaged,
    /// Made by hand: it does not say which container holds the address.
    Foreign,
}

impl Record {
    pub(super) fn parse(content: &[u8]) -> Self {
        let Ok(text) = std::str::from_utf8(content) else { return Self::unreadable(content) };
        let text = text.trim();
        if text.is_empty() || text.contains('\0') {
            return Self::Damaged;
        }
        match text.split_once("\r\n") {
            Some((id, interface)) if is_word(id) && is_name(interface) => Self::Of(Attachment {
                container_id: id.to_owned(),
                interface: interface.to_owned(),
            }),
            None if is_word(text) => Self::OfContainer(text.to_owned()),
            _ => Self::Foreign,
        }
    }

    fn unreadable(content: &[u8]) -> Self {
        if content.contains(&0) { Self::Damaged } else { Self::Foreign }
    }

    pub(super) fn is_of(&self, attachment: &Attachment) -> bool {
        match self {
            Self::Of(owner) => owner == attachment,
            Self::OfContainer(id) => *id == attachment.container_id,
            Self::Damaged | Self::Foreign => false,
        }
    }
}

/// What the file says of an address that `attachment` holds.
pub(super) fn render(attachment: &Attachment) -> String {
    format!("{}\r\n{}", attachment.container_id, attachment.interface)
}

/// Whether `id` is of the form that runtimes give to containers, and not a word of an operator's.
pub(super) fn is_of_a_runtime(id: &str) -> bool {
    const SHORTEST: usize = 12;
    id.len() >= SHORTEST && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

fn is_word(text: &str) -> bool {
    is_name(text) && !text.contains(char::is_control)
}

/// The kernel takes control characters in the name of an interface, and so do other plugins.
fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(char::is_whitespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(container_id: &str, interface: &str) -> Attachment {
        Attachment { container_id: container_id.into(), interface: interface.into() }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let owner = attachment("0123abc", "eth0");
        assert_eq!(render(&owner), "0123abc\r\neth0");
        assert_eq!(Record::parse(render(&owner).as_bytes()), Record::Of(owner));
    }

    #[test]
    fn whatever_the_kernel_takes_as_a_name_can_be_freed_again() {
        for interface in ["eth\u{1}", "eth\u{1b}[2J", "\u{202e}0hte"] {
            let owner = attachment("0123abc", interface);
            assert_eq!(Record::parse(render(&owner).as_bytes()), Record::Of(owner));
        }
    }

    #[test]
    fn identifiers_of_runtimes_are_told_from_words() {
        let long = "6c1f0f5f0cbf3b4b1c1f6c1f0f5f0cbf3b4b1c1f6c1f0f5f0cbf3b4b1c1faaaa";
        assert!(is_of_a_runtime(long) && is_of_a_runtime("0123456789ab"));
        assert!(is_of_a_runtime("6ba7b810-9dad-11d1-80b4-00c04fd430c8"));
        for word in ["printer", "reserved", "cafe", "kept-for-the-printer", "10.0.0.3"] {
            assert!(!is_of_a_runtime(word), "{word}");
        }
    }

    #[test]
    fn white_space_around_it_does_not_count() {
        let owner = attachment("abc", "eth0");
        assert!(Record::parse(b"\n abc\r\neth0\r\n\t").is_of(&owner));
        assert_eq!(Record::parse(b"abc\n"), Record::OfContainer("abc".into()));
    }

    #[test]
    fn an_old_record_is_of_every_interface_of_its_container() {
        let record = Record::parse(b"abc");
        assert!(record.is_of(&attachment("abc", "eth0")) && record.is_of(&attachment("abc", "x")));
        assert!(!record.is_of(&attachment("abcd", "eth0")));
    }

    #[test]
    fn what_says_nothing_is_damaged_and_what_says_something_else_is_foreign() {
        for content in [&b""[..], b"  \r\n", b"\0\0\0\0", b"abc\0\0", b"\xff\0"] {
            assert_eq!(Record::parse(content), Record::Damaged, "{content:?}");
        }
        for content in [&b"kept for the printer"[..], b"a\nb", b"a\r\nb\r\nc", b"\xff", b"a\x07"] {
            assert_eq!(Record::parse(content), Record::Foreign, "{content:?}");
        }
    }
}
