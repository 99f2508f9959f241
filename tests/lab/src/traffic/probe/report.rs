//! The result of a probe: counts per pair and per stage.

use std::collections::{HashMap, HashSet};
use std::fmt::{Display, Formatter};
use std::ops::AddAssign;
use std::time::Duration;

use super::Pair;
use super::queues::Burst;
use super::receiver::Track;
use super::sender::Timeline;

/// The name of the stage before the first mark.
const FIRST: &str = "start";

/// A packet that a full queue drops was sent at most this time before.
const UNDER_WAY: Duration = Duration::from_millis(300);

/// Packets sent, and those of them that were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub sent: u64,
    pub lost: u64,
    /// Those of the lost ones that a full queue of the machine may have dropped, because at that
    /// time it dropped as many.
    pub excused: u64,
}

/// The time from one mark to the next. A packet belongs to the stage in which it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    pub name: String,
    /// The sum over all pairs.
    pub count: Count,
}

/// One pair over the whole probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairReport {
    pub from: String,
    pub to: String,
    pub count: Count,
    pub duplicates: u64,
    pub reordered: u64,
    /// From the first packet of the longest run of lost ones to the next that arrived.
    pub longest_outage: Duration,
    /// The longest time between two packets at the receiver. Never below one interval.
    pub longest_silence: Duration,
    /// One per stage of the report.
    pub stages: Vec<Count>,
    /// The longest outage that began in a stage, for each of them.
    pub outages: Vec<Duration>,
}

/// The counts of packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub pairs: Vec<PairReport>,
    pub stages: Vec<Stage>,
    /// The longest time in which nothing was sent: outages in it are not detected.
    pub longest_pause: Duration,
    /// Packets dropped by full queues of the machine meanwhile, including packets of other
    /// programs.
    pub overruns: u64,
    pub duration: Duration,
}

impl Report {
    pub(super) fn count(
        pairs: &[Pair],
        timeline: &Timeline,
        tracks: &[Track],
        marks: &[(usize, String)],
        bursts: &[Burst],
    ) -> Self {
        let ends = ends(marks, timeline.rounds.len());
        let excused = excused(&losses(timeline, tracks), bursts);
        let pairs: Vec<_> = pairs
            .iter()
            .zip(tracks)
            .enumerate()
            .map(|(index, (pair, track))| {
                let is_excused = |number| excused.contains(&(index, number));
                PairReport::count(pair, track, timeline, (&ends, is_excused))
            })
            .collect();
        let names = std::iter::once(FIRST).chain(marks.iter().map(|(_, name)| name.as_str()));
        let stages = names.enumerate().map(|(index, name)| Stage {
            name: name.to_owned(),
            count: sum(pairs.iter().filter_map(|pair| pair.stages.get(index))),
        });
        let stages = stages.collect();
        let steps = timeline.rounds.iter().zip(timeline.rounds.iter().skip(1));
        let longest_pause = steps.map(|(a, b)| b.saturating_sub(*a)).max().unwrap_or_default();
        let begin = timeline.rounds.first().copied().unwrap_or_default();
        let duration = timeline.end.saturating_sub(begin);
        let overruns = bursts.iter().map(|burst| burst.dropped).sum();
        Self { pairs, stages, longest_pause, overruns, duration }
    }

    /// The sum over all pairs and stages.
    pub fn total(&self) -> Count {
        sum(self.pairs.iter().map(|pair| &pair.count))
    }

    /// The packets that are missing, without those that full queues of a busy machine dropped.
    pub fn lost(&self) -> u64 {
        self.total().lost_by_network()
    }

    /// The pairs that lost packets.
    pub fn losers(&self) -> impl Iterator<Item = &PairReport> {
        self.pairs.iter().filter(|pair| pair.count.lost > 0)
    }

    /// By the names of the nodes.
    pub fn pair(&self, from: &str, to: &str) -> Option<&PairReport> {
        self.pairs.iter().find(|pair| pair.from == from && pair.to == to)
    }

