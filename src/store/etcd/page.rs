//! Reads a range of keys page by page: fewer keys after an answer that was too large.

use std::future::Future;

use etcd_client::{Error, GetOptions, GetResponse, KeyValue};

use super::client::{Connection, LONGEST_ANSWER, revision};
use super::connect::Refusal;

/// The keys below a prefix, from one of them on. Of one key whose value is too large, the key alone
/// is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    from: Vec<u8>,
    end: Vec<u8>,
    most: i64,
    limit: i64,
    extent: Extent,
}

/// What is asked for of each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    Whole,
    /// The key, without its value.
    KeyAlone,
}

/// In bytes, of a key without its value.
const LONGEST_KEY: usize = 64 * 1024 * 1024;

/// What `read` makes of all keys from `page` on, and the revision of the first answer. `ask` answers
/// for one page, given that revision once it is known.
pub(super) async fn pages<T, E, F>(
    mut page: Page,
    read: impl Fn(&KeyValue, Extent) -> Option<T>,
    ask: impl Fn(Page, Option<i64>) -> F,
) -> Result<(Vec<T>, i64), E>
where
    E: From<Refusal>,
    F: Future<Output = Result<Result<GetResponse, Refusal>, E>>,
{
    let (mut all, mut at) = (Vec::new(), None);
    loop {
        let answer = match ask(page.clone(), at).await? {
            Err(Refusal::TooLarge(_)) if page.shrink() => continue,
            answer => answer?,
        };
        all.extend(answer.kvs().iter().filter_map(|kv| read(kv, page.extent)));
        let first = *at.get_or_insert(revision(answer.header()));
        if !page.advance(&answer) {
            return Ok((all, first));
        }
    }
}

impl Page {
    /// The first of all keys below `prefix`, which ends with a slash; at most `most` of them.
    pub(super) fn below(prefix: &str, most: i64) -> Self {
        let (parent, slash) = (prefix.trim_end_matches('/'), b'/');
        let end = [parent.as_bytes(), &[slash + 1]].concat();
        let from = prefix.as_bytes().to_vec();
        Self { from, end, most, limit: most, extent: Extent::Whole }
    }

    pub(super) fn get(
        &self,
        connection: Connection,
        options: &GetOptions,
    ) -> impl Future<Output = Result<GetResponse, Error>> + use<> {
        let options = options.clone().with_range(self.end.clone()).with_limit(self.limit);
        let (options, longest) = match self.extent {
            Extent::Whole => (options, LONGEST_ANSWER),
            Extent::KeyAlone => (options.with_keys_only(), LONGEST_KEY),
        };
        let from = self.from.clone();
        async move { connection.kv_of(longest).get(from, Some(options)).await }
    }

    /// After an answer that was too large. Returns false if that was a key by itself.
    fn shrink(&mut self) -> bool {
        match (self.limit, self.extent) {
            (2.., _) => self.limit /= 2,
            (_, Extent::Whole) => self.extent = Extent::KeyAlone,
            (_, Extent::KeyAlone) => return false,
        }
        true
    }

    /// Moves on behind the keys of `answer`. Returns false if they were the last.
    fn advance(&mut self, answer: &GetResponse) -> bool {
        let Some(last) = answer.kvs().last().filter(|_| answer.more()) else { return false };
        self.from = [last.key(), b"\0"].concat();
        self.grow();
        true
    }

    /// After an answer that was not too large.
    fn grow(&mut self) {
        (self.limit, self.extent) = (self.most.min(self.limit * 2), Extent::Whole);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(limit: i64, extent: Extent) -> Page {
        Page { limit, extent, ..Page::below("/n/", 10) }
    }

    #[test]
    fn a_page_that_is_too_large_is_halved_down_to_one_key_alone() {
        let halved = std::iter::successors(Some(page(10, Extent::Whole)), |page| {
            let mut smaller = page.clone();
            smaller.shrink().then_some(smaller)
        });
        let seen: Vec<_> = halved.map(|page| (page.limit, page.extent)).collect();
        let whole = [10, 5, 2, 1].map(|limit| (limit, Extent::Whole));
        assert_eq!(seen, [whole.as_slice(), &[(1, Extent::KeyAlone)]].concat());
    }

    #[test]
    fn a_page_grows_again_up_to_what_it_was() {
        let grown = |page: &Page| {
            let mut larger = page.clone();
            larger.grow();
            larger
        };
        let pages = std::iter::successors(Some(page(1, Extent::Whole)), |page| Some(grown(page)));
        assert_eq!(pages.take(6).map(|page| page.limit).collect::<Vec<_>>(), [1, 2, 4, 8, 10, 10]);
        assert_eq!(grown(&page(1, Extent::KeyAlone)), page(2, Extent::Whole));
    }
}
