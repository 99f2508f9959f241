//! How many keys to ask for at once: fewer after an answer that was too large.

use etcd_client::GetOptions;

/// A page of keys. Of one key whose value is too large, the key alone is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    most: i64,
    limit: i64,
    pub(super) extent: Extent,
}

/// What is asked for of each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Whole,
    /// The key, without its value.
    KeyAlone,
}

/// In bytes. Tens of thousands of leases are less, and no answer may take all our memory.
pub(super) const LONGEST_ANSWER: usize = 8 * 1024 * 1024;
/// In bytes, of a key without its value.
const LONGEST_KEY: usize = 64 * 1024 * 1024;

impl Page {
    /// Of at most so many keys.
    pub(super) const fn of(most: i64) -> Self {
        Self { most, limit: most, extent: Extent::Whole }
    }

    /// After an answer that was too large; none if that was a key by itself.
    pub(super) const fn smaller(self) -> Option<Self> {
        match (self.limit, self.extent) {
            (2.., _) => Some(Self { limit: self.limit / 2, ..self }),
            (_, Extent::Whole) => Some(Self { extent: Extent::KeyAlone, ..self }),
            (_, Extent::KeyAlone) => None,
        }
    }

    /// After an answer that was not.
    pub(super) fn larger(self) -> Self {
        Self { limit: self.most.min(self.limit * 2), extent: Extent::Whole, ..self }
    }

    pub(super) fn options(self, options: &GetOptions) -> GetOptions {
        let options = options.clone().with_limit(self.limit);
        match self.extent {
            Extent::Whole => options,
            Extent::KeyAlone => options.with_keys_only(),
        }
    }

    pub(super) const fn longest_answer(self) -> usize {
        match self.extent {
            Extent::Whole => LONGEST_ANSWER,
            Extent::KeyAlone => LONGEST_KEY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_too_large_is_halved_down_to_one_key_alone() {
        let halved = std::iter::successors(Some(Page::of(10)), |page| page.smaller());
        let seen: Vec<_> = halved.map(|page| (page.limit, page.extent)).collect();
        let whole = [10, 5, 2, 1].map(|limit| (limit, Extent::Whole));
        assert_eq!(seen, [whole.as_slice(), &[(1, Extent::KeyAlone)]].concat());
    }

    #[test]
    fn a_page_grows_again_up_to_what_it_was() {
        let grown = std::iter::successors(Some(Page { limit: 1, ..Page::of(10) }), |page| {
            Some(page.larger())
        });
        assert_eq!(grown.take(6).map(|page| page.limit).collect::<Vec<_>>(), [1, 2, 4, 8, 10, 10]);
        let alone = Page { extent: Extent::KeyAlone, limit: 1, ..Page::of(10) };
        assert_eq!(alone.larger(), Page { limit: 2, ..Page::of(10) });
    }
}
