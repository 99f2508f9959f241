//! Which boot of the machine this is.

use std::fs;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The kernel's number for this boot; never zero.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Boot(u128);

impl Boot {
    /// `None` where the kernel does not tell.
    pub(super) fn current() -> Option<Self> {
        Self::parse(&fs::read_to_string(BOOT_ID).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        let number = u128::from_str_radix(&text.trim().replace('-', ""), 16).ok()?;
        Self::of(number)
    }

    pub(super) fn of(number: u128) -> Option<Self> {
        (number != 0).then_some(Self(number))
    }

    pub(super) fn number(self) -> u128 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_boot_has_a_number() {
        assert!(Boot::current().is_some());
        assert_eq!(Boot::current(), Boot::current());
    }

    #[test]
    fn nonsense_is_no_boot() {
        for text in ["", "hello", "00000000-0000-0000-0000-000000000000"] {
            assert_eq!(Boot::parse(text), None, "{text}");
        }
        let boot = Boot::parse("00000000-0000-0000-0000-00000000000a\n");
        assert_eq!(boot.map(Boot::number), Some(10));
    }
}
