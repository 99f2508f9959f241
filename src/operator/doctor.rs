//! `tweedctl doctor`: host settings that drop or block packets, and how to fix them.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::layout::{counted, wrap};
use super::node::{self, Files};
use super::{Answer, Error, ExitStatus};
use crate::kernel::Kernel;
use crate::kernel::host::{self, Places};
use crate::model::prefix::Prefix;
use crate::plan::preflight::{self, Finding, Level, Needs};

#[derive(Debug, Args)]
#[command(after_help = LEVELS)]
pub(super) struct DoctorOptions {
    /// Network of the pods, if neither daemon nor checkpoint has it
    #[arg(long = "network", value_name = "PREFIX")]
    networks: Vec<Prefix>,
    /// Directory of the host's files, if this runs in a container
    #[arg(long, value_name = "PATH", default_value = "/")]
    root: PathBuf,
}

const LEVELS: &str = "\
fatal    tweedd refuses to start
warning  packets are lost, or will be
note     no packets are lost at present; the exit code is 0
docs/doctor.md describes each finding under its id.";

/// The findings.
#[derive(Serialize)]
pub(super) struct Diagnosis {
    /// Where the plan's inputs were read.
    source: String,
    findings: Vec<Finding>,
}

pub(super) async fn answer(
    files: &Files,
    options: &DoctorOptions,
    mut kernel: impl Kernel,
) -> Result<Diagnosis, Error> {
    let unread = |error| Error::Unavailable(format!("the links cannot be read: {error}"));
    let facts = kernel.facts(None).await.map_err(unread)?;
    let (needs, source) = match node::read_inputs(files).await {
        Ok(known) => (Needs::of(&known.checkpoint), format!("the plan of {}", known.source)),
        Err(unknown) => {
            let underlay = facts.default_routes.iter().find_map(|(_, link)| link.clone());
            let needs = Needs::before_the_first_start(underlay, &options.networks);
            (needs, format!("flannel's defaults, because {unknown}"))
        }
    };
    let places = Places { control_socket: Some(files.socket()), ..Places::below(&options.root) };
    let found = host::gather(&needs, facts.interfaces, &places);
    Ok(Diagnosis { source, findings: preflight::findings(&needs, &found) })
}

impl Answer for Diagnosis {
    fn exit_status(&self) -> ExitStatus {
        let is_note = |finding: &Finding| finding.level == Level::Note;
        if self.findings.iter().all(is_note) { ExitStatus::Done } else { ExitStatus::Problems }
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
    writeln!(f, "{}", wrap(&format!("{}: {what}", level.as_str()), 2))?;
    let file = drop_in.as_ref().map(|it| format!("/etc/{0} from config/{0}", it.file));
    let rows = [("where", place), ("why", why), ("fix", fix)];
    for (name, text) in rows.into_iter().chain(file.iter().map(|file| ("file", file))) {
        writeln!(f, "{}", wrap(&format!("  {name:7}{text}"), 9))?;
    }
    writeln!(f, "  {:7}{id}\n", "id")
}
