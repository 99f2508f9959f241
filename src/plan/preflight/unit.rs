//! A parser for systemd files, and the matching of links against their `[Match]` sections.

use std::collections::BTreeMap;

use regex::Regex;

/// The settings of a systemd file. Lines that cannot be parsed are skipped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// The path of the installed file.
    pub path: String,
    /// The values of each section, by key; an empty one has removed those before it.
    sections: BTreeMap<String, BTreeMap<String, Vec<String>>>,
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
        let mut unit = Self { path, ..Self::default() };
        texts.into_iter().for_each(|text| unit.read(text.as_ref()));
        unit
    }

    fn read(&mut self, text: &str) {
        let mut section = "";
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
            if let Some(heading) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = heading;
            } else if let Some((key, value)) = line.split_once('=') {
                let [section, key, value] = [section, key, value].map(|it| it.trim().to_owned());
                let keys = self.sections.entry(section).or_default();
                let values = keys.entry(key).or_default();
                if value.is_empty() { values.clear() } else { values.push(value) }
            }
        }
    }

    pub(super) fn get(&self, section: &str, key: &str) -> Option<&str> {
        self.sections.get(section)?.get(key)?.last().map(String::as_str)
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
        let mut conditions = self.sections.get("Match").into_iter().flatten();
        conditions.all(|(key, values)| match key.as_str() {
            _ if values.is_empty() => true,
            "Name" | "OriginalName" => values.iter().any(|it| one_fits(it, device.name)),
            "Type" | "Kind" | "Driver" => values.iter().any(|it| one_fits(it, device.kind)),
            key => OF_THE_HOST.contains(&key),
        })
    }
}

/// Matches one of several patterns, or none of them if the list begins with `!`.
fn one_fits(patterns: &str, text: &str) -> bool {
    let (rest, wanted) = patterns.strip_prefix('!').map_or((patterns, true), |rest| (rest, false));
    rest.split_whitespace().any(|pattern| is_like(pattern, text)) == wanted
}

/// Shell patterns with `*`, `?` and `[…]`.
fn is_like(pattern: &str, text: &str) -> bool {
    let syntax = [(r"\*", ".*"), (r"\?", "."), (r"\[", "["), (r"\]", "]"), (r"\-", "-")];
    let escaped = regex::escape(pattern);
    let regex = syntax.iter().fold(escaped, |regex, (from, to)| regex.replace(from, to));
    Regex::new(&format!("^(?s:{regex})$")).is_ok_and(|regex| regex.is_match(text))
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
