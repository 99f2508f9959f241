//! Queries to daemons, and conditions that hold for some time.

use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tweed_lab::{Daemon, Node, eventually};

use crate::cluster::binaries;

/// `/readyz`: whether the daemon is ready, and its reasons in one text.
pub fn readiness(daemon: &Daemon) -> Result<(bool, String)> {
    let answer = daemon.get("/readyz")?;
    let body: Value = serde_json::from_str(&answer.body)?;
    let reasons = body["reasons"].as_array().context("no reasons")?;
    let reasons: Vec<&str> = reasons.iter().filter_map(Value::as_str).collect();
    let ready = answer.status == 200;
    ensure!(body["ready"] == Value::Bool(ready), "{} {}", answer.status, answer.body);
    Ok((ready, reasons.join("; ")))
}

/// Whether it is ready, with a reason that contains `word`.
pub fn is_ready_with(daemon: &Daemon, word: &str) -> Result<()> {
    let (ready, reasons) = readiness(daemon)?;
    ensure!(ready && reasons.contains(word), "ready: {ready}, {reasons:?} without {word:?}");
    Ok(())
}

/// Whether it is ready, without a warning.
pub fn is_ready(daemon: &Daemon) -> Result<()> {
    let (ready, reasons) = readiness(daemon)?;
    ensure!(ready && reasons.is_empty(), "ready: {ready}, {reasons:?}");
    Ok(())
}

/// Whether it is not ready, with a reason that contains `word`.
pub fn is_waiting_for(daemon: &Daemon, word: &str) -> Result<()> {
    let (ready, reasons) = readiness(daemon)?;
    ensure!(!ready && reasons.contains(word), "ready: {ready}, {reasons:?} without {word:?}");
    Ok(())
}

/// `tweedctl SUBCOMMAND -o json`.
pub fn json(daemon: &Daemon, subcommand: &str) -> Result<Value> {
    let text = daemon.ctl(&[subcommand, "-o", "json"])?;
    serde_json::from_str(&text).context(text)
}

/// Why the record `id` is rejected, by `tweedctl leases -o json`.
pub fn lease_reason(daemon: &Daemon, id: &str) -> Result<String> {
    let leases = json(daemon, "leases")?;
    let leases = leases.as_array().context("no list")?;
    let found = leases.iter().find(|lease| lease["id"] == id);
    let reason = found.with_context(|| format!("{id} is not listed in {leases:?}"))?;
    Ok(reason["reason"].as_str().unwrap_or_default().to_owned())
}

/// Whether the checkpoint of `node` contains `word`; it is written a moment after each change.
pub fn has_saved(node: &Node, word: &str) -> Result<()> {
    let file = node.folder().join("subnet.state.json");
    let text = std::fs::read_to_string(&file).context(file.display().to_string())?;
    ensure!(text.contains(word), "{word} is not saved: {text}");
    Ok(())
}

/// The output and exit code of `tweedctl` in `node`; any exit code is accepted.
pub fn tweedctl(node: &Node, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(binaries().tweedctl);
    command.arg("--subnet-file").arg(node.subnet_file()).args(arguments);
    Ok(node.namespace().within(|| command.output())??)
}

/// Waits until a daemon ends by itself; returns its exit code.
pub fn exit_code(daemon: &Daemon, within: Duration) -> Result<i32> {
    eventually(within, || !daemon.process().is_running())
        .with_context(|| format!("it still runs:\n{}", daemon.process().last_words()))?;
    let status = daemon.process().status()?.context("it still runs")?;
    status.code().with_context(|| format!("ended by a signal: {status}"))
}

/// Whether `claim` holds at each check for `duration`.
pub fn throughout(duration: Duration, mut claim: impl FnMut() -> Result<()>) -> Result<()> {
    let mut broken = None;
    let waited = eventually(duration, || {
        broken = claim().err();
        broken.is_some()
    });
    match (waited, broken) {
        (Ok(after), Some(error)) => bail!("after {after:?}: {error:#}"),
        _ => Ok(()),
    }
}
