//! All leases together: conflicts, missing leases, and the withdrawal limit.

use super::*;

#[test]
fn the_older_of_two_overlapping_leases_is_accepted_in_any_order() {
    let pairs = [
        (A, "10.5.3.0/25@172.16.0.9"),
        (A, "10.5.2.0/23@172.16.0.9"),
        (
            "10.5.3.0/24@172.16.0.3 fd05:0:0:3::/64@fd00::13",
            "10.5.4.0/24@172.16.0.4 fd05:0:0:3::/65@fd00::14",
        ),
    ];
    for (older, newer) in pairs {
        for order in [[(older, 10), (newer, 11)], [(newer, 11), (older, 10)]] {
            let mut peers = validity();
            for (text, created) in order {
                peers.apply(put(lease(text, created)));
            }
            assert_eq!(outcome(&peers, older), "accepted");
            let reason = format!("its subnet conflicts with lease {older}");
            assert_eq!(outcome(&peers, newer), reason);
        }
    }
}

#[test]
fn a_lease_is_found_by_the_first_address_of_its_subnet() {
    let mut peers = validity();
    let inner = "10.5.6.0/25@172.16.0.6";
    for text in [A, "10.5.6.0/24@172.16.0.9", inner] {
        peers.apply(put(lease(text, 10)));
    }
    let at = |base: &str| -> Vec<&str> {
        peers.starting_at(base.parse().unwrap()).map(LeaseId::as_str).collect()
    };
    assert_eq!(at("10.5.3.0"), [A]);
    assert_eq!(at("10.5.6.0"), ["10.5.6.0/24@172.16.0.9", inner]);
    assert_eq!(at("10.5.3.1"), [""; 0]);
}

/// A lease of another node that claims the VTEP MAC of `A`.
const RIVAL: &str = "10.5.9.0/24@172.17.0.3";
const OTHER_RIVAL: &str = "10.5.10.0/24@172.18.0.3";

fn listing(leases: &[Lease]) -> LeaseUpdate {
    let record = |lease: &Lease| Record { id: lease.id.clone(), lease: Ok(lease.clone()) };
    LeaseUpdate::Snapshot(leases.iter().map(record).collect())
}

/// A lease with the MAC address that is derived from the public IP of `owner`.
fn with_mac_of(owner: &str, text: &str, created: u64) -> Lease {
    let mac = Vtep::derived_mac(endpoint(owner).public_ip, 1);
    let mut lease = lease(text, created);
    lease.endpoints[0].vtep = Some(Vtep { vni: Some(1), mac, source: None, mixed: false });
    lease
}

fn conflicts_with(winner: &str) -> String {
    format!("its VTEP MAC conflicts with lease {winner}")
}

#[test]
fn a_mac_belongs_to_the_node_with_the_public_ip_that_it_is_derived_from() {
    let leases = [with_mac_of(A, A, 20), with_mac_of(A, RIVAL, 1)];
    for order in [[0, 1], [1, 0]] {
        let mut one_by_one = validity();
        for index in order {
            one_by_one.apply(put(leases[index].clone()));
        }
        let mut at_once = validity();
        at_once.apply(listing(&leases));
        for peers in [one_by_one, at_once] {
            assert_eq!(outcome(&peers, A), "accepted");
            assert_eq!(outcome(&peers, RIVAL), conflicts_with(A));
        }
    }
}

#[test]
fn a_lease_that_had_a_mac_keeps_it_from_older_ones_until_all_are_listed_again() {
    let (had, comes) = (lease(A, 20), lease(RIVAL, 1));
    let mut peers = validity();
    peers.apply(listing(&[had.clone(), with_mac_of(RIVAL, RIVAL, 1)]));
    assert_eq!(peers.apply(put(comes.clone())), ids(&[RIVAL]), "A has it as before");
    assert_eq!(outcome(&peers, A), "accepted");
    assert_eq!(outcome(&peers, RIVAL), conflicts_with(A));
    // An unchanged record that is written again keeps its rank.
    let as_it_is = Lease { grant: Some(7), ..had.clone() };
    peers.apply(put(as_it_is.clone()));
    assert_eq!(outcome(&peers, A), "accepted");
    // A daemon that starts now has only the records.
    assert_eq!(peers.apply(listing(&[as_it_is.clone(), comes.clone()])), ids(&[A, RIVAL]));
    let mut starts = validity();
    starts.apply(listing(&[as_it_is, comes]));
    for peers in [peers, starts] {
        assert_eq!(outcome(&peers, A), conflicts_with(RIVAL));
        assert_eq!(outcome(&peers, RIVAL), "accepted");
    }
}

