//! The valid probe secrets: more than one while the secret of the store is replaced.
//!
//! Each daemon reads a new secret within [`Keyring::READ`]. It accepts the secret at once, seals
//! with it once all daemons must have read it, and accepts the former one until all seal with the
//! new one.

use std::time::Duration;

use crate::model::probe_secret::Secret;

/// All times are since the start of probing.
#[derive(Debug)]
pub struct Keyring {
    current: Secret,
    /// The new secret of the store, and when it becomes the current one.
    next: Option<(Secret, Duration)>,
    /// The replaced secret, and when it stops being accepted.
    former: Option<(Secret, Duration)>,
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
        let newest = self.next.as_ref().map_or(&self.current, |(next, _)| next);
        if newest.is_same(&read) {
            return false;
        }
        self.next = Some((read, now + Self::GRACE));
        true
    }

    /// Replaces and removes secrets whose time has come.
    pub(super) fn rotate(&mut self, now: Duration) {
        self.former.take_if(|(_, until)| *until <= now);
        if let Some((next, _)) = self.next.take_if(|(_, since)| *since <= now) {
            let former = std::mem::replace(&mut self.current, next);
            self.former = Some((former, now + Self::GRACE));
        }
    }

    pub(super) const fn current(&self) -> &Secret {
        &self.current
    }

    /// The secret with which `bytes` have this `seal`.
    pub(super) fn secret_of(&self, bytes: &[u8], seal: &[u8]) -> Option<&Secret> {
        let others = [&self.next, &self.former].into_iter().flatten().map(|(secret, _)| secret);
        std::iter::once(&self.current).chain(others).find(|it| it.has_sealed(bytes, seal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Duration = Duration::from_secs(1000);

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
                let seal = from.current().seal(b"probe");
                assert!(to.secret_of(b"probe", seal.as_ref()).is_some(), "at {now:?}");
            }
        }
        for keyring in [&early, &late] {
            assert!(keyring.current().is_same(&secret(2)));
            assert!(!understands(keyring, 1), "the former secret is accepted for ever");
        }
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
