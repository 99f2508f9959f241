//! All leases together: conflicts, what has gone missing, and the brake.

use super::*;

#[test]
fn of_two_that_conflict_the_older_is_believed_whichever_came_first() {
    let pairs = [
        (A, "10.5.3.0/25@172.16.0.9", "subnet"),
        (A, "10.5.2.0/23@172.16.0.9", "subnet"),
        (A, "10.5.9.0/24@172.17.0.3", "VTEP MAC"),
        (
            "10.5.3.0/24@172.16.0.3 fd05:0:0:3::/64@fd00::13",
            "10.5.4.0/24@172.16.0.4 fd05:0:0:3::/65@fd00::14",
            "subnet",
        ),
    ];
    for (older, newer, what) in pairs {
        for order in [[(older, 10), (newer, 11)], [(newer, 11), (older, 10)]] {
            let mut peers = Peers::default();
            for (text, created) in order {
                peers.apply(put(lease(text, created)));
            }
            assert_eq!(standing(&peers, older), "believed");
            let reason = format!("its {what} conflicts with lease {older}");
            assert_eq!(standing(&peers, newer), reason);
        }
    }
}

#[test]
fn what_cannot_be_believed_takes_nothing_from_others() {
    let mut peers = Peers::default();
    peers.apply(put(lease("10.5.3.0/24@224.0.0.1", 2)));
    peers.apply(put(lease(A, 10)));
    assert_eq!(standing(&peers, A), "believed");
}

#[test]
fn whoever_depends_on_a_change_is_looked_at_again() {
    let mut peers = Peers::default();
    peers.apply(put(lease(A, 10)));
    let rival = "10.5.3.0/25@172.16.0.9";
    assert_eq!(peers.apply(put(lease(rival, 11))), ids(&[A, rival]));
    assert_eq!(peers.apply(put(lease(rival, 11))), ids(&[]));
    peers.apply(LeaseUpdate::Remove(LeaseId::new(A)));
    let gone = Withdrawal::Done(ids(&[A, rival]));
    assert_eq!(peers.withdraw(&rules(), 50), gone);
    assert_eq!(standing(&peers, rival), "believed");
}

#[test]
fn what_the_store_names_beats_what_has_gone_missing() {
    let rival = "10.5.9.0/24@172.17.0.3";
    let mut peers = Peers::default();
    peers.apply(snapshot(&[A, B]));
    assert_eq!(peers.apply(LeaseUpdate::Remove(LeaseId::new(A))), ids(&[]));
    assert_eq!(peers.apply(put(lease(rival, 11))), ids(&[A, rival]));
    assert_eq!(standing(&peers, rival), "believed");
    let reason = format!("its VTEP MAC conflicts with lease {rival}");
    assert_eq!(standing(&peers, A), reason);
    assert_eq!(peers.apply(put(lease(A, 10))), ids(&[A, rival]));
    assert_eq!(standing(&peers, A), "believed");
    assert_eq!(peers.apply(LeaseUpdate::Remove(LeaseId::new(A))), ids(&[A, rival]));
}

#[test]
fn our_own_lease_is_no_peer() {
    let mut peers = Peers::default();
    peers.apply(put(lease(OWN, 1)));
    peers.apply(put(lease(A, 10)));
    assert_eq!(standing(&peers, OWN), "unknown");
    assert_eq!(peers.leases().count(), 2);
}

#[test]
fn a_record_that_can_no_longer_be_read_keeps_its_last_lease() {
    let mut peers = Peers::default();
    peers.apply(put(lease(A, 10)));
    assert_eq!(peers.apply(spoil(A)), ids(&[A]));
    assert_eq!(standing(&peers, A), "believed");
    assert_eq!(peers.malformed(&LeaseId::new(A)), Some(&Malformed("no JSON".into())));
    peers.apply(put(lease(A, 10)));
    assert_eq!(peers.malformed(&LeaseId::new(A)), None);
}

#[test]
fn a_record_that_never_could_be_read_is_set_aside() {
    let mut peers = Peers::default();
    peers.apply(spoil(A));
    assert_eq!(standing(&peers, A), "its record cannot be read: no JSON");
    assert!(peers.missing().is_empty());
}

