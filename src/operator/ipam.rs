//! `tweedctl ipam check`: which addresses and records of this node's containers are held, and which are only lost.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use tweed_cni::host_local::{self, Finding, Kind, Location, Repair};
use tweed_cni::state;

use super::layout::{Table, wrap};
use super::{Answer, Error, Verdict};

#[derive(Debug, Subcommand)]
pub(super) enum IpamCommand {
    /// Compares reservations with the runtime, the namespaces and the boot
    Check(CheckOptions),
}

#[derive(Debug, Args)]
#[command(after_help = PROOF)]
pub(super) struct CheckOptions {
    /// Frees what is proven dead; without this, nothing changes
    #[arg(long)]
    repair: bool,
    /// Only the addresses of this network; may be given several times
    #[arg(long = "network", value_name = "NAME")]
    networks: Vec<String>,
    /// Where the reservations are
    #[arg(long, value_name = "PATH", default_value = "/var/lib/cni/networks")]
    data_dir: PathBuf,
    /// Where the CNI plugin keeps its records of attachments
    #[arg(long, value_name = "PATH", default_value = "/var/lib/cni/flannel")]
    records_dir: PathBuf,
    /// Where the runtime writes down what it has added
    #[arg(long, value_name = "PATH", default_value = "/var/lib/cni/results")]
    results_dir: PathBuf,
    /// All processes of this machine can be seen from here, whatever it looks like
    #[arg(long)]
    sees_all: bool,
}

const PROOF: &str = "\
A record is proven dead if it says nothing; or if the runtime does not know
its container, no network namespace has its address, no plugin works on its
container, and it is from before this boot or older than ten minutes; or if
the runtime has another address for the same interface, for as long.
A record of an attachment is proven dead on the same terms, if moreover no
address is reserved for its container, and no link of the host is marked with it.
What people wrote by hand names no container: it is listed, and stays.";

/// Every store that was asked for.
#[derive(Serialize)]
pub(super) struct Checked {
    networks: Vec<Network>,
    attachments: Attachments,
    /// Who else may use an address, unseen from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    blind: Option<&'static str>,
}

#[derive(Serialize)]
struct Network {
    name: String,
    held: usize,
    records: Vec<Reservation>,
}

/// What the plugin keeps until a DEL.
#[derive(Serialize)]
struct Attachments {
    held: usize,
    records: Vec<Kept>,
}

/// A reserved address that nobody seems to hold.
#[derive(Serialize)]
struct Reservation {
    address: String,
    #[serde(flatten)]
    record: Record,
}

/// A record of an attachment that seems to be of no use.
#[derive(Serialize)]
struct Kept {
    file: String,
    #[serde(flatten)]
    record: Record,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    owner: String,
    found: &'static str,
    reason: String,
    proven_dead: bool,
    freed: bool,
}

const BLIND: &str = "this is a container, from which other containers cannot be seen: run it on \
                     the host, or say --sees-all if it sees all processes of the machine";

pub(super) fn answer(command: &IpamCommand) -> Result<Checked, Error> {
    let IpamCommand::Check(options) = command;
    let blind = (host_local::may_be_blind() && !options.sees_all).then_some(BLIND);
    if let (Some(blind), true) = (blind, options.repair) {
        return Err(Error::Refused(blind.to_owned()));
    }
    let names = names(options)?;
    let networks = names.iter().map(|name| check(name, options)).collect::<Result<_, _>>()?;
    // After the addresses: what they leave behind is no reason to keep a record.
    let attachments = check_attachments(options)?;
    Ok(Checked { networks, attachments, blind })
}

fn check_attachments(options: &CheckOptions) -> Result<Attachments, Error> {
    if !options.networks.is_empty() {
        return Ok(Attachments { held: 0, records: Vec::new() });
    }
    let CheckOptions { records_dir, data_dir, results_dir, .. } = options;
    let findings = state::audit(records_dir, data_dir, results_dir, options.repair())
        .map_err(|error| Error::CannotTell(format!("{}: {error}", records_dir.display())))?;
    let (held, records) = split(findings, |file, record| Kept { file, record });
    Ok(Attachments { held, records })
}

/// How many are held, and the others.
fn split<T>(findings: Vec<Finding>, record: impl Fn(String, Record) -> T) -> (usize, Vec<T>) {
    let (held, rest): (Vec<_>, Vec<_>) =
        findings.into_iter().partition(|finding| finding.classification.kind == Kind::Held);
    let rest = rest.into_iter().map(|mut finding| {
        let name = std::mem::take(&mut finding.name);
        record(name, Record::from(finding))
    });
    (held.len(), rest.collect())
}

