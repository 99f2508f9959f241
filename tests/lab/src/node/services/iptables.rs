//! The rules of kube-proxy's iptables mode.

use anyhow::{Context, Result};

use super::{Rules, Service};
use crate::network::address::Family;
use crate::node::Node;

/// kube-proxy inserts a jump to each of its chains first in the kernel's chain: table, from, to,
/// and the packets that match.
const JUMPS: [(&str, &str, &str, &str); 9] = [
    ("filter", "INPUT", "KUBE-EXTERNAL-SERVICES", "-m conntrack --ctstate NEW "),
    ("filter", "FORWARD", "KUBE-EXTERNAL-SERVICES", "-m conntrack --ctstate NEW "),
    ("filter", "INPUT", "KUBE-NODEPORTS", ""),
    ("filter", "FORWARD", "KUBE-SERVICES", "-m conntrack --ctstate NEW "),
    ("filter", "OUTPUT", "KUBE-SERVICES", "-m conntrack --ctstate NEW "),
    ("filter", "FORWARD", "KUBE-FORWARD", ""),
    ("nat", "OUTPUT", "KUBE-SERVICES", ""),
    ("nat", "PREROUTING", "KUBE-SERVICES", ""),
    ("nat", "POSTROUTING", "KUBE-POSTROUTING", ""),
];

const FILTER: &str = r#"
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
"#;

const NAT: &str = r#"
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
"#;

const NODE_PORTS: &str = r#"-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS"#;

/// With `iptables-nft` or `iptables-legacy`, or the program of the other family.
pub(super) fn write(node: &Node, variant: &str, rules: &Rules<'_>) -> Result<()> {
    let program = match rules.family {
        Family::V4 => format!("iptables-{variant}"),
        Family::V6 => format!("ip6tables-{variant}"),
    };
    let look = ["-w", "-t", "nat", "-S", "POSTROUTING"];
    let is_first = !node.namespace().run(&program, &look)?.contains("KUBE-POSTROUTING");
    let file = node.rules_file(&rules.kube_iptables())?.display().to_string();
    let restore = ["-w", "5", "--noflush", &file];
    node.namespace().run(&format!("{program}-restore"), &restore)?;
    if is_first { jump(node, &program) } else { Ok(()) }
}

fn jump(node: &Node, program: &str) -> Result<()> {
    JUMPS.iter().try_for_each(|(table, from, to, only)| {
        let words =
            format!("-w -t {table} -I {from} 1 {only}-m comment --comment kubernetes -j {to}");
        let words: Vec<&str> = words.split(' ').collect();
        node.namespace().run(program, &words).context("a jump of kube-proxy").map(drop)
    })
}

impl Rules<'_> {
    /// Input of iptables-restore: declared chains are emptied, all others stay.
    fn kube_iptables(&self) -> String {
        let lines = self.services.iter().flat_map(|service| self.of_service_by_iptables(service));
        let services: String = lines.map(|line| line + "\n").collect();
        format!("*filter{FILTER}COMMIT\n*nat{NAT}{services}{NODE_PORTS}\nCOMMIT\n")
    }

    fn of_service_by_iptables(&self, service: &Service) -> [String; 11] {
        let Service { name, address, node_port, pod } = service;
        let (ip, port, network) = (address.ip(), address.port(), &self.network);
        let hash = format!("{:Z>16}", name.to_uppercase());
        let [internal, external, endpoint] =
            ["SVC", "EXT", "SEP"].map(|kind| format!("KUBE-{kind}-{hash}"));
        let title = format!("-m comment --comment default/{name}:http");
        let to_service = format!(
            "-m comment --comment \"default/{name}:http cluster IP\" -m tcp -p tcp -d {ip} --dport {port}"
        );
        [
            format!(":{internal} - [0:0]"),
            format!(":{external} - [0:0]"),
            format!(":{endpoint} - [0:0]"),
            format!("-A KUBE-NODEPORTS {title} -m tcp -p tcp --dport {node_port} -j {external}"),
            format!("-A KUBE-SERVICES {to_service} -j {internal}"),
            format!(
                "-A {external} -m comment --comment \"masquerade traffic for default/{name}:http external destinations\" -j KUBE-MARK-MASQ"
            ),
            format!("-A {external} -j {internal}"),
            format!("-A {internal} {to_service} ! -s {network} -j KUBE-MARK-MASQ"),
            format!(
                "-A {internal} -m comment --comment \"default/{name}:http -> {pod}\" -j {endpoint}"
            ),
            format!("-A {endpoint} {title} -s {} -j KUBE-MARK-MASQ", pod.ip()),
            format!("-A {endpoint} {title} -m tcp -p tcp -j DNAT --to-destination {pod}"),
        ]
    }
}
