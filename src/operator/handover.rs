//! `tweedctl handover`: gives a node back to flanneld, with all entries that its packets need.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use tweed_cni::subnet_env::SubnetEnv;

use super::cleanup::{self, Ours, Outcome};
use super::layout::counted;
use super::migrate::Etcd;
use super::node::Files;
use super::node::{self, Unknown};
use super::{Answer, Error, ExitStatus};
use crate::kernel::Kernel;
use crate::model::lease::LeaseId;
use crate::model::prefix::Prefix;
use crate::plan::diff::{Op, handover_ops};
use crate::plan::masquerade;
use crate::plan::scope::Scope;
use crate::store::etcd::{EtcdClusterStore, EtcdOptions, key};

/// Stop tweedd before. Device, addresses, neighbours, forwarding entries, subnet
/// file and lease stay; no packet is lost, and it may be given again.
#[derive(Debug, Args)]
pub(super) struct HandoverOptions {
    /// Only list what would change
    #[arg(long)]
    dry_run: bool,
    /// The network, where neither checkpoint nor subnet file can tell
    #[arg(long = "network", value_name = "PREFIX")]
    networks: Vec<Prefix>,
    /// The VNI, where there is no checkpoint
    #[arg(long, value_name = "N", default_value_t = 1)]
    vni: u32,
    #[command(flatten)]
    etcd: Etcd,
}

/// The entries and files that flanneld does not use, and how many of them are removed.
#[derive(Serialize)]
pub(super) struct Handover {
    /// Where the network and VNI were read.
    source: String,
    entries: Vec<String>,
    files: Vec<PathBuf>,
    /// The result of removing the node's report from the store; none if no report was expected.
    report: Option<String>,
    outcome: Outcome,
}

/// A node that tweed ran on.
struct Former {
    ours: Ours,
    lease: Option<LeaseId>,
}

pub(super) async fn answer(
    files: &Files,
    options: &HandoverOptions,
    mut kernel: impl Kernel,
) -> Result<Handover, Error> {
    if !options.dry_run {
        cleanup::refuse_beside_a_daemon(&files.socket(), "stop it first").await?;
    }
    let etcd = options.etcd.options()?;
    let Former { ours, lease } = former(files, options).await?;
    let actual = node::dump(&mut kernel, &ours.scope).await?;
    let ops = handover_ops(&ours.remaining, &actual, &ours.scope);
    let mut handover = Handover {
        source: ours.source,
        entries: ops.iter().map(ToString::to_string).collect(),
        files: of_tweed(files),
        report: None,
        outcome: Outcome::Listed,
    };
    if !options.dry_run {
        handover.outcome = carry_out(&mut kernel, ops, &handover.files).await?;
        if let Some(lease) = lease.filter(|_| handover.outcome == Outcome::Removed) {
            handover.report = Some(forget_report(etcd, &lease).await);
        }
    }
    Ok(handover)
}

/// From the flags, else from the checkpoint, else from the subnet file: after an earlier handover,
/// only the subnet file is left.
async fn former(files: &Files, options: &HandoverOptions) -> Result<Former, Error> {
    let of = |ours: Ours, lease| Former { ours: ours.without_flannels(), lease };
    if !options.networks.is_empty() {
        return Ok(of(Ours::named(&options.networks, options.vni), None));
    }
    match node::read_inputs(files).await {
        Ok(known) => {
            let lease = known.local.own.as_ref().map(|own| own.id.clone());
            Ok(of(Ours::known(&known), lease))
        }
        Err(Unknown::Nowhere { .. }) => {
            let networks = SubnetEnv::read(&files.subnet_file).map(|env| env.networks);
            let networks: Vec<Prefix> =
                networks.unwrap_or_default().into_iter().map(Into::into).collect();
            let source = format!("known from {}", files.subnet_file.display());
            Ok(of(Ours { source, ..Ours::named(&networks, options.vni) }, None))
        }
        Err(unknown) => {
            Err(Error::CannotTell(format!("{unknown}: name the network with --network and --vni")))
        }
    }
}

impl Ours {
    /// Without the tables and chains that flanneld maintains itself.
    fn without_flannels(self) -> Self {
        let flannels: BTreeSet<_> = masquerade::flannels_tables().collect();
        let tables = &self.scope.tables - &flannels;
        let mut chains = self.scope.chains;
        chains.retain(|chain| !chain.base.is_flannels());
        Self { scope: Scope { tables, chains, ..self.scope }, ..self }
    }
}

/// The files that flanneld does not use.
fn of_tweed(files: &Files) -> Vec<PathBuf> {
    cleanup::existing([files.socket(), files.state_file()])
}

/// The kernel removes the routes of a removed nexthop object, so an object is removed only once no
/// route refers to it.
async fn carry_out(
    kernel: &mut impl Kernel,
    ops: Vec<Op>,
    files: &[PathBuf],
) -> Result<Outcome, Error> {
    let (removals, puts): (Vec<Op>, Vec<Op>) =
        ops.into_iter().partition(|op| matches!(op, Op::Remove(_)));
    match cleanup::remove(kernel, puts, &[]).await? {
        Outcome::Listed | Outcome::Removed => cleanup::remove(kernel, removals, files).await,
        refused @ Outcome::Refused(_) => Ok(refused),
    }
}

/// A failure is harmless: nothing depends on the report, and the daemon's etcd lease expires.
async fn forget_report(etcd: EtcdOptions, lease: &LeaseId) -> String {
    if key::decode(lease).is_none() {
        return format!("the report of {lease} is a ConfigMap: delete it with kubectl");
    }
    match EtcdClusterStore::new(etcd).forget_report(lease).await {
        Ok(()) => format!("the report of {lease} is removed from etcd"),
        Err(away) => format!(
            "the report of {lease} stays in etcd until its lease ends, within a day: {away}; \
             --etcd-endpoints names the servers"
        ),
    }
}

impl Answer for Handover {
    fn exit_status(&self) -> ExitStatus {
        self.outcome.exit_status()
    }
}

impl fmt::Display for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        cleanup::write_changes(f, &self.entries, &self.files)?;
        self.outcome.write(f, [&self.summary(), &self.source].into_iter().chain(&self.report))
    }
}

impl Handover {
    fn summary(&self) -> String {
        let changes = format!(
            "{} and {}",
            counted(self.entries.len(), "change"),
            counted(self.files.len(), "file")
        );
        match &self.outcome {
            Outcome::Listed => format!("{changes} to hand this node over; nothing is done"),
            Outcome::Removed => format!("handed over by {changes}: start flanneld"),
            Outcome::Refused(refused) => {
                format!("{changes}, of which {} refused: run it again", refused.len())
            }
        }
    }
}
