//! The version of the kernel, as far as it matters.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    pub major: u32,
    pub minor: u32,
}

impl Default for Release {
    /// One that is newer than all that is known.
    fn default() -> Self {
        Self { major: u32::MAX, minor: 0 }
    }
}

impl Release {
    /// As in `5.4.0-26-generic`.
    pub fn parse(text: &str) -> Self {
        let mut numbers = text.split(['.', '-', '+']).map_while(|number| number.parse().ok());
        match (numbers.next(), numbers.next()) {
            (Some(major), Some(minor)) => Self { major, minor },
            _ => Self::default(),
        }
    }

    /// Before Linux 5.7, a checksum that was left to the hardware was taken for that of the outer
    /// header when this was translated. Some vendors mended older ones: which, nobody can tell.
    pub fn spoils_checksums(self) -> bool {
        self < Self { major: 5, minor: 7 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_before_5_7_spoil_checksums_and_what_is_no_version_is_no_reason() {
        for old in ["4.18.0-553.el8_10.x86_64", "5.4.0-26-generic", "5.6.19", "3.10.0"] {
            assert!(Release::parse(old).spoils_checksums(), "{old}");
        }
        for new in ["5.7.0", "5.15.0-134-generic", "6.18.44-fc-v657", "5.10+", "", "next"] {
            assert!(!Release::parse(new).spoils_checksums(), "{new}");
        }
    }
}
