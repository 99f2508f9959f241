//! The image of the lab's containers, which contains only busybox.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::GREETING;
use crate::node::host::Host;

/// The name; its registry does not exist.
pub(super) const NAME: &str = "registry.invalid/tweed/lab:1";

const BUSYBOX: &str = "/bin/busybox";

/// Writes the image as `docker save` does; returns the path of the archive on the host.
///
/// By default, its containers sleep.
pub(super) fn write_on(host: &Host) -> Result<&'static str> {
    let folder = host.path("/run/image");
    let (root, parts) = (folder.join("root"), folder.join("parts"));
    fill(&root)?;
    std::fs::create_dir(&parts)?;
    let layer = parts.join("layer.tar");
    pack(&root, &layer)?;
    std::fs::write(parts.join("config.json"), config(&digest(&layer)?))?;
    let manifest = json!([{"Config": "config.json", "RepoTags": [NAME], "Layers": ["layer.tar"]}]);
    std::fs::write(parts.join("manifest.json"), manifest.to_string())?;
    pack(&parts, &folder.join("image.tar"))?;
    Ok("/run/image/image.tar")
}

fn fill(root: &Path) -> Result<()> {
    for name in ["bin", "srv"] {
        std::fs::create_dir_all(root.join(name))?;
    }
    let busybox = root.join("bin/busybox");
    std::fs::copy(BUSYBOX, busybox)
        .with_context(|| format!("{BUSYBOX}: it comes by `make runtimes`"))?;
    symlink("busybox", root.join("bin/sh"))?;
    Ok(std::fs::write(root.join("srv/index.html"), GREETING)?)
}

fn config(layer: &str) -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let config = json!({
        "architecture": architecture,
        "os": "linux",
        "config": {"Cmd": [BUSYBOX, "sleep", "1000000"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
    });
    config.to_string()
}

fn pack(folder: &Path, archive: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command.arg("-C").arg(folder).arg("-cf").arg(archive).arg(".");
    run(&mut command).map(drop)
}

fn digest(file: &Path) -> Result<String> {
    let line = run(Command::new("sha256sum").arg(file))?;
    Ok(line.split_whitespace().next().context("sha256sum printed nothing")?.to_owned())
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?}: {}: {stderr}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
