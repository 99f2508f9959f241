//! What a test logs, to be read by it.

use std::cell::RefCell;
use std::io;
use std::sync::Once;

use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::prelude::*;

thread_local! {
    /// A test runs on one thread; none while it does not listen.
    static LINES: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) };
}

/// One subscriber for all tests: those that come and go per thread miss events.
static SUBSCRIBER: Once = Once::new();

/// Catches everything logged on this thread, down to the last detail.
pub(crate) struct Log;

impl Log {
    pub(crate) fn catch() -> Self {
        let listening = dynamic_filter_fn(|_, _| LINES.with_borrow(Option::is_some));
        SUBSCRIBER.call_once(|| {
            let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(|| ToLines);
            tracing_subscriber::registry().with(lines.with_filter(listening)).init();
        });
        LINES.set(Some(Vec::new()));
        Self
    }

    #[expect(clippy::unused_self, reason = "only who listens can read")]
    pub(crate) fn text(&self) -> String {
        LINES.with_borrow(|lines| String::from_utf8(lines.clone().unwrap()).unwrap())
    }

    /// Lines of our own that people see by default.
    pub(crate) fn lines(&self) -> Vec<String> {
        let shown = |line: &&str| {
            line.contains("tweed") && !line.contains("TRACE") && !line.contains("DEBUG")
        };
        self.text().lines().filter(shown).map(ToOwned::to_owned).collect()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        LINES.set(None);
    }
}

struct ToLines;

impl io::Write for ToLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.with_borrow_mut(|lines| lines.as_mut().map(|lines| lines.extend_from_slice(bytes)));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
