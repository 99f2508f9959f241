//! `tweedctl ipam check`: which addresses and records of containers are in use or leaked.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use tweed_cni::host_local::{self, Classification, Finding, Kind, Location, Repair};
use tweed_cni::state;

use super::layout::{TextTable, wrap};
use super::{Answer, Error, ExitStatus};

#[derive(Debug, Subcommand)]
pub(super) enum IpamCommand {
    /// Compares reservations with runtime, namespaces and boot time
    Check(CheckOptions),
}

#[derive(Debug, Args)]
#[command(after_help = PROOF)]
pub(super) struct CheckOptions {
    /// Free the records that are proven dead [default: change nothing]
    #[arg(long)]
    repair: bool,
    /// Check only the addresses of this network; can be repeated
    #[arg(long = "network", value_name = "NAME")]
    networks: Vec<String>,
    /// Directory of the reservations
    #[arg(long, value_name = "PATH", default_value = "/var/lib/cni/networks")]
    data_dir: PathBuf,
    /// Directory of the CNI plugin's records of attachments
    #[arg(long, value_name = "PATH", default_value = "/var/lib/cni/flannel")]
    records_dir: PathBuf,
    /// Directory of the runtime's results
    #[arg(long, value_name = "PATH", default_value = "/var/lib/cni/results")]
    results_dir: PathBuf,
    /// Assume that all processes of the host are visible
    #[arg(long)]
    sees_all: bool,
}

const PROOF: &str = "\
A record of an address is proven dead if a plugin created it and it is empty;
or if no network namespace has its address, no plugin works on its container,
and the runtime does not know the container, or has another address for the
same interface. In the first case it must be from before this boot, or older
than ten minutes; in the second, older than ten minutes.
A record of an attachment is proven dead if the runtime does not know its
container, no plugin works on it, no address is reserved for it, no link of the
host has its alias, and it is from before this boot, or older than ten minutes.
Records made by hand name no container: they are listed and never freed.";

/// The findings in the address stores and in the plugin's records of attachments.
#[derive(Serialize)]
pub(super) struct Checked {
    networks: Vec<CheckedStore>,
    attachments: CheckedStore,
    /// Why some containers that may hold an address are not visible from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    blind: Option<&'static str>,
}

#[derive(Serialize)]
struct CheckedStore {
    /// The name of the network; none for the records of attachments.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    held: usize,
    /// Those that no container seems to use.
    records: Vec<Suspect>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Suspect {
    #[serde(flatten)]
    subject: RecordName,
    owner: String,
    found: &'static str,
    reason: String,
    proven_dead: bool,
    freed: bool,
}

/// A reserved address, or the file of an attachment.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum RecordName {
    Address(String),
    File(String),
}

const BLIND: &str = "other containers are not visible from this container: run the command on the \
                     host, or use --sees-all if all processes of the host are visible";

pub(super) fn answer(command: &IpamCommand) -> Result<Checked, Error> {
    let IpamCommand::Check(options) = command;
    let blind = (host_local::may_be_blind() && !options.sees_all).then_some(BLIND);
    if let (Some(blind), true) = (blind, options.repair) {
        return Err(Error::Refused(blind.to_owned()));
    }
    let names = names(options)?;
    let networks = names.iter().map(|name| check(name, options)).collect::<Result<_, _>>()?;
    // After the addresses: an address that is freed does not keep its record.
    let attachments = check_attachments(options)?;
    Ok(Checked { networks, attachments, blind })
}

fn check_attachments(options: &CheckOptions) -> Result<CheckedStore, Error> {
    if !options.networks.is_empty() {
        return Ok(CheckedStore { name: None, held: 0, records: Vec::new() });
    }
    let CheckOptions { records_dir, data_dir, results_dir, .. } = options;
    let findings = state::audit(records_dir, data_dir, results_dir, options.repair())
        .map_err(|error| Error::Unavailable(format!("{}: {error}", records_dir.display())))?;
    Ok(CheckedStore::new(None, findings, RecordName::File))
}

impl CheckOptions {
    const fn repair(&self) -> Repair {
        if self.repair { Repair::Free } else { Repair::Nothing }
    }
}

fn names(options: &CheckOptions) -> Result<Vec<String>, Error> {
    let (networks, folder) = (&options.networks, options.data_dir.display());
    let known = host_local::networks(&options.data_dir)
        .map_err(|cause| Error::Unavailable(format!("the stores in {folder}: {cause}")))?;
    match networks.iter().find(|name| !known.contains(name)) {
        Some(name) => Err(Error::Unavailable(format!("no network {name} has a store in {folder}"))),
        None if networks.is_empty() => Ok(known),
        None => Ok(networks.clone()),
    }
}

