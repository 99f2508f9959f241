//! Encodes all leases of one revision in some thirty bytes each, and decodes them.

use miniz_oxide::deflate::compress_to_vec;
use miniz_oxide::inflate::decompress_to_vec_with_limit;

use crate::model::lease::{LeaseId, Record};
use crate::store::etcd::store::{Listing, Stored};
use crate::store::etcd::value::Origin;

/// The first bytes of a snapshot, different for each version of the format.
const NAME: &[u8] = b"tweed leases 1\n";

/// etcd rejects requests over 1.5 MiB.
const LONGEST: usize = 1024 * 1024;
/// The maximum inflated size: a few bytes can inflate to gigabytes.
const LONGEST_INFLATED: usize = 8 * 1024 * 1024;
/// More rows than a valid snapshot of [`LONGEST`] bytes can contain. A forged empty row takes five
/// bytes here, and hundreds in memory.
const MOST_ROWS: usize = 40_000;

/// Compresses almost as well as higher levels, for a fraction of the processor time.
const LEVEL: u8 = 4;

/// Why bytes are no valid snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("it is not a snapshot of tweed")]
    Foreign,
    #[error("it is damaged")]
    Damaged,
}

/// None if the snapshot would be too long for etcd.
pub(super) fn encode(listing: &Listing) -> Option<Vec<u8>> {
    let mut rows = Writer::default();
    rows.number(listing.revision.cast_unsigned());
    for stored in &listing.stored {
        rows.bytes(stored.record.id.as_str().as_bytes());
        rows.bytes(&stored.value);
        rows.number(stored.origin.created);
        rows.number(stored.mod_revision.cast_unsigned());
        rows.number(stored.origin.grant.unwrap_or(0).cast_unsigned());
    }
    let Writer(rows) = rows;
    let deflated = compress_to_vec(&rows, LEVEL);
    let checksum = crc32fast::hash(&deflated).to_be_bytes();
    let snapshot = [NAME, &checksum, &deflated].concat();
    let is_readable = rows.len() <= LONGEST_INFLATED && listing.stored.len() <= MOST_ROWS;
    (is_readable && snapshot.len() <= LONGEST).then_some(snapshot)
}

pub(super) fn decode(snapshot: &[u8]) -> Result<Listing, Unreadable> {
    let body = snapshot.strip_prefix(NAME).ok_or(Unreadable::Foreign)?;
    let (checksum, deflated) = body.split_first_chunk().ok_or(Unreadable::Damaged)?;
    if u32::from_be_bytes(*checksum) != crc32fast::hash(deflated) {
        return Err(Unreadable::Damaged);
    }
    let inflated = decompress_to_vec_with_limit(deflated, LONGEST_INFLATED);
    listing(&inflated.map_err(|_| Unreadable::Damaged)?).ok_or(Unreadable::Damaged)
}

/// The records in a snapshot; none if it is of another format or damaged. For fuzzing.
#[doc(hidden)]
pub fn read_snapshot(snapshot: &[u8]) -> Option<Vec<Record>> {
    let listing = decode(snapshot).ok()?;
    Some(listing.stored.into_iter().map(|stored| stored.record).collect())
}

fn listing(rows: &[u8]) -> Option<Listing> {
    let mut rows = Remaining(rows);
    let revision = rows.number()?.cast_signed();
    let mut stored = Vec::new();
    while !rows.0.is_empty() {
        if stored.len() == MOST_ROWS {
            return None;
        }
        stored.push(row(&mut rows).filter(|stored| is_of(stored, revision))?);
    }
    Some(Listing { stored, revision })
}

fn row(rows: &mut Remaining<'_>) -> Option<Stored> {
    let id = LeaseId::new(str::from_utf8(rows.bytes()?).ok()?);
    let value = rows.bytes()?;
    let created = rows.number()?;
    let mod_revision = rows.number()?.cast_signed();
    let grant = Some(rows.number()?.cast_signed()).filter(|grant| *grant != 0);
    let origin = Origin { created, grant };
    Some(Stored::new(id, value, origin, mod_revision))
}

