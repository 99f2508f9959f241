//! The index against what was put into it, and against damage.

use std::os::unix::fs::FileExt;

use super::*;

const BOOT: u128 = 77;

fn attachment(container: &str) -> Attachment {
    Attachment { container_id: container.into(), interface: "eth0".into() }
}

fn entry(address: &str, container: &str) -> (IpAddr, Record) {
    (address.parse().unwrap(), Record::Of(attachment(container)))
}

fn some() -> Vec<(IpAddr, Record)> {
    let old = ("10.0.0.5".parse().unwrap(), Record::OfContainer("old".into()));
    let foreign = ("10.0.0.6".parse().unwrap(), Record::Foreign);
    vec![entry("10.0.0.2", "a"), entry("fd00::2", "a"), entry("10.0.0.3", "b"), old, foreign]
}

fn ips<const N: usize>(texts: [&str; N]) -> Vec<IpAddr> {
    texts.map(|text| text.parse().unwrap()).into()
}

fn free(index: &Index, first: &str, last: &str) -> Option<String> {
    let [first, last] = [first, last].map(|text| number(text.parse().unwrap()));
    index.first_free(first, last).unwrap().map(|address| address.to_string())
}

struct Home {
    directory: tempfile::TempDir,
    file: File,
}

impl Home {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), file: tempfile::tempfile().unwrap() }
    }

    fn directory(&self) -> File {
        File::open(self.directory.path()).unwrap()
    }

    fn build(&self) -> Index {
        let mut index =
            Index::build(self.file.try_clone().unwrap(), Boot::of(BOOT), &some()).unwrap();
        index.seal(&self.directory()).unwrap();
        index
    }

    fn open(&self, boot: u128) -> Option<Index> {
        Index::open(self.file.try_clone().unwrap(), Boot::of(boot), &self.directory())
    }
}

#[test]
fn an_index_finds_owners_and_free_addresses() {
    let index = Home::new().build();
    assert_eq!(index.held_by(&attachment("b")).unwrap(), ips(["10.0.0.3"]));
    let mut both = index.held_by(&attachment("a")).unwrap();
    both.sort();
    assert_eq!(both, ips(["10.0.0.2", "fd00::2"]));
    assert_eq!(index.held_by(&attachment("old")).unwrap(), ips([]));
    assert_eq!(index.held_by_container("old").unwrap(), ips(["10.0.0.5"]));

    assert_eq!(free(&index, "10.0.0.1", "10.0.0.9").unwrap(), "10.0.0.1");
    assert_eq!(free(&index, "10.0.0.2", "10.0.0.9").unwrap(), "10.0.0.4");
    assert_eq!(free(&index, "10.0.0.5", "10.0.0.9").unwrap(), "10.0.0.7");
    assert_eq!(free(&index, "10.0.0.5", "10.0.0.6"), None);
    assert_eq!(free(&index, "fd00::2", "fd00::ffff").unwrap(), "fd00::3");
}

#[test]
fn what_is_inserted_is_found_and_what_is_removed_is_not() {
    let mut index = Home::new().build();
    let (address, record) = entry("10.0.0.4", "c");
    index.insert(address, &record).unwrap();
    assert_eq!(index.held_by(&attachment("c")).unwrap(), ips(["10.0.0.4"]));
    assert_eq!(free(&index, "10.0.0.2", "10.0.0.9").unwrap(), "10.0.0.7");
    index.remove(address, &record).unwrap();
    assert_eq!(index.held_by(&attachment("c")).unwrap(), ips([]));
    assert_eq!(free(&index, "10.0.0.2", "10.0.0.9").unwrap(), "10.0.0.4");
}

#[test]
fn an_index_counts_until_the_directory_changes() {
    let home = Home::new();
    assert!(home.open(BOOT).is_none());
    home.build();
    assert!(home.open(BOOT).is_some());
    std::fs::write(home.directory.path().join("10.0.0.9"), b"").unwrap();
    assert!(home.open(BOOT).is_none());
}

#[test]
fn an_index_is_of_one_boot_and_one_directory() {
    let home = Home::new();
    home.build();
    assert!(home.open(BOOT + 1).is_none());
    let other = tempfile::tempdir().unwrap();
    let other = File::open(other.path()).unwrap();
    assert!(Index::open(home.file.try_clone().unwrap(), Boot::of(BOOT), &other).is_none());
}

#[test]
fn an_index_that_was_being_changed_does_not_count() {
    let home = Home::new();
    let mut index = home.build();
    index.unseal().unwrap();
    assert!(home.open(BOOT).is_none());
    index.seal(&home.directory()).unwrap();
    assert!(home.open(BOOT).is_some());
}

#[test]
fn without_a_boot_nothing_is_believed() {
    let home = Home::new();
    let mut index = Index::build(home.file.try_clone().unwrap(), None, &some()).unwrap();
    index.seal(&home.directory()).unwrap();
    assert!(Index::open(home.file.try_clone().unwrap(), None, &home.directory()).is_none());
}

#[test]
fn a_cut_file_does_not_count() {
    let home = Home::new();
    home.build();
    let length = home.file.metadata().unwrap().len();
    home.file.set_len(length - 1).unwrap();
    assert!(home.open(BOOT).is_none());
    home.file.set_len(length).unwrap();
    home.file.write_all_at(b"nonsense", 60).unwrap();
    assert!(home.open(BOOT).is_none());
}
