//! Images of containers, made from folders, without any builder or registry.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use super::GREETING;
use crate::node::host::Host;

/// The image of the lab's containers, which contains only busybox and sleeps by default. The registry
/// in its name does not exist.
pub const IMAGE: &str = "registry.invalid/tweed/lab:1";

const BUSYBOX: &str = "/bin/busybox";

const PATH: &str = "PATH=/opt/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// An image with one layer.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    /// With registry, repository and tag.
    pub name: &'a str,
    /// The content.
    pub root: &'a Path,
    /// The program of containers that name no command; their arguments follow.
    pub entrypoint: &'a [&'a str],
    /// What a container runs that names nothing else.
    pub command: &'a [&'a str],
}

impl Image<'_> {
    /// Writes it as `docker save` does.
    pub fn save(&self, archive: &Path) -> Result<()> {
        let parts = archive.with_extension("parts");
        std::fs::create_dir_all(&parts).with_context(|| parts.display().to_string())?;
        let layer = parts.join("layer.tar");
        pack(self.root, &layer)?;
        std::fs::write(parts.join("config.json"), self.config(&digest(&layer)?))?;
        let manifest =
            json!([{"Config": "config.json", "RepoTags": [self.name], "Layers": ["layer.tar"]}]);
        std::fs::write(parts.join("manifest.json"), manifest.to_string())?;
        pack(&parts, archive)?;
        Ok(std::fs::remove_dir_all(&parts)?)
    }

    fn config(&self, layer: &str) -> String {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let config = json!({
            "architecture": architecture,
            "os": "linux",
            "config": {"Entrypoint": self.entrypoint, "Cmd": self.command, "Env": [PATH]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
        });
        config.to_string()
    }
}

/// Copies a program of this machine to the path `to` of an image, and the libraries that it needs to
/// where they are here.
pub fn add_program(root: &Path, program: &Path, to: &str) -> Result<()> {
    copy(program, &root.join(to.trim_start_matches('/')))?;
    // One library per line: `libc.so.6 => /lib/libc.so.6 (0x…)`, `/lib64/ld-linux.so.2 (0x…)`.
    let libraries = match run(Command::new("ldd").arg(program)) {
        Ok(libraries) => libraries,
        Err(error) if error.to_string().contains("not a dynamic executable") => String::new(),
        Err(error) => return Err(error),
    };
    let paths = libraries.lines().filter_map(|line| {
        let path = line.split_once("=>").map_or(line, |(_, path)| path).split_whitespace().next();
        path.filter(|path| path.starts_with('/'))
    });
    for library in paths {
        copy(Path::new(library), &root.join(library.trim_start_matches('/')))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to.parent().context("a path without a folder")?)?;
    std::fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(())
}

/// Writes the image of the lab; returns the path of the archive on the host.
pub(super) fn write_on(host: &Host) -> Result<&'static str> {
    let folder = host.path("/run/image");
    let root = folder.join("root");
    fill(&root)?;
    let command = &[BUSYBOX, "sleep", "1000000"];
    let image = Image { name: IMAGE, root: &root, entrypoint: &[], command };
    image.save(&folder.join("image.tar"))?;
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
