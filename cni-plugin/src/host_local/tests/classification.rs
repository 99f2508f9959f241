//! Every kind of proof that an address is in use, or is not.

use std::collections::{HashMap, HashSet};

use super::*;
use crate::host_local::runtime_cache::Cache;
use crate::host_local::store::Entry;
use crate::protocol::request::Attachment;

const NETWORK: &str = "cbr0";

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn attachment(container: &str) -> Attachment {
    Attachment { container_id: container.into(), interface: "eth0".into() }
}

/// No sign of use; the machine was booted at 10,000, and now is 20,000.
fn nothing_known() -> Liveness {
    Liveness {
        cached: Cache::default(),
        configured: HashMap::new(),
        busy: HashSet::new(),
        booted: at(10_000),
        now: at(20_000),
    }
}

fn cached(network: &str, address: &str) -> Liveness {
    let cached = Cached::of(network, attachment("abcabcabcabc"), &[address.parse().unwrap()]);
    Liveness { cached: Cache::of(vec![cached]), ..nothing_known() }
}

fn reservation(content: &[u8], changed: u64) -> Reservation {
    let entry = Entry::from("10.0.0.2".parse::<IpAddr>().unwrap());
    Reservation { entry, record: Record::parse(content), changed: at(changed) }
}

fn classified(content: &[u8], changed: u64, liveness: &Liveness) -> (Kind, bool) {
    let classification = classify(&reservation(content, changed), NETWORK, liveness);
    (classification.kind, classification.proven_dead)
}

const ABC: &[u8] = b"abcabcabcabc\r\neth0";
const BEFORE_BOOT: u64 = 9_999;
const SINCE_BOOT: u64 = 10_001;
const JUST_NOW: u64 = 19_990;

#[test]
fn a_record_without_a_container_is_dead_once_no_add_can_still_use_it() {
    for content in [ABC, b"abcabcabcabc"] {
        assert_eq!(classified(content, BEFORE_BOOT, &nothing_known()), (Kind::Leaked, true));
        assert_eq!(classified(content, SINCE_BOOT, &nothing_known()), (Kind::Leaked, true));
        assert_eq!(classified(content, JUST_NOW, &nothing_known()), (Kind::Leaked, false));
    }
    assert_eq!(classified(ABC, 20_400, &nothing_known()), (Kind::Leaked, false));
    let young = Liveness { booted: at(19_995), ..nothing_known() };
    assert_eq!(classified(ABC, JUST_NOW, &young), (Kind::Leaked, true));
}

#[test]
fn one_sign_of_use_is_sufficient_to_hold_an_address() {
    let configured = HashMap::from([("10.0.0.2".parse().unwrap(), "/run/netns/x".to_owned())]);
    let busy = HashSet::from(["abcabcabcabc".to_owned()]);
    let all = [
        cached(NETWORK, "10.0.0.2"),
        cached("other", "10.9.9.9"),
        Liveness { configured, ..nothing_known() },
        Liveness { busy, ..nothing_known() },
    ];
    for liveness in all {
        for changed in [BEFORE_BOOT, SINCE_BOOT, JUST_NOW] {
            assert_eq!(classified(ABC, changed, &liveness), (Kind::Held, false));
        }
    }
    assert_eq!(
        classified(b"abcabcabcabc", BEFORE_BOOT, &cached(NETWORK, "10.0.0.2")),
        (Kind::Held, false)
    );
    let other_interface =
        classified(b"abcabcabcabc\r\nnet1", BEFORE_BOOT, &cached(NETWORK, "10.0.0.2"));
    assert_eq!(other_interface, (Kind::Held, false));
}

#[test]
fn an_address_is_duplicate_if_the_runtime_has_another_for_its_owner() {
    let other = cached(NETWORK, "10.0.0.9");
    assert_eq!(classified(ABC, BEFORE_BOOT, &other), (Kind::Double, true));
    assert_eq!(classified(ABC, JUST_NOW, &other), (Kind::Double, false));
    let reason = classify(&reservation(ABC, BEFORE_BOOT), NETWORK, &other).reason;
    assert_eq!(reason, "the runtime lists 10.0.0.9 for its owner");
    let busy = Liveness { busy: HashSet::from(["abcabcabcabc".to_owned()]), ..other };
    assert_eq!(classified(ABC, BEFORE_BOOT, &busy), (Kind::Double, false));
}

#[test]
fn records_without_content_are_dead_and_foreign_ones_stay() {
    assert_eq!(classified(b"", JUST_NOW, &nothing_known()), (Kind::HalfWritten, true));
    assert_eq!(classified(b"the printer's", BEFORE_BOOT, &nothing_known()), (Kind::Foreign, false));
    assert_eq!(classified(b"printer", BEFORE_BOOT, &nothing_known()), (Kind::Foreign, false));
    let reason = classify(&reservation(b"printer", BEFORE_BOOT), NETWORK, &nothing_known()).reason;
    assert_eq!(reason, "it names \"printer\", which is not a container ID");
    let mut alias = reservation(ABC, BEFORE_BOOT);
    alias.entry.name = "::ffff:10.0.0.2".into();
    let classification = classify(&alias, NETWORK, &nothing_known());
    assert_eq!((classification.kind, classification.proven_dead), (Kind::Foreign, false));
    assert_eq!(classification.reason, "its name is another spelling of 10.0.0.2");
}

/// A comparison of each record with each container would take hours.
#[test]
fn a_full_store_is_classified_record_by_record() {
    const RECORDS: u32 = 65_000;
    let container = |number: u32| format!("{number:012x}");
    let of = |number| Cached::of("other", attachment(&container(number)), &[]);
    let liveness =
        Liveness { cached: Cache::of((0..RECORDS).map(of).collect()), ..nothing_known() };
    for number in RECORDS..RECORDS * 2 {
        let content = format!("{}\r\neth0", container(number));
        assert_eq!(classified(content.as_bytes(), SINCE_BOOT, &liveness), (Kind::Leaked, true));
    }
}
