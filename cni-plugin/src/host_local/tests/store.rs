//! Reservations on a real file system, by both ways to create one.

use super::*;

fn store() -> (tempfile::TempDir, Store) {
    let home = tempfile::tempdir().unwrap();
    let store = Store::at(home.path().join("net"));
    store.create().unwrap();
    (home, store)
}

fn attachment(container: &str) -> Attachment {
    Attachment { container_id: container.into(), interface: "eth0".into() }
}

fn address() -> IpAddr {
    "10.0.0.2".parse().unwrap()
}

#[test]
fn an_address_is_reserved_once() {
    let (_home, store) = store();
    store.reserve(address(), &attachment("a")).unwrap();
    let refused = store.reserve(address(), &attachment("b"));
    assert!(refused.unwrap_err().msg.contains("File exists"));
    assert_eq!(store.record(&address().into()), Some(Record::Of(attachment("a"))));
    store.free(&address().into()).unwrap();
    store.free(&address().into()).unwrap();
    assert_eq!(store.record(&address().into()), None);
}

#[test]
fn without_nameless_files_a_record_is_still_written_atomically() {
    let (_home, store) = store();
    let path = store.directory.join(address().to_string());
    // A crash has left this file between the two names of one file: it must not be written to
    // again.
    store.link_named(&path, "a\r\neth0").unwrap();
    fs::hard_link(&path, store.directory.join(NAMELESS)).unwrap();
    let error = store.link_named(&path, "b\r\neth0").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"a\r\neth0");
    assert_eq!(fs::read_dir(&store.directory).unwrap().count(), 1);
}

#[test]
fn the_last_address_is_overwritten_in_place_with_any_length() {
    let (_home, store) = store();
    for text in ["10.244.100.200", "10.0.0.2", "fd00:10:244:7::2"] {
        store.set_last_reserved(0, text.parse().unwrap()).unwrap();
        assert_eq!(fs::read_to_string(store.last_reserved_path(0)).unwrap(), text);
        assert_eq!(store.last_reserved(0), Some(text.parse().unwrap()));
    }
    assert_eq!(store.last_reserved(1), None);
}

#[test]
fn records_before_a_moment_are_separated_from_later_ones() {
    let (_home, store) = store();
    store.reserve(address(), &attachment("a")).unwrap();
    let (all, changed) =
        (store.found(|_| true).unwrap(), store.found(|_| true).unwrap()[0].changed);
    assert_eq!(all.len(), 1);
    assert_eq!(store.found(|it| it < changed).unwrap(), []);
    assert_eq!(store.found(|it| it <= changed).unwrap(), all);
}
