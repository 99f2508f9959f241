//! Which addresses are taken, as bits: a page tells of as many neighbours as it has bits.

use std::collections::BTreeMap;

/// The part of an address that says which bit of the page is its own.
const PAGE_BITS: u32 = 7;

/// Keys of pages have this bit, so that none is zero; no address is so high that it counts.
const PAGE: u128 = 1 << 126;

/// The key of the page that tells of `number`.
pub(super) fn key(number: u128) -> u128 {
    number >> PAGE_BITS | PAGE
}

/// The bit of `number` in its page.
pub(super) fn bit(number: u128) -> u128 {
    1 << place(number)
}

/// The last number of the page that tells of `number`.
pub(super) fn end_of(number: u128) -> u128 {
    number | ((1 << PAGE_BITS) - 1)
}

/// The lowest number in this page from `number` on whose bit in `page` is not set.
pub(super) fn first_free(page: u128, number: u128) -> Option<u128> {
    let before = bit(number) - 1;
    let free = (page | before).trailing_ones();
    (free < u128::BITS).then(|| number - u128::from(place(number)) + u128::from(free))
}

/// The keys and pages that tell of `taken` and nothing else.
pub(super) fn filled(taken: impl Iterator<Item = u128>) -> Vec<(u128, u128)> {
    let mut pages = BTreeMap::<u128, u128>::new();
    for number in taken {
        *pages.entry(key(number)).or_default() |= bit(number);
    }
    pages.into_iter().collect()
}

fn place(number: u128) -> u32 {
    u32::try_from(number & ((1 << PAGE_BITS) - 1)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_found_from_any_number_on() {
        let page = bit(130) | bit(131) | bit(255);
        assert_eq!(key(130), key(255));
        assert_eq!(first_free(page, 128), Some(128));
        assert_eq!(first_free(page, 130), Some(132));
        assert_eq!(first_free(page, 254), Some(254));
        assert_eq!(first_free(page, 255), None);
        assert_eq!(first_free(u128::MAX, 128), None);
        assert_eq!(end_of(130), 255);
    }

    #[test]
    fn each_page_tells_of_its_numbers_only() {
        let pages = filled([0, 127, 128, u128::MAX].into_iter());
        let expected = [(PAGE, 1 | 1 << 127), (PAGE | 1, 1), (u128::MAX >> 7 | PAGE, 1 << 127)];
        assert_eq!(pages, expected);
    }
}
