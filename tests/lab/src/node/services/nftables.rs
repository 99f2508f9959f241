//! Rules for services in nftables: plain ones, and those of kube-proxy's nftables mode.

use anyhow::Result;

use super::{Rules, Service, service_range};
use crate::network::address::Family;
use crate::node::Node;

pub(super) fn write(node: &Node, rules: &str) -> Result<()> {
    let file = node.rules_file(rules)?.display().to_string();
    node.namespace().run("nft", &["-f", &file]).map(drop)
}

impl Rules<'_> {
    /// Translates only destinations.
    pub(super) fn plain(&self) -> String {
        let ip = self.ip();
        let of_service = |service: &&Service| {
            let Service { address, node_port, pod, .. } = service;
            let to_service = format!("{ip} daddr {} tcp dport {}", address.ip(), address.port());
            let to_node = format!("fib daddr type local tcp dport {node_port}");
            [to_service, to_node].map(|selector| format!("{selector} dnat to {pod}"))
        };
        let translations: Vec<_> = self.services.iter().flat_map(of_service).collect();
        let of_hook = |hook: &str| {
            let chain = format!("chain {ip} services {hook}");
            let rule = |words: &String| format!("rule {ip} services {hook} {words}");
            let base = format!("{chain} {{ type nat hook {hook} priority -100 ; }}");
            std::iter::once(base).chain(translations.iter().map(rule)).collect::<Vec<_>>()
        };
        table(ip, "services", ["prerouting", "output"].into_iter().flat_map(of_hook))
    }

    /// The rules of kube-proxy 1.34, one chain per service, per external access and per endpoint.
    pub(super) fn kube_nftables(&self) -> String {
        let ip = self.ip();
        let range = service_range(self.family);
        let base =
            BASE.replace("IP_ADDRESS", self.kind()).replace("IP", ip).replace("RANGE", range);
        let base = base.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned);
        let services = self.services.iter().flat_map(|service| self.of_service(service));
        table(ip, "kube-proxy", base.chain(services))
    }

    fn of_service(&self, service: &Service) -> Vec<String> {
        let (ip, network) = (self.ip(), &self.network);
        let Service { name, address, node_port, pod } = service;
        let (address, port) = (address.ip(), address.port());
        let full = format!("default/{name}/tcp/http");
        let colons = pod.ip().to_string().replace(':', ".");
        let internal = format!("service-{name}-{full}");
        let external = format!("external-{name}-{full}");
        let endpoint = format!("endpoint-{name}-{full}__{colons}/{}", pod.port());
        let chain = |name: &str| format!("chain {ip} kube-proxy {name}");
        let rule = |chain: &str, words: &str| format!("rule {ip} kube-proxy {chain} {words}");
        let element =
            |set: &str, words: &str| format!("element {ip} kube-proxy {set} {{ {words} }}");
        let outside =
            format!("{ip} daddr {address} {ip} saddr != {network} jump mark-for-masquerade");
        vec![
            chain(&endpoint),
            chain(&internal),
            chain(&external),
            rule(&endpoint, &format!("{ip} saddr {} jump mark-for-masquerade", pod.ip())),
            rule(&endpoint, &format!("meta l4proto tcp dnat to {pod}")),
            rule(&internal, &outside),
            rule(&internal, &format!("numgen random mod 1 vmap {{ 0 : goto {endpoint} }}")),
            rule(&external, "jump mark-for-masquerade"),
            rule(&external, &format!("goto {internal}")),
            element("cluster-ips", &address.to_string()),
            element("service-ips", &format!("{address} . tcp . {port} : goto {internal}")),
            element("service-nodeports", &format!("tcp . {node_port} : goto {external}")),
        ]
    }

    fn ip(&self) -> &'static str {
        match self.family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    fn kind(&self) -> &'static str {
        match self.family {
            Family::V4 => "ipv4_addr",
            Family::V6 => "ipv6_addr",
        }
    }
}

