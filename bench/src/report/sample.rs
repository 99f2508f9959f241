//! Figures of one kind from many rounds, and their median and spread.

use std::time::Duration;

/// Not empty after a measurement; every figure of an empty sample is the default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample<T> {
    sorted: Vec<T>,
}

impl<T: Copy + Default + Ord> Sample<T> {
    pub(crate) fn add(&mut self, figure: T) {
        let place = self.sorted.partition_point(|known| *known <= figure);
        self.sorted.insert(place, figure);
    }

    pub(crate) fn len(&self) -> usize {
        self.sorted.len()
    }

    pub(crate) fn median(&self) -> T {
        self.percentile(50)
    }

    pub(crate) fn min(&self) -> T {
        self.sorted.first().copied().unwrap_or_default()
    }

    pub(crate) fn max(&self) -> T {
        self.sorted.last().copied().unwrap_or_default()
    }

    /// The smallest figure that at least `percent` of all do not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> T {
        let rank = (self.sorted.len() * percent).div_ceil(100);
        self.sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    }
}

impl<T: Copy + Default + Ord> FromIterator<T> for Sample<T> {
    fn from_iter<I: IntoIterator<Item = T>>(figures: I) -> Self {
        let mut sorted: Vec<T> = figures.into_iter().collect();
        sorted.sort_unstable();
        Self { sorted }
    }
}

/// The median of `ours`, divided by that of `others`.
pub(crate) fn ratio(ours: &Sample<Duration>, others: &Sample<Duration>) -> f64 {
    ours.median().as_secs_f64() / others.median().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_measured_figure() {
        let sample: Sample<u64> = (1..=200).rev().collect();
        assert_eq!([50, 99, 100].map(|percent| sample.percentile(percent)), [100, 198, 200]);
        assert_eq!((sample.min(), sample.max()), (1, 200));
        let few: Sample<u64> = [7, 3, 5].into_iter().collect();
        assert_eq!((few.median(), few.percentile(99), few.percentile(1)), (5, 7, 3));
        assert_eq!(Sample::<u64>::default().median(), 0);
    }

    #[test]
    fn figures_may_come_in_any_order() {
        let mut sample = Sample::default();
        for figure in [9_u64, 1, 5, 5, 3] {
            sample.add(figure);
        }
        assert_eq!((sample.min(), sample.median(), sample.max()), (1, 5, 9));
    }

    #[test]
    fn medians_are_compared_not_extremes() {
        let millis = |figures: [u64; 3]| figures.into_iter().map(Duration::from_millis).collect();
        let (ours, others) = (millis([1, 2, 900]), millis([1, 8, 9]));
        assert!((ratio(&ours, &others) - 0.25).abs() < 1e-9);
    }
}