    /// The first stage of that name.
    pub fn stage(&self, name: &str) -> Option<&Stage> {
        self.stages.iter().find(|stage| stage.name == name)
    }

    pub fn longest_outage(&self) -> Duration {
        self.pairs.iter().map(|pair| pair.longest_outage).max().unwrap_or_default()
    }
}

impl Count {
    /// The packets that are missing, without the excused ones.
    pub fn lost_by_network(&self) -> u64 {
        self.lost - self.excused
    }
}

impl PairReport {
    fn count(
        pair: &Pair,
        track: &Track,
        timeline: &Timeline,
        (ends, is_excused): (&[usize], impl Fn(usize) -> bool),
    ) -> Self {
        let came = |number: usize| track.times.get(number).is_some_and(|times| *times > 0);
        let (mut stages, mut outages, runs) = (Vec::new(), Vec::new(), runs(timeline, came));
        let mut begin = 0;
        for end in ends {
            let lost: Vec<_> = (begin..*end).filter(|number| !came(*number)).collect();
            let excused = lost.iter().filter(|number| is_excused(**number)).count() as u64;
            let (sent, lost) = ((*end - begin) as u64, lost.len() as u64);
            stages.push(Count { sent, lost, excused });
            let of_stage = runs.iter().filter(|(first, _)| (begin..*end).contains(first));
            outages.push(of_stage.map(|(_, lasted)| *lasted).max().unwrap_or_default());
            begin = *end;
        }
        Self {
            from: pair.from.label().to_owned(),
            to: pair.to.label().to_owned(),
            count: sum(&stages),
            duplicates: track.duplicates,
            reordered: track.reordered,
            longest_outage: outages.iter().max().copied().unwrap_or_default(),
            longest_silence: track.longest_silence,
            stages,
            outages,
        }
    }
}

impl AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.excused += other.excused;
    }
}

impl Display for Report {
    /// A line per stage, then a line per pair that lost packets.
    fn fmt(&self, out: &mut Formatter<'_>) -> std::fmt::Result {
        writeln!(out, "{:<40} {:>10} {:>8}", "stage", "sent", "lost")?;
        for Stage { name, count } in &self.stages {
            writeln!(out, "{name:<40} {:>10} {:>8}", count.sent, count.lost)?;
        }
        let total = self.total();
        writeln!(out, "{:<40} {:>10} {:>8}", "total", total.sent, total.lost)?;
        if self.overruns > 0 {
            writeln!(out, "{:<40} {:>10} {:>8}", "dropped by full queues", "", self.overruns)?;
        }
        for pair in self.losers() {
            let (name, outage) = (format!("{} → {}", pair.from, pair.to), pair.longest_outage);
            writeln!(out, "  {name}: {} lost, {outage:.1?} at most at a time", pair.count.lost)?;
        }
        Ok(())
    }
}

/// The number of the round after the last one of each stage.
fn ends(marks: &[(usize, String)], rounds: usize) -> Vec<usize> {
    let marks = marks.iter().map(|(round, _)| (*round).min(rounds));
    marks.chain(std::iter::once(rounds)).collect()
}

/// A missing packet, by the index of its pair and its own number.
struct Loss {
    /// When its round began, and the next one.
    round: (Duration, Duration),
    packet: (usize, usize),
}

/// In the order of sending.
fn losses(timeline: &Timeline, tracks: &[Track]) -> Vec<Loss> {
    let mut losses = Vec::new();
    let ends = timeline.rounds.iter().skip(1).chain([&timeline.end]);
    for (number, round) in timeline.rounds.iter().copied().zip(ends.copied()).enumerate() {
        for (pair, track) in tracks.iter().enumerate() {
            if track.times.get(number).is_none_or(|times| *times == 0) {
                losses.push(Loss { round, packet: (pair, number) });
            }
        }
    }
    losses
}

