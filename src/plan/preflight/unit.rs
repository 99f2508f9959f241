//! A parser for systemd files, and the matching of links against their `[Match]` sections.

use std::collections::BTreeMap;

/// The settings of a systemd file. Lines that cannot be parsed are skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// The path of the installed file.
    pub path: String,
    lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    section: String,
    key: String,
    value: String,
}

/// The properties of a link that conditions match.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device<'a> {
    pub(super) name: &'a str,
    pub(super) kind: &'a str,
}

/// Conditions on the host instead of the link. They are taken as met.
const OF_THE_HOST: [&str; 7] = [
    "Host",
    "Virtualization",
    "KernelCommandLine",
    "KernelVersion",
    "Architecture",
    "Firmware",
    "Credential",
];

impl Unit {
    /// `texts` are the file itself and its drop-ins; for each key, the last value counts.
    pub fn parse(path: String, texts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let lines = texts.into_iter().flat_map(|text| lines(text.as_ref())).collect();
        Self { path, lines }
    }

    /// An empty value resets earlier ones.
    pub(super) fn get(&self, section: &str, key: &str) -> Option<&str> {
        let is_meant = |line: &&Line| line.section == section && line.key == key;
        let last = self.lines.iter().rev().find(is_meant)?;
        Some(last.value.as_str()).filter(|value| !value.is_empty())
    }

    pub(super) fn is_off(&self, section: &str, key: &str) -> bool {
        self.is_one_of(section, key, ["no", "false", "off", "0", "n", "f"])
    }

    pub(super) fn is_on(&self, section: &str, key: &str) -> bool {
        self.is_one_of(section, key, ["yes", "true", "on", "1", "y", "t"])
    }

    fn is_one_of(&self, section: &str, key: &str, values: [&str; 6]) -> bool {
        let value = self.get(section, key).map(str::to_lowercase);
        value.is_some_and(|value| values.contains(&value.as_str()))
    }

    /// A file without conditions matches every link.
    pub(super) fn fits(&self, device: Device<'_>) -> bool {
        let mut conditions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for Line { key, value, .. } in self.lines.iter().filter(|it| it.section == "Match") {
            let values = conditions.entry(key).or_default();
            match value.as_str() {
                "" => values.clear(),
                value => values.push(value),
            }
        }
        conditions.retain(|_, values| !values.is_empty());
        conditions.into_iter().all(|(key, values)| match key {
            "Name" | "OriginalName" => values.into_iter().any(|it| one_fits(it, device.name)),
            "Type" | "Kind" | "Driver" => values.into_iter().any(|it| one_fits(it, device.kind)),
            key => OF_THE_HOST.contains(&key),
        })
    }
}

fn lines(text: &str) -> Vec<Line> {
    let mut section = "";
    let mut lines = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        let heading = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        section = heading.unwrap_or(section);
        let Some((key, value)) = line.split_once('=').filter(|_| heading.is_none()) else {
            continue;
        };
        let [section, key, value] = [section, key, value].map(|text| text.trim().to_owned());
        lines.push(Line { section, key, value });
    }
    lines
}

/// Matches one of several patterns, or none of them if the list begins with `!`.
fn one_fits(patterns: &str, text: &str) -> bool {
    let (rest, wanted) = patterns.strip_prefix('!').map_or((patterns, true), |rest| (rest, false));
    rest.split_whitespace().any(|pattern| is_like(pattern.as_bytes(), text.as_bytes())) == wanted
}

/// Shell patterns with `*`, `?` and `[…]`.
fn is_like(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => {
            is_like(rest, text)
                || text.split_first().is_some_and(|(_, tail)| is_like(pattern, tail))
        }
        ([b'?', pattern @ ..], [_, text @ ..]) => is_like(pattern, text),
        ([b'[', set @ ..], [letter, text @ ..]) => {
            let end = set.iter().position(|byte| *byte == b']').unwrap_or(set.len());
            let (set, pattern) = set.split_at(end);
            is_among(set, *letter) && is_like(pattern.get(1..).unwrap_or_default(), text)
        }
        ([byte, pattern @ ..], [letter, text @ ..]) => byte == letter && is_like(pattern, text),
        _ => false,
    }
}

fn is_among(set: &[u8], letter: u8) -> bool {
    match set {
        [first, b'-', last, rest @ ..] => {
            (*first..=*last).contains(&letter) || is_among(rest, letter)
        }
        [one, rest @ ..] => *one == letter || is_among(rest, letter),
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TUNNEL: Device<'_> = Device { name: "flannel.1", kind: "vxlan" };

    fn unit(text: &str) -> Unit {
        Unit::parse("/etc/systemd/network/a.network".to_owned(), [text])
    }

    #[test]
    fn a_file_fits_the_links_that_its_conditions_name() {
        for (conditions, fits) in [
            ("", true),
            ("Name=*", true),
            ("Name=flannel.1", true),
            ("Name=eth* flannel*", true),
            ("Name=flannel.?", true),
            ("Name=[a-f]lannel.1", true),
            ("Name=[gh]lannel.1", false),
            ("Name=eth*", false),
            ("Name=!flannel.*", false),
            ("Name=!eth*", true),
            ("OriginalName=*", true),
            ("Type=vxlan", true),
            ("Kind=bridge", false),
            ("Name=flannel*\nType=ether", false),
            ("Name=*\nMACAddress=0e:00:00:00:00:01", false),
            ("Name=*\nHost=node-7", true),
            ("Name=eth*\nName=flannel.*", true),
            ("Name=*\nName=\nName=eth*", false),
            ("Name=eth*\nName=", true),
        ] {
            assert_eq!(
                unit(&format!("[Match]\n{conditions}\n")).fits(TUNNEL),
                fits,
                "{conditions}"
            );
        }
    }

    #[test]
    fn the_last_value_counts() {
        let texts =
            ["[Network]\nDHCP=yes\n# DHCP=ipv6\n", "[Network]\n DHCP = no \n[Link]\nDHCP=x"];
        let unit = Unit::parse(String::new(), texts);
        assert_eq!(unit.get("Network", "DHCP"), Some("no"));
        assert!(unit.is_off("Network", "DHCP") && !unit.is_on("Network", "DHCP"));
        let reset = Unit::parse(String::new(), ["[Network]\nDHCP=yes", "[Network]\nDHCP="]);
        assert_eq!(reset.get("Network", "DHCP"), None);
    }
}