#[test]
fn leases_of_one_public_ip_share_a_mac() {
    let twin = "10.5.11.0/24@172.16.0.3";
    let mut peers = validity();
    peers.apply(listing(&[lease(A, 10), lease(twin, 11), lease(RIVAL, 12)]));
    assert_eq!(outcome(&peers, A), "accepted");
    assert_eq!(outcome(&peers, twin), "accepted");
    assert_eq!(outcome(&peers, RIVAL), conflicts_with(A));
    // Both leases of one public IP lose to an older lease of another one.
    let mut peers = validity();
    peers.apply(listing(&[lease(RIVAL, 1), lease(A, 10), lease(twin, 11)]));
    assert_eq!(outcome(&peers, A), conflicts_with(RIVAL));
    assert_eq!(outcome(&peers, twin), conflicts_with(RIVAL));
}

#[test]
fn each_family_has_its_own_device_and_macs() {
    let mut v6 = lease("fd05:0:0:9::/64@fd00::9", 1);
    v6.endpoints[0].vtep = endpoint(A).vtep;
    let mut peers = validity();
    peers.apply(listing(&[lease(A, 10), v6.clone()]));
    assert_eq!(outcome(&peers, A), "accepted");
    assert_eq!(outcome(&peers, v6.id.as_str()), "accepted");
}

#[test]
fn a_mac_that_its_holder_has_dropped_belongs_to_the_next_claimant() {
    let mut peers = validity();
    peers.apply(listing(&[lease(A, 10), lease(RIVAL, 11), lease(OTHER_RIVAL, 12)]));
    assert_eq!(outcome(&peers, OTHER_RIVAL), conflicts_with(A));
    assert_eq!(peers.apply(put(with_mac_of(A, A, 10))), ids(&[A, RIVAL, OTHER_RIVAL]));
    assert_eq!(outcome(&peers, A), "accepted");
    assert_eq!(outcome(&peers, RIVAL), "accepted");
    assert_eq!(outcome(&peers, OTHER_RIVAL), conflicts_with(RIVAL));
}

#[test]
fn an_invalid_lease_does_not_affect_others() {
    let mut peers = validity();
    peers.apply(put(lease("10.5.3.0/24@224.0.0.1", 2)));
    peers.apply(put(lease(A, 10)));
    assert_eq!(outcome(&peers, A), "accepted");
}

#[test]
fn leases_that_depend_on_a_change_are_planned_again() {
    let mut peers = validity();
    peers.apply(put(lease(A, 10)));
    let rival = "10.5.3.0/25@172.16.0.9";
    assert_eq!(peers.apply(put(lease(rival, 11))), ids(&[A, rival]));
    assert_eq!(peers.apply(put(lease(rival, 11))), ids(&[]));
    peers.apply(LeaseUpdate::Remove(LeaseId::new(A)));
    let gone = Withdrawal::Done(ids(&[A, rival]));
    assert_eq!(peers.withdraw(50), gone);
    assert_eq!(outcome(&peers, rival), "accepted");
}

#[test]
fn a_listed_lease_wins_over_a_missing_one() {
    let rival = RIVAL;
    let mut peers = validity();
    peers.apply(snapshot(&[A, B]));
    assert_eq!(peers.apply(LeaseUpdate::Remove(LeaseId::new(A))), ids(&[]));
    assert_eq!(peers.apply(put(lease(rival, 11))), ids(&[A, rival]));
    assert_eq!(outcome(&peers, rival), "accepted");
    let reason = format!("its VTEP MAC conflicts with lease {rival}");
    assert_eq!(outcome(&peers, A), reason);
    assert_eq!(peers.apply(put(lease(A, 10))), ids(&[A, rival]));
    assert_eq!(outcome(&peers, A), "accepted");
    assert_eq!(peers.apply(LeaseUpdate::Remove(LeaseId::new(A))), ids(&[A, rival]));
}

#[test]
fn our_own_lease_is_not_a_peer() {
    let mut peers = validity();
    peers.apply(put(lease(OWN, 1)));
    peers.apply(put(lease(A, 10)));
    assert_eq!(outcome(&peers, OWN), "unknown");
    assert_eq!(peers.leases().count(), 2);
}

