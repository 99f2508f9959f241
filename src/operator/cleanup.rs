//! `tweedctl cleanup`: lists or removes tweed's kernel entries and files.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use serde_json::Value;
use tweed_cni::host_local;
use tweed_netlink::rtnl::link;
use tweed_netlink::{Protocol, Socket};

use super::layout::{counted, listed, wrap, wrap_entry};
use super::node::{self, Files, NoInputs, PlanInputs, Unanswered};
use super::store::Etcd;
use super::{Answer, Error, ExitStatus, leases};
use crate::kernel::Kernel;
use crate::kernel::host::{self, Places, is_cni_config};
use crate::model::config::Pool;
use crate::model::entry::{ChainName, KernelState, LinkName, POD_BRIDGE};
use crate::model::lease::Lease;
use crate::model::prefix::{Family, Prefix};
use crate::model::status::Readiness;
use crate::plan::backend;
use crate::plan::diff::{Op, bridge_removals, cleanup_ops};
use crate::plan::preflight::cni::CniConfig;
use crate::plan::preflight::{self, Finding};
use crate::plan::scope::{Extent, Scope};

#[derive(Debug, Args)]
pub(super) struct CleanupOptions {
    /// Remove the entries and files [default: only list them]
    #[arg(long)]
    yes: bool,
    /// Remove them even if a daemon runs, or containers are connected
    #[arg(long)]
    force: bool,
    /// Also delete the lease of this node in etcd
    #[arg(long)]
    lease: bool,
    /// Network of the pods, if neither daemon nor checkpoint has it
    #[arg(long = "network", value_name = "PREFIX")]
    networks: Vec<Prefix>,
    /// VNI of the tunnel, with --network
    #[arg(long, value_name = "N", default_value_t = 1, requires = "networks")]
    vni: u32,
    #[command(flatten)]
    cni: CniFlags,
    #[command(flatten)]
    etcd: Etcd,
}

/// What the CNI plugin of tweed has on this host, and where.
#[derive(Debug, Args)]
struct CniFlags {
    /// Also flannel's CNI config, its bridge, and its records of containers
    #[arg(long)]
    cni: bool,
    /// Directory of the CNI configs, with --cni
    #[arg(long, value_name = "PATH", default_value = "/etc/cni/net.d")]
    cni_conf_dir: PathBuf,
    /// Directory of the addresses of containers, with --cni
    #[arg(long, value_name = "PATH", default_value = "/var/lib/cni/networks")]
    data_dir: PathBuf,
    /// Directory of the CNI plugin's records, with --cni
    #[arg(long, value_name = "PATH", default_value = "/var/lib/cni/flannel")]
    records_dir: PathBuf,
}

/// The entries and files that a command removes or changes, and the outcome.
#[derive(Serialize)]
pub(super) struct RemovalReport {
    /// Where the scope was read.
    source: String,
    pub(super) entries: Vec<String>,
    pub(super) files: Vec<PathBuf>,
    pub(super) outcome: RemovalOutcome,
    /// What became of the lease of this node, if it was given back.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum RemovalOutcome {
    Listed,
    Removed,
    /// What was not removed, with the reason. Files stay as long as an entry stays.
    Refused(Vec<String>),
}

/// What tweed owns on this node, and what of it remains.
#[derive(Default)]
pub(super) struct Owned {
    pub(super) source: String,
    pub(super) scope: Scope,
    pub(super) remaining: KernelState,
    pub(super) lease: Option<Lease>,
}

/// What the CNI plugin of tweed has on this host.
#[derive(Default)]
struct CniParts {
    /// Configs, and the folders of its stores.
    files: Vec<PathBuf>,
    bridges: BTreeSet<LinkName>,
    /// The number of addresses that containers have.
    addresses: usize,
    /// The number of containers that the CNI plugin has records of.
    records: usize,
    has_config: bool,
}