/// Replaces the rules of the table.
fn table(ip: &str, name: &str, lines: impl Iterator<Item = String>) -> String {
    let lines: String = lines.map(|line| "add ".to_owned() + &line + "\n").collect();
    format!("add table {ip} {name}\nflush table {ip} {name}\n{lines}")
}

/// kube-proxy's rules without any service. It would list the node's addresses in `nodeport-ips`.
const BASE: &str = r"
    set IP kube-proxy cluster-ips { type IP_ADDRESS ; }
    map IP kube-proxy no-endpoint-nodeports { type inet_proto . inet_service : verdict ; }
    map IP kube-proxy no-endpoint-services { type IP_ADDRESS . inet_proto . inet_service : verdict ; }
    map IP kube-proxy firewall-ips { type IP_ADDRESS . inet_proto . inet_service : verdict ; }
    map IP kube-proxy service-ips { type IP_ADDRESS . inet_proto . inet_service : verdict ; }
    map IP kube-proxy service-nodeports { type inet_proto . inet_service : verdict ; }

    chain IP kube-proxy cluster-ips-check
    chain IP kube-proxy filter-prerouting-pre-dnat { type filter hook prerouting priority -110 ; }
    chain IP kube-proxy filter-output-pre-dnat { type filter hook output priority -110 ; }
    chain IP kube-proxy filter-forward { type filter hook forward priority 0 ; }
    chain IP kube-proxy filter-input { type filter hook input priority 0 ; }
    chain IP kube-proxy filter-output { type filter hook output priority 0 ; }
    chain IP kube-proxy firewall-check
    chain IP kube-proxy mark-for-masquerade
    chain IP kube-proxy masquerading
    chain IP kube-proxy nat-output { type nat hook output priority -100 ; }
    chain IP kube-proxy nat-postrouting { type nat hook postrouting priority 100 ; }
    chain IP kube-proxy nat-prerouting { type nat hook prerouting priority -100 ; }
    chain IP kube-proxy nodeport-endpoints-check
    chain IP kube-proxy services
    chain IP kube-proxy service-endpoints-check

    rule IP kube-proxy cluster-ips-check IP daddr @cluster-ips reject
    rule IP kube-proxy cluster-ips-check IP daddr { RANGE } drop
    rule IP kube-proxy filter-prerouting-pre-dnat ct state new jump firewall-check
    rule IP kube-proxy filter-forward ct state new jump service-endpoints-check
    rule IP kube-proxy filter-forward ct state new jump cluster-ips-check
    rule IP kube-proxy filter-input ct state new jump nodeport-endpoints-check
    rule IP kube-proxy filter-input ct state new jump service-endpoints-check
    rule IP kube-proxy filter-output ct state new jump service-endpoints-check
    rule IP kube-proxy filter-output-pre-dnat ct state new jump firewall-check
    rule IP kube-proxy filter-output ct state new jump cluster-ips-check
    rule IP kube-proxy firewall-check IP daddr . meta l4proto . th dport vmap @firewall-ips
    rule IP kube-proxy mark-for-masquerade mark set mark or 0x4000
    rule IP kube-proxy masquerading mark and 0x4000 == 0 return
    rule IP kube-proxy masquerading mark set mark xor 0x4000
    rule IP kube-proxy masquerading masquerade fully-random
    rule IP kube-proxy nat-output jump services
    rule IP kube-proxy nat-postrouting jump masquerading
    rule IP kube-proxy nat-prerouting jump services
    rule IP kube-proxy nodeport-endpoints-check fib daddr type local meta l4proto . th dport vmap @no-endpoint-nodeports
    rule IP kube-proxy services IP daddr . meta l4proto . th dport vmap @service-ips
    rule IP kube-proxy services fib daddr type local meta l4proto . th dport vmap @service-nodeports
    rule IP kube-proxy service-endpoints-check IP daddr . meta l4proto . th dport vmap @no-endpoint-services
";
