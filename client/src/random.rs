//! Random numbers: those of the operating system, or those of a seed that a simulation sets.

use std::cell::RefCell;

use rand::distr::uniform::{SampleRange, SampleUniform};
use rand::distr::{Distribution, StandardUniform};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, RngExt, SeedableRng};

thread_local! {
    static SEEDED: RefCell<Option<StdRng>> = const { RefCell::new(None) };
}

/// From now on, the random numbers of this thread follow from `seed`, so that a run can be repeated.
pub fn seed(seed: u64) {
    SEEDED.set(Some(StdRng::seed_from_u64(seed)));
}

pub fn random<T>() -> T
where
    StandardUniform: Distribution<T>,
{
    draw(|rng| rng.random())
}

pub fn random_range<T: SampleUniform>(range: impl SampleRange<T>) -> T {
    draw(|rng| rng.random_range(range))
}

pub fn shuffle<T>(items: &mut [T]) {
    draw(|mut rng| items.shuffle(&mut rng));
}

fn draw<T>(take: impl FnOnce(&mut dyn Rng) -> T) -> T {
    SEEDED.with_borrow_mut(|seeded| match seeded {
        Some(rng) => take(rng),
        None => take(&mut rand::rng()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers() {
        let numbers = |number| {
            seed(number);
            let mut items: Vec<u8> = (0..20).collect();
            shuffle(&mut items);
            (random::<u64>(), random_range(0..1000_u32), items)
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
    }
}
