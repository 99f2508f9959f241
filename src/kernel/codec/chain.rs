//! Chains of iptables in the format of `iptables-save` and `iptables-restore`.

mod nft;
#[cfg(test)]
mod tests;

pub(crate) use nft::{HostChain, changed_chain, table_of};

use crate::model::entry::{
    Base, BasePolicy, Chain, ChainName, Condition, Match, Ports, Rule, Side, Specification, Verdict,
};
use crate::model::prefix::Prefix;
use crate::plan::diff::Op;

/// The lines of a table in `iptables-save` output that concern one of tweed's chains.
struct SavedTable<'a> {
    base: Base,
    lines: Vec<&'a str>,
}

/// The chain `name` in this listing of all tables; none if it does not exist.
pub(crate) fn chain(name: ChainName, listing: &str) -> Option<Chain> {
    let table = SavedTable::of(name.base, listing);
    table.policy(name.base.chain())?;
    let inside: Vec<&str> = table.inside().collect();
    let rules: Vec<Rule> = inside.iter().filter_map(|words| rule(words, name.base)).collect();
    let misplaced = if table.is_led_to() { 0 } else { table.leading().count().max(1) };
    let foreign = inside.len() - rules.len() + misplaced;
    Some(Chain { name, rules, foreign, base_policy: table.base_policy() })
}

/// What `iptables-save` lists instead of a table with rules of nftables that it cannot show. It ends
/// as if there were no table, and `iptables-restore` would add the same rules again and again.
pub(crate) fn incompatible<'a>(table: &str, listing: &'a str) -> Option<&'a str> {
    let words = format!("# Table `{table}' is incompatible");
    listing.lines().find(|line| line.starts_with(&words))
}

/// The policy of the host's chain that leads to `name`, for packets that match no rule.
pub(crate) fn base_policy(name: ChainName, listing: &str) -> BasePolicy {
    SavedTable::of(name.base, listing).base_policy()
}

/// The `iptables-restore` script that applies `op`, entirely or not at all, given a listing of all
/// tables.
pub(crate) fn script(op: &Op, chain: &Chain, listing: &str) -> String {
    let table = SavedTable::of(chain.name.base, listing);
    let lines = match op {
        Op::Create(_) | Op::Replace(_) => table.with(chain),
        Op::Remove(_) => table.without(),
    };
    let mut script = format!("*{}\n", chain.name.base.table());
    for line in lines {
        script += &line;
        script.push('\n');
    }
    script + "COMMIT\n"
}

impl<'a> SavedTable<'a> {
    fn of(base: Base, listing: &'a str) -> Self {
        let begins = |line: &&str| line.strip_prefix('*') == Some(base.table());
        let behind = listing.lines().skip_while(move |line| !begins(line)).skip(1);
        Self { base, lines: behind.take_while(|line| *line != "COMMIT").collect() }
    }

    /// The policy of `chain`; none if it does not exist.
    fn policy(&self, chain: &str) -> Option<&'a str> {
        self.lines.iter().find_map(|line| {
            let mut words = line.strip_prefix(':')?.split(' ');
            (words.next()? == chain).then(|| words.next())?
        })
    }

    fn base_policy(&self) -> BasePolicy {
        match self.policy(self.base.as_str()) {
            Some("DROP") => BasePolicy::Drop,
            _ => BasePolicy::Accept,
        }
    }

    /// The rules of tweed's chain, without the chain name.
    fn inside(&self) -> impl Iterator<Item = &'a str> {
        let chain = self.base.chain();
        self.appended().filter_map(move |rule| rule.strip_prefix(chain)?.strip_prefix(' '))
    }

    /// The rules of other chains that jump to tweed's chain.
    fn leading(&self) -> impl Iterator<Item = &'a str> {
        let chain = self.base.chain();
        let leads = move |rule: &&str| {
            matches!(
                rule.rsplit_once(' '),
                Some((rest, target)) if target == chain && (rest.ends_with(" -j") || rest.ends_with(" -g"))
            )
        };
        self.appended().filter(leads)
    }

    fn appended(&self) -> impl Iterator<Item = &'a str> {
        self.lines.iter().filter_map(|line| line.strip_prefix("-A "))
    }

    fn is_led_to(&self) -> bool {
        self.leading().eq([jump(self.base)]) && self.is_early_enough()
    }

    /// Whether packets reach tweed's chain before the first rule that would masquerade them.
    fn is_early_enough(&self) -> bool {
        match self.base {
            Base::EarlyPostrouting => {
                let mut before = self.appended().take_while(|rule| *rule != jump(self.base));
                !before.any(masquerades)
            }
            Base::Postrouting | Base::Forward => true,
        }
    }

    fn with(&self, chain: &Chain) -> Vec<String> {
        let name = self.base.chain();
        let comment = Some(self.base.comment());
        let rules = chain.rules.iter().map(|rule| Specification { rule, comment });
        let rules = rules.map(|rule| format!("-A {name} {rule}"));
        let misplaced = self.leading().filter(|_| !self.is_led_to()).map(deleted);
        let added = (!self.is_led_to()).then(|| format!("{} {}", self.base.put(), jump(self.base)));
        // A chain declaration creates the chain, or empties it.
        let named = [format!(":{name} - [0:0]")].into_iter();
        named.chain(rules).chain(misplaced).chain(added).collect()
    }

    fn without(&self) -> Vec<String> {
        let name = self.base.chain();
        let ends = [format!("-F {name}"), format!("-X {name}")];
        let ends = ends.into_iter().filter(|_| self.policy(name).is_some());
        self.leading().map(deleted).chain(ends).collect()
    }
}

