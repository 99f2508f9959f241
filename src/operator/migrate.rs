//! `tweedctl migrate`: moves a live cluster from one backend to another, stage by stage, and back.

mod carry_out;
mod lasting;
mod network;
mod options;
mod outcome;
mod plan;
mod status;
mod store;
#[cfg(test)]
mod tests;
mod words;

pub(super) use options::MigrateOptions;
pub(super) use store::Etcd;

use std::io::{self, Write};
use std::time::Duration;

use tokio::time::sleep;

use self::carry_out::Work;
use self::network::{Hand, Network};
use self::options::Command;
use self::plan::Plan;
use self::status::Status;
use self::store::Store;
use super::options::Output;
use super::{Error, Verdict, write};
use crate::store::{etcd, kube};

/// Between two pictures of `status --watch`.
const AGAIN: Duration = Duration::from_secs(2);

pub(super) async fn run(
    options: &MigrateOptions,
    output: Output,
    out: &mut impl Write,
) -> Result<Verdict, Error> {
    match options.stores.chosen()? {
        Store::Etcd(etcd) => carry_out(&etcd::Operator::new(etcd), options, output, out).await,
        Store::Kube(kube) => carry_out(&kube::Operator::new(kube), options, output, out).await,
    }
}

async fn carry_out(
    network: &impl Network,
    options: &MigrateOptions,
    output: Output,
    out: &mut impl Write,
) -> Result<Verdict, Error> {
    let command = &options.command;
    let Some(order) = command.order() else { return look(network, command, output, out).await };
    let (hand, watching) = (Hand::here(), command.watching());
    let outcome = match output {
        Output::Text => Work { network, hand, progress: out, watching }.carry_out(&order).await?,
        Output::Json => {
            // What is read by programs holds nothing but the answer.
            let progress = &mut io::sink();
            Work { network, hand, progress, watching }.carry_out(&order).await?
        }
    };
    write(out, output, &outcome)
}

/// The commands that write nothing.
async fn look(
    network: &impl Network,
    command: &Command,
    output: Output,
    out: &mut impl Write,
) -> Result<Verdict, Error> {
    if let Some((to, rows)) = command.plan() {
        let picture = network::picture(network).await?;
        return write(out, output, &Plan::new(&picture, to, rows));
    }
    loop {
        let picture = network::picture(network).await?;
        let verdict = write(out, output, &Status::new(&picture, Hand::here().now()))?;
        if !command.again() {
            return Ok(verdict);
        }
        sleep(AGAIN).await;
        writeln!(out)?;
    }
}
