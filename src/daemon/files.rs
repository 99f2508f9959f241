//! The tasks that write subnet.env and the checkpoint, and what the files of an earlier run hold.

#[cfg(test)]
mod tests;

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ipnetwork::IpNetwork;
use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use tokio::time::{Instant, sleep, timeout};
use tweed_cni::subnet_env::{self, SubnetEnv};

use super::{Blocking, CHECK, Shared, checkpoint};
use crate::control::{Progress, Query, Usable};
use crate::daemon::options::{Options, StoreOptions};
use crate::model::checkpoint::{Checkpoint, HostId};
use crate::model::policy::Policy;
use crate::model::prefix::Prefix;
use crate::store::claim::Previous;

pub(super) const NOT_WRITTEN: &str = "the subnet file is not written yet";

const RETRY: Duration = Duration::from_secs(5);
/// A full disk sends no notification when space is free again, and serialising all leases is
/// expensive.
const RETRY_SAVE: Duration = Duration::from_secs(30);
/// Changes within this time are saved together.
const SETTLE: Duration = Duration::from_millis(300);
/// The pause after a save, as a multiple of its duration: thousands of leases are megabytes, and
/// frequent changes must not keep processor and disk busy.
const PAUSE_FACTOR: u32 = 200;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The timeout of the last save when the daemon stops.
const LAST_SAVE: Duration = Duration::from_millis(500);
/// The timeout of giving up the subnet, which must not be left undone: the next start would take it
/// from the node that has it now.
const WITHDRAWAL: Duration = Duration::from_secs(5);

/// One writer at a time for each file.
#[derive(Clone, Debug, Default)]
pub(super) struct Turns {
    checkpoint: Arc<Mutex<()>>,
    subnet_file: Arc<Mutex<()>>,
}

/// A turn ends with the work, also if the task that waits for it ends earlier: a slow disk may still
/// write what the daemon wanted before.
async fn in_turn<T: Send + 'static>(
    blocking: Blocking,
    turn: OwnedMutexGuard<()>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let work = move || {
        let _turn = turn;
        work()
    };
    blocking.run(work).await
}

/// What the subnet file must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Subnets(SubnetEnv),
    /// No pod may get an address: the store has no subnet for this node.
    Nothing,
}

impl Content {
    /// None as long as that is not known: the file stays as it is.
    fn of(progress: &Progress, policy: &Policy) -> Option<Self> {
        let subnets = progress.usable.as_ref().map(|it| Self::Subnets(subnet_env(it, policy)));
        subnets.or_else(|| progress.has_no_subnet.then_some(Self::Nothing))
    }

    /// Why pods would not get the subnets of `progress` by this file; none if they would, or if these
    /// are not known.
    pub(super) fn lacks(&self, progress: &Progress, policy: &Policy) -> Option<String> {
        let serves = match (self, Self::of(progress, policy)) {
            (Self::Subnets(file), Some(Self::Subnets(wanted))) => file.subnets == wanted.subnets,
            (Self::Nothing, Some(Self::Subnets(_))) => false,
            (_, Some(Self::Nothing) | None) => true,
        };
        (!serves).then(|| NOT_WRITTEN.to_owned())
    }

    fn put(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::Subnets(file) => file.write(path),
            Self::Nothing => match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                Ok(()) | Err(_) => Ok(()),
            },
        }
    }

    fn is_in(&self, path: &Path) -> bool {
        match self {
            Self::Subnets(file) => SubnetEnv::read(path).is_ok_and(|found| found == *file),
            Self::Nothing => path.symlink_metadata().is_err(),
        }
    }
}

