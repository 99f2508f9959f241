//! Pairs in a file, found by key with one or two short reads however many there are.
//!
//! Open addressing with linear probing; what is removed closes its gap, so a table never decays.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;

/// Never zero, which marks an empty slot.
pub(super) type Key = u128;

/// One key may have several.
pub(super) type Value = u128;

const SLOT: usize = 32;

/// What one read brings in, in slots.
const BLOCK: usize = 32;

const FEWEST_SLOTS: usize = 1024;

#[derive(Debug)]
pub(super) struct Table {
    file: File,
    /// Where the slots begin in the file.
    start: u64,
    /// A power of two.
    slots: usize,
    used: usize,
}

#[derive(Clone, Copy)]
struct Slot {
    position: usize,
    key: Key,
    value: Value,
}

/// Slots in use, one after another, and the empty one that ends them.
struct Run {
    slots: Vec<Slot>,
    end: usize,
}

impl Table {
    /// The table that was written before; `None` if that cannot be one.
    pub(super) fn open(file: File, start: u64, slots: usize, used: usize) -> Option<Self> {
        let length = start.checked_add(slots.checked_mul(SLOT)? as u64)?;
        let complete = file.metadata().ok()?.len() == length;
        let plausible = slots.is_power_of_two() && slots >= FEWEST_SLOTS && used < slots;
        (complete && plausible).then_some(Self { file, start, slots, used })
    }

    /// Replaces whatever the file holds from `start` on.
    pub(super) fn build(file: File, start: u64, pairs: &[(Key, Value)]) -> io::Result<Self> {
        let used = pairs.len();
        let slots = room_for(used);
        let mut bytes = vec![0; slots * SLOT];
        for (key, value) in pairs {
            place(&mut bytes, slots, *key, *value);
        }
        file.set_len(start)?;
        file.write_all_at(&bytes, start)?;
        Ok(Self { file, start, slots, used })
    }

    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn values(&self, key: Key) -> io::Result<Vec<Value>> {
        let run = self.run(self.home(key))?;
        Ok(run.slots.iter().filter(|slot| slot.key == key).map(|slot| slot.value).collect())
    }

    pub(super) fn insert(&mut self, key: Key, value: Value) -> io::Result<()> {
        if is_full(self.used + 1, self.slots) {
            self.grow()?;
        }
        let end = self.run(self.home(key))?.end;
        self.write(end, key, value)?;
        self.used += 1;
        Ok(())
    }

    /// Puts `value` in the place of the one value that `key` has, if it has one.
    pub(super) fn set(&mut self, key: Key, value: Value) -> io::Result<()> {
        let run = self.run(self.home(key))?;
        match run.slots.iter().find(|slot| slot.key == key) {
            Some(slot) => self.write(slot.position, key, value),
            None => self.insert(key, value),
        }
    }

    /// Removes one such pair, if there is one.
    pub(super) fn remove(&mut self, key: Key, value: Value) -> io::Result<()> {
        let run = self.run(self.home(key))?;
        let found = run.slots.iter().position(|slot| slot.key == key && slot.value == value);
        let mut rest = run.slots.iter().skip(found.unwrap_or(run.slots.len()));
        let Some(gone) = rest.next() else { return Ok(()) };
        let mut gap = gone.position;
        for slot in rest {
            // Whoever would not be found from its home any more stays behind the gap.
            if self.steps(self.home(slot.key), slot.position) >= self.steps(gap, slot.position) {
                self.write(gap, slot.key, slot.value)?;
                gap = slot.position;
            }
        }
        self.write(gap, 0, 0)?;
        self.used = self.used.saturating_sub(1);
        Ok(())
    }

    fn grow(&mut self) -> io::Result<()> {
        let mut bytes = vec![0; self.slots * SLOT];
        self.file.read_exact_at(&mut bytes, self.start)?;
        let slots = bytes.chunks_exact(SLOT).map(decode).filter(|(key, _)| *key != 0);
        let pairs: Vec<_> = slots.collect();
        let file = self.file.try_clone()?;
        *self = Self::build(file, self.start, &pairs)?;
        Ok(())
    }

    fn run(&self, from: usize) -> io::Result<Run> {
        let mut slots = Vec::new();
        let mut position = from;
        while slots.len() <= self.slots {
            for (key, value) in self.block(position)? {
                if key == 0 {
                    return Ok(Run { slots, end: position });
                }
                slots.push(Slot { position, key, value });
                position = (position + 1) & (self.slots - 1);
            }
        }
        Err(io::Error::new(ErrorKind::InvalidData, "the table has no empty slot"))
    }

    /// From `position` to the end of its block.
    fn block(&self, position: usize) -> io::Result<Vec<(Key, Value)>> {
        let mut bytes = [0; SLOT * BLOCK];
        let skipped = position % BLOCK;
        self.file.read_exact_at(&mut bytes, self.offset(position - skipped))?;
        Ok(bytes.chunks_exact(SLOT).skip(skipped).map(decode).collect())
    }

    fn write(&self, position: usize, key: Key, value: Value) -> io::Result<()> {
        self.file.write_all_at(&encode(key, value), self.offset(position))
    }

    fn offset(&self, position: usize) -> u64 {
        self.start + (position * SLOT) as u64
    }

    fn home(&self, key: Key) -> usize {
        home(key, self.slots)
    }

    fn steps(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.slots - 1)
    }
}

/// At least a quarter of the slots stays empty.
fn is_full(used: usize, slots: usize) -> bool {
    used.saturating_mul(4) > slots.saturating_mul(3)
}

fn room_for(used: usize) -> usize {
    let mut slots = FEWEST_SLOTS;
    // Twice what is needed, so that what comes next finds room.
    while is_full(used.saturating_mul(2), slots) {
        slots *= 2;
    }
    slots
}

/// Where the search for `key` begins: keys that are neighbours have homes far apart.
fn home(key: Key, slots: usize) -> usize {
    let folded = (key ^ (key >> 64)) & u128::from(u64::MAX);
    let mixed = folded.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    usize::try_from(mixed & u128::from(u32::MAX)).unwrap_or_default() & (slots - 1)
}

/// Writes a pair into `bytes`, which are all slots of a table with room.
fn place(bytes: &mut [u8], slots: usize, key: Key, value: Value) {
    let home = home(key, slots);
    let (before, after) = bytes.split_at_mut(home * SLOT);
    let cells = after.chunks_exact_mut(SLOT).chain(before.chunks_exact_mut(SLOT));
    for cell in cells {
        if decode(cell).0 == 0 {
            cell.copy_from_slice(&encode(key, value));
            return;
        }
    }
}

fn encode(key: Key, value: Value) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    let (left, right) = slot.split_at_mut(SLOT / 2);
    left.copy_from_slice(&key.to_le_bytes());
    right.copy_from_slice(&value.to_le_bytes());
    slot
}

fn decode(slot: &[u8]) -> (Key, Value) {
    let number = |half: &[u8]| half.try_into().map_or(0, u128::from_le_bytes);
    let (key, value) = slot.split_at(SLOT / 2);
    (number(key), number(value))
}

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;
