//! How a stage is ordered: by an edit of the config, by `tweedctl migrate`, or as flannel does it.

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
    /// `tweedctl migrate` with these words, and the exit code that is due.
    Migrate(&'static str, i32),
    /// Likewise, asked again and again until that is its exit code.
    Ask(&'static str, i32),
    /// Without `Mixed`: the edit, then every daemon restarts, one a second.
    Restart(&'static str),
}

/// For an operator who asks.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Between two restarts: those of a fast rollout.
const BETWEEN: Duration = Duration::from_secs(1);

/// An order that is being carried out.
pub(super) struct Running(Option<JoinHandle<Result<()>>>);

impl Order {
    /// Gives the order; what takes time goes on by itself.
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

    /// What daemons report of `Mixed` once the order is carried out; nothing is known of orders
    /// that leave it as it was.
    pub(super) fn mixes(self) -> Option<bool> {
        match self {
            Self::None | Self::Migrate(..) | Self::Ask(..) | Self::Restart(_) => None,
            Self::Edit(_) | Self::Twice(..) => Some(true),
            Self::Plain(_) => Some(false),
        }
    }
}

impl Running {
    /// Waits until it is carried out.
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