#[test]
fn a_record_that_becomes_unreadable_keeps_its_last_lease() {
    let mut peers = validity();
    peers.apply(put(lease(A, 10)));
    assert_eq!(peers.apply(corrupt(A)), ids(&[A]));
    assert_eq!(outcome(&peers, A), "accepted");
    assert_eq!(peers.malformed(&LeaseId::new(A)), Some(&Malformed("no JSON".into())));
    peers.apply(put(lease(A, 10)));
    assert_eq!(peers.malformed(&LeaseId::new(A)), None);
}

#[test]
fn a_record_that_was_never_readable_is_rejected() {
    let mut peers = validity();
    peers.apply(corrupt(A));
    assert_eq!(outcome(&peers, A), "its record cannot be read: no JSON");
    assert!(peers.missing().is_empty());
}

#[test]
fn nothing_is_complete_before_the_first_snapshot() {
    let mut peers = validity();
    peers.apply(put(lease(A, 10)));
    assert!(!peers.is_complete());
    peers.apply(snapshot(&[A]));
    assert!(peers.is_complete());
}

#[test]
fn a_lease_that_a_snapshot_lacks_is_missing_and_stays_until_withdrawn() {
    let mut peers = validity();
    peers.apply(snapshot(&[A, B, C]));
    assert_eq!(peers.apply(snapshot(&[A, B])), ids(&[]));
    assert_eq!(missing(&peers), ids(&[C]));
    assert_eq!(outcome(&peers, C), "accepted");
    assert_eq!(peers.withdraw(50), Withdrawal::Done(ids(&[C])));
    assert_eq!(outcome(&peers, C), "unknown");
}

#[test]
fn a_lease_that_returns_in_time_is_not_removed() {
    for back in [put(lease(C, 10)), snapshot(&[A, B, C])] {
        let mut peers = validity();
        peers.apply(snapshot(&[A, B, C]));
        peers.apply(LeaseUpdate::Remove(LeaseId::new(C)));
        assert_eq!(peers.apply(back), ids(&[]));
        assert!(peers.missing().is_empty());
    }
}

#[test]
fn removing_an_unknown_lease_changes_nothing() {
    let mut peers = validity();
    peers.apply(snapshot(&[A]));
    peers.apply(LeaseUpdate::Remove(LeaseId::new(B)));
    assert!(peers.missing().is_empty());
}

fn missing(peers: &Peers) -> BTreeSet<LeaseId> {
    peers.missing().keys().cloned().collect()
}

#[test]
fn removals_above_the_limit_are_held() {
    let four = [A, B, C, "10.5.6.0/24@172.16.0.6"];
    let mut peers = validity();
    peers.apply(snapshot(&four));
    peers.apply(snapshot(&[A]));
    assert_eq!(peers.withdraw(50), Withdrawal::Limited { missing: 3, of: 4 });
    assert_eq!(peers.withdraw(74), Withdrawal::Limited { missing: 3, of: 4 });
    assert_eq!(outcome(&peers, B), "accepted");
    assert!(matches!(peers.clone().withdraw(75), Withdrawal::Done(_)));
    peers.apply(put(lease(B, 10)));
    assert!(matches!(peers.withdraw(50), Withdrawal::Done(_)));
}

#[test]
fn a_single_loss_is_never_held() {
    let mut peers = validity();
    peers.apply(snapshot(&[A]));
    peers.apply(snapshot(&[]));
    assert_eq!(peers.withdraw(0), Withdrawal::Done(ids(&[A])));
}

#[test]
fn our_own_lease_does_not_count_among_the_peers() {
    let mut peers = validity();
    peers.apply(snapshot(&[OWN, A, B, C]));
    peers.apply(snapshot(&[OWN, A]));
    assert_eq!(peers.withdraw(50), Withdrawal::Limited { missing: 2, of: 3 });
}

#[test]
fn a_store_that_lost_our_lease_too_is_not_trusted() {
    let mut peers = validity();
    peers.apply(snapshot(&[OWN, A, B, C]));
    peers.apply(snapshot(&[A, B]));
    assert_eq!(peers.withdraw(100), Withdrawal::Limited { missing: 1, of: 3 });
    peers.apply(put(lease(OWN, 1)));
    assert_eq!(peers.withdraw(50), Withdrawal::Done(ids(&[C])));
}

