//! The tasks that keep files and systemd informed: subnet.env for the CNI plugin, the checkpoint for ourselves.

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use ipnetwork::IpNetwork;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tweed_cni::subnet_env::SubnetEnv;

use super::Shared;
use crate::checkpoint::{self, Checkpoint};
use crate::masquerade::Policy;
use crate::notify;
use crate::options::Options;
use crate::prefix::Prefix;
use crate::reconciler::Usable;
use crate::subnet::claim::Previous;

const RETRY: Duration = Duration::from_secs(5);
/// Changes so close together are saved once.
const SETTLE: Duration = Duration::from_millis(300);
/// After a save, so many times as long passes before the next: thousands of leases are megabytes,
/// and where something changes all the time, processor and disk have better things to do.
const REST: u32 = 200;
const LONGEST_REST: Duration = Duration::from_secs(10);
/// Made at the first boot. The image of a machine carries it, unless it was removed.
const MACHINE_ID: &str = "/etc/machine-id";
/// A stop waits no longer than this for the last checkpoint.
const LAST_SAVE: Duration = Duration::from_millis(500);

/// Writes subnet.env as soon as pods can use what it says, and again when that changes.
pub(super) async fn keep_subnet_file(shared: Shared) -> anyhow::Result<()> {
    let mut progress = shared.progress.clone();
    let path = &shared.options.subnet_file;
    let mut written = None;
    loop {
        let is_news = |usable: &Option<Usable>| usable.is_some() && *usable != written;
        let news = progress.wait_for(|progress| is_news(&progress.usable)).await;
        let Some(usable) = news.context("the loop has ended")?.usable.clone() else { continue };
        if let Err(error) = subnet_env(&usable, &shared.options.policy).write(path) {
            let reason = error.to_string();
            tracing::error!(%reason, "the subnet file is not written");
            shared.subnet_file.send_replace(Some(reason));
            sleep(RETRY).await;
        } else {
            tracing::info!(path = %path.display(), "wrote the subnet file");
            shared.subnet_file.send_replace(None);
            written = Some(usable);
        }
    }
}

/// Saves what the plan is made from, shortly after each change.
pub(super) async fn keep_checkpoint(
    shared: Shared,
    mut changed: watch::Receiver<u64>,
) -> anyhow::Result<()> {
    let path = &shared.options.state_file;
    let mut told = false;
    loop {
        changed.changed().await.context("the loop has ended")?;
        sleep(SETTLE).await;
        changed.mark_unchanged();
        let begun = Instant::now();
        match save(&shared).await? {
            Ok(()) => told = false,
            Err(error) if !told => {
                tracing::warn!(%error, path = %path.display(), "the checkpoint is not saved");
                told = true;
            }
            Err(_) => {}
        }
        sleep(begun.elapsed().saturating_mul(REST).min(LONGEST_REST)).await;
    }
}

/// Saves once more before a stop: what changed in the last moment counts too.
pub(super) async fn save_at_stop(shared: &Shared) {
    let path = &shared.options.state_file;
    if let Ok(Ok(Err(error))) = timeout(LAST_SAVE, save(shared)).await {
        tracing::warn!(%error, path = %path.display(), "the last checkpoint is not saved");
    }
}

/// Saves what is known now, if anything is. Thousands of leases and the disk take their time, for
/// which the loop does not wait.
async fn save(shared: &Shared) -> anyhow::Result<io::Result<()>> {
    let _turn = shared.saving.lock().await;
    let Some(checkpoint) = shared.checkpoint().await? else { return Ok(Ok(())) };
    let path = shared.options.state_file.clone();
    let saved = spawn_blocking(move || {
        checkpoint::save(&path, &Checkpoint { machine: machine_id(), ..checkpoint })
    });
    let saved = saved.await;
    saved.context("saving the checkpoint")
}

