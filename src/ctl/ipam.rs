//! `tweedctl ipam check`: which addresses of this node's containers are held, and which are only lost.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use tweed_cni::host_local::{self, Cure, Finding, Kind, Location};

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
    /// Only this network; may be said several times
    #[arg(long = "network", value_name = "NAME")]
    networks: Vec<String>,
    /// Where the reservations are
    #[arg(long, value_name = "PATH", default_value = "/var/lib/cni/networks")]
    data_dir: PathBuf,
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
the runtime has another address for the same interface, for as long.";

/// Every store that was asked for.
#[derive(Serialize)]
pub(super) struct Checked {
    networks: Vec<Network>,
    /// Who else may use an address, unseen from here.
    #[serde(skip_serializing_if = "Option::is_none")]
    blind: Option<&'static str>,
}

#[derive(Serialize)]
struct Network {
    name: String,
    held: usize,
    records: Vec<Record>,
}

/// A record that nobody seems to hold.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    address: String,
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
    Ok(Checked { networks, blind })
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
    let cure = if options.repair { Cure::Free } else { Cure::Nothing };
    let findings = host_local::audit(&location, cure)
        .map_err(|error| Error::CannotTell(format!("network {name}: {error}")))?;
    let (held, rest): (Vec<_>, Vec<_>) =
        findings.into_iter().partition(|finding| finding.verdict.kind == Kind::Held);
    let records = rest.into_iter().map(Record::from).collect();
    Ok(Network { name: name.to_owned(), held: held.len(), records })
}

impl From<Finding> for Record {
    fn from(finding: Finding) -> Self {
        let found = match finding.verdict.kind {
            Kind::Held => "held",
            Kind::Leaked => "leaked",
            Kind::Double => "double",
            Kind::HalfWritten => "half-written",
            Kind::Foreign => "foreign",
        };
        Self {
            address: finding.name,
            owner: finding.owner,
            found,
            reason: finding.verdict.reason,
            proven_dead: finding.verdict.proven_dead,
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
        let mut records = self.networks.iter().flat_map(|network| &network.records);
        if records.any(Record::can_be_freed) { Verdict::Amiss } else { Verdict::Well }
    }
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(&["NETWORK", "ADDRESS", "FOUND", "OUTCOME"]);
        for network in &self.networks {
            for record in &network.records {
                let Record { address, found, .. } = record;
                let cells = [&network.name, address.as_str(), found, record.outcome()];
                table.row(&cells.map(str::to_owned), Some(record.note()));
            }
        }
        if self.networks.iter().any(|network| !network.records.is_empty()) {
            write!(f, "{table}")?;
        }
        for network in &self.networks {
            writeln!(f, "{}", wrap(&network.summary(), 2))?;
        }
        if self.networks.is_empty() {
            writeln!(f, "no network has a store here")?;
        }
        self.blind.iter().try_for_each(|blind| writeln!(f, "{}", wrap(blind, 2)))
    }
}

impl Network {
    fn summary(&self) -> String {
        let count = |wanted: fn(&Record) -> bool| {
            self.records.iter().filter(|record| wanted(record)).count()
        };
        let (freed, dead) = (count(|record| record.freed), count(Record::can_be_freed));
        let rest = self.records.len() - freed - dead;
        let Self { name, held, .. } = self;
        format!("{name}: {held} held, {dead} dead, {freed} freed, {rest} unclear or foreign")
    }
}