pub(super) async fn answer(
    files: &Files,
    options: &CleanupOptions,
    mut kernel: impl Kernel,
) -> Result<RemovalReport, Error> {
    if options.yes && !options.force {
        refuse_next_to_daemon(&files.socket(), "stop it first, or use --force").await?;
        refuse_next_to_flanneld()?;
    }
    // Nothing is left, as after an earlier removal: no reason to fail.
    let otherwise = present_files(files).is_empty().then(Owned::nothing);
    let owned = Owned::find(files, &options.networks, options.vni, otherwise).await?;
    let cni = if options.cni.cni { CniParts::read(&options.cni)? } else { CniParts::default() };
    if options.yes && !options.force {
        cni.refuse_if_used(&options.cni)?;
    }
    // Otherwise there is none, or an earlier removal has given it back.
    if options.lease && owned.lease.is_none() && !options.networks.is_empty() {
        let why = "the lease of this node is unknown: run the command without --lease, and release it \
                   with tweedctl leases release";
        return Err(Error::Refused(why.to_owned()));
    }
    let actual = node::dump(&mut kernel, &owned.scope).await?;
    let mut ops = cleanup_ops(&owned.remaining, &actual, &owned.scope);
    let of_bridges = Scope { tunnels: cni.bridges, ..Scope::default() };
    ops.extend(bridge_removals(&node::dump(&mut kernel, &of_bridges).await?));
    let files = [present_files(files), cni.files].concat();
    let mut removal = RemovalReport::new(owned.source, &ops, files);
    if options.yes {
        // First, because the checkpoint names it.
        if let Some(own) = owned.lease.filter(|_| options.lease) {
            removal.lease = Some(leases::give_back(options.etcd.options()?, &own).await?);
        }
        removal.outcome = remove(&mut kernel, ops, &removal.files).await?;
    }
    Ok(removal)
}

impl CniParts {
    fn read(flags: &CniFlags) -> Result<Self, Error> {
        let unreadable = |path: &Path, error: io::Error| {
            Error::Unavailable(format!("{} cannot be read: {error}", path.display()))
        };
        let (mut parts, mut of_others) = (Self::default(), BTreeSet::new());
        let configs = &flags.cni_conf_dir;
        let listed = listed_in(configs).map_err(|error| unreadable(configs, error))?;
        for path in listed.into_iter().filter(|path| is_cni_config(path)) {
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(unreadable(&path, error)),
            };
            let config: Value = serde_json::from_str(&text).unwrap_or_default();
            if CniConfig::parse(path.display().to_string(), &text).is_own() {
                parts.add(path, &config, &flags.data_dir)?;
            } else {
                of_others.extend(bridges(&config, "bridge", "/bridge"));
            }
        }
        parts.bridges.retain(|bridge| !of_others.contains(bridge));
        let records = &flags.records_dir;
        parts.records = listed_in(records).map_err(|error| unreadable(records, error))?.len();
        parts.files.extend(existing([records.clone()]));
        Ok(parts)
    }

    /// # Errors
    /// Containers have addresses, also those of another IPAM plugin, whose interfaces show it; or it is
    /// unknown, because the config is elsewhere.
    fn refuse_if_used(&self, flags: &CniFlags) -> Result<(), Error> {
        let refused = |used: String| {
            Err(Error::Refused(format!("{used}: remove their pods first, or use --force")))
        };
        let (configs, data_dir) = (flags.cni_conf_dir.display(), &flags.data_dir);
        if !self.has_config && self.records > 0 {
            let count = counted(self.records, "record");
            return Err(Error::Refused(format!(
                "{} has {count} of containers, but {configs} has no config of flannel: name its \
                 folder with --cni-conf-dir, or use --force",
                flags.records_dir.display()
            )));
        }
        if self.addresses > 0 {
            let count = counted(self.addresses, "address");
            return refused(format!("containers have {count} below {}", data_dir.display()));
        }
        for bridge in &self.bridges {
            let ports = ports(bridge).map_err(|error| {
                Error::Unavailable(format!("the interfaces on {bridge} cannot be listed: {error}"))
            })?;
            if ports > 0 {
                return refused(format!(
                    "containers have {} on {bridge}",
                    counted(ports, "interface")
                ));
            }
        }
        Ok(())
    }

    /// Adds a config, the addresses of its network, and its bridge.
    fn add(&mut self, path: PathBuf, config: &Value, data_dir: &Path) -> Result<(), Error> {
        // Runtimes reject other names: `..` must not become a folder to remove.
        let is_name = |name: &&str| {
            name.starts_with(|it: char| it.is_ascii_alphanumeric()) && !name.contains('/')
        };
        let name = config.get("name").and_then(Value::as_str).filter(is_name);
        let addresses = name.map(|name| data_dir.join(name));
        if let Some(addresses) = addresses.filter(|it| it.is_dir()) {
            let reserved = host_local::addresses_in(&addresses);
            let reserved = reserved.map_err(|error| Error::Unavailable(error.to_string()))?;
            self.addresses += reserved.len();
            self.files.push(addresses);
        }
        self.bridges.extend(bridges(config, "flannel", "/delegate/bridge"));
        self.has_config = true;
        self.files.push(path);
        Ok(())
    }
}

