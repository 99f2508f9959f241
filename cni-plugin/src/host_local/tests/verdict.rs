//! Every way to hold an address, or not to.

use std::collections::{HashMap, HashSet};

use super::*;
use crate::runtime_cache::Cache;

const NETWORK: &str = "cbr0";

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn attachment(container: &str) -> Attachment {
    Attachment { container_id: container.into(), interface: "eth0".into() }
}

/// Nobody knows anything; booted at 10,000, now 20,000.
fn nobody() -> Witnesses {
    Witnesses {
        cached: Cache::default(),
        configured: HashMap::new(),
        busy: HashSet::new(),
        booted: at(10_000),
        now: at(20_000),
    }
}

fn cached(network: &str, address: &str) -> Witnesses {
    let cached = Cached::of(network, attachment("abcabcabcabc"), &[address.parse().unwrap()]);
    Witnesses { cached: Cache::of(vec![cached]), ..nobody() }
}

fn found(content: &[u8], changed: u64) -> Found {
    let entry = Entry::from("10.0.0.2".parse::<IpAddr>().unwrap());
    Found { entry, record: Record::parse(content), changed: at(changed) }
}

fn judged(content: &[u8], changed: u64, witnesses: &Witnesses) -> (Kind, bool) {
    let verdict = judge(&found(content, changed), NETWORK, witnesses);
    (verdict.kind, verdict.proven_dead)
}

const ABC: &[u8] = b"abcabcabcabc\r\neth0";
const BEFORE_BOOT: u64 = 9_999;
const SINCE_BOOT: u64 = 10_001;
const JUST_NOW: u64 = 19_990;

#[test]
fn a_record_of_nobody_is_dead_once_it_cannot_be_about_to_be_used() {
    for content in [ABC, b"abcabcabcabc"] {
        assert_eq!(judged(content, BEFORE_BOOT, &nobody()), (Kind::Leaked, true));
        assert_eq!(judged(content, SINCE_BOOT, &nobody()), (Kind::Leaked, true));
        assert_eq!(judged(content, JUST_NOW, &nobody()), (Kind::Leaked, false));
    }
    assert_eq!(judged(ABC, 20_400, &nobody()), (Kind::Leaked, false));
    let young = Witnesses { booted: at(19_995), ..nobody() };
    assert_eq!(judged(ABC, JUST_NOW, &young), (Kind::Leaked, true));
}

#[test]
fn one_witness_is_enough_to_hold_an_address() {
    let configured = HashMap::from([("10.0.0.2".parse().unwrap(), "/run/netns/x".to_owned())]);
    let busy = HashSet::from(["abcabcabcabc".to_owned()]);
    let all = [
        cached(NETWORK, "10.0.0.2"),
        cached("other", "10.9.9.9"),
        Witnesses { configured, ..nobody() },
        Witnesses { busy, ..nobody() },
    ];
    for witnesses in all {
        for changed in [BEFORE_BOOT, SINCE_BOOT, JUST_NOW] {
            assert_eq!(judged(ABC, changed, &witnesses), (Kind::Held, false));
        }
    }
    assert_eq!(
        judged(b"abcabcabcabc", BEFORE_BOOT, &cached(NETWORK, "10.0.0.2")),
        (Kind::Held, false)
    );
    let other_interface =
        judged(b"abcabcabcabc\r\nnet1", BEFORE_BOOT, &cached(NETWORK, "10.0.0.2"));
    assert_eq!(other_interface, (Kind::Held, false));
}

#[test]
fn an_address_is_double_if_the_runtime_has_another_for_its_owner() {
    let other = cached(NETWORK, "10.0.0.9");
    assert_eq!(judged(ABC, BEFORE_BOOT, &other), (Kind::Double, true));
    assert_eq!(judged(ABC, JUST_NOW, &other), (Kind::Double, false));
    let reason = judge(&found(ABC, BEFORE_BOOT), NETWORK, &other).reason;
    assert_eq!(reason, "the runtime has 10.0.0.9 for its owner");
    let busy = Witnesses { busy: HashSet::from(["abcabcabcabc".to_owned()]), ..other };
    assert_eq!(judged(ABC, BEFORE_BOOT, &busy), (Kind::Double, false));
}

#[test]
fn what_says_nothing_is_dead_and_what_is_foreign_stays() {
    assert_eq!(judged(b"", JUST_NOW, &nobody()), (Kind::HalfWritten, true));
    assert_eq!(judged(b"the printer's", BEFORE_BOOT, &nobody()), (Kind::Foreign, false));
    assert_eq!(judged(b"printer", BEFORE_BOOT, &nobody()), (Kind::Foreign, false));
    let reason = judge(&found(b"printer", BEFORE_BOOT), NETWORK, &nobody()).reason;
    assert_eq!(reason, "it names \"printer\", which is no identifier of a container");
    let mut alias = found(ABC, BEFORE_BOOT);
    alias.entry.name = "::ffff:10.0.0.2".into();
    let verdict = judge(&alias, NETWORK, &nobody());
    assert_eq!((verdict.kind, verdict.proven_dead), (Kind::Foreign, false));
    assert_eq!(verdict.reason, "its name is another spelling of 10.0.0.2");
}
