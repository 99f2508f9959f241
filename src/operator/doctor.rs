//! `tweedctl doctor`: what drops or blocks packets on this host, and how to fix it.

use std::fmt::{self, Display};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::layout::{Tone, Toned, counted, wrap};
use super::node::{self, CniFolders, Files, Unanswered};
use super::{Answer, Error, ExitStatus};
use crate::kernel::Kernel;
use crate::kernel::host::{self, Places};
use crate::model::node::Facts;
use crate::model::prefix::Prefix;
use crate::model::status::{PeerStatus, ProbeStatus, Readiness, Status};
use crate::plan::preflight::daemon::{self, DaemonAnswer};
use crate::plan::preflight::{self, Finding, Level, Needs, Obstacle, Unread, peers};

#[derive(Debug, Args)]
#[command(after_help = LEVELS)]
pub(super) struct DoctorOptions {
    /// Network of the pods, if neither daemon nor checkpoint has it
    #[arg(long = "network", value_name = "PREFIX")]
    networks: Vec<Prefix>,
    /// Directory of the host's files, if this runs in a container
    #[arg(long, value_name = "PATH", default_value = "/")]
    root: PathBuf,
    #[command(flatten)]
    cni: CniFolders,
}

impl Default for DoctorOptions {
    fn default() -> Self {
        Self { networks: Vec::new(), root: "/".into(), cni: CniFolders::default() }
    }
}

const LEVELS: &str = "\
Levels:
  fatal    tweedd refuses to start
  warning  packets are lost, or will be
  unknown  a part of the host could not be examined
  note     no packets are lost at present

Exit codes:
  0  no findings, or only notes
  1  a fatal finding, or a warning that is not about a peer
  2  the command line is invalid
  3  a part of the host could not be examined, and nothing else is wrong
  5  a peer is degraded or unreachable, and nothing else is wrong

docs/guides/doctor.md describes each finding under its id.";

/// The findings.
#[derive(Serialize)]
pub(super) struct Diagnosis {
    /// Where the plan's inputs were read.
    source: String,
    findings: Vec<Finding>,
    #[serde(skip)]
    exit_status: ExitStatus,
}

/// What the daemon reports about itself.
struct DaemonReport {
    readiness: Readiness,
    probes: Option<ProbeStatus>,
    peers: Vec<PeerStatus>,
}

/// Examines what it can: neither the daemon nor the kernel has to answer.
pub(super) async fn answer(
    files: &Files,
    options: &DoctorOptions,
    kernel: Result<impl Kernel, Error>,
) -> Diagnosis {
    let (Facts { interfaces, default_routes, .. }, unread) = read_facts(kernel).await;
    let reported = ask(files).await;
    let inputs = match &reported {
        Ok(_) => node::read_inputs(files).await,
        // A daemon that does not answer is not asked again: that may take long.
        Err(unanswered) => node::read_checkpoint(files, unanswered.to_string()),
    };
    let (needs, source) = match inputs {
        Ok(known) => (Needs::of(&known.checkpoint), format!("the plan of {}", known.source)),
        Err(unknown) => {
            let underlay = default_routes.into_iter().find_map(|(_, link)| link);
            let needs = Needs::before_the_first_start(underlay, &options.networks);
            (needs, format!("flannel's defaults, because {unknown}"))
        }
    };
    let (state, peers) = match reported {
        Ok(DaemonReport { readiness, probes, peers }) => (
            DaemonAnswer::Answers(readiness),
            peers::findings(&peers, probes.as_ref(), &needs.ports),
        ),
        Err(unanswered) => (options.state_of(&unanswered, files), Vec::new()),
    };
    let socket = files.socket().display().to_string();
    let mut host = host::gather(&needs, interfaces, &options.places(files));
    host.unread.extend(unread);
    let node = daemon::finding(&state, &socket, &needs).into_iter();
    Diagnosis::new(source, node.chain(preflight::findings(&needs, &host)).collect(), peers)
}