/// The number of interfaces that are attached to a bridge.
fn ports(bridge: &LinkName) -> io::Result<usize> {
    let mut socket = Socket::open(Protocol::Route)?;
    let Some(bridge) = link::find(&mut socket, bridge.as_str())? else { return Ok(0) };
    Ok(socket.list(&link::list_ports(bridge.index), link::read)?.len())
}

/// The bridges of all plugins of this kind, which name theirs at `pointer`.
fn bridges<'a>(
    config: &'a Value,
    kind: &'a str,
    pointer: &'a str,
) -> impl Iterator<Item = LinkName> + 'a {
    let plugins = config.get("plugins").and_then(Value::as_array).into_iter().flatten();
    let of_kind =
        plugins.chain([config]).filter(move |it| it.get("type").is_some_and(|it| it == kind));
    of_kind.map(move |plugin| {
        let named = plugin.pointer(pointer).and_then(Value::as_str);
        LinkName::new(named.unwrap_or(POD_BRIDGE))
    })
}

/// The entries of a folder, in the order of their names; none if there is no such folder.
fn listed_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
    paths.sort();
    Ok(paths)
}

/// A running daemon would restore all entries.
pub(super) async fn refuse_next_to_daemon(socket: &Path, advice: &str) -> Result<(), Error> {
    match node::ask::<Readiness>(socket, "/readyz").await {
        Err(Unanswered::Absent(_)) => Ok(()),
        Ok(_) | Err(Unanswered::Forbidden(_) | Unanswered::Silent { .. }) => Err(Error::Refused(
            format!("the daemon on {} would restore all entries: {advice}", socket.display()),
        )),
    }
}

/// What a flanneld has programmed since would be removed with the rest.
fn refuse_next_to_flanneld() -> Result<(), Error> {
    let Some(Finding { what, .. }) = preflight::refusal(&host::other_daemons(&Places::default()))
    else {
        return Ok(());
    };
    Err(Error::Refused(format!(
        "{what}, and would lose them: run tweedctl handover, which keeps what flanneld uses, or use \
         --force"
    )))
}

impl Owned {
    /// From the daemon or its checkpoint, else from the flags; `otherwise` if there is none of these.
    pub(super) async fn find(
        files: &Files,
        networks: &[Prefix],
        vni: u32,
        otherwise: Option<Self>,
    ) -> Result<Self, Error> {
        let (otherwise, unknown) = match node::read_inputs(files).await {
            Ok(known) => return Self::known(&known).unless_other(networks),
            Err(_) if !networks.is_empty() => return Ok(Self::named(networks, vni)),
            Err(unknown @ NoInputs::Nowhere { .. }) => (otherwise, unknown),
            Err(unknown @ NoInputs::Unusable { .. }) => (None, unknown),
        };
        let advice = "name its files with --subnet-file or --state-file, or the network with \
                      --network and --vni";
        otherwise.ok_or_else(|| Error::Unavailable(format!("{unknown}: {advice}")))
    }

    fn known(known: &PlanInputs) -> Self {
        let local = &known.checkpoint.local;
        Self {
            source: format!("read from {}", known.source),
            scope: Scope { extent: Extent::Everything, ..known.scope() },
            remaining: backend::restored(&local.strict),
            lease: local.own.clone(),
        }
    }

    /// # Errors
    /// One of `networks` is not ours: with it, our entries would stay, and what knows them would not.
    fn unless_other(self, networks: &[Prefix]) -> Result<Self, Error> {
        let Some(other) = networks.iter().find(|it| !self.scope.networks.contains(it)) else {
            return Ok(self);
        };
        let (known, source) = (listed(&self.scope.networks, ""), self.source);
        Err(Error::Refused(format!(
            "the network is {known}, {source}, and not {other}: run the command without --network"
        )))
    }

