//! `tweedctl doctor`: host settings that drop or block packets, and how to fix them.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use super::layout::{counted, wrap};
use super::node::Files;
use super::{Answer, Error, ExitStatus, node};
use crate::kernel::Kernel;
use crate::kernel::host::{self, Places};
use crate::model::prefix::Prefix;
use crate::plan::preflight::{self, Finding, Level, Needs};

#[derive(Debug, Args)]
#[command(after_help = LEVELS)]
pub(super) struct DoctorOptions {
    /// The network of pods, where neither daemon nor checkpoint can tell
    #[arg(long = "network", value_name = "PREFIX")]
    networks: Vec<Prefix>,
    /// Where the host's files are, if this runs in a container
    #[arg(long, value_name = "PATH", default_value = "/")]
    root: PathBuf,
}

const LEVELS: &str = "\
fatal    tweedd refuses to start
warning  packets are lost, or will be
note     nothing is lost as things stand; the exit code is 0
Each finding stands in docs/doctor.md, under its name.";

/// The findings.
#[derive(Serialize)]
pub(super) struct Examination {
    /// Where the plan's inputs were read.
    source: String,
    findings: Vec<Finding>,
}

pub(super) async fn answer(
    files: &Files,
    options: &DoctorOptions,
    mut kernel: impl Kernel,
) -> Result<Examination, Error> {
    let unread = |error| Error::CannotTell(format!("the links cannot be read: {error}"));
    let facts = kernel.facts(None).await.map_err(unread)?;
    let (needs, source) = match node::read_inputs(files).await {
        Ok(known) => (known.needs(), format!("the plan of {}", known.source)),
        Err(unknown) => {
            let underlay = facts.default_routes.iter().find_map(|(_, link)| link.clone());
            let needs = Needs::before_the_first_start(underlay, &options.networks);
            (needs, format!("flannel's defaults, because {unknown}"))
        }
    };
    let places = Places { control_socket: Some(files.socket()), ..Places::below(&options.root) };
    let found = host::gather(&needs, facts.interfaces, &places);
    Ok(Examination { source, findings: preflight::findings(&needs, &found) })
}

impl Answer for Examination {
    fn exit_status(&self) -> ExitStatus {
        let harms = |finding: &Finding| match finding.level {
            Level::Fatal | Level::Warning => true,
            Level::Note => false,
        };
        if self.findings.iter().any(harms) { ExitStatus::Amiss } else { ExitStatus::Well }
    }
}

impl fmt::Display for Examination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            write_finding(f, finding)?;
        }
        let found = match self.findings.len() {
            0 => "nothing is in the way".to_owned(),
            count => counted(count, "finding"),
        };
        writeln!(f, "{}", wrap(&format!("{found}, judged by {}", self.source), 2))
    }
}

fn write_finding(f: &mut fmt::Formatter<'_>, finding: &Finding) -> fmt::Result {
    let Finding { id, level, what, place, why, fix, drop_in } = finding;
    writeln!(f, "{}", wrap(&format!("{}: {what}", level.as_str()), 2))?;
    let file =
        drop_in.as_ref().map(|file| format!("{} from config/{}", file.installed(), file.file));
    let rows = [("where", Some(place)), ("why", Some(why)), ("mend", Some(fix))];
    for (name, said) in rows.into_iter().chain([("file", file.as_ref())]) {
        let Some(said) = said else { continue };
        writeln!(f, "{}", wrap(&format!("  {name:7}{said}"), 9))?;
    }
    writeln!(f, "  {:7}{id}\n", "id")
}
