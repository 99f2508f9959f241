//! The valid probe secrets: more than one while the secret of the store is replaced.
//!
//! Each daemon reads a new secret within [`Keyring::READ`]. It accepts the secret at once, seals
//! with it once all daemons must have read it, and accepts the former one until all seal with the
//! new one. A daemon that starts meanwhile knows only the new one: for a peer that has sealed with
//! it, it is used at once.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use crate::model::probe_secret::Secret;

/// All times are since the start of probing.
#[derive(Debug)]
pub struct Keyring {
    current: Secret,
    next: Option<Next>,
    /// The replaced secret, and when it stops being accepted.
    former: Option<(Secret, Duration)>,
}

/// The new secret of the store.
#[derive(Debug)]
struct Next {
    secret: Secret,
    /// When it becomes the current one.
    since: Duration,
    /// The peers that have sealed with it, by the first addresses of their subnets.
    users: BTreeSet<IpAddr>,
}

impl Keyring {
    /// The interval at which the secret of the store is read.
    pub const READ: Duration = Duration::from_secs(300);
    /// Longer than [`Self::READ`], since a store that is unreachable for some time delays a read.
    const GRACE: Duration = Duration::from_secs(900);

    pub const fn new(secret: Secret) -> Self {
        Self { current: secret, next: None, former: None }
    }

    /// Adds the secret that the store has `now`; returns whether it is a new one.
    pub fn add(&mut self, read: Secret, now: Duration) -> bool {
        self.rotate(now);
        let newest = self.next.as_ref().map_or(&self.current, |next| &next.secret);
        if newest.is_same(&read) {
            return false;
        }
        let since = now + Self::GRACE;
        self.next = Some(Next { secret: read, since, users: BTreeSet::new() });
        true
    }

    /// Replaces and removes secrets whose time has come.
    pub(super) fn rotate(&mut self, now: Duration) {
        self.former.take_if(|(_, until)| *until <= now);
        if let Some(next) = self.next.take_if(|next| next.since <= now) {
            let former = std::mem::replace(&mut self.current, next.secret);
            self.former = Some((former, now + Self::GRACE));
        }
    }

    /// Records that `peer` has sealed a packet with `secret`. A recorded packet shows it as well: no
    /// daemon goes back to an older secret.
    pub(super) fn note_use(&mut self, peer: IpAddr, secret: &Secret) {
        if let Some(next) = self.next.as_mut().filter(|next| next.secret.is_same(secret)) {
            next.users.insert(peer);
        }
    }

    /// The secret to seal packets to `peer` with, other than answers.
    pub(super) fn secret_for(&self, peer: IpAddr) -> &Secret {
        let next = self.next.as_ref().filter(|next| next.users.contains(&peer));
        next.map_or(&self.current, |next| &next.secret)
    }

    /// The secret with which `bytes` have this `seal`.
    pub(super) fn secret_of(&self, bytes: &[u8], seal: &[u8]) -> Option<&Secret> {
        let next = self.next.as_ref().map(|next| &next.secret);
        let former = self.former.as_ref().map(|(former, _)| former);
        let mut all = [Some(&self.current), next, former].into_iter().flatten();
        all.find(|it| it.has_sealed(bytes, seal))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const AT: Duration = Duration::from_secs(1000);
    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 244, 2, 0));

    fn secret(number: u8) -> Secret {
        Secret::new(&[number; Secret::LENGTH])
    }

    fn understands(keyring: &Keyring, number: u8) -> bool {
        keyring.secret_of(b"probe", secret(number).seal(b"probe").as_ref()).is_some()
    }

    #[test]
    fn the_same_secret_changes_nothing() {
        let mut keyring = Keyring::new(secret(1));
        assert!(!keyring.add(secret(1), AT));
        assert!(keyring.next.is_none() && keyring.former.is_none());
    }

    /// Two daemons that read the new secret at the greatest possible distance.
    #[test]
    fn daemons_accept_each_others_packets_during_a_change_of_the_secret() {
        let [mut early, mut late] = [1, 1].map(|number| Keyring::new(secret(number)));
        let step = Duration::from_secs(10);
        for number in 0..400 {
            let now = AT + step * number;
            early.add(secret(2), now);
            late.add(secret(if now < AT + Keyring::READ * 2 { 1 } else { 2 }), now);
            for (from, to) in [(&early, &late), (&late, &early)] {
                let seal = from.secret_for(PEER).seal(b"probe");
                assert!(to.secret_of(b"probe", seal.as_ref()).is_some(), "at {now:?}");
            }
        }
        for keyring in [&early, &late] {
            assert!(keyring.secret_for(PEER).is_same(&secret(2)));
            assert!(!understands(keyring, 1), "the former secret is accepted for ever");
        }
    }

    #[test]
    fn a_peer_that_has_sealed_with_the_new_secret_is_sent_no_older_one() {
        let mut keyring = Keyring::new(secret(1));
        assert!(keyring.add(secret(2), AT));
        keyring.note_use(PEER, &secret(1));
        assert!(keyring.secret_for(PEER).is_same(&secret(1)), "it may not have read the new one");
        keyring.note_use(PEER, &secret(2));
        keyring.note_use(PEER, &secret(1));
        assert!(keyring.secret_for(PEER).is_same(&secret(2)));
        let other = IpAddr::from([10, 244, 3, 0]);
        assert!(keyring.secret_for(other).is_same(&secret(1)));
        assert!(keyring.add(secret(3), AT));
        assert!(keyring.secret_for(PEER).is_same(&secret(1)), "it may not have read the third");
    }

    #[test]
    fn a_secret_that_is_replaced_before_it_was_used_is_removed() {
        let mut keyring = Keyring::new(secret(1));
        assert!(keyring.add(secret(2), AT));
        assert!(keyring.add(secret(3), AT));
        assert!(understands(&keyring, 1) && understands(&keyring, 3));
        assert!(!understands(&keyring, 2));
    }
}
