//! What people see: results that are shown again, colours, completions, man pages.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::fake_daemon::{FakeDaemon, peer, status};
use crate::{Output, tweedctl};

/// A program that runs until the value is dropped.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        let pipes = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(pipes.spawn().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_result_is_shown_again_and_again() {
    let peers = |peers: &[Value]| json!({ "/peers": peers });
    let second = peer("10.244.3.0/24", true);
    let daemon = FakeDaemon::answering_in_turn(vec![peers(&[]), peers(&[second])]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_tweedctl"));
    command
        .args(["peers", "--watch=100ms", "--socket"])
        .arg(daemon.folder.path().join("subnet.sock"));
    let mut running = Running::start(&mut command);
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    // A file gets no control characters.
    let row = "10.244.3.0/24  172.16.0.9  vxlan    tunnel  -     -    -     programmed";
    let rows = lines.by_ref().filter(|line| !line.starts_with("SUBNET"));
    let shown: Vec<String> = rows.take(5).collect();
    assert_eq!(shown, ["there are no peers", "", row, "", row]);
    // A daemon that ends does not end the command.
    drop(daemon);
    let errors = BufReader::new(running.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    // A request may have been under way.
    let mut errors = errors.skip(1);
    for _ in 0..2 {
        let error = errors.next().unwrap();
        assert!(error.starts_with("tweedctl: no daemon answers on "), "{error}");
    }
}

/// A command of tweedctl on a terminal.
fn on_a_terminal(daemon: &FakeDaemon, line: &str) -> Command {
    let socket = daemon.folder.path().join("subnet.sock");
    let line = format!("{} {line} --socket {}", env!("CARGO_BIN_EXE_tweedctl"), socket.display());
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR");
    command
}

#[test]
fn a_terminal_shows_colours_and_redraws() {
    let mut peer = peer("10.244.3.0/24", true);
    peer["reachability"] = json!({ "state": "unreachable", "cause": "peer-silent" });
    let daemon = FakeDaemon::answering(json!({ "/peers": [peer] }));
    let (red, clear) = ("\u{1b}[31m10.244.3.0/24 ", "\u{1b}[H\u{1b}[J");
    let shown = |command: &mut Command| {
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(5), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let coloured = shown(&mut on_a_terminal(&daemon, "peers"));
    assert!(coloured.contains(red) && !coloured.contains(clear), "{coloured:?}");
    for plain in [
        on_a_terminal(&daemon, "peers").env("NO_COLOR", "1"),
        on_a_terminal(&daemon, "peers").env("TERM", "dumb"),
        &mut on_a_terminal(&daemon, "peers --color never"),
        &mut on_a_terminal(&daemon, "peers -o json"),
    ] {
        let plain = shown(plain);
        assert!(plain.contains("10.244.3.0/24") && !plain.contains('\u{1b}'), "{plain:?}");
    }
    assert!(!daemon.tweedctl("peers").1.contains('\u{1b}'));
    assert!(daemon.tweedctl("peers --color always").1.contains(red));

    let mut running = Running::start(&mut on_a_terminal(&daemon, "peers --watch=100ms"));
    let (mut terminal, mut pages) = (running.0.stdout.take().unwrap(), Vec::new());
    while String::from_utf8_lossy(&pages).matches(clear).count() < 3 {
        let mut piece = [0; 4096];
        let length = terminal.read(&mut piece).unwrap();
        assert_ne!(length, 0, "{pages:?}");
        pages.extend(&piece[..length]);
    }
    let pages = String::from_utf8(pages).unwrap();
    let page = pages.split(clear).nth(1).unwrap();
    assert!(pages.starts_with(clear) && page.contains(red), "{pages:?}");
}

/// What bash offers for the last word of `line`.
fn completed(program: &str, line: &str) -> String {
    let Output(code, script, error) = tweedctl(&format!("completions bash {program}"));
    assert_eq!(code, 0, "{error}");
    let mut words = line.rsplit(' ');
    let (last, before) = (words.next().unwrap(), words.next().unwrap());
    let ask = format!(
        "{script}\nCOMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n\
         _{program} {program} {last} {before}; echo \"${{COMPREPLY[*]}}\""
    );
    let output = Command::new("bash").args(["-c", &ask]).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    assert_eq!(completed("tweedctl", "tweedctl lea"), "leases");
    assert_eq!(completed("tweedctl", "tweedctl leases res"), "reserve");
    assert_eq!(completed("tweedctl", "tweedctl migrate start --can"), "--canary");
    assert_eq!(completed("tweedctl", "tweedctl status --output y"), "yaml");
    assert_eq!(completed("tweedctl", "tweedctl peers --family v"), "v4 v6");
    assert_eq!(completed("tweedd", "tweedd --iptables-r"), "--iptables-resync");
    for shell in ["zsh", "fish"] {
        assert!(tweedctl(&format!("completions {shell}")).1.contains("reserve"), "{shell}");
        let flags = tweedctl(&format!("completions {shell} tweedd")).1;
        assert!(flags.contains("ip-masq"), "{shell}");
    }
    assert_eq!(tweedctl("completions csh").0, 2);
}

/// The commands in a help.
fn subcommands(help: &str) -> Vec<&str> {
    let list = help.split("Commands:\n").nth(1).unwrap_or_default().split("\n\n").next().unwrap();
    // A description that continues on the next line is indented further.
    let lines = list.lines().filter(|line| !line.starts_with("   "));
    let names = lines.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").collect()
}

#[test]
fn every_command_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let Output(code, out, error) = tweedctl(&format!("man --dir {}", path.display()));
    assert_eq!((code, out.as_str()), (0, ""), "{error}");
    let page = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
    let mut left = vec![String::new()];
    let mut pages = 0;
    while let Some(command) = left.pop() {
        let help = tweedctl(format!("{command} --help").trim_start()).1;
        let name = format!("tweedctl {command}").trim_end().replace(' ', "-");
        let page = page(&format!("man1/{name}.1"));
        let title = format!(".TH {name} 1 ");
        assert!(page.contains(&title) && page.contains("\n.SH SYNOPSIS\n"), "{name}: {page}");
        for subcommand in subcommands(&help) {
            let listed = format!("{name}\\-{subcommand}(1)").replace("tweedctl-", "tweedctl\\-");
            assert!(page.contains(&listed), "{listed} is not in {page}");
            left.push(format!("{command} {subcommand}").trim_start().to_owned());
        }
        pages += 1;
    }
    let written = |section: &str| std::fs::read_dir(path.join(section)).unwrap().count();
    assert!(pages > 25, "{pages}");
    assert_eq!((written("man1"), written("man8")), (pages, 1));
    let daemon = page("man8/tweedd.8");
    assert!(daemon.contains("etcd\\-endpoints") && daemon.contains(".TH tweedd 8"), "{daemon}");
    let Output(code, _, error) = tweedctl("man --dir /dev/null");
    assert_eq!(code, 2);
    assert!(error.starts_with("tweedctl: /dev/null/man1 cannot be written: "), "{error}");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let ready = json!({ "ready": true, "reasons": [] });
    let daemon = FakeDaemon::answering(json!({ "/status": status(), "/readyz": ready }));
    let socket = daemon.folder.path().join("subnet.sock");
    let line = format!(
        "{} status --socket {} | true; exit ${{PIPESTATUS[0]}}",
        env!("CARGO_BIN_EXE_tweedctl"),
        socket.display()
    );
    let shell = Command::new("bash").args(["-c", &line]).output().unwrap();
    assert_eq!((shell.status.code(), shell.stderr), (Some(0), vec![]));
}
