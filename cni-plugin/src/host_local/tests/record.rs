//! How records are read and written.

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
fn every_interface_name_of_the_kernel_can_be_freed() {
    for interface in ["eth\u{1}", "eth\u{1b}[2J", "\u{202e}0hte"] {
        let owner = attachment("0123abc", interface);
        assert_eq!(Record::parse(render(&owner).as_bytes()), Record::Of(owner));
    }
}

#[test]
fn identifiers_of_runtimes_differ_from_words() {
    let long = "6c1f0f5f0cbf3b4b1c1f6c1f0f5f0cbf3b4b1c1f6c1f0f5f0cbf3b4b1c1faaaa";
    assert!(is_of_a_runtime(long) && is_of_a_runtime("0123456789ab"));
    assert!(is_of_a_runtime("6ba7b810-9dad-11d1-80b4-00c04fd430c8"));
    for word in ["printer", "reserved", "cafe", "kept-for-the-printer", "10.0.0.3"] {
        assert!(!is_of_a_runtime(word), "{word}");
    }
}

#[test]
fn surrounding_white_space_is_ignored() {
    let owner = attachment("abc", "eth0");
    assert!(Record::parse(b"\n abc\r\neth0\r\n\t").is_of(&owner));
    assert_eq!(Record::parse(b"abc\n"), Record::OfContainer("abc".into()));
}

#[test]
fn an_old_record_belongs_to_every_interface_of_its_container() {
    let record = Record::parse(b"abc");
    assert!(record.is_of(&attachment("abc", "eth0")) && record.is_of(&attachment("abc", "x")));
    assert!(!record.is_of(&attachment("abcd", "eth0")));
}

#[test]
fn empty_content_is_damaged_and_unknown_content_is_foreign() {
    for content in [&b""[..], b"  \r\n", b"\0\0\0\0", b"abc\0\0", b"\xff\0"] {
        assert_eq!(Record::parse(content), Record::Damaged, "{content:?}");
    }
    for content in [&b"kept for the printer"[..], b"a\nb", b"a\r\nb\r\nc", b"\xff", b"a\x07"] {
        assert_eq!(Record::parse(content), Record::Foreign, "{content:?}");
    }
}