    pub(super) fn named(networks: &[Prefix], vni: u32) -> Self {
        let tunnels: BTreeSet<LinkName> =
            Family::ALL.map(|family| LinkName::tunnel(family, vni)).into();
        let tables = backend::table_names(vni).collect();
        let chains = ChainName::all().collect();
        let source = format!("from --network {} and --vni {vni}", listed(networks, ""));
        // The own subnet is unknown, so the usual subnet length is assumed.
        let subnet =
            |network: &Prefix| Prefix::holding(network.base(), Pool::usual_len(network.family()));
        let subnets = networks.iter().filter_map(subnet).collect();
        let (networks, extent) = (networks.to_vec(), Extent::Everything);
        let scope =
            Scope { tunnels, tables, chains, extent, networks, subnets, ..Scope::default() };
        Self { source, scope, ..Self::default() }
    }

    fn nothing() -> Self {
        let source = "no daemon, checkpoint or subnet file found; if routes are left, name the \
                      network with --network and --vni"
            .to_owned();
        Self { source, ..Self::default() }
    }
}

/// The daemon's files that exist.
fn present_files(files: &Files) -> Vec<PathBuf> {
    existing([files.subnet_file.clone(), files.socket()].into_iter().chain(files.state_files()))
}

pub(super) fn existing(files: impl IntoIterator<Item = PathBuf>) -> Vec<PathBuf> {
    files.into_iter().filter(|path| path.symlink_metadata().is_ok()).collect()
}

/// Entries first, then files: without the checkpoint, the entries of tweed are unknown.
pub(super) async fn remove(
    kernel: &mut impl Kernel,
    ops: Vec<Op>,
    files: &[PathBuf],
) -> Result<RemovalOutcome, Error> {
    let broken = |error| Error::Unavailable(format!("removing kernel entries failed: {error}"));
    let refused = kernel.apply(&ops).await.map_err(broken)?;
    let mut refused: Vec<String> = refused.iter().map(ToString::to_string).collect();
    if refused.is_empty() {
        refused.extend(files.iter().filter_map(remove_file));
    }
    Ok(if refused.is_empty() { RemovalOutcome::Removed } else { RemovalOutcome::Refused(refused) })
}

/// Why the file is not removed, if it still exists.
fn remove_file(path: &PathBuf) -> Option<String> {
    let is_folder = path.symlink_metadata().is_ok_and(|it| it.is_dir());
    let removed = if is_folder { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    let error = removed.err().filter(|it| it.kind() != io::ErrorKind::NotFound)?;
    Some(format!("- file {}: {error}", path.display()))
}

impl Answer for RemovalReport {
    fn exit_status(&self) -> ExitStatus {
        let is_refused = matches!(self.outcome, RemovalOutcome::Refused(_));
        if is_refused { ExitStatus::Problems } else { ExitStatus::Done }
    }
}

impl fmt::Display for RemovalReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, &self.summary(), self.lease.as_deref())
    }
}

impl RemovalReport {
    pub(super) fn new(source: String, ops: &[Op], files: Vec<PathBuf>) -> Self {
        let entries = ops.iter().map(ToString::to_string).collect();
        Self { source, entries, files, outcome: RemovalOutcome::Listed, lease: None }
    }

    /// Kernel entries, files, `summary`, the source, `report`, and the refused operations.
    pub(super) fn write(
        &self,
        f: &mut fmt::Formatter<'_>,
        summary: &str,
        report: Option<&str>,
    ) -> fmt::Result {
        for entry in &self.entries {
            writeln!(f, "{}", wrap_entry(entry, 4))?;
        }
        for path in &self.files {
            writeln!(f, "- file {}", path.display())?;
        }
        for sentence in [summary, &self.source].into_iter().chain(report) {
            writeln!(f, "{}", wrap(sentence, 2))?;
        }
        if let RemovalOutcome::Refused(refused) = &self.outcome {
            for refusal in refused {
                writeln!(f, "{}", wrap(&format!("refused: {refusal}"), 4))?;
            }
        }
        Ok(())
    }

