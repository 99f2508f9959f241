//! The pages whose commands run in a lab, each with its output: `…` stands for any text.

#![allow(
    clippy::disallowed_methods,
    reason = "the lab is synchronous: it sleeps and measures time"
)]

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};
use tempfile::TempDir;
use tweed_lab::{PATIENCE, eventually};

/// A command of a page, or a hidden step between two of them.
#[derive(Debug)]
enum Step {
    /// `<!-- lab up: --far 0 -->`: a new cluster instead of the one before.
    Up(String),
    /// `<!-- lab n1: ip link del flannel.1 -->`: a fault or its repair, on a node.
    Change { node: String, command: String },
    /// `$ tweedctl peers`, with its output.
    Shown { command: String, output: String },
}

/// The steps of a page of docs; `test` is the test that its blocks name. Every block without a
/// language is run, or its mark states why not.
fn steps(name: &str, test: &str) -> Result<Vec<Step>> {
    let page = format!("{}/../../docs{name}", env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(page)?;
    let mark = format!("<!-- run by tests/lab/tests/pages.rs: {test} -->");
    let (mut steps, mut above, mut is_block, mut is_open) = (Vec::new(), "", false, false);
    for line in page.lines() {
        if line.starts_with("```") {
            is_block = !is_block;
            is_open = is_block && above == mark;
            let is_known = is_open || line != "```" || above.starts_with("<!-- not run: ");
            ensure!(!is_block || is_known, "the block below {above:?} names no test");
        } else if let (true, Some(command)) = (is_open, line.strip_prefix("$ ")) {
            steps.push(Step::Shown { command: command.to_owned(), output: String::new() });
        } else if let (true, Some(Step::Shown { output, .. })) = (is_open, steps.last_mut()) {
            output.extend([line, "\n"]);
        } else if let Some(hidden) = line.strip_prefix("<!-- lab ") {
            let hidden = hidden.strip_suffix(" -->").and_then(|hidden| hidden.split_once(':'));
            let (node, command) = hidden.with_context(|| line.to_owned())?;
            let (node, command) = (node.to_owned(), command.trim().to_owned());
            let is_start = node == "up";
            steps.push(if is_start { Step::Up(command) } else { Step::Change { node, command } });
        }
        above = line;
    }
    Ok(steps)
}

/// Whether `output` is as `shown`, without spaces at the ends of lines.
fn matches(shown: &str, output: &str) -> bool {
    let output = output.trim();
    let mut parts = shown.trim().split('…').map(str::trim);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = output.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

/// The programs of this build, and clusters that others do not see.
struct Shell {
    path: String,
    runtime: TempDir,
}

impl Shell {
    fn new() -> Result<Self> {
        let programs = Path::new(env!("CARGO_BIN_EXE_tweed-lab")).parent().context("no folder")?;
        let path = format!("{}:{}", programs.display(), std::env::var("PATH")?);
        Ok(Self { path, runtime: TempDir::new_in(env!("CARGO_TARGET_TMPDIR"))? })
    }

    /// Everything that a command prints; it must succeed.
    fn done(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let (is_success, printed) = self.run(program, arguments)?;
        ensure!(is_success, "{program} {arguments:?}: {printed}");
        Ok(printed)
    }

    /// Whether a command succeeds, and everything that it prints.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<(bool, String)> {
        let all = ["-c", "exec 2>&1; exec \"$@\"", "sh", program];
        let mut shell = Command::new("sh");
        shell.args(all).args(arguments).env("PATH", &self.path);
        shell.env("XDG_RUNTIME_DIR", self.runtime.path()).env_remove("TWEED_SANDBOX");
        let output = shell.output()?;
        let printed = String::from_utf8(output.stdout)?;
        let lines: Vec<_> = printed.lines().map(str::trim_end).collect();
        Ok((output.status.success(), lines.join("\n")))
    }

    /// Repeats the command until it prints what is shown: a daemon may need some seconds.
    fn expect(&self, shown: &str, command: impl Fn(&Self) -> Result<(bool, String)>) -> Result<()> {
        let mut first = None;
        eventually(PATIENCE, || {
            let (_, output) = command(self)?;
            let is_shown = matches(shown, &output);
            first.get_or_insert(output);
            ensure!(is_shown);
            Ok(())
        })
        .map(drop)
        .with_context(|| format!("{}\ninstead of\n{shown}", first.unwrap_or_default()))
    }

    fn follow(&self, step: &Step) -> Result<()> {
        match step {
            Step::Up(arguments) => {
                self.run("tweed-lab", &["down"])?;
                let arguments: Vec<_> = arguments.split_whitespace().collect();
                let started = self.done("tweed-lab", &[&["up"], &*arguments].concat())?;
                ensure!(started.starts_with("n1 "), "{started}");
                Ok(())
            }
            Step::Change { node, command } => {
                let printed = self.done("tweed-lab", &at(node, command))?;
                ensure!(["", "OK", "1"].contains(&printed.trim()), "{command}: {printed}");
                Ok(())
            }
            Step::Shown { command, output } => {
                let here = |shell: &Self| shell.run("tweed-lab", &at("n1", command));
                self.expect(output, here).with_context(|| format!("$ {command}"))
            }
        }
    }
}

fn at<'a>(node: &'a str, command: &'a str) -> [&'a str; 5] {
    ["exec", node, "sh", "-c", command]
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.run("tweed-lab", &["down"]));
    }
}

#[test]
fn the_tutorial_works_as_written() -> Result<()> {
    let shell = Shell::new()?;
    let steps = steps("/guides/tutorial.md", "the_tutorial_works_as_written")?;
    assert!(steps.len() > 12, "{steps:?}");
    for step in &steps {
        let Step::Shown { command, output } = step else { continue };
        let typed = |shell: &Shell| shell.run("sh", &["-c", command]);
        shell.expect(output, typed).with_context(|| format!("$ {command}"))?;
    }
    let left: Vec<_> = std::fs::read_dir(shell.runtime.path().join("tweed-lab"))?.collect();
    assert!(left.is_empty(), "{left:?}");
    Ok(())
}

/// Each cluster of the page at the same time: a fault takes seconds to be noticed.
#[test]
fn the_commands_of_troubleshooting_print_what_it_shows() -> Result<()> {
    let test = "the_commands_of_troubleshooting_print_what_it_shows";
    let steps = steps("/guides/troubleshooting.md", test)?;
    let clusters: Vec<&[Step]> = steps.chunk_by(|_, next| !matches!(next, Step::Up(_))).collect();
    assert!(clusters.len() > 6, "{clusters:?}");
    let follow = |cluster: &[Step]| -> Result<()> {
        let shell = Shell::new()?;
        cluster.iter().try_for_each(|step| shell.follow(step))
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let start = |it| scope.spawn(move || follow(it));
        let threads: Vec<_> = clusters.iter().copied().map(start).collect();
        let ended = threads.into_iter().map(|it| it.join().map_err(|_| anyhow!("a panic"))?);
        ended.filter_map(Result::err).map(|error| format!("{error:?}")).collect()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    Ok(())
}
