//! The open connections, and which of them is closed when there are too many.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use futures::future::{AbortHandle, AbortRegistration};

/// The maximum number of open connections.
pub(crate) const MOST: usize = 64;
/// The maximum number of open connections from one source address.
const MOST_PER_SOURCE: usize = 8;

/// The oldest first.
#[derive(Debug, Default)]
pub(crate) struct Connections(VecDeque<Open>);

#[derive(Debug)]
struct Open {
    source: Option<IpAddr>,
    has_asked: Weak<AtomicBool>,
    abort: AbortHandle,
}

/// Whether a connection has sent its request. The connection is open as long as this exists.
pub(crate) type HasAsked = Arc<AtomicBool>;

impl Connections {
    /// Forgets closed connections; returns whether a new connection replaces another one.
    pub(crate) fn check_full(&mut self) -> bool {
        self.0.retain(Open::is_open);
        self.0.len() >= MOST
    }

    /// Opens a connection from `source`. If there are too many, in total or from this source, the
    /// one of these that has been silent longest is closed.
    pub(crate) fn open(&mut self, source: Option<IpAddr>) -> (HasAsked, AbortRegistration) {
        if self.check_full() {
            self.drop_one(|_| true);
        }
        let is_same = |it: &Open| source.is_some() && it.source == source;
        if self.0.iter().filter(|it| is_same(it)).count() >= MOST_PER_SOURCE {
            self.drop_one(is_same);
        }
        let (abort, registration) = AbortHandle::new_pair();
        let has_asked = HasAsked::default();
        self.0.push_back(Open { source, has_asked: Arc::downgrade(&has_asked), abort });
        (has_asked, registration)
    }

    /// Closes a connection whose request has arrived only if none is silent.
    fn drop_one(&mut self, may_be_dropped: impl Fn(&Open) -> bool) {
        let silent = self.0.iter().position(|it| may_be_dropped(it) && it.is_silent());
        let oldest = || self.0.iter().position(&may_be_dropped);
        if let Some(dropped) = silent.or_else(oldest).and_then(|index| self.0.remove(index)) {
            dropped.abort.abort();
        }
    }
}

impl Open {
    fn is_open(&self) -> bool {
        self.has_asked.strong_count() > 0
    }

    fn is_silent(&self) -> bool {
        self.has_asked.upgrade().is_some_and(|has_asked| !has_asked.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::{Abortable, Pending, pending};

    struct Client {
        has_asked: HasAsked,
        future: Abortable<Pending<()>>,
    }

    impl Client {
        fn was_dropped(&self) -> bool {
            self.future.is_aborted()
        }
    }

    fn connect(connections: &mut Connections, source: usize) -> Client {
        let source = IpAddr::from([10, 244, 1, u8::try_from(source).unwrap()]);
        let (has_asked, registration) = connections.open(Some(source));
        Client { has_asked, future: Abortable::new(pending(), registration) }
    }

    fn dropped(clients: &[Client]) -> Vec<usize> {
        (0..clients.len()).filter(|index| clients[*index].was_dropped()).collect()
    }

    #[test]
    fn a_source_with_too_many_connections_loses_the_one_that_was_silent_longest() {
        let mut connections = Connections::default();
        let other = connect(&mut connections, 2);
        let mut clients: Vec<_> = (0..8).map(|_| connect(&mut connections, 1)).collect();
        clients[0].has_asked.store(true, Ordering::Relaxed);
        clients.push(connect(&mut connections, 1));
        clients.push(connect(&mut connections, 1));
        assert_eq!(dropped(&clients), [1, 2]);
        assert!(!other.was_dropped());
    }

    #[test]
    fn when_full_the_connection_that_was_silent_longest_is_dropped() {
        let mut connections = Connections::default();
        let mut clients: Vec<_> = (0..MOST).map(|it| connect(&mut connections, it)).collect();
        clients[0].has_asked.store(true, Ordering::Relaxed);
        assert!(connections.check_full());
        clients.push(connect(&mut connections, 100));
        assert_eq!(dropped(&clients), [1]);
    }

    #[test]
    fn when_every_connection_has_asked_the_oldest_is_dropped() {
        let mut connections = Connections::default();
        let mut clients: Vec<_> = (0..MOST).map(|it| connect(&mut connections, it)).collect();
        for client in &clients {
            client.has_asked.store(true, Ordering::Relaxed);
        }
        clients.push(connect(&mut connections, 100));
        assert_eq!(dropped(&clients), [0]);
    }

    #[test]
    fn a_connection_that_has_ended_is_not_counted() {
        let mut connections = Connections::default();
        let mut clients: Vec<_> = (0..MOST).map(|it| connect(&mut connections, it)).collect();
        clients.pop();
        clients.push(connect(&mut connections, 100));
        assert_eq!(dropped(&clients), [] as [usize; 0]);
    }

    #[test]
    fn connections_without_an_address_are_not_counted_by_source() {
        let mut connections = Connections::default();
        let opened: Vec<_> = (0..MOST).map(|_| connections.open(None)).collect();
        assert!(opened.iter().all(|(_, registration)| !registration.handle().is_aborted()));
    }
}
