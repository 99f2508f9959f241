//! The cost of keeping rules: by nftables, by iptables, and by checking each rule as flanneld does.

mod flannel_rules;

use std::time::Duration;

use anyhow::{Result, ensure};
use tweed_lab::{Backend, Binaries, Process, eventually};

use crate::instruments::site::{Site, TIMEOUT};
use crate::report::goal::Goal;
use crate::report::sample::{Sample, ratio};
use crate::report::sheet::{Sheet, spread};
use flannel_rules::FlannelRules;

const PEERS: u32 = 5000;
/// The length of an idle measurement; its results are shown per minute.
const WINDOW: Duration = Duration::from_secs(20);
const WINDOWS_PER_MINUTE: u32 = 3;
/// The daemon is idle this time after its start.
const REST: Duration = Duration::from_secs(3);

/// A daemon with rules, and the commands that list them.
struct Variant {
    name: &'static str,
    flags: &'static [&'static str],
    list: &'static [&'static str],
    /// Commands of other programs: one flushes a chain, one flushes everything, one reloads the
    /// firewall.
    disturbances: [&'static str; 3],
    idle: Sample<Duration>,
    edited: Sample<Duration>,
    repaired: [Sample<Duration>; 3],
}

impl Variant {
    fn nftables() -> Self {
        Self {
            name: "tweedd, nftables",
            flags: &["--ip-masq"],
            list: &["nft", "list", "table", "ip", "tweed.1"],
            disturbances: [
                "nft flush chain ip tweed.1 postrouting",
                "nft flush ruleset",
                "printf 'flush ruleset; table inet others { chain input { }; }' | nft -f -",
            ],
            idle: Sample::default(),
            edited: Sample::default(),
            repaired: Default::default(),
        }
    }

    fn iptables() -> Self {
        Self {
            name: "tweedd, iptables",
            flags: &["--ip-masq", "--iptables"],
            list: &["iptables-save", "-t", "nat"],
            disturbances: [
                "iptables -t nat -F FLANNEL-POSTRTG",
                "nft flush ruleset",
                "iptables -F; iptables -X; iptables -t nat -F; iptables -t nat -X",
            ],
            ..Self::nftables()
        }
    }

    /// `number` counts all turns: each turn excludes another range.
    fn measure(&mut self, site: &Site, number: usize) -> Result<()> {
        let plan = site.node.daemon(&site.etcd);
        let plan = self.flags.iter().fold(plan, |plan, flag| plan.argument(*flag));
        let daemon = plan.start()?;
        daemon.wait_ready()?;
        std::thread::sleep(REST);
        self.idle.add(used(daemon.process())?);
        self.edited.add(self.edit(site, number)?);
        let back = self.disturbances.map(|disturbance| self.disturb(site, disturbance));
        for (repaired, back) in self.repaired.iter_mut().zip(back) {
            repaired.add(back?);
        }
        daemon.stop().map(drop)
    }

    /// The time until the rules exclude another range.
    fn edit(&self, site: &Site, number: usize) -> Result<Duration> {
        let range = format!("192.0.{number}.0/24");
        site.configure(&format!(r#""NonMasqueradeCIDRs":["{range}"],"#))?;
        eventually(TIMEOUT, || Ok::<_, anyhow::Error>(self.listed(site)?.contains(&range)))
    }

    /// The time until the rules are restored after `disturbance` has changed them.
    fn disturb(&self, site: &Site, disturbance: &str) -> Result<Duration> {
        let before = self.listed(site)?;
        site.node.namespace().run("sh", &["-c", disturbance])?;
        // The rules of nftables may be restored already.
        let is_seen = self.listed(site).ok().as_ref() != Some(&before);
        ensure!(is_seen || self.name.contains("nftables"), "{disturbance}: nothing deleted");
        eventually(TIMEOUT, || Ok::<_, anyhow::Error>(self.listed(site)? == before))
    }

    /// Without comments, which contain the time.
    fn listed(&self, site: &Site) -> Result<String> {
        let [program, words @ ..] = self.list else { return Ok(String::new()) };
        let listing = site.node.namespace().run(program, words)?;
        Ok(listing.lines().filter(|line| !line.starts_with(['#', ':'])).collect())
    }
}

pub(crate) fn run(binaries: &Binaries, rounds: usize, sheet: &mut Sheet) -> Result<()> {
    let mut site = Site::build(binaries, Backend::HostGw, "")?;
    site.grow(PEERS)?;
    let mut variants = [Variant::nftables(), Variant::iptables()];
    let mut asking = Sample::default();
    let flannel_rules = FlannelRules::prepare(&site.bare)?;
    for round in 0..rounds {
        for (number, variant) in variants.iter_mut().enumerate() {
            variant.measure(&site, 2 * round + number)?;
        }
        let running = flannel_rules.start(&site.bare)?;
        asking.add(used(running.process())?);
        running.kill()?;
    }
    show(&variants, &asking, sheet)?;
    let [nftables, iptables] = variants.map(|variant| variant.idle);
    let goals = [
        Goal::at_most(
            "iptables, against a loop of `iptables -C`",
            ratio(&iptables, &asking),
            0.1,
            "×",
        ),
        Goal::at_most("nftables, against the same", ratio(&nftables, &asking), 0.05, "×"),
    ];
    sheet.goals(&goals)
}

fn show(variants: &[Variant], asking: &Sample<Duration>, sheet: &mut Sheet) -> Result<()> {
    let head = [
        "rules kept by",
        "CPU per minute",
        "an edit is applied",
        "back after a flush of the chain",
        "after `nft flush ruleset`",
        "after a reload of the firewall",
    ];
    sheet.table("Masquerading", &head)?;
    for Variant { name, idle, edited, repaired, .. } in variants {
        let [chain, everything, reload] = repaired.each_ref().map(spread);
        sheet.row(&[name, &spread(idle), &spread(edited), &chain, &everything, &reload])?;
    }
    let asking = spread(asking);
    sheet.row(&[&"a loop of `iptables -C`", &asking, &"", &"", &"", &""])
}

/// Processor time per minute, including programs that the process starts.
fn used(process: &Process) -> Result<Duration> {
    let so_far = || {
        Ok::<_, anyhow::Error>(process.processor_time()? + process.processor_time_of_children()?)
    };
    let before = so_far()?;
    std::thread::sleep(WINDOW);
    Ok(so_far()?.saturating_sub(before) * WINDOWS_PER_MINUTE)
}