/// The facts, and why they could not be read.
async fn read_facts(kernel: Result<impl Kernel, Error>) -> (Facts, Option<Unread>) {
    let facts = match kernel {
        Ok(mut kernel) => kernel.facts(None).await.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match facts {
        Ok(facts) => (facts, None),
        Err(reason) => {
            let (place, obstacle) = ("ip link".to_owned(), Obstacle::Failed(reason));
            (Facts::default(), Some(Unread { what: "links", place, obstacle }))
        }
    }
}

async fn ask(files: &Files) -> Result<DaemonReport, Unanswered> {
    let socket = files.socket();
    let readiness = node::ask(&socket, "/readyz").await?;
    let Status { probes, .. } = node::ask(&socket, "/status").await?;
    Ok(DaemonReport { readiness, probes, peers: node::ask(&socket, "/peers").await? })
}

impl DoctorOptions {
    /// What a daemon that does not answer has left.
    fn state_of(&self, unanswered: &Unanswered, files: &Files) -> DaemonAnswer {
        let socket = files.socket();
        match unanswered {
            Unanswered::Forbidden(_) => DaemonAnswer::Forbidden,
            Unanswered::Absent(_) => {
                let left = [socket, files.state_file(), self.root.join(node::LASTING)];
                let left = left.into_iter().find(|file| file.exists());
                left.map_or(DaemonAnswer::Absent, |file| {
                    DaemonAnswer::Ended(file.display().to_string())
                })
            }
            Unanswered::Silent { reason, .. } => match host::stopped_listener(&socket) {
                Some(process) => DaemonAnswer::Stopped(process),
                None => DaemonAnswer::Silent(reason.clone()),
            },
        }
    }

    fn places(&self, files: &Files) -> Places {
        Places { control_socket: Some(files.socket()), ..self.cni.places(&self.root) }
    }
}

impl Diagnosis {
    /// `node` has the findings about this node, `peers` those about its peers.
    fn new(source: String, node: Vec<Finding>, peers: Vec<Finding>) -> Self {
        let exit_status = exit_status(&node, &peers);
        Self { source, findings: preflight::worst_first([node, peers].concat()), exit_status }
    }
}

fn exit_status(node: &[Finding], peers: &[Finding]) -> ExitStatus {
    let worst = |findings: &[Finding]| findings.iter().map(|finding| finding.level).min();
    match (worst(node), worst(peers)) {
        (Some(Level::Fatal | Level::Warning), _) => ExitStatus::Problems,
        (_, Some(Level::Fatal | Level::Warning)) => ExitStatus::Failing,
        (Some(Level::Unknown), _) | (_, Some(Level::Unknown)) => ExitStatus::Unexamined,
        (None | Some(Level::Note), None | Some(Level::Note)) => ExitStatus::Done,
    }
}

impl Answer for Diagnosis {
    fn exit_status(&self) -> ExitStatus {
        self.exit_status
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            write_finding(f, finding)?;
        }
        let found = match self.findings.len() {
            0 => "no findings".to_owned(),
            count => counted(count, "finding"),
        };
        writeln!(f, "{}", wrap(&format!("{found}, checked against {}", self.source), 2))
    }
}

fn write_finding(f: &mut fmt::Formatter<'_>, finding: &Finding) -> fmt::Result {
    let Finding { id, level, what, place, why, fix, drop_in } = finding;
    let tone = match level {
        Level::Fatal => Tone::Bad,
        Level::Warning | Level::Unknown => Tone::Warning,
        Level::Note => Tone::Plain,
    };
    Toned(tone, wrap(&format!("{}: {what}", level.as_str()), 2)).fmt(f)?;
    writeln!(f)?;
    let file = drop_in.as_ref().map(|it| format!("/etc/{0} from config/{0}", it.file));
    let rows = [("where", place), ("why", why), ("fix", fix)];
    for (name, text) in rows.into_iter().chain(file.iter().map(|file| ("file", file))) {
        writeln!(f, "{}", wrap(&format!("  {name:7}{text}"), 9))?;
    }
    writeln!(f, "  {:7}{id}\n", "id")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(level: Level) -> Finding {
        let (what, place, why, fix) = Default::default();
        Finding { id: "any", level, what, place, why, fix, drop_in: None }
    }

    #[test]
    fn the_exit_code_is_that_of_the_worst_finding() {
        use Level::{Fatal, Note, Unknown, Warning};
        for (code, node, peers) in [
            (ExitStatus::Done, &[][..], &[][..]),
            (ExitStatus::Done, &[Note], &[Note]),
            (ExitStatus::Unexamined, &[Unknown, Note], &[]),
            (ExitStatus::Unexamined, &[], &[Note, Unknown]),
            (ExitStatus::Failing, &[Unknown], &[Warning]),
            (ExitStatus::Problems, &[Warning], &[Warning]),
            (ExitStatus::Problems, &[Unknown, Fatal], &[]),
        ] {
            let [node, peers] =
                [node, peers].map(|levels| levels.iter().map(|it| finding(*it)).collect());
            let diagnosis = Diagnosis::new(String::new(), node, peers);
            assert_eq!(diagnosis.exit_status(), code);
            assert!(diagnosis.findings.is_sorted_by_key(|finding| finding.level));
        }
    }
}
