//! What the figures were measured on.

use std::process::Command;

use anyhow::{Context, Result};

pub(super) fn describe() -> Result<String> {
    let cores = std::thread::available_parallelism()?;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").context("osrelease")?;
    let kernel = kernel.trim();
    Ok(format!("Measured on {cores} cores, Linux {kernel}, etcd {}.", etcd()?))
}

fn etcd() -> Result<String> {
    let output = Command::new("etcd").arg("--version").output().context("etcd --version")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.lines().find_map(|line| line.strip_prefix("etcd Version: "));
    Ok(version.with_context(|| text.clone())?.to_owned())
}
