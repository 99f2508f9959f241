//! Starting, stopping and killing a daemon, with substitutes for the program.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use tweed_lab::{Binaries, DaemonPlan, Lab, Node};

const SERVER: &str = r#"import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/readyz" else 404); self.end_headers()
        self.wfile.write(b"stand-in is ready")
print("serving", sys.argv[1:], flush=True)
http.server.HTTPServer(("0.0.0.0", 8081), Handler).serve_forever()
"#;

#[test]
fn a_daemon_is_stopped_started_and_killed() -> Result<()> {
    let (_lab, node) = node()?;
    let mut daemon = DaemonPlan::program(&node, "sleep").argument("1000").start()?;
    assert!(daemon.resident_kib()? > 0);
    assert_eq!(daemon.stop()?.status.signal(), Some(15));
    daemon.stop().unwrap_err();
    daemon.start()?;
    daemon.start().unwrap_err();
    assert_eq!(daemon.kill()?.status.signal(), Some(9));
    assert!(!daemon.process().is_running());
    Ok(())
}

#[test]
fn a_daemon_that_ends_early_is_quoted() -> Result<()> {
    let (_lab, node) = node()?;
    let shell =
        DaemonPlan::program(&node, "sh").argument("-c").environment("WHY", "no key /config");
    let daemon = shell.argument("echo $WHY >&2; exit 3").start()?;
    let error = format!("{:#}", daemon.wait_ready().unwrap_err());
    assert!(error.contains("daemon of n1") && error.contains("no key /config"), "{error}");
    assert_eq!(daemon.kill()?.status.code(), Some(3));
    Ok(())
}

#[test]
fn readiness_is_queried_inside_the_node() -> Result<()> {
    let (_lab, node) = node()?;
    let mut daemon =
        DaemonPlan::program(&node, "python3").argument("-c").argument(SERVER).start()?;
    daemon.wait_ready()?;
    assert_eq!(daemon.get("/readyz")?.body, "stand-in is ready");
    assert_eq!(daemon.get("/elsewhere")?.status, 404);
    daemon.restart()?;
    assert_eq!(daemon.log()?.matches("serving").count(), 2);
    Ok(())
}

#[test]
fn two_daemons_at_once_have_a_namespace_each() -> Result<()> {
    let (lab, node) = node()?;
    let other = lab.node("n2", &lab.segment("10.99.2.0/24")?)?;
    for node in [&node, &other] {
        let plan = DaemonPlan::program(node, "python3").argument("-c").argument(SERVER);
        plan.start()?.wait_ready()?;
    }
    Ok(())
}

#[test]
fn a_daemon_gets_the_flags_of_flanneld() -> Result<()> {
    let echo = |name: &str| Path::new("/bin").join(name);
    let lab = Lab::new(Binaries { tweedd: echo("echo"), tweedctl: echo("echo") })?;
    let etcd = lab.etcd()?;
    let node = lab.node("n1", &lab.segment("10.99.1.0/24")?)?;
    let daemon = node.daemon(&etcd).argument("--max-withdraw=70").start()?;
    daemon.wait_ready().unwrap_err();
    let file = node.subnet_file();
    let expected = format!(
        "--etcd-endpoints={} --etcd-prefix=/coreos.com/network --iface=eth0 --subnet-file={} \
         --healthz-port=8081 --max-withdraw=70\n",
        etcd.endpoints()[0],
        file.display()
    );
    assert_eq!(daemon.log()?, expected);
    let socket = file.with_extension("sock");
    let text = daemon.ctl(&["peers", "-o", "json"])?;
    assert_eq!(text, format!("--socket={} peers -o json\n", socket.display()));
    assert_eq!(node.tweedctl(&["status"])?.status.code(), Some(0));
    Ok(())
}

#[test]
fn a_lab_kills_its_daemons_at_its_end() -> Result<()> {
    let (lab, node) = node()?;
    let daemon = DaemonPlan::program(&node, "sleep").argument("1000").start()?;
    drop(lab);
    assert!(!daemon.process().is_running());
    assert!(!Path::new(&format!("/proc/{}", daemon.process().pid())).exists());
    Ok(())
}

fn node() -> Result<(Lab, Node)> {
    let lab = Lab::bare()?;
    let node = lab.node("n1", &lab.segment("10.99.1.0/24")?)?;
    Ok((lab, node))
}

#[test]
fn a_frozen_daemon_exists_and_does_nothing() -> Result<()> {
    let (_lab, node) = node()?;
    let shell = DaemonPlan::program(&node, "sh").argument("-c");
    let daemon = shell.argument("while :; do echo tick; sleep 0.01; done").start()?;
    let ticks = || daemon.log().map(|log| log.lines().count());
    tweed_lab::eventually(tweed_lab::PATIENCE, || Ok(ticks()? > 3))?;
    daemon.freeze()?;
    let mut before = 0;
    // Output of the time before the freeze may still be written.
    tweed_lab::eventually(tweed_lab::PATIENCE, || {
        let last = std::mem::replace(&mut before, ticks()?);
        Ok(last == before)
    })?;
    assert!(daemon.process().is_running());
    daemon.thaw()?;
    tweed_lab::eventually(tweed_lab::PATIENCE, || Ok(ticks()? > before + 3)).map(drop)
}

#[test]
fn a_daemon_that_ignores_sigterm_is_killed_and_reported() -> Result<()> {
    let (_lab, node) = node()?;
    let deaf = DaemonPlan::program(&node, "sh").argument("-c");
    let daemon = deaf.argument("trap '' TERM; echo deaf; while :; do sleep 1; done").start()?;
    tweed_lab::eventually(tweed_lab::PATIENCE, || daemon.log().map(|log| log == "deaf\n"))?;
    let error = daemon.process().stop(Duration::from_millis(100)).unwrap_err();
    assert!(error.to_string().contains("ignored SIGTERM"), "{error}");
    assert!(!daemon.process().is_running());
    Ok(())
}
