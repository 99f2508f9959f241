//! The versions of the protocol.

use serde_json::json;

use crate::protocol::request::Command;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    V0_1_0,
    V0_2_0,
    V0_3_0,
    V0_3_1,
    V0_4_0,
    V1_0_0,
    V1_1_0,
}

impl Version {
    pub const ALL: [Self; 7] = [
        Self::V0_1_0,
        Self::V0_2_0,
        Self::V0_3_0,
        Self::V0_3_1,
        Self::V0_4_0,
        Self::V1_0_0,
        Self::V1_1_0,
    ];

    /// Only what is spelled as in [`ALL`](Self::ALL) is a version: `1.0` is none.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V0_1_0 => "0.1.0",
            Self::V0_2_0 => "0.2.0",
            Self::V0_3_0 => "0.3.0",
            Self::V0_3_1 => "0.3.1",
            Self::V0_4_0 => "0.4.0",
            Self::V1_0_0 => "1.0.0",
            Self::V1_1_0 => "1.1.0",
        }
    }

    /// Whether this version has `command` at all.
    pub fn knows(self, command: Command) -> bool {
        let since = match command {
            Command::Add | Command::Del | Command::Version => Self::V0_1_0,
            Command::Check => Self::V0_4_0,
            Command::Gc | Command::Status => Self::V1_1_0,
        };
        self >= since
    }

    /// All of them, as in `[0.1.0 0.2.0]`.
    pub fn listed() -> String {
        format!("[{}]", Self::ALL.map(Self::as_str).join(" "))
    }

    /// The answer to VERSION.
    pub fn report() -> String {
        let answer = json!({
            "cniVersion": Self::V1_1_0.as_str(),
            "supportedVersions": Self::ALL.map(Self::as_str),
        });
        format!("{answer}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_versions_are_parsed() {
        for version in Version::ALL {
            assert_eq!(Version::parse(version.as_str()), Some(version));
        }
        for text in ["1.0", "0.3", "1.2.0", " 1.0.0", ""] {
            assert_eq!(Version::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn later_commands_need_later_versions() {
        let first = |command| Version::ALL.into_iter().find(|version| version.knows(command));
        assert_eq!(first(Command::Add), Some(Version::V0_1_0));
        assert_eq!(first(Command::Check), Some(Version::V0_4_0));
        assert_eq!(first(Command::Status), Some(Version::V1_1_0));
    }

    #[test]
    fn the_report_is_one_line() {
        assert_eq!(
            Version::report(),
            "{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.1.0\",\"0.2.0\",\"0.3.0\",\
             \"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}\n"
        );
    }
}