/// Writes subnet.env once pods can use its values, again when these change, and again when another
/// program has removed or changed it.
pub(super) async fn keep_subnet_file(shared: Shared) -> Result<()> {
    let mut progress = shared.progress.clone();
    let (path, policy) = (&shared.options.subnet_file, &shared.options.control.policy);
    let mut last = None;
    loop {
        let is_news = |progress: &Progress| {
            let content = Content::of(progress, policy);
            content.is_some() && content != last
        };
        let news = timeout(CHECK, progress.wait_for(is_news)).await;
        let content = match news {
            Ok(news) => Content::of(&*news.context("the loop has ended")?, policy),
            Err(_) => last.clone(),
        };
        let Some(content) = content else { continue };
        // A disk that hangs must not block the other tasks.
        let turn = Arc::clone(&shared.turns.subnet_file).lock_owned().await;
        let (wanted, place) = (content.clone(), path.clone());
        let put = move || {
            if wanted.is_in(&place) {
                return Ok(false);
            }
            let explain = |error| (has_lost_mount(&place, &error), error);
            wanted.put(&place).map(|()| true).map_err(explain)
        };
        let was_put =
            match in_turn(shared.blocking, turn, put).await.context("writing the subnet file")? {
                Ok(was_put) => was_put,
                Err((true, _)) if last.is_some() => {
                    let folder = path.parent().unwrap_or(path).display();
                    bail!("{folder} was removed below its mount: only a restart mounts it again");
                }
                Err((_, error)) => {
                    let reason = error.to_string();
                    tracing::error!(%reason, "the subnet file is not written");
                    shared.subnet_file.send_modify(|written| *written = Err(reason));
                    sleep(RETRY).await;
                    continue;
                }
            };
        let path = path.display();
        match &content {
            _ if !was_put => {}
            Content::Nothing => {
                tracing::warn!(%path, "removed the subnet file: this node has no subnet, and no new pod can start");
            }
            Content::Subnets(_) if last.as_ref() == Some(&content) => {
                tracing::warn!(%path, "wrote the subnet file again: another program had removed or changed it");
            }
            Content::Subnets(_) => tracing::info!(%path, "wrote the subnet file"),
        }
        shared.subnet_file.send_modify(|written| *written = Ok(content.clone()));
        last = Some(content);
    }
}

/// Whether the folder of the file was removed on the host, and was mounted here: the mount is gone from a
/// file system that is read-only, as by the unit of systemd, or shows a folder without a name, as in a pod.
fn has_lost_mount(path: &Path, error: &io::Error) -> bool {
    let folder = path.parent().map(std::fs::metadata);
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => folder.is_none_or(|found| found.is_err()),
        io::ErrorKind::NotFound => {
            folder.is_some_and(|found| found.is_ok_and(|folder| folder.nlink() == 0))
        }
        _ => false,
    }
}

/// Saves the inputs of the plan, shortly after each change.
pub(super) async fn keep_checkpoint(shared: Shared, changed: watch::Receiver<()>) -> Result<()> {
    let path = &shared.options.state_file;
    let is_missing = async || {
        let (turn, path) = (Arc::clone(&shared.turns.checkpoint).lock_owned().await, path.clone());
        let is_missing = move || path.symlink_metadata().is_err();
        in_turn(shared.blocking, turn, is_missing).await.context("looking for the checkpoint")
    };
    keep_saved(changed, path, async || save(&shared).await, is_missing).await
}

/// Calls `save` shortly after each change, and retries it as long as it fails; also if another program
/// has removed the file.
async fn keep_saved(
    mut changed: watch::Receiver<()>,
    path: &Path,
    save: impl AsyncFn() -> Result<io::Result<()>>,
    is_missing: impl AsyncFn() -> Result<bool>,
) -> Result<()> {
    let (mut has_failed, mut has_saved) = (false, false);
    loop {
        match timeout(CHECK, changed.changed()).await {
            Ok(change) => change.context("the loop has ended")?,
            Err(_) if has_saved && is_missing().await? => {
                tracing::warn!(path = %path.display(), "another program has removed the checkpoint");
            }
            Err(_) => continue,
        }
        sleep(SETTLE).await;
        changed.mark_unchanged();
        let begun = Instant::now();
        match save().await? {
            Ok(()) => {
                has_saved = true;
                let pause = begun.elapsed().saturating_mul(PAUSE_FACTOR).min(LONGEST_PAUSE);
                if std::mem::take(&mut has_failed) {
                    tracing::info!(path = %path.display(), "the checkpoint is saved again");
                }
                sleep(pause).await;
            }
            Err(error) => {
                if !std::mem::replace(&mut has_failed, true) {
                    tracing::warn!(%error, path = %path.display(), "the checkpoint is not saved");
                }
                changed.mark_changed();
                sleep(RETRY_SAVE).await;
            }
        }
    }
}

