//! How flanneld keeps its rules: every five seconds it checks for each chain and each rule.

use anyhow::Result;
use tweed_lab::{Daemon, DaemonPlan, Node};

use crate::instruments::peer::NETWORK;

/// The subnet of its node; any subnet will do.
const SUBNET: &str = "10.128.2.0/24";
const POSTROUTING: &str = "FLANNEL-POSTRTG";
const FORWARD: &str = "FLANNEL-FWD";

/// The rules of one family, in iptables.
pub(super) struct FlannelRules {
    rules: Vec<Rule>,
}

struct Rule {
    table: &'static str,
    chain: &'static str,
    /// The chain that must exist for the check.
    own: &'static str,
    words: String,
}

impl FlannelRules {
    /// Writes the rules on `node`.
    pub(super) fn prepare(node: &Node) -> Result<Self> {
        let rules = masquerading().into_iter().chain(forwarding()).collect::<Vec<_>>();
        let chains = [("nat", POSTROUTING), ("filter", FORWARD)];
        let made = chains.map(|(table, chain)| format!("iptables -t {table} -N {chain}"));
        let written = rules.iter().map(|rule| rule.asked("-A"));
        let script = made.into_iter().chain(written).collect::<Vec<_>>().join(" && ");
        node.namespace().run("sh", &["-c", &script])?;
        Ok(Self { rules })
    }

    /// Checks the rules repeatedly.
    pub(super) fn start(&self, node: &Node) -> Result<Daemon> {
        let asked = |rule: &Rule| {
            let Rule { table, own, .. } = rule;
            format!("iptables -w -t {table} -S {own} 1 >/dev/null; {}", rule.asked("-w -C"))
        };
        let asked = self.rules.iter().map(asked).collect::<Vec<_>>().join("; ");
        let script = format!("while :; do {asked}; sleep 5; done");
        DaemonPlan::program(node, "/bin/sh").argument("-c").argument(script).start()
    }
}

impl Rule {
    fn asked(&self, verb: &str) -> String {
        format!("iptables -t {} {verb} {} {}", self.table, self.chain, self.words)
    }
}

fn masquerading() -> Vec<Rule> {
    let rule = |chain, words: String, target: &str| {
        let words = format!("{words} -m comment --comment 'flanneld masq' -j {target}");
        Rule { table: "nat", chain, own: POSTROUTING, words }
    };
    let inside = |words: String, target| rule(POSTROUTING, words, target);
    let masquerade = "MASQUERADE --random-fully";
    vec![
        rule("POSTROUTING", String::new(), POSTROUTING),
        inside("-m mark --mark 0x4000/0x4000".to_owned(), "RETURN"),
        inside(format!("-s {SUBNET} -d {NETWORK}"), "RETURN"),
        inside(format!("-s {NETWORK} -d {SUBNET}"), "RETURN"),
        inside(format!("! -s {NETWORK} -d {SUBNET}"), "RETURN"),
        inside(format!("-s {NETWORK} ! -d 224.0.0.0/4"), masquerade),
        inside(format!("! -s {NETWORK} -d {NETWORK}"), masquerade),
    ]
}

fn forwarding() -> Vec<Rule> {
    let rule = |chain, words: String, target: &str| {
        let words = format!("{words} -m comment --comment 'flanneld forward' -j {target}");
        Rule { table: "filter", chain, own: FORWARD, words }
    };
    vec![
        rule("FORWARD", String::new(), FORWARD),
        rule(FORWARD, format!("-s {NETWORK}"), "ACCEPT"),
        rule(FORWARD, format!("-d {NETWORK}"), "ACCEPT"),
    ]
}
