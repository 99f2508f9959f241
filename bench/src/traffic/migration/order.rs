//! The ways to start a stage: an edit of the config, `tweedctl migrate`, or flannel's procedure.

use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use tweed_lab::eventually;

use super::share::{Share, plain};
use tweed_lab::cluster::Cluster;

#[derive(Clone, Copy)]
pub(super) enum Order {
    None,
    /// One edit, with `Mixed`.
    Edit(Share),
    /// One edit to a backend without `Mixed`.
    Plain(&'static str),
    /// The edits of two operators at the same time.
    Twice(Share, Share),
    /// `tweedctl migrate` with these arguments, and the expected exit code.
    Migrate(&'static str, i32),
    /// The same, repeated until it returns this exit code.
    Ask(&'static str, i32),
    /// Without `Mixed`: the edit, then every daemon restarts, one a second.
    Restart(&'static str),
}

/// The timeout of a repeated command.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The pause between two restarts in a fast rollout.
const BETWEEN: Duration = Duration::from_secs(1);

/// An order in progress.
pub(super) struct Running(Option<JoinHandle<Result<()>>>);

impl Order {
    /// Gives the order; a slow order continues in its own thread.
    pub(super) fn begin(self, cluster: &mut Cluster) -> Result<Running> {
        match self {
            Self::None => {}
            Self::Edit(share) => cluster.configure(&share.config())?,
            Self::Plain(backend) => cluster.configure(&plain(backend))?,
            Self::Twice(first, second) => {
                cluster.configure(&first.config())?;
                cluster.configure(&second.config())?;
            }
            Self::Migrate(words, code) => return migrate(cluster, words, code),
            Self::Ask(words, code) => {
                eventually(TIMEOUT, || migrate(cluster, words, code)?.finish())?;
            }
            Self::Restart(backend) => {
                cluster.configure(&plain(backend))?;
                for index in 0..cluster.size() {
                    cluster.daemon(index)?.restart()?;
                    std::thread::sleep(BETWEEN);
                }
            }
        }
        Ok(Running(None))
    }

    /// The value of `Mixed` that daemons report after the order; none if the order does not change
    /// it.
    pub(super) fn mixes(self) -> Option<bool> {
        match self {
            Self::None | Self::Migrate(..) | Self::Ask(..) | Self::Restart(_) => None,
            Self::Edit(_) | Self::Twice(..) => Some(true),
            Self::Plain(_) => Some(false),
        }
    }
}

impl Running {
    /// Waits until the order is complete.
    pub(super) fn finish(self) -> Result<()> {
        let Some(thread) = self.0 else { return Ok(()) };
        thread.join().map_err(|_| anyhow!("the order panicked"))?
    }
}

fn migrate(cluster: &Cluster, words: &'static str, due: i32) -> Result<Running> {
    let node = cluster.node(0)?.clone();
    let endpoints = format!("--etcd-endpoints={}", cluster.etcd.endpoints().join(","));
    let thread = std::thread::spawn(move || {
        let words: Vec<&str> =
            ["migrate", &endpoints].into_iter().chain(words.split(' ')).collect();
        let output = node.tweedctl(&words)?;
        let code = output.status.code().context("ended by a signal")?;
        let [output_text, complained] =
            [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        ensure!(code == due, "tweedctl {words:?}: {code}, not {due}:\n{output_text}{complained}");
        Ok(())
    });
    Ok(Running(Some(thread)))
}