/// Saves once more before a stop, since a change may still wait to be saved.
pub(super) async fn save_at_stop(shared: &Shared) {
    let path = &shared.options.state_file;
    if let Ok(Ok(Err(error))) = timeout(LAST_SAVE, save(shared)).await {
        tracing::warn!(%error, path = %path.display(), "the last checkpoint is not saved");
    }
}

/// Saves the current checkpoint, if there is one. The loop does not wait for the disk.
async fn save(shared: &Shared) -> Result<io::Result<()>> {
    let turn = Arc::clone(&shared.turns.checkpoint).lock_owned().await;
    let Some(checkpoint) = shared.wait_for(Query::Checkpoint).await? else { return Ok(Ok(())) };
    let (path, host) = (shared.options.state_file.clone(), shared.host.clone());
    let save = move || checkpoint::save(&path, &Checkpoint { host, ..checkpoint });
    in_turn(shared.blocking, turn, save).await.context("saving the checkpoint")
}

/// The saved checkpoint; none if there is none, or it cannot be read.
pub fn load_checkpoint(options: &Options, host: &HostId) -> Option<Checkpoint> {
    let path = &options.state_file;
    let loaded = checkpoint::load::<Checkpoint>(path).unwrap_or_else(|error| {
        let error = anyhow::Error::from(error);
        tracing::warn!(error = format!("{error:#}"), "starting without a checkpoint");
        None
    });
    let mut checkpoint = loaded?;
    checkpoint.forget_other_boot(host);
    if let Some(lease) = checkpoint.forget_other_machine(host) {
        tracing::warn!(
            lease = %lease.id,
            "this machine is a copy: its checkpoint has the machine id of another machine, \
             whose lease is not used"
        );
    }
    let written = subnets_in(&options.subnet_file).unwrap_or_default();
    if let Some(lease) = checkpoint.local.own.take_if(|own| are_others(own.subnets(), &written)) {
        tracing::warn!(
            lease = %lease.id,
            "the checkpoint is older than the subnet file, which names another subnet: \
             its lease is not used"
        );
    }
    Some(checkpoint)
}

fn subnets_in(path: &Path) -> Result<Vec<Prefix>, subnet_env::SubnetEnvError> {
    let subnets = subnet_env::previous_subnets(path)?;
    Ok(subnets.into_iter().map(Prefix::from).collect())
}

/// Whether a subnet file names subnets, but none of the checkpoint's `own` ones.
fn are_others(mut own: impl Iterator<Item = Prefix>, written: &[Prefix]) -> bool {
    !written.is_empty() && own.all(|subnet| !written.contains(&subnet))
}

/// Why the subnet file is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WithdrawalReason {
    /// Another node has the subnet. The checkpoint keeps it, so that the next start does not acquire
    /// another one while pods still use this one. It forgets the etcd lease, the proof by which a copy
    /// of a machine takes the subnet from the original: a supervisor starts this daemon again.
    Taken,
    /// The same, because the Node was created again with this podCIDR, which is outside the network. A
    /// typo in `Network` takes no subnet away: the file has the podCIDR.
    Outside(Prefix),
    /// The node gives its subnet back; the next start may get another one.
    Released,
}