#[test]
fn nothing_is_complete_before_the_first_snapshot() {
    let mut peers = Peers::default();
    peers.apply(put(lease(A, 10)));
    assert!(!peers.is_complete());
    peers.apply(snapshot(&[A]));
    assert!(peers.is_complete());
}

#[test]
fn what_a_snapshot_does_not_name_goes_missing_and_stays_until_withdrawn() {
    let mut peers = Peers::default();
    peers.apply(snapshot(&[A, B, C]));
    assert_eq!(peers.apply(snapshot(&[A, B])), ids(&[]));
    assert_eq!(peers.missing(), &ids(&[C]));
    assert_eq!(standing(&peers, C), "believed");
    assert_eq!(peers.withdraw(&rules(), 50), Withdrawal::Done(ids(&[C])));
    assert_eq!(standing(&peers, C), "unknown");
}

#[test]
fn what_comes_back_in_time_was_never_gone() {
    for back in [put(lease(C, 10)), snapshot(&[A, B, C])] {
        let mut peers = Peers::default();
        peers.apply(snapshot(&[A, B, C]));
        peers.apply(LeaseUpdate::Remove(LeaseId::new(C)));
        assert_eq!(peers.apply(back), ids(&[]));
        assert!(peers.missing().is_empty());
    }
}

#[test]
fn removing_what_was_never_there_changes_nothing() {
    let mut peers = Peers::default();
    peers.apply(snapshot(&[A]));
    peers.apply(LeaseUpdate::Remove(LeaseId::new(B)));
    assert!(peers.missing().is_empty());
}

#[test]
fn the_brake_holds_more_than_its_share() {
    let four = [A, B, C, "10.5.6.0/24@172.16.0.6"];
    let mut peers = Peers::default();
    peers.apply(snapshot(&four));
    peers.apply(snapshot(&[A]));
    assert_eq!(peers.withdraw(&rules(), 50), Withdrawal::Held { missing: 3, of: 4 });
    assert_eq!(peers.withdraw(&rules(), 74), Withdrawal::Held { missing: 3, of: 4 });
    assert_eq!(standing(&peers, B), "believed");
    assert!(matches!(peers.clone().withdraw(&rules(), 75), Withdrawal::Done(_)));
    peers.apply(put(lease(B, 10)));
    assert!(matches!(peers.withdraw(&rules(), 50), Withdrawal::Done(_)));
}

#[test]
fn a_single_loss_is_never_too_many() {
    let mut peers = Peers::default();
    peers.apply(snapshot(&[A]));
    peers.apply(snapshot(&[]));
    assert_eq!(peers.withdraw(&rules(), 0), Withdrawal::Done(ids(&[A])));
}

#[test]
fn our_own_lease_does_not_count_among_the_peers() {
    let mut peers = Peers::default();
    peers.apply(snapshot(&[OWN, A, B, C]));
    peers.apply(snapshot(&[OWN, A]));
    assert_eq!(peers.withdraw(&rules(), 50), Withdrawal::Held { missing: 2, of: 3 });
}

#[test]
fn a_store_that_forgot_us_too_is_not_believed() {
    let mut peers = Peers::default();
    peers.apply(snapshot(&[OWN, A, B, C]));
    peers.apply(snapshot(&[A, B]));
    assert_eq!(peers.withdraw(&rules(), 100), Withdrawal::Held { missing: 1, of: 3 });
    peers.apply(put(lease(OWN, 1)));
    assert_eq!(peers.withdraw(&rules(), 50), Withdrawal::Done(ids(&[C])));
}

#[test]
fn losing_our_own_lease_alone_holds_nothing() {
    let mut peers = Peers::default();
    peers.apply(snapshot(&[OWN, A]));
    peers.apply(snapshot(&[A]));
    assert!(matches!(peers.withdraw(&rules(), 50), Withdrawal::Done(_)));
    assert_eq!(standing(&peers, A), "believed");
}

#[test]
fn what_is_remembered_is_missing_until_the_store_names_it() {
    let mut peers = Peers::remembered([lease(A, 10), lease(B, 10)].map(Arc::new));
    assert_eq!(standing(&peers, A), "believed");
    assert!(!peers.is_complete());
    peers.apply(snapshot(&[A]));
    assert_eq!(peers.missing(), &ids(&[B]));
}
