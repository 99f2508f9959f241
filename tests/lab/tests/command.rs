//! The program `tweed-lab`, by its command line.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tweed_lab::{PATIENCE, eventually};

#[test]
fn any_end_of_the_program_leaves_nothing_behind() -> Result<()> {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let mark = format!("{signal}-{}", std::process::id());
        let mut demo = demo(&mark)?;
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
    let namespaces = Command::new("ip").args(["netns", "list"]).output()?;
    assert_eq!(String::from_utf8(namespaces.stdout)?, "");
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

/// The commands of the tutorial, each with its output; `…` stands for any text.
fn tutorial() -> Result<Vec<(String, String)>> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/tutorial.md");
    let page = std::fs::read_to_string(page)?;
    let mark = "<!-- run by tests/lab/tests/command.rs: the_tutorial_works_as_written -->\n```\n";
    let blocks = page.split(mark).skip(1).filter_map(|rest| Some(rest.split_once("\n```\n")?.0));
    let mut steps: Vec<(String, String)> = Vec::new();
    for line in blocks.flat_map(str::lines) {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push((command.to_owned(), String::new()));
        } else if let Some((_, output)) = steps.last_mut() {
            output.extend([line, "\n"]);
        }
    }
    Ok(steps)
}

fn matches(shown: &str, output: &str) -> bool {
    let mut parts = shown.trim().split('…').map(str::trim);
    let mut rest = parts.next().and_then(|first| output.trim().strip_prefix(first));
    let mut last = None;
    for part in parts {
        rest = rest.and_then(|rest| Some(rest.split_once(part)?.1));
        last = Some(part);
    }
    match last {
        Some(last) => rest.is_some() && output.trim().ends_with(last),
        None => rest == Some(""),
    }
}

#[test]
fn the_tutorial_works_as_written() -> Result<()> {
    let programs = Path::new(env!("CARGO_BIN_EXE_tweed-lab")).parent().context("no folder")?;
    let runtime = format!("{}/tutorial-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    std::fs::create_dir_all(&runtime)?;
    let shell = |command: &str| -> Result<String> {
        let path = format!("{}:{}", programs.display(), std::env::var("PATH")?);
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec 2>&1; {command}")]).env("PATH", path);
        let output = shell.env("XDG_RUNTIME_DIR", &runtime).env_remove("TWEED_SANDBOX").output()?;
        let lines = String::from_utf8(output.stdout)?;
        let lines: Vec<_> = lines.lines().map(str::trim_end).collect();
        Ok(lines.join("\n"))
    };
    let steps = tutorial()?;
    assert!(steps.len() > 12, "{steps:?}");
    let followed = steps.iter().try_for_each(|(command, shown)| {
        let mut first = None;
        let repeated = eventually(PATIENCE, || {
            let output = shell(command)?;
            ensure!(matches(shown, first.get_or_insert(output.clone())) || matches(shown, &output));
            Ok(())
        });
        repeated.with_context(|| format!("$ {command}\n{first:?} instead of\n{shown}")).map(drop)
    });
    if followed.is_err() {
        shell("tweed-lab down")?;
    }
    followed?;
    let left: Vec<_> = std::fs::read_dir(format!("{runtime}/tweed-lab"))?.collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(std::fs::remove_dir_all(&runtime)?)
}

#[test]
fn a_command_for_no_cluster_or_no_node_names_what_there_is() -> Result<()> {
    let runtime = format!("{}/refusals-{}", env!("CARGO_TARGET_TMPDIR"), std::process::id());
    std::fs::create_dir_all(&runtime)?;
    let refusal = |arguments: &[&str]| -> Result<String> {
        let mut lab = Command::new(env!("CARGO_BIN_EXE_tweed-lab"));
        lab.args(arguments).env("XDG_RUNTIME_DIR", &runtime).env_remove("TWEED_SANDBOX");
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
    Ok(std::fs::remove_dir_all(&runtime)?)
}

/// With a daemon that never becomes ready, so that the demo waits.
fn demo(mark: &str) -> Result<Child> {
    let deaf = concat!(env!("CARGO_TARGET_TMPDIR"), "/never-ready");
    std::fs::write(deaf, "#!/bin/sh\nexec sleep 1000\n")?;
    std::fs::set_permissions(deaf, Permissions::from_mode(0o755))?;
    Command::new(env!("CARGO_BIN_EXE_tweed-lab"))
        .args(["demo", "--tweedd", deaf, "--tweedctl", "/bin/true"])
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