fn check(name: &str, options: &CheckOptions) -> Result<CheckedStore, Error> {
    let location = Location {
        data_dir: options.data_dir.clone(),
        results: options.results_dir.clone(),
        ..Location::of(name).map_err(|error| Error::Usage(error.to_string()))?
    };
    let findings = host_local::audit(&location, options.repair())
        .map_err(|error| Error::Unavailable(format!("network {name}: {error}")))?;
    Ok(CheckedStore::new(Some(name.to_owned()), findings, RecordName::Address))
}

impl CheckedStore {
    fn new(
        name: Option<String>,
        findings: Vec<Finding>,
        subject: fn(String) -> RecordName,
    ) -> Self {
        let all = findings.len();
        let records = findings.into_iter().filter_map(|finding| Suspect::of(finding, subject));
        let records: Vec<Suspect> = records.collect();
        Self { name, held: all - records.len(), records }
    }
}

impl Suspect {
    /// None if a container holds it.
    fn of(finding: Finding, subject: fn(String) -> RecordName) -> Option<Self> {
        let Finding { name, owner, classification, freed } = finding;
        let Classification { kind, reason, proven_dead } = classification;
        let found = match kind {
            Kind::Held => return None,
            Kind::Leaked => "leaked",
            Kind::Double => "double",
            Kind::HalfWritten => "half-written",
            Kind::Foreign => "foreign",
        };
        Some(Self { subject: subject(name), owner, found, reason, proven_dead, freed })
    }

    fn can_be_freed(&self) -> bool {
        self.proven_dead && !self.freed
    }

    fn outcome(&self) -> &'static str {
        match (self.freed, self.proven_dead) {
            (true, _) => "freed",
            (false, true) => "--repair frees it",
            (false, false) => "stays",
        }
    }

    fn note(&self) -> String {
        if self.owner.is_empty() {
            return self.reason.clone();
        }
        format!("{}: {}", self.owner, self.reason)
    }
}

impl Answer for Checked {
    fn exit_status(&self) -> ExitStatus {
        let stores = self.networks.iter().chain([&self.attachments]);
        let mut records = stores.flat_map(|store| &store.records);
        if records.any(Suspect::can_be_freed) { ExitStatus::Problems } else { ExitStatus::Done }
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_table(f, &["NETWORK", "ADDRESS", "FOUND", "OUTCOME"], &self.networks)?;
        let attachments = std::slice::from_ref(&self.attachments);
        write_table(f, &["RECORD", "FOUND", "OUTCOME"], attachments)?;
        for network in &self.networks {
            writeln!(f, "{}", wrap(&network.summary(), 2))?;
        }
        if self.networks.is_empty() {
            writeln!(f, "no network has a store here")?;
        }
        if self.attachments.held + self.attachments.records.len() > 0 {
            writeln!(f, "{}", wrap(&self.attachments.summary(), 2))?;
        }
        self.blind.iter().try_for_each(|blind| writeln!(f, "{}", wrap(blind, 2)))
    }
}

/// One row per record; no table without records.
fn write_table(
    f: &mut fmt::Formatter<'_>,
    heading: &'static [&'static str],
    stores: &[CheckedStore],
) -> fmt::Result {
    let mut table = TextTable::new(heading);
    for store in stores {
        for record in &store.records {
            let (RecordName::Address(subject) | RecordName::File(subject)) = &record.subject;
            let cells: [&dyn fmt::Display; 3] = [subject, &record.found, &record.outcome()];
            let name = store.name.iter().map(|name| name as &dyn fmt::Display);
            table.row(&name.chain(cells).collect::<Vec<_>>(), Some(record.note()));
        }
    }
    if stores.iter().all(|store| store.records.is_empty()) { Ok(()) } else { write!(f, "{table}") }
}

impl CheckedStore {
    fn summary(&self) -> String {
        let Self { name, held, records } = self;
        let name = name.as_deref().unwrap_or("records of attachments");
        let freed = records.iter().filter(|record| record.freed).count();
        let dead = records.iter().filter(|record| record.can_be_freed()).count();
        let rest = records.len() - freed - dead;
        format!("{name}: {held} held, {dead} dead, {freed} freed, {rest} unclear or foreign")
    }
}