/// As many as queues dropped while they may have been under way. Drops count for all programs of the
/// machine, so those of another time excuse nothing. A pair without a path loses everything, so the
/// packets of pairs that lose little come first.
fn excused(losses: &[Loss], bursts: &[Burst]) -> HashSet<(usize, usize)> {
    let mut lost_by: HashMap<usize, usize> = HashMap::new();
    for loss in losses {
        *lost_by.entry(loss.packet.0).or_default() += 1;
    }
    let mut excused = HashSet::new();
    for burst in bursts {
        let later = losses.partition_point(|loss| loss.round.1 + UNDER_WAY < burst.since);
        let under_way = losses.iter().skip(later).take_while(|loss| loss.round.0 <= burst.until);
        let mut left: Vec<_> =
            under_way.map(|loss| loss.packet).filter(|it| !excused.contains(it)).collect();
        left.sort_by_key(|(pair, _)| lost_by.get(pair));
        left.truncate(usize::try_from(burst.dropped).unwrap_or(usize::MAX));
        excused.extend(left);
    }
    excused
}

/// Each run of lost packets: the number of its first, and its duration.
fn runs(timeline: &Timeline, came: impl Fn(usize) -> bool) -> Vec<(usize, Duration)> {
    let (mut runs, mut begun) = (Vec::new(), None);
    for (number, now) in timeline.rounds.iter().enumerate() {
        if !came(number) {
            begun.get_or_insert((number, *now));
        } else if let Some((first, since)) = begun.take() {
            runs.push((first, now.saturating_sub(since)));
        }
    }
    runs.extend(begun.map(|(first, since)| (first, timeline.end.saturating_sub(since))));
    runs
}

fn sum<'a>(counts: impl IntoIterator<Item = &'a Count>) -> Count {
    let mut sum = Count::default();
    counts.into_iter().for_each(|count| sum += *count);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the excused ones of these losses of one pair, sent at these milliseconds.
    fn of(losses: &[u64], bursts: &[(u64, u64, u64)]) -> Vec<usize> {
        let ms = Duration::from_millis;
        let loss = |(number, sent): (usize, &u64)| {
            let round = (ms(*sent), ms(*sent + 1));
            Loss { round, packet: (0, number) }
        };
        let losses: Vec<_> = losses.iter().enumerate().map(loss).collect();
        let burst =
            |&(since, until, dropped)| Burst { since: ms(since), until: ms(until), dropped };
        let bursts: Vec<_> = bursts.iter().map(burst).collect();
        let mut numbers: Vec<_> = excused(&losses, &bursts).into_iter().map(|it| it.1).collect();
        numbers.sort_unstable();
        numbers
    }

    #[test]
    fn queues_that_drop_at_another_time_excuse_no_loss() {
        let excused = of(&[1000, 1001, 1002], &[(0, 900, 500), (1320, 1340, 500)]);
        assert!(excused.is_empty(), "{excused:?}");
    }

    #[test]
    fn queues_excuse_as_many_losses_as_they_drop() {
        assert_eq!(of(&[1000, 1001, 1002], &[(1010, 1030, 2)]), [0, 1]);
        assert_eq!(of(&[1000, 1200, 1500], &[(990, 1010, 1), (1400, 1420, 9)]), [0, 1]);
    }

    #[test]
    fn a_pair_without_a_path_does_not_use_up_the_excuses() {
        let loss = |pair, number: u64| Loss {
            round: (Duration::from_millis(number), Duration::from_millis(number + 1)),
            packet: (pair, usize::try_from(number).unwrap()),
        };
        let losses = [loss(0, 1), loss(0, 2), loss(1, 2), loss(0, 3)];
        let burst = Burst { since: Duration::ZERO, until: Duration::from_millis(20), dropped: 1 };
        assert_eq!(excused(&losses, &[burst]), HashSet::from([(1, 2)]));
    }
}