#[test]
fn losing_our_own_lease_alone_holds_nothing() {
    let mut peers = validity();
    peers.apply(snapshot(&[OWN, A]));
    peers.apply(snapshot(&[A]));
    assert!(matches!(peers.withdraw(50), Withdrawal::Done(_)));
    assert_eq!(outcome(&peers, A), "accepted");
}

#[test]
fn a_lease_of_the_checkpoint_is_missing_until_the_store_lists_it() {
    let mut peers = Peers::from_checkpoint([lease(A, 10), lease(B, 10)].map(Arc::new));
    peers.validate_by(rules());
    assert_eq!(outcome(&peers, A), "accepted");
    assert!(!peers.is_complete());
    assert_eq!(peers.vanished(), 0, "the store has not listed its leases");
    peers.apply(snapshot(&[A]));
    assert_eq!(missing(&peers), ids(&[B]));
    assert_eq!(peers.vanished(), 1);
}

#[test]
fn leases_of_the_checkpoint_alone_do_not_count_as_lost_by_the_store() {
    let remembered = || {
        let mut peers =
            Peers::from_checkpoint([lease(A, 10), lease(B, 10), lease(C, 10)].map(Arc::new));
        peers.validate_by(rules());
        peers
    };
    let mut peers = remembered();
    peers.apply(snapshot(&[OWN, A]));
    assert_eq!(peers.withdraw(50), Withdrawal::Done(ids(&[B, C])));
    // A peer that the store has listed since is an ordinary one.
    let mut peers = remembered();
    peers.apply(snapshot(&[OWN, A, B]));
    peers.apply(snapshot(&[OWN]));
    assert_eq!(peers.withdraw(50), Withdrawal::Limited { missing: 2, of: 2 });
    assert_eq!(outcome(&peers, C), "unknown");
    // A store that lost our lease may have lost theirs.
    let mut peers = remembered();
    peers.apply(snapshot(&[A]));
    peers.mark_all_unlisted();
    assert_eq!(peers.withdraw(50), Withdrawal::Limited { missing: 2, of: 3 });
}

#[test]
fn deleted_nodes_are_removed_however_many() {
    let deleted = |id: &str| LeaseUpdate::DeleteNode(LeaseId::new(id));
    let removed = |id: &str| LeaseUpdate::Remove(LeaseId::new(id));
    let mut peers = validity();
    peers.apply(snapshot(&[A, B, C]));
    for id in [A, B, C] {
        peers.apply(deleted(id));
    }
    assert_eq!(peers.withdraw(50), Withdrawal::Done(ids(&[A, B, C])));
    // A lease may expire while its node runs.
    peers.apply(snapshot(&[A, B, C]));
    for id in [A, B, C] {
        peers.apply(removed(id));
    }
    assert_eq!(peers.withdraw(50), Withdrawal::Limited { missing: 3, of: 3 });
    // Our own node was deleted, too.
    let mut peers = validity();
    peers.apply(snapshot(&[OWN, A, B, C]));
    for id in [A, B, OWN] {
        peers.apply(deleted(id));
    }
    assert_eq!(peers.withdraw(50), Withdrawal::Limited { missing: 2, of: 3 });
    peers.apply(put(lease(OWN, 1)));
    assert_eq!(peers.withdraw(50), Withdrawal::Limited { missing: 2, of: 3 });
}

#[test]
fn only_what_the_store_reported_of_one_of_many_peers_is_a_single_removal() {
    let removed = |id: &LeaseId| LeaseUpdate::Remove(id.clone());
    let many: Vec<Lease> = leases_by_age(10, |number| nth(number, 24));
    let mut peers = validity();
    peers.apply(listing(&many));
    assert!(!peers.is_single_removal());
    peers.apply(removed(&many[0].id));
    assert!(peers.is_single_removal());
    peers.apply(removed(&many[1].id));
    assert!(!peers.is_single_removal());
    let mut peers = validity();
    peers.apply(listing(&many));
    peers.apply(listing(&many[1..]));
    assert!(!peers.is_single_removal(), "no one reported it");
    let mut peers = validity();
    peers.apply(listing(&many[1..]));
    peers.apply(removed(&many[1].id));
    assert!(!peers.is_single_removal(), "it is one of few");
    peers.apply(put(many[1].clone()));
    peers.apply(LeaseUpdate::DeleteNode(many[1].id.clone()));
    assert!(peers.is_single_removal());
    let mut peers = validity();
    peers.apply(snapshot(&[OWN, A]));
    peers.apply(LeaseUpdate::DeleteNode(LeaseId::new(OWN)));
    assert!(!peers.is_single_removal(), "it is our own");
}