    fn summary(&self) -> String {
        if self.entries.is_empty() && self.files.is_empty() {
            return "no entries or files of tweed found".to_owned();
        }
        let entries = match self.entries.len() {
            1 => "1 kernel entry".to_owned(),
            count => format!("{count} kernel entries"),
        };
        let found = format!("{entries} and {}", counted(self.files.len(), "file"));
        match &self.outcome {
            RemovalOutcome::Listed => format!("{found} of tweed; --yes removes them"),
            RemovalOutcome::Removed => format!("removed {found}"),
            RemovalOutcome::Refused(refused) => {
                let count = refused.len();
                format!("{found} of tweed, of which {count} refused: run the command again")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of a host with these CNI configs, and one address in the network of each.
    fn parts(configs: &[(&str, &str)]) -> (Vec<String>, Vec<LinkName>, usize) {
        let host = tempfile::tempdir().unwrap();
        let folder = |name: &str| host.path().join(name);
        let (cni_conf_dir, data_dir) = (folder("net.d"), folder("cni/networks"));
        fs::create_dir_all(&cni_conf_dir).unwrap();
        for (name, config) in configs {
            fs::write(cni_conf_dir.join(name), config).unwrap();
            let network = data_dir.join(name.trim_end_matches(".conflist"));
            fs::create_dir_all(&network).unwrap();
            fs::write(network.join("10.244.1.7"), "").unwrap();
            fs::write(network.join("last_reserved_ip.0"), "").unwrap();
        }
        let flags = CniFlags { cni: true, cni_conf_dir, data_dir, records_dir: folder("records") };
        let CniParts { files, bridges, addresses, .. } = CniParts::read(&flags).unwrap();
        let names = files.iter().map(|it| it.strip_prefix(host.path()).unwrap().display());
        (names.map(|it| it.to_string()).collect(), bridges.into_iter().collect(), addresses)
    }

    #[test]
    fn only_the_parts_of_flannels_networks_are_removed() {
        let own = r#"{"name":"a","plugins":[{"type":"flannel"},{"type":"portmap"}]}"#;
        let other = r#"{"name":"b","plugins":[{"type":"bridge","bridge":"br1"}]}"#;
        assert_eq!(
            parts(&[("a.conflist", own), ("b.conflist", other)]),
            (
                vec!["cni/networks/a".to_owned(), "net.d/a.conflist".to_owned()],
                vec![LinkName::new("cni0")],
                1
            )
        );
    }

    #[test]
    fn containers_whose_config_is_elsewhere_are_in_use() {
        let host = tempfile::tempdir().unwrap();
        let folder = |name: &str| host.path().join(name);
        let flags = CniFlags {
            cni: true,
            cni_conf_dir: folder("net.d"),
            data_dir: folder("networks"),
            records_dir: folder("records"),
        };
        assert!(CniParts::read(&flags).unwrap().refuse_if_used(&flags).is_ok());
        fs::create_dir_all(&flags.records_dir).unwrap();
        fs::write(folder("records/c1"), "{}").unwrap();
        let refused = CniParts::read(&flags).unwrap().refuse_if_used(&flags).unwrap_err();
        assert!(refused.to_string().contains("--cni-conf-dir"), "{refused}");
    }

    #[test]
    fn a_file_that_no_runtime_reads_stays() {
        let own = r#"{"name":"a","type":"flannel"}"#;
        assert_eq!(parts(&[("a.conflist.bak", own)]), (vec![], vec![], 0));
    }

    #[test]
    fn a_bridge_that_another_network_uses_stays() {
        let own = r#"{"name":"a","type":"flannel","delegate":{"bridge":"br1"}}"#;
        for (other, expected) in [
            (r#"{"name":"b","type":"bridge","bridge":"br1"}"#, vec![]),
            (r#"{"name":"b","type":"bridge"}"#, vec![LinkName::new("br1")]),
        ] {
            assert_eq!(parts(&[("a.conflist", own), ("b.conflist", other)]).1, expected);
        }
    }

    #[test]
    fn a_name_that_leads_elsewhere_is_no_folder_to_remove() {
        for name in ["..", ".", "../networks/a", ""] {
            let own = format!(r#"{{"name":"{name}","type":"flannel"}}"#);
            let (files, _, addresses) = parts(&[("a.conflist", &own)]);
            assert_eq!((files, addresses), (vec!["net.d/a.conflist".to_owned()], 0), "{name}");
        }
    }
}