fn deleted(rule: &str) -> String {
    format!("-D {rule}")
}

/// Whether `rule` is a masquerading rule of the host's chain, or jumps to a masquerading chain.
fn masquerades(rule: &str) -> bool {
    let target = rule.split_once(" -j ").and_then(|(_, target)| target.split(' ').next());
    let is_of_host = rule.starts_with("POSTROUTING ");
    is_of_host && matches!(target, Some("MASQUERADE" | "KUBE-POSTROUTING" | "FLANNEL-POSTRTG"))
}

impl Base {
    /// The option that inserts or appends the jump rule to the host's chain.
    const fn put(self) -> &'static str {
        match self {
            Self::EarlyPostrouting => "-I",
            Self::Postrouting | Self::Forward => "-A",
        }
    }
}

/// The rule of the host's chain that jumps to tweed's chain.
fn jump(base: Base) -> String {
    let (from, to, comment) = (base.as_str(), base.chain(), base.comment());
    format!("{from} -m comment --comment \"{comment}\" -j {to}")
}

/// None for a rule that differs in any byte from what tweed writes.
fn rule(words: &str, base: Base) -> Option<Rule> {
    let (_, target) = words.split_once(" -j ")?;
    let is_random = target.ends_with(" --random-fully");
    let ports = if is_random { Ports::FullyRandom } else { Ports::Kept };
    let verdict = match target.split(' ').next()? {
        "ACCEPT" => Verdict::Accept,
        "RETURN" => Verdict::Return,
        "MARK" => Verdict::Unmark(mark(value(target, "--set-xmark")?)?),
        "MASQUERADE" => Verdict::Masquerade(ports),
        "SNAT" => Verdict::SourceNat { to: value(target, "--to-source")?.parse().ok()?, ports },
        _ => return None,
    };
    let marked = value(words, "--mark").and_then(mark);
    let marked = marked.map(|mark| Condition::Marked(test(words, "--mark"), mark));
    let address = |side, flag| {
        let prefix: Prefix = value(words, flag)?.parse().ok()?;
        Some(Condition::Address(side, test(words, flag), prefix.into()))
    };
    let conditions = [marked, address(Side::Source, "-s"), address(Side::Destination, "-d")];
    let rule = Rule::of(conditions.into_iter().flatten(), verdict);
    let written = Specification { rule: &rule, comment: Some(base.comment()) }.to_string();
    (written == words).then_some(rule)
}

fn value<'a>(words: &'a str, flag: &str) -> Option<&'a str> {
    words.split(' ').skip_while(|word| *word != flag).nth(1)
}

/// The mask of the mark.
fn mark(text: &str) -> Option<u32> {
    let (_, mask) = text.split_once("/0x")?;
    u32::from_str_radix(mask, 16).ok()
}

fn test(words: &str, flag: &str) -> Match {
    match words.split(' ').take_while(|word| *word != flag).last() {
        Some("!") => Match::IsNot,
        _ => Match::Is,
    }
}
