//! The images that the manifests name, made from programs of this machine and the libraries they need.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use tweed_lab::{Binaries, Image, Lab, add_program};

use super::Programs;

pub(super) const TWEED: &str = concat!("docker.io/library/tweed:", env!("CARGO_PKG_VERSION"));

/// The name under which the README pushes it to a registry.
pub(super) const PUSHED: &str = concat!("registry.example.org/tweed:", env!("CARGO_PKG_VERSION"));

/// The image of an older tweed.
pub(super) const FORMER: &str = "docker.io/library/tweed:former";

/// The tag of images that only the judge has.
pub(super) const TAG: &str = "judge";
/// Under the name that flannel's chart has.
const POLICIES: &str = "registry.k8s.io/networking/kube-network-policies";
pub(super) const DNS: &str = "registry.k8s.io/coredns/coredns:judge";

/// Writes all images as archives.
pub(super) fn save(lab: &Lab, programs: &Programs) -> Result<Vec<PathBuf>> {
    let manifest = std::fs::read_to_string(programs.source_manifest())?;
    let named = |part: &str| {
        let names = manifest.lines().filter_map(|line| line.trim().strip_prefix("image: "));
        let mut names = names.filter(|name| name.contains(part));
        names.next().with_context(|| format!("flannel's manifest names no image {part}"))
    };
    let folder = lab.folder().join("images");
    Ok(vec![
        save_one(&folder.join("tweed"), TWEED, |root| {
            add_tweed(root, &programs.plugin, &programs.binaries)
        })?,
        save_one(&folder.join("former"), FORMER, |root| {
            let [plugin, tweedd, tweedctl] =
                ["flannel", "tweedd", "tweedctl"].map(|name| programs.former.join(name));
            add_tweed(root, &plugin, &Binaries { tweedd, tweedctl })
        })?,
        save_one(&folder.join("flannel"), named("/flannel:")?, |root| add_flannel(root, programs))?,
        save_one(&folder.join("plugin"), named("/flannel-cni-plugin:")?, |root| {
            add_program(root, &programs.of_flannel("flannel"), "/flannel")?;
            add_cp(root)
        })?,
        save_one(&folder.join("policies"), &format!("{POLICIES}:{TAG}"), |root| {
            add_program(root, &programs.tools.join("netpol"), "/bin/netpol")
        })?,
        save_one(&folder.join("dns"), DNS, |root| {
            add_program(root, &programs.tools.join("coredns"), "/coredns")
        })?,
    ])
}

/// Those that the tests of Kubernetes name.
pub(super) fn save_for_tests(lab: &Lab, programs: &Programs) -> Result<[PathBuf; 4]> {
    let root = lab.folder().join("images/agnhost");
    add_agnhost(&root, programs)?;
    let save = |file: &str, name, entrypoint| {
        let archive = lab.folder().join("images").join(file);
        Image { name, root: &root, entrypoint, command: &["pause"] }.save(&archive)?;
        Ok::<_, anyhow::Error>(archive)
    };
    Ok([
        save("agnhost.tar", "registry.k8s.io/e2e-test-images/agnhost:2.56", &["/agnhost"])?,
        save("dnsutils.tar", "registry.k8s.io/e2e-test-images/jessie-dnsutils:1.7", &[])?,
        save("pause.tar", "registry.k8s.io/pause:3.10.1", &["/agnhost"])?,
        // It only has to run.
        save("nginx.tar", "registry.k8s.io/e2e-test-images/nginx:1.14-4", &["/agnhost"])?,
    ])
}

fn save_one(root: &Path, name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    fill(root)?;
    let archive = root.with_extension("tar");
    Image { name, root, entrypoint: &[], command: &[] }.save(&archive)?;
    Ok(archive)
}

/// The tests run scripts in its containers.
fn add_agnhost(root: &Path, programs: &Programs) -> Result<()> {
    add_program(root, &programs.test("agnhost"), "/agnhost")?;
    for file in ["localhost.crt", "localhost.key"] {
        std::fs::copy(programs.test(file), root.join(file)).context(file)?;
    }
    symlink("agnhost", root.join("agnhost-2"))?;
    add_program(root, Path::new("/bin/busybox"), "/bin/busybox")?;
    let applets = Command::new("/bin/busybox").arg("--list").output()?;
    // Its shell would prefer its own applets to the programs below.
    let is_wanted = |name: &&str| !["busybox", "sh", "bash"].contains(name);
    for applet in String::from_utf8(applets.stdout)?.lines().filter(is_wanted) {
        symlink("busybox", root.join("bin").join(applet))?;
    }
    for (program, to) in [
        ("/usr/bin/curl", "/usr/bin/curl"),
        ("/usr/bin/dig", "/usr/bin/dig"),
        ("/usr/bin/getent", "/usr/bin/getent"),
        ("/bin/nc.openbsd", "/usr/bin/nc"),
        ("/bin/bash", "/bin/sh"),
    ] {
        add_program(root, Path::new(program), to)?;
    }
    Ok(std::fs::create_dir_all(root.join("tmp"))?)
}

fn add_tweed(root: &Path, plugin: &Path, binaries: &Binaries) -> Result<()> {
    add_program(root, plugin, "/flannel")?;
    add_program(root, &binaries.tweedd, "/opt/bin/flanneld")?;
    add_program(root, &binaries.tweedctl, "/opt/bin/tweedctl")?;
    Ok(symlink("../../flannel", root.join("opt/bin/install-conf"))?)
}

/// flannel's init containers copy files.
fn add_cp(root: &Path) -> Result<()> {
    add_program(root, Path::new("/bin/busybox"), "/bin/cp")
}

/// flanneld calls iptables.
fn add_flannel(root: &Path, programs: &Programs) -> Result<()> {
    const IPTABLES: &str = "/usr/sbin/xtables-nft-multi";
    const MATCHES: &str = "/usr/lib/x86_64-linux-gnu/xtables";
    for program in ["flanneld", "install-conf"] {
        add_program(root, &programs.of_flannel(program), &format!("/opt/bin/{program}"))?;
    }
    add_cp(root)?;
    add_program(root, Path::new(IPTABLES), IPTABLES)?;
    for family in ["iptables", "ip6tables"] {
        for suffix in ["", "-save", "-restore"] {
            symlink("xtables-nft-multi", root.join(format!("usr/sbin/{family}{suffix}")))?;
        }
    }
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    std::fs::create_dir_all(&libraries)?;
    let status = Command::new("cp").arg("-r").args([Path::new(MATCHES), &libraries]).status()?;
    ensure!(status.success(), "copying {MATCHES}");
    Ok(())
}
