//! `tweedctl migrate`: moves a live cluster from one backend to another, stage by stage, and back.

mod carry_out;
mod cluster;
mod decision;
mod document;
mod obstacle;
mod options;
mod outcome;
mod pairs;
mod plan;
mod reachability;
mod state;
mod status;
#[cfg(test)]
mod tests;

pub(super) use options::MigrateOptions;
pub(super) use status::MigrationStatus;

use std::io::{self, Write};
use std::path::Path;

use clap::Parser;
use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};

use self::carry_out::{Author, carry_out};
use self::cluster::ClusterView;
use self::options::MigrateCommand;
use self::plan::{MigrationPlan, Shown};
use self::state::{MigrationState, Note};
use super::nodes::evidence::ClusterNode;
use super::output::{Answer, Format, Output};
use super::{Arguments, Command, Error, ExitStatus, write};
use crate::store::ClusterStore;
use crate::store::operator::{StoreContents, Unavailable, Written};

pub(super) async fn run(
    options: &MigrateOptions,
    socket: &Path,
    output: Output,
    out: &mut impl Write,
) -> Result<ExitStatus, Error> {
    let store = options.store.open(socket).await?;
    if matches!(options.command, MigrateCommand::Order(_)) {
        // The end of a session leaves no stage without its rollback: this process goes on.
        let _ = signal(SignalKind::hangup());
    }
    answer(&store, &options.command, Author::here(), (output, out)).await
}

/// Runs a command line, the `words` after `tweedctl migrate`, on `store`. The clock of the operator `by`
/// begins at 0, so that the same history of a cluster writes the same notes.
pub async fn migrate(
    store: &impl ClusterStore,
    words: &[&str],
    by: &str,
    out: &mut impl Write,
) -> Result<ExitStatus, Error> {
    let words = ["tweedctl", "migrate"].iter().chain(words);
    let arguments = Arguments::try_parse_from(words).map_err(|it| Error::Usage(it.to_string()))?;
    let Command::Migrate(MigrateOptions { command, .. }) = arguments.command else {
        return Err(Error::Usage("not a command of migrate".to_owned()));
    };
    let author = Author::new(Note { at: Timestamp::UNIX_EPOCH, by: by.to_owned() });
    answer(store, &command, author, (arguments.output, out)).await
}

async fn answer(
    store: &impl ClusterStore,
    command: &MigrateCommand,
    author: Author,
    (output, out): (Output, &mut impl Write),
) -> Result<ExitStatus, Error> {
    match command {
        MigrateCommand::Plan { to, all } => {
            let view = read(store).await?;
            let shown = if *all { Shown::All } else { Shown::Special };
            write(out, output, &MigrationPlan::new(&view, *to, shown))
        }
        MigrateCommand::Status(watch) => {
            let ask = async || Ok(MigrationStatus::new(&read(store).await?, author.now()));
            watch.show(out, output, ask).await
        }
        MigrateCommand::Order(order) => {
            let ended = match output.format {
                Format::Text | Format::Wide => carry_out(store, author, order, out).await?,
                // Programs read only the final answer.
                Format::Json | Format::Yaml => {
                    carry_out(store, author, order, &mut io::sink()).await?
                }
            };
            match write(out, output, &ended) {
                // Scripts need the result of what was done, even if no one reads its text.
                Err(Error::Output(_)) => Ok(ended.exit_status()),
                written => written,
            }
        }
    }
}

/// What `migrate status` shows of this content of `store`.
pub(super) fn status(
    store: &impl ClusterStore,
    config: Option<Written>,
    nodes: Vec<ClusterNode>,
) -> Result<MigrationStatus, Error> {
    Ok(MigrationStatus::new(&view(store, config, nodes)?, Timestamp::now()))
}

async fn read(store: &impl ClusterStore) -> Result<ClusterView, Error> {
    view_of(store, store.read().await.map_err(|away| unusable(store, &away))?)
}

fn view_of(store: &impl ClusterStore, contents: StoreContents) -> Result<ClusterView, Error> {
    let StoreContents { config, records, reports } = contents;
    view(store, config, ClusterNode::all(records, reports))
}

fn view(
    store: &impl ClusterStore,
    config: Option<Written>,
    nodes: Vec<ClusterNode>,
) -> Result<ClusterView, Error> {
    let key = store.config_name();
    let config = config.ok_or_else(|| Error::Store(format!("{key} is missing")))?;
    let state = MigrationState::parse(&config.text, config.revision)
        .map_err(|error| Error::Store(format!("{key}: {error}")))?;
    Ok(ClusterView::new(state, nodes))
}

fn unusable(store: &impl ClusterStore, Unavailable(why): &Unavailable) -> Error {
    Error::Store(format!("{why}: {}", store.hint()))
}