impl CheckOptions {
    const fn repair(&self) -> Repair {
        if self.repair { Repair::Free } else { Repair::Nothing }
    }
}

fn names(options: &CheckOptions) -> Result<Vec<String>, Error> {
    let known = host_local::networks(&options.data_dir).map_err(|cause| {
        Error::CannotTell(format!("the stores in {}: {cause}", options.data_dir.display()))
    })?;
    if options.networks.is_empty() {
        return Ok(known);
    }
    match options.networks.iter().find(|name| !known.contains(name)) {
        None => Ok(options.networks.clone()),
        Some(name) => {
            let data_dir = options.data_dir.display();
            Err(Error::CannotTell(format!("no network {name} has a store in {data_dir}")))
        }
    }
}

fn check(name: &str, options: &CheckOptions) -> Result<Network, Error> {
    let location = Location {
        data_dir: options.data_dir.clone(),
        results: options.results_dir.clone(),
        ..Location::of(name).map_err(|error| Error::Usage(error.to_string()))?
    };
    let findings = host_local::audit(&location, options.repair())
        .map_err(|error| Error::CannotTell(format!("network {name}: {error}")))?;
    let (held, records) = split(findings, |address, record| Reservation { address, record });
    Ok(Network { name: name.to_owned(), held, records })
}

impl From<Finding> for Record {
    fn from(finding: Finding) -> Self {
        let found = match finding.classification.kind {
            Kind::Held => "held",
            Kind::Leaked => "leaked",
            Kind::Double => "double",
            Kind::HalfWritten => "half-written",
            Kind::Foreign => "foreign",
        };
        Self {
            owner: finding.owner,
            found,
            reason: finding.classification.reason,
            proven_dead: finding.classification.proven_dead,
            freed: finding.freed,
        }
    }
}

impl Record {
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
    fn verdict(&self) -> Verdict {
        let reserved = self.networks.iter().flat_map(Network::records);
        let mut records = reserved.chain(self.attachments.records());
        if records.any(Record::can_be_freed) { Verdict::Amiss } else { Verdict::Well }
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["NETWORK", "ADDRESS", "FOUND", "OUTCOME"]);
        for network in &self.networks {
            for Reservation { address, record } in &network.records {
                let cells = [&network.name, address.as_str(), record.found, record.outcome()];
                table.row(&cells.map(str::to_owned), Some(record.note()));
            }
        }
        if self.networks.iter().any(|network| !network.records.is_empty()) {
            write!(f, "{table}")?;
        }
        write!(f, "{}", self.attachments)?;
        for network in &self.networks {
            let summary = summary(&network.name, network.held, network.records());
            writeln!(f, "{}", wrap(&summary, 2))?;
        }
        if self.networks.is_empty() {
            writeln!(f, "no network has a store here")?;
        }
        if self.attachments.held + self.attachments.records.len() > 0 {
            let Attachments { held, .. } = self.attachments;
            let summary = summary("records of attachments", held, self.attachments.records());
            writeln!(f, "{}", wrap(&summary, 2))?;
        }
        self.blind.iter().try_for_each(|blind| writeln!(f, "{}", wrap(blind, 2)))
    }
}

impl Network {
    fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().map(|reservation| &reservation.record)
    }
}

impl Attachments {
    fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().map(|kept| &kept.record)
    }
}

impl fmt::Display for Attachments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.records.is_empty() {
            return Ok(());
        }
        let mut table = Table::new(&["RECORD", "FOUND", "OUTCOME"]);
        for Kept { file, record } in &self.records {
            let cells = [file.as_str(), record.found, record.outcome()];
            table.row(&cells.map(str::to_owned), Some(record.note()));
        }
        write!(f, "{table}")
    }
}

fn summary<'a>(name: &str, held: usize, records: impl Iterator<Item = &'a Record>) -> String {
    let records: Vec<_> = records.collect();
    let freed = records.iter().filter(|record| record.freed).count();
    let dead = records.iter().filter(|record| record.can_be_freed()).count();
    let rest = records.len() - freed - dead;
    format!("{name}: {held} held, {dead} dead, {freed} freed, {rest} unclear or foreign")
}
