//! What the runtime has added and not deleted yet: the cache of libcni, which all runtimes use.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::path::Path;

use serde_json::Value;

use crate::disk;
use crate::disk::plain_file::{self, Symlink};
use crate::protocol::json::{self, Object};
use crate::protocol::request::Attachment;

/// Where it lies, for all runtimes.
pub const RESULTS: &str = "/var/lib/cni/results";

#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Cached {
    pub(crate) network: String,
    pub(crate) attachment: Attachment,
    pub(crate) addresses: Vec<IpAddr>,
    /// The links that were made on the host, its bridge among them.
    pub(crate) links: Vec<String>,
    /// `<namespace>/<name>`, where there are such things.
    pub(crate) pod: Option<String>,
    /// `<network>-<container>-<interface>`, from which old and damaged files are known.
    file: String,
}

impl Cached {
    /// All texts that may be its container ID: for old and damaged files, all runs of words in the name.
    fn containers(&self) -> Vec<String> {
        let known = &self.attachment.container_id;
        if known.is_empty() { runs(&self.file) } else { vec![known.clone()] }
    }
}

/// `a`, `a-b`, `b` of `a-b`.
fn runs(name: &str) -> Vec<String> {
    let words: Vec<_> = name.split('-').collect();
    let of = |length| words.windows(length).map(|run| run.join("-"));
    (1..=words.len()).flat_map(of).collect()
}

/// All of it, to be asked often.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cache {
    by_attachment: HashMap<Attachment, Cached>,
    containers: HashSet<String>,
}

impl Cache {
    pub(crate) fn of(cached: Vec<Cached>) -> Self {
        let containers = cached.iter().flat_map(Cached::containers).collect();
        let keyed = cached.into_iter().map(|one| (one.attachment.clone(), one));
        Self { by_attachment: keyed.collect(), containers }
    }

    /// What the runtime knows of this interface.
    pub(crate) fn get(&self, attachment: &Attachment) -> Option<&Cached> {
        self.by_attachment.get(attachment)
    }

    pub(crate) fn knows_container(&self, container: &str) -> bool {
        self.containers.contains(container)
    }
}

/// No result is longer, in bytes.
const LONGEST: u64 = 1 << 22;

/// Nothing if there is no such directory: then no runtime has added anything.
pub(crate) fn read(results: &Path) -> io::Result<Vec<Cached>> {
    let mut cached = Vec::new();
    for name in disk::names(results)? {
        let content = match plain_file::read(&results.join(&name), LONGEST, Symlink::Refused) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Vec::new(),
            content => content?,
        };
        cached.push(parse(&name, &content));
    }
    Ok(cached)
}

/// What cannot be read still counts by the name of its file.
fn parse(file: &str, content: &[u8]) -> Cached {
    let entry: Object = serde_json::from_slice(content).unwrap_or_default();
    let text = |key| json::lenient_text(&entry, key).unwrap_or_default().to_owned();
    let result = json::object(&entry, "result").ok().flatten();
    Cached {
        network: text("networkName"),
        attachment: Attachment { container_id: text("containerId"), interface: text("ifName") },
        addresses: result.map(addresses).unwrap_or_default(),
        links: result.map(host_links).unwrap_or_default(),
        pod: pod(&entry),
        file: file.to_owned(),
    }
}

/// Of a result of any version.
fn addresses(result: &Object) -> Vec<IpAddr> {
    let ips = json::list(result, "ips").ok().flatten().into_iter().flatten();
    let ips = ips.filter_map(Value::as_object).map(|ip| json::lenient_text(ip, "address"));
    let old = ["ip4", "ip6"].into_iter().filter_map(|family| json::object(result, family).ok()?);
    let texts = ips.chain(old.map(|ip| json::lenient_text(ip, "ip")));
    texts.filter_map(|text| json::address(text?.split('/').next()?)).collect()
}

/// The interfaces of a result that are in no sandbox.
fn host_links(result: &Object) -> Vec<String> {
    let interfaces = json::objects(result, "interfaces").unwrap_or_default().into_iter();
    let text = |interface, key| json::lenient_text(interface, key).unwrap_or_default();
    let on_host = interfaces.filter(|interface| text(interface, "sandbox").is_empty());
    on_host.map(|interface| text(interface, "name").to_owned()).collect()
}