/// Whether a listing at `revision` can contain this.
fn is_of(stored: &Stored, revision: i64) -> bool {
    let written = stored.mod_revision;
    (1..=revision).contains(&written)
        && (1..=written.cast_unsigned()).contains(&stored.origin.created)
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    /// Writes seven bits per byte, the lowest first.
    fn number(&mut self, number: u64) {
        let [low, ..] = number.to_le_bytes();
        match number >> 7 {
            0 => self.0.push(low),
            rest => {
                self.0.push(low | MORE);
                self.number(rest);
            }
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// The remaining bytes.
struct Remaining<'a>(&'a [u8]);

impl<'a> Remaining<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & !MORE) << shift;
            if byte & MORE == 0 {
                return Some(number);
            }
        }
        None
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// Marks a byte that is not the last one of a number.
const MORE: u8 = 0x80;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::model::lease::Lease;

    fn value_of(backend: &str) -> Vec<u8> {
        format!(r#"{{"PublicIP":"10.0.0.1","BackendType":"{backend}"}}"#).into_bytes()
    }

    prop_compose! {
        fn any_stored(last: i64)(
            id in prop_oneof!["[0-9a-f:.&-]{0,40}", "10\\.5\\.[1-9]\\.0-24"],
            value in prop_oneof![
                vec(any::<u8>(), 0..80),
                "[a-z]{0,9}".prop_map(|name| value_of(&name)),
            ],
            written in 1..=last,
            grant in any::<i64>()
        )(
            created in 1..=written.cast_unsigned(),
            id in Just(id), value in Just(value), written in Just(written), grant in Just(grant)
        ) -> Stored {
            let origin = Origin { created, grant: Some(grant).filter(|grant| *grant != 0) };
            Stored::new(LeaseId::new(id), &value, origin, written)
        }
    }

    prop_compose! {
        fn any_listing()(revision in 1..i64::MAX)(
            stored in vec(any_stored(revision), 0..20), revision in Just(revision)
        ) -> Listing {
            Listing { stored, revision }
        }
    }

    fn lease(number: u32) -> Stored {
        let [.., a, b] = number.to_be_bytes();
        let value = format!(
            r#"{{"PublicIP":"172.16.{a}.{b}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{{"VNI":1,"VtepMAC":"02:{:02x}:{:02x}:00:{a:02x}:{b:02x}"}}}}"#,
            number.wrapping_mul(0x9e37_79b9) >> 24,
            number.wrapping_mul(0x85eb_ca6b) >> 24,
        );
        let grant = i64::from(number).wrapping_mul(0x1e37_79b9_7f4a_7c15) & i64::MAX;
        let origin = Origin { created: u64::from(number) + 1, grant: Some(grant) };
        let id = LeaseId::new(format!("10.{a}.{b}.0-24"));
        Stored::new(id, value.as_bytes(), origin, i64::from(number) + 1)
    }

    /// All fields but the reason why a record is no lease, since its value is not encoded.
    fn known(listing: &Listing) -> Vec<(LeaseId, Option<Lease>, Origin, i64)> {
        let known = |it: &Stored| {
            (it.record.id.clone(), it.record.lease.clone().ok(), it.origin, it.mod_revision)
        };
        listing.stored.iter().map(known).collect()
    }

    proptest! {
        #[test]
        fn every_listing_is_decoded_as_encoded(listing in any_listing()) {
            let decoded = decode(&encode(&listing).unwrap()).unwrap();
            prop_assert_eq!(decoded.revision, listing.revision);
            prop_assert_eq!(known(&decoded), known(&listing));
        }

        #[test]
        fn one_changed_byte_is_noticed(
            listing in any_listing(), place: prop::sample::Index, change in 1_u8..,
        ) {
            let mut snapshot = encode(&listing).unwrap();
            let place = place.index(snapshot.len());
            snapshot[place] ^= change;
            prop_assert!(decode(&snapshot).is_err());
        }

        #[test]
        fn a_snapshot_that_was_cut_is_noticed(listing in any_listing(), place: prop::sample::Index) {
            let snapshot = encode(&listing).unwrap();
            prop_assert!(decode(&snapshot[..place.index(snapshot.len())]).is_err());
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(decode(&bytes).err(), Some(Unreadable::Foreign));
            let deflated = compress_to_vec(&bytes, LEVEL);
            let checksum = crc32fast::hash(&deflated).to_be_bytes();
            let _ = decode(&[NAME, &checksum, &deflated].concat());
        }
    }

    #[test]
    fn a_lease_takes_some_thirty_bytes() {
        let stored: Vec<Stored> = (0..5000).map(lease).collect();
        let snapshot = encode(&Listing { stored, revision: 5000 }).unwrap();
        assert!(snapshot.len() < 5000 * 40, "{} bytes", snapshot.len());
    }

    #[test]
    fn a_snapshot_too_long_for_etcd_is_not_encoded() {
        let stored: Vec<Stored> = (0..60_000).map(lease).collect();
        assert_eq!(encode(&Listing { stored, revision: 60_000 }), None);
    }

    /// The checksum is no protection, since any client of etcd can write a snapshot.
    fn forged(rows: &[u8]) -> Vec<u8> {
        let deflated = compress_to_vec(rows, LEVEL);
        [NAME, &crc32fast::hash(&deflated).to_be_bytes(), &deflated].concat()
    }

    /// The revision of the listing, and `count` rows without a name and a value.
    fn empty_rows(count: usize) -> Vec<u8> {
        let rows = std::iter::repeat_n([0, 0, 1, 1, 0], count).flatten();
        std::iter::once(1).chain(rows).collect()
    }

    #[test]
    fn a_few_bytes_that_inflate_to_gigabytes_are_damage() {
        assert_eq!(decode(&forged(&empty_rows(MOST_ROWS))).unwrap().stored.len(), MOST_ROWS);
        let more = forged(&empty_rows(MOST_ROWS + 1));
        assert!(more.len() < 4000, "{} bytes", more.len());
        assert_eq!(decode(&more).err(), Some(Unreadable::Damaged));
        let longer = forged(&vec![1; LONGEST_INFLATED + 1]);
        assert_eq!(decode(&longer).err(), Some(Unreadable::Damaged));
    }

    #[test]
    fn twenty_thousand_nodes_fit() {
        let stored: Vec<Stored> = (0..20_000).map(lease).collect();
        let snapshot = encode(&Listing { stored, revision: 20_000 }).unwrap();
        assert_eq!(decode(&snapshot).unwrap().stored.len(), 20_000);
    }

    #[test]
    fn a_lease_that_is_younger_than_the_snapshot_is_damage() {
        let snapshot = encode(&Listing { stored: vec![lease(7)], revision: 7 }).unwrap();
        assert_eq!(decode(&snapshot).err(), Some(Unreadable::Damaged));
    }
}