/// What was last known; none if nothing was, or it cannot be read.
pub(super) fn load_checkpoint(path: &Path) -> Option<Checkpoint> {
    let loaded = checkpoint::load::<Checkpoint>(path).unwrap_or_else(|error| {
        let error = anyhow::Error::from(error);
        tracing::warn!(error = format!("{error:#}"), "starting without a checkpoint");
        None
    });
    loaded.map(|mut checkpoint| {
        checkpoint.local.strict.retain(|_| is_of_this_boot(path));
        if let Some(lease) = checkpoint.forget_other_machine(machine_id()) {
            tracing::warn!(
                lease = %lease.id,
                "this machine is a copy: its checkpoint has the machine id of another, \
                 whose lease is not taken up"
            );
        }
        checkpoint
    })
}

/// None where the host has no id, or this container does not see it.
fn machine_id() -> Option<String> {
    let id = std::fs::read_to_string(MACHINE_ID).ok()?;
    Some(id.trim().to_owned()).filter(|id| !id.is_empty())
}

/// What a node knows of the lease it held before.
pub(super) fn previous(options: &Options, remembered: Option<&Checkpoint>) -> Previous {
    let subnets = tweed_cni::subnet_env::previous_subnets(&options.subnet_file);
    let subnets = subnets.unwrap_or_else(|error| {
        tracing::warn!(%error, "starting without the previous subnet");
        Vec::new()
    });
    let own = remembered.and_then(|checkpoint| checkpoint.local.own.as_ref());
    let mut subnets: Vec<Prefix> = subnets.into_iter().map(Prefix::from).collect();
    if subnets.is_empty() {
        // A reboot takes the file; pods may have been made by the checkpoint since.
        subnets.extend(own.iter().flat_map(|own| own.subnets()));
    }
    let files = [&options.subnet_file, &options.state_file];
    Previous {
        subnets,
        grant: own.and_then(|own| own.grant),
        public_ips: own.iter().flat_map(|own| &own.endpoints).map(|e| e.public_ip).collect(),
        subnet_file: files.map(|file| file.display().to_string()).join(" and "),
    }
}

/// Whether the host has not been booted since: a boot sets all filters back.
fn is_of_this_boot(path: &Path) -> bool {
    let saved = std::fs::metadata(path).and_then(|file| file.modified()).ok();
    let age = saved.and_then(|saved| saved.elapsed().ok());
    age.zip(uptime()).is_some_and(|(age, uptime)| age < uptime)
}

fn uptime() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    text.split_whitespace().next()?.parse().ok().map(Duration::from_secs_f64)
}

/// Tells systemd once that we are ready, and from then on how we are.
pub(super) async fn notify_when_ready(shared: Shared) -> anyhow::Result<()> {
    let mut progress = shared.progress.clone();
    let mut subnet_file = shared.subnet_file.subscribe();
    progress.wait_for(|progress| progress.readiness.ready).await.context("the loop has ended")?;
    subnet_file.wait_for(Option::is_none).await.context("the subnet file is not kept")?;
    tell("READY=1");
    loop {
        let reasons = progress.borrow_and_update().readiness.reasons.join("; ");
        tell(&format!("STATUS={}", if reasons.is_empty() { "running" } else { &reasons }));
        progress.changed().await.context("the loop has ended")?;
    }
}

fn tell(message: &str) {
    if let Err(error) = notify::send(message) {
        tracing::debug!(%error, message, "systemd was not told");
    }
}

fn subnet_env(usable: &Usable, policy: &Policy) -> SubnetEnv {
    let gateway = |subnet: &Prefix| IpNetwork::new(subnet.gateway(), subnet.prefix_len()).ok();
    let network = |prefix: &Prefix| IpNetwork::new(prefix.base(), prefix.prefix_len()).ok();
    SubnetEnv {
        networks: usable.networks.iter().filter_map(network).collect(),
        subnets: usable.subnets.iter().filter_map(gateway).collect(),
        mtu: usable.mtu,
        ip_masq: policy.masquerade.is_some(),
    }
}
