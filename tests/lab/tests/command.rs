//! The program `tweed-lab`, by its command line.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tweed_lab::{PATIENCE, eventually, install};

#[test]
fn any_end_of_the_program_leaves_nothing_behind() -> Result<()> {
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR"))?;
    // A daemon that never becomes ready, so that the demo waits.
    let deaf = folder.path().join("never-ready");
    install("#!/bin/sh\nexec sleep 1000\n", &deaf)?;
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let mark = format!("{signal}-{}", std::process::id());
        let mut demo = demo(&deaf, &mark)?;
        eventually(PATIENCE, || {
            let running = marked(&mark)?;
            Ok(["etcd", "sleep"].iter().all(|name| running.iter().any(|it| it == name)))
        })?;
        kill(Pid::from_raw(i32::try_from(demo.id())?), signal)?;
        demo.wait()?;
        eventually(PATIENCE, || {
            let left = marked(&mark)?;
            ensure!(left.is_empty(), "after {signal}: {left:?}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_daemon_that_cannot_run_fails_the_demo_and_is_quoted() -> Result<()> {
    let program = env!("CARGO_BIN_EXE_tweed-lab");
    let demo = Command::new(program)
        .args(["demo", "--tweedd", "/bin/false", "--tweedctl", "/bin/false"])
        .env_remove("TWEED_SANDBOX")
        .output()?;
    assert_eq!(demo.status.code(), Some(1));
    let text = String::from_utf8(demo.stderr)?;
    assert!(text.contains("daemon of n1"), "{text}");
    let shown = String::from_utf8(demo.stdout)?;
    assert!(
        shown.lines().all(|line| line.chars().count() <= 80 && !line.contains('\x1b')),
        "{shown}"
    );
    Ok(())
}

#[test]
fn a_command_for_no_cluster_or_no_node_names_what_there_is() -> Result<()> {
    let runtime = TempDir::new_in(env!("CARGO_TARGET_TMPDIR"))?;
    let refusal = |arguments: &[&str]| -> Result<String> {
        let mut lab = Command::new(env!("CARGO_BIN_EXE_tweed-lab"));
        lab.args(arguments).env("XDG_RUNTIME_DIR", runtime.path()).env_remove("TWEED_SANDBOX");
        let output = lab.output()?;
        ensure!(output.status.code() == Some(1), "{output:?}");
        Ok(String::from_utf8(output.stderr)?)
    };
    assert!(refusal(&["exec", "n1", "true"])?.contains("start one with `tweed-lab up`"));
    assert!(refusal(&["down"])?.contains("no cluster \"lab\" runs"));
    assert!(refusal(&["down", "--name", "../x"])?.contains("only letters"));
    let empty = ["up", "--programs", "/nonexistent"];
    assert!(refusal(&empty)?.contains("/nonexistent"), "the folder is named");
    assert!(refusal(&["down"])?.contains("no cluster"), "nothing is left of a failed start");
    Ok(())
}

#[test]
fn of_six_that_start_the_same_cluster_at_once_five_are_refused() -> Result<()> {
    let runtime = TempDir::new_in(env!("CARGO_TARGET_TMPDIR"))?;
    let lab = |arguments: &[&str]| {
        let mut lab = Command::new(env!("CARGO_BIN_EXE_tweed-lab"));
        lab.args(arguments).env("XDG_RUNTIME_DIR", runtime.path()).env_remove("TWEED_SANDBOX");
        lab.stdout(Stdio::null()).stderr(Stdio::piped());
        lab
    };
    let mut up = lab(&["up", "--nodes", "1", "--far", "0"]);
    let started = (0..6).map(|_| up.spawn()).collect::<Result<Vec<_>, _>>()?;
    let ended = started.into_iter().map(Child::wait_with_output);
    let ended = ended.collect::<Result<Vec<_>, _>>()?;
    let down = lab(&["down"]).output()?;
    let refused: Vec<_> = ended.iter().filter(|it| !it.status.success()).collect();
    ensure!(refused.len() == 5 && down.status.success(), "{ended:?}\n{down:?}");
    for it in refused {
        let text = String::from_utf8_lossy(&it.stderr);
        assert!(text.contains("the cluster \"lab\" runs already"), "{text}");
    }
    Ok(())
}

fn demo(tweedd: &Path, mark: &str) -> Result<Child> {
    Command::new(env!("CARGO_BIN_EXE_tweed-lab"))
        .args(["demo", "--tweedctl", "/bin/true", "--tweedd"])
        .arg(tweedd)
        .env_remove("TWEED_SANDBOX")
        .env("LAB_MARK", mark)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("starting the demo")
}

/// The names of the processes that were started with this mark in their environment.
fn marked(mark: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc")? {
        let path = process?.path();
        let environment = std::fs::read(path.join("environ")).unwrap_or_default();
        if String::from_utf8_lossy(&environment).contains(&format!("LAB_MARK={mark}\0")) {
            let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
            found.push(name.trim().to_owned());
        }
    }
    Ok(found)
}