/// By the arguments with which kubelet's runtimes call every plugin.
fn pod(entry: &Object) -> Option<String> {
    let arguments = json::list(entry, "cniArgs").ok().flatten()?;
    let argument = |name: &str| {
        let mut pairs = arguments.iter().filter_map(Value::as_array);
        let pair = pairs.find(|pair| pair.first().and_then(Value::as_str) == Some(name))?;
        pair.get(1)?.as_str()
    };
    Some(format!("{}/{}", argument("K8S_POD_NAMESPACE")?, argument("K8S_POD_NAME")?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    impl Cached {
        pub(crate) fn of(network: &str, attachment: Attachment, addresses: &[IpAddr]) -> Self {
            let Attachment { container_id, interface } = &attachment;
            let file = format!("{network}-{container_id}-{interface}");
            let (network, addresses) = (network.to_owned(), addresses.to_vec());
            Self { network, attachment, addresses, links: Vec::new(), pod: None, file }
        }
    }

    impl Cache {
        pub(crate) fn is_empty(&self) -> bool {
            self.by_attachment.is_empty()
        }
    }

    const NEW: &str = r#"{"kind": "cniCacheV1", "containerId": "abc", "config": "e30=",
        "ifName": "eth0", "networkName": "cbr0", "netns": "/run/netns/x", "result": {
        "cniVersion": "0.3.1", "interfaces": [{"name": "cni0"}, {"name": "veth1"},
        {"name": "eth0", "sandbox": "/run/netns/x"}], "ips": [{"version": "4", "address": "10.244.7.2/24"},
        {"version": "6", "address": "fd00::2/64"}], "dns": {}}, "cniArgs": [
        ["IgnoreUnknown", "1"], ["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "web-0"]]}"#;
    const OLD: &str = r#"{"containerId": "abc", "ifName": "eth0", "networkName": "cbr0",
        "result": {"ip4": {"ip": "10.244.7.2/24"}, "ip6": {"ip": "fd00::2/64"}}}"#;

    #[test]
    fn results_of_all_versions_are_read() {
        for content in [NEW, OLD] {
            let cached = parse("cbr0-abc-eth0", content.as_bytes());
            assert_eq!(
                (cached.network.as_str(), cached.attachment.interface.as_str()),
                ("cbr0", "eth0")
            );
            let expected = ["10.244.7.2", "fd00::2"].map(|text| text.parse::<IpAddr>().unwrap());
            assert_eq!(cached.addresses, expected);
            let cache = Cache::of(vec![cached]);
            assert!(cache.knows_container("abc") && !cache.knows_container("abd"));
            assert!(!cache.knows_container("cbr0"));
        }
    }

    #[test]
    fn pods_and_their_links_are_read_from_the_runtime() {
        let cached = parse("cbr0-abc-eth0", NEW.as_bytes());
        assert_eq!(cached.links, ["cni0", "veth1"]);
        assert_eq!(cached.pod.as_deref(), Some("shop/web-0"));
        let cached = parse("cbr0-abc-eth0", OLD.as_bytes());
        assert_eq!((cached.links.len(), cached.pod), (0, None));
    }

    #[test]
    fn a_damaged_file_still_names_the_container() {
        for content in [&b""[..], b"{", b"[]", b"{\"containerId\": 7}"] {
            let cache = Cache::of(vec![parse("cbr0-abc-eth0", content)]);
            assert!(cache.knows_container("abc") && !cache.knows_container("ab"));
            let dashes = Cache::of(vec![parse("my-net-a-b-c-eth0", content)]);
            assert!(dashes.knows_container("a-b-c"));
        }
    }

    #[test]
    fn anything_but_a_file_counts_by_its_name_without_blocking() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("cbr0-abc-eth0")).unwrap();
        let pipe = home.path().join("cbr0-abd-eth0");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let cache = Cache::of(read(home.path()).unwrap());
        assert!(cache.knows_container("abc") && cache.knows_container("abd"));
    }

    #[test]
    fn an_absent_cache_is_empty() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(read(&home.path().join("results")).unwrap(), []);
        fs::write(home.path().join("cbr0-abc-eth0"), NEW).unwrap();
        assert_eq!(read(home.path()).unwrap().len(), 1);
    }
}
