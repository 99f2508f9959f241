//! What a file of the store says: who holds the address that it is named after.

use crate::attachment::Attachment;

#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Record {
    Of(Attachment),
    /// Written before interfaces were: any interface of this container.
    OfContainer(String),
    /// Created and never filled, or lost with the power: it says nothing.
    Damaged,
    /// It says something, but not who.
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
            Some((id, interface)) if is_word(id) && is_word(interface) => Self::Of(Attachment {
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

fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control())
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
