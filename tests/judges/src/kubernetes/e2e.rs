//! The tests that Kubernetes has for networks, from one end of a cluster to the other.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tweed_lab::{Family, Stack, eventually};

use super::cases::{DAEMONS, install_as_the_readme, remark};
use super::cluster::Cluster;
use super::{Programs, images, names};
use crate::verdict::Counted;

/// Those that every cluster must pass.
const FOCUS: &str = r"\[sig-network\].*\[Conformance\]";
const TIME: Duration = Duration::from_secs(3600);
/// All that the tests print.
const LOG: &str = "target/judges/e2e.log";

pub(super) fn run(programs: &Programs) -> Result<Counted> {
    let cluster = Cluster::start(programs, Stack::V4)?;
    install_as_the_readme(&cluster)?;
    cluster.wait_ready()?;
    cluster.wait_rolled_out(DAEMONS)?;
    names::install(&cluster)?;
    route_to_pods(&cluster)?;
    for image in images::save_for_tests(&cluster.lab, programs)? {
        for machine in &cluster.machines {
            machine.import(&image)?;
        }
    }
    let tests = std::fs::canonicalize(programs.test("e2e.test"))?;
    let kubectl = format!("--kubectl-path={}", kubectl(&cluster)?);
    let admin = format!("--kubeconfig={}", cluster.admin().display());
    let focus = format!("--ginkgo.focus={FOCUS}");
    let flags = ["--provider=skeleton", "--ginkgo.v", "--ginkgo.no-color", "--ginkgo.timeout=50m"];
    let flags = [&flags[..], &["--dump-logs-on-failure=false", &kubectl, &admin, &focus]].concat();
    let tests = cluster.lab.start_on(&cluster.control, "e2e", &tests, &flags)?;
    let ended = eventually(TIME, || !tests.is_running());
    let text = tests.log()?;
    std::fs::write(LOG, &text).context(LOG)?;
    ended.context("the tests take too long")?;
    let lines = |start| text.lines().filter(move |line| line.trim_start().starts_with(start));
    let failed = lines("[FAIL]").collect::<BTreeSet<_>>();
    ensure!(failed.is_empty(), "{failed:#?}, see {LOG}");
    let last = |start| lines(start).next_back().with_context(|| format!("no result, see {LOG}"));
    let ran = last("Ran ")?;
    ensure!(!ran.trim_start().starts_with("Ran 0 "), "no test was selected: {ran}");
    Ok(remark(format!("{ran}: {}", last("SUCCESS!")?)))
}

/// As on a machine of the cluster: the API server also connects to pods, for clients.
fn route_to_pods(cluster: &Cluster) -> Result<()> {
    for (name, subnet) in cluster.subnets()? {
        let machine = cluster.machines.iter().find(|machine| machine.name() == name);
        let gateway = machine.context("a node without a machine")?.node().address(Family::V4)?;
        cluster.control.ip(format!("route add {subnet} via {gateway}"))?;
    }
    Ok(())
}

/// The tests call kubectl by a path.
fn kubectl(cluster: &Cluster) -> Result<String> {
    let file = cluster.file("kubectl");
    let script = format!("#!/bin/sh\nexec {} kubectl \"$@\"\n", cluster.kubernetes.display());
    std::fs::write(&file, script)?;
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755))?;
    Ok(file.display().to_string())
}
