//! The head of an index file: of which boot it is, and whether its table counts.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::boot::Boot;
use super::hash::hash;
use super::seal::Seal;

/// Where the table begins.
pub(super) const LENGTH: u64 = 4096;

/// "tweed" and the number of this layout.
const MAGIC: u64 = 0x7477_6565_6400_0001;

const BOOT_WORDS: usize = 3;
const BOOT_BYTES: usize = BOOT_WORDS * 8 + 16;
const STATE_WORDS: usize = 9;
const STATE_BYTES: usize = STATE_WORDS * 8 + 16;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct State {
    /// Counts the seals that were ever put.
    pub(super) turn: u64,
    pub(super) slots: usize,
    pub(super) used: usize,
    pub(super) seal: Seal,
}

/// The boot in which `file` was written; `None` if it does not say.
pub(super) fn read_boot(file: &File) -> Option<Boot> {
    let mut bytes = [0; BOOT_BYTES];
    file.read_exact_at(&mut bytes, 0).ok()?;
    let [magic, high, low]: [u64; BOOT_WORDS] = words(&bytes, 0)?.try_into().ok()?;
    (magic == MAGIC).then(|| Boot::of(u128::from(high) << 64 | u128::from(low))).flatten()
}

pub(super) fn write_boot(file: &File, boot: Boot) -> io::Result<()> {
    let (high, low) = halves(boot.number());
    file.write_all_at(&bytes(&[MAGIC, high, low], 0), 0)
}

/// What was last said of the table in `boot`; `None` if it does not count.
pub(super) fn read_state(file: &File, boot: Boot) -> Option<State> {
    let mut bytes = [0; STATE_BYTES];
    file.read_exact_at(&mut bytes, BOOT_BYTES as u64).ok()?;
    decode(&words(&bytes, boot.number())?)
}

pub(super) fn write_state(file: &File, boot: Boot, state: &State) -> io::Result<()> {
    file.write_all_at(&bytes(&encode(state), boot.number()), BOOT_BYTES as u64)
}

/// From now on the table does not count.
pub(super) fn erase_state(file: &File) -> io::Result<()> {
    file.write_all_at(&[0; STATE_BYTES], BOOT_BYTES as u64)
}

fn encode(state: &State) -> [u64; STATE_WORDS] {
    let State { turn, slots, used, seal } = *state;
    let time =
        |(seconds, nanoseconds): (i64, i64)| [seconds.cast_unsigned(), nanoseconds.cast_unsigned()];
    let ([ms, mn], [cs, cn]) = (time(seal.modified), time(seal.changed));
    [turn, slots as u64, used as u64, seal.device, seal.inode, ms, mn, cs, cn]
}

fn decode(words: &[u64]) -> Option<State> {
    let &[turn, slots, used, device, inode, ms, mn, cs, cn] = words else { return None };
    let time = |seconds: u64, nanoseconds: u64| (seconds.cast_signed(), nanoseconds.cast_signed());
    let seal = Seal { device, inode, modified: time(ms, mn), changed: time(cs, cn) };
    let (slots, used) = (slots.try_into().ok()?, used.try_into().ok()?);
    Some(State { turn, slots, used, seal })
}

/// The words, and a checksum of them and of `salt`.
fn bytes(words: &[u64], salt: u128) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(checksum(&bytes, salt).to_le_bytes());
    bytes
}

fn words(bytes: &[u8], salt: u128) -> Option<Vec<u64>> {
    let (words, sum) = bytes.split_at_checked(bytes.len().checked_sub(16)?)?;
    let sum = u128::from_le_bytes(sum.try_into().ok()?);
    let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    (sum == checksum(words, salt)).then(|| words.chunks_exact(8).map(word).collect())
}

fn checksum(bytes: &[u8], salt: u128) -> u128 {
    hash([bytes, &salt.to_le_bytes()])
}

fn halves(number: u128) -> (u64, u64) {
    let half = |number: u128| u64::try_from(number & u128::from(u64::MAX)).unwrap_or_default();
    (half(number >> 64), half(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let (modified, changed) = ((1_800_000_000, 5), (-1, 999_999_999));
        let seal = Seal { device: 7, inode: u64::MAX, modified, changed };
        State { turn: 3, slots: 1024, used: 17, seal }
    }

    #[test]
    fn a_head_is_read_as_it_was_written() {
        let (file, boot) = (tempfile::tempfile().unwrap(), Boot::of(u128::MAX - 5).unwrap());
        assert_eq!((read_boot(&file), read_state(&file, boot)), (None, None));
        write_boot(&file, boot).unwrap();
        write_state(&file, boot, &state()).unwrap();
        assert_eq!(read_boot(&file), Some(boot));
        assert_eq!(read_state(&file, boot), Some(state()));
    }

    #[test]
    fn a_state_counts_in_its_own_boot_and_until_it_is_erased() {
        let (file, boot) = (tempfile::tempfile().unwrap(), Boot::of(5).unwrap());
        write_boot(&file, boot).unwrap();
        write_state(&file, boot, &state()).unwrap();
        assert_eq!(read_state(&file, Boot::of(6).unwrap()), None);
        erase_state(&file).unwrap();
        assert_eq!((read_boot(&file), read_state(&file, boot)), (Some(boot), None));
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let (file, boot) = (tempfile::tempfile().unwrap(), Boot::of(5).unwrap());
        write_boot(&file, boot).unwrap();
        write_state(&file, boot, &state()).unwrap();
        for at in 0..(BOOT_BYTES + STATE_BYTES) as u64 {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
            assert!(read_boot(&file).is_none() || read_state(&file, boot).is_none(), "{at}");
            file.write_all_at(&byte, at).unwrap();
        }
    }
}