/// Removes the subnet file: no new pod may get an address of the subnet. Returns whether it is gone.
/// `content` is what this daemon has written there, for a host whose checkpoint cannot be saved.
/// To be called when the tasks that write files have ended; their last writes may not have.
pub(super) async fn withdraw_subnet_file(
    options: &Options,
    (blocking, turns): (Blocking, &Turns),
    withdrawal: WithdrawalReason,
    content: Option<Content>,
) -> bool {
    let (path, state_file) = (options.subnet_file.clone(), options.state_file.clone());
    let withdraw = move || {
        let written = subnets_in(&path).unwrap_or_default();
        if let WithdrawalReason::Outside(subnet) = withdrawal
            && (written.is_empty() || written.contains(&subnet))
        {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut remembered = checkpoint::load::<Checkpoint>(&state_file).ok().flatten();
        let own = remembered.as_mut().map(|checkpoint| &mut checkpoint.local.own);
        let own =
            own.filter(|own| own.as_ref().is_some_and(|own| !are_others(own.subnets(), &written)));
        let Some(own) = own else {
            // There is none to remove, or it may be another daemon's.
            path.symlink_metadata()?;
            let is_ours = content.is_some_and(|content| content.is_in(&path));
            let unknown = || Err(io::Error::other("no checkpoint names the subnet"));
            return if is_ours { std::fs::remove_file(path) } else { unknown() };
        };
        let removed = std::fs::remove_file(path);
        let before = own.clone();
        match withdrawal {
            WithdrawalReason::Taken | WithdrawalReason::Outside(_) => {
                if let Some(own) = own {
                    own.grant = None;
                }
            }
            WithdrawalReason::Released => *own = None,
        }
        if *own != before
            && let Err(error) = checkpoint::save(&state_file, &remembered)
        {
            tracing::warn!(%error, "cannot remove the lease from the checkpoint");
        }
        removed
    };
    let path = options.subnet_file.display();
    let withdrawn = async {
        let _turn = turns.subnet_file.lock().await;
        let turn = Arc::clone(&turns.checkpoint).lock_owned().await;
        in_turn(blocking, turn, withdraw).await
    };
    match timeout(WITHDRAWAL, withdrawn).await {
        Ok(Ok(Ok(()))) => {
            tracing::warn!(%path, "removed the subnet file: no new pod can start");
            return true;
        }
        Ok(Ok(Err(error))) if error.kind() == io::ErrorKind::NotFound => return true,
        Ok(Ok(Err(error))) => {
            tracing::warn!(%error, %path, "the subnet file stays, and pods may get another node's addresses");
        }
        Ok(Err(_)) | Err(_) => tracing::warn!(%path, "the subnet file was not removed in time"),
    }
    false
}

/// Logs a warning if other users may read or write the file with the private key or the token.
pub(super) fn warn_of_readable_keys(options: &Options) {
    let file = match &options.store {
        StoreOptions::Etcd(etcd) => etcd.key_file.as_deref(),
        StoreOptions::Kube(kube) => kube.api.kubeconfig.as_deref(),
    };
    if let Some(warning) = file.and_then(open_to_others) {
        tracing::warn!("{warning}");
    }
}

/// The warning; none if only owner and group have access. A file that cannot be examined is
/// reported when it is read.
fn open_to_others(file: &Path) -> Option<String> {
    let mode = std::fs::metadata(file).ok()?.permissions().mode() & 0o777;
    let file = file.display();
    let warning = || {
        format!(
            "{file} has mode {mode:04o}, so that any user of this host can use the key in it: \
             chmod 600 {file}"
        )
    };
    (mode & 0o007 != 0).then(warning)
}

/// What this node knows of the lease that it held before.
pub fn previous(options: &Options, remembered: Option<&Checkpoint>) -> Previous {
    let mut subnets = subnets_in(&options.subnet_file).unwrap_or_else(|error| {
        tracing::warn!(%error, "starting without the previous subnet");
        Vec::new()
    });
    let own = remembered.and_then(|checkpoint| checkpoint.local.own.as_ref());
    if subnets.is_empty() {
        // A reboot removes the file; since then, pods may have got addresses from the checkpoint.
        subnets.extend(own.iter().flat_map(|own| own.subnets()));
    }
    let files = [&options.subnet_file, &options.state_file];
    Previous {
        subnets,
        grant: own.and_then(|own| own.grant),
        created: own.map(|own| own.created),
        public_ips: own.iter().flat_map(|own| &own.endpoints).map(|e| e.public_ip).collect(),
        subnet_file: files.map(|file| file.display().to_string()).join(" and "),
    }
}

fn subnet_env(usable: &Usable, policy: &Policy) -> SubnetEnv {
    let gateway = |subnet: &Prefix| IpNetwork::new(subnet.gateway(), subnet.prefix_len()).ok();
    SubnetEnv {
        networks: usable.networks.iter().map(|network| IpNetwork::from(*network)).collect(),
        subnets: usable.subnets.iter().filter_map(gateway).collect(),
        mtu: usable.mtu,
        ip_masq: policy.masquerade.is_some(),
    }
}