/// Leases with different public IPs, each older than the one before.
fn leases_by_age(count: u32, subnet: impl Fn(u32) -> String) -> Vec<Lease> {
    let of = |number| {
        let public_ip = std::net::Ipv4Addr::from_bits(0xac11_0002 + number);
        lease(&format!("{}@{public_ip}", subnet(number)), (count - number).into())
    };
    (0..count).map(of).collect()
}

/// The `number`th subnet of this length, from 10.5.64.0 on.
fn nth(number: u32, len: u8) -> String {
    let base = std::net::Ipv4Addr::from_bits(0x0a05_4000 + (number << (32 - len)));
    format!("{base}/{len}")
}

fn of_one_mac(count: u32) -> Vec<Lease> {
    let mut leases = leases_by_age(count, |number| nth(number, 28));
    for lease in &mut leases {
        lease.endpoints[0].vtep = endpoint(A).vtep;
    }
    leases
}

fn of_one_subnet(count: u32) -> Vec<Lease> {
    leases_by_age(count, |_| nth(0, 24))
}

fn below_one_subnet(count: u32) -> Vec<Lease> {
    leases_by_age(count, |number| if number == 0 { nth(0, 18) } else { nth(number, 30) })
}

/// Halves, halves of halves, and so on.
fn inside_one_another(count: u32) -> Vec<Lease> {
    leases_by_age(count, |number| {
        let depth = (number + 1).ilog2();
        nth(number + 1 - (1 << depth), 18 + u8::try_from(depth).unwrap())
    })
}

/// The number of claims and leases that are visited while `leases` are added in one burst, listed,
/// go missing, are validated and withdrawn.
fn work(leases: &[Lease]) -> usize {
    let mut peers = validity();
    for lease in leases {
        peers.update(put(lease.clone()));
    }
    let mut again = peers.take_affected().len();
    again += peers.apply(listing(leases)).len();
    assert_eq!(peers.all().filter(|(_, peer)| peer.is_some()).count(), leases.len());
    for lease in leases {
        peers.update(LeaseUpdate::Remove(lease.id.clone()));
    }
    again += peers.take_affected().len();
    assert_eq!(peers.all().filter(|(_, peer)| peer.is_some()).count(), leases.len());
    let Withdrawal::Done(gone) = peers.withdraw(100) else { panic!("all are to go") };
    again + gone.len() + peers.visited()
}

#[test]
fn twice_as_many_conflicting_leases_take_twice_the_work() {
    for conflict in [of_one_mac, of_one_subnet, below_one_subnet, inside_one_another] {
        let (once, twice) = (work(&conflict(511)), work(&conflict(1023)));
        // The depth of nested subnets grows by one.
        assert!(twice < once * 5 / 2, "{once} and {twice}");
    }
}

#[test]
fn a_subnet_that_contains_thousands_of_older_ones_is_compared_with_the_first() {
    let visited = |count| {
        let mut peers = validity();
        for lease in below_one_subnet(count) {
            for id in peers.apply(put(lease)) {
                assert!(peers.peer(&id).is_some());
            }
        }
        peers.visited()
    };
    let (once, twice) = (visited(511), visited(1023));
    assert!(twice < once * 5 / 2, "{once} and {twice}");
}

#[test]
fn a_claim_that_wins_nothing_affects_no_other_lease() {
    for conflict in [of_one_mac, of_one_subnet] {
        let mut leases = conflict(100);
        let youngest = leases.remove(0);
        let mut peers = validity();
        peers.apply(listing(&leases));
        assert_eq!(peers.apply(put(youngest.clone())), [youngest.id.clone()].into());
        assert_eq!(peers.apply(LeaseUpdate::Remove(youngest.id)), ids(&[]));
    }
}

#[test]
fn a_burst_of_holder_changes_is_evaluated_once() {
    let leases = of_one_mac(100);
    let mut peers = validity();
    peers.apply(listing(&leases));
    for lease in leases.iter().rev() {
        peers.update(LeaseUpdate::Remove(lease.id.clone()));
    }
    assert_eq!(peers.take_affected().len(), leases.len());
    assert_eq!(peers.take_affected(), ids(&[]));
}
