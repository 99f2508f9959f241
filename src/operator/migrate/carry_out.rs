//! Carries out an order: writes its steps, waits until each is applied, and observes the result.

use std::collections::BTreeMap;
use std::io::Write;
use std::mem;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::{Instant, sleep};

use super::cluster::{ClusterView, Subject, Troubles, sentence};
use super::decision::decide;
use super::options::{Order, StageOptions};
use super::outcome::{Ended, Outcome, Progress, announced, short};
use super::state::{Note, Step};
use super::{read, unusable};
use crate::kernel::host;
use crate::operator::layout::{counted, wrap};
use crate::operator::{Error, ExitStatus};
use crate::store::ClusterStore;
use crate::store::operator::Swap;

/// Carries out `order`, and writes progress lines to `progress`.
pub(super) async fn carry_out<S: ClusterStore>(
    store: &S,
    author: Author,
    order: &Order,
    progress: &mut impl Write,
) -> Result<Ended, Error> {
    let (view, options) = (read(store).await?, order.options());
    let mut work = Work { store, author, options, progress, view };
    let outcome = match work.carry_out(order).await {
        Ok(outcome) | Err(Stop::Outcome(outcome)) => outcome,
        Err(Stop::Error(error)) => return Err(error),
    };
    let outcome = match order {
        Order::Start(_) => outcome.about_mixed(&work.view),
        Order::Next { .. } | Order::Pause | Order::Rollback { .. } | Order::Finish { .. } => {
            outcome
        }
    };
    Ok(Ended { outcome, progress: Progress::of(&work.view) })
}

struct Work<'a, S, W> {
    store: &'a S,
    author: Author,
    options: StageOptions,
    progress: &'a mut W,
    /// The last read.
    view: ClusterView,
}

/// Why an order ended before its last step.
enum Stop {
    Outcome(Outcome),
    Error(Error),
}

/// The pause between two reads; nodes need about as long to report.
const PAUSE: Duration = Duration::from_secs(1);

/// The interval of progress lines while a stage is observed.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(60);

impl<S: ClusterStore, W: Write> Work<'_, S, W> {
    async fn carry_out(&mut self, order: &Order) -> Result<Outcome, Stop> {
        // The previous config must be applied before the next is written: a node without Mixed
        // would drop the first node that changes its backend.
        let continues = !matches!(order, Order::Pause | Order::Rollback { .. });
        if continues && self.view.state.config.mixed {
            self.wait().await?;
        }
        loop {
            let before = self.view.clone();
            let step = match decide(order, &before) {
                Ok(step) => step,
                Err(outcome) => {
                    // A stage that is already reached is observed, too.
                    if outcome.exit_status == ExitStatus::Done && !self.options.hold.is_zero() {
                        self.report(&outcome.message)?;
                        self.observe(&before).await?;
                    }
                    return Ok(outcome);
                }
            };
            self.execute(&step).await?;
            // All nodes must have applied Mixed before the first one changes its backend.
            if step != Step::Mix {
                let done = Outcome::done(&step, &self.view);
                return self.observe(&before).await.map(|()| done);
            }
        }
    }

    /// Writes `step` and waits until it is applied.
    async fn execute(&mut self, step: &Step) -> Result<(), Stop> {
        let document = self.view.state.after(step, &self.author.note(), self.view.quality());
        let written = self.store.swap(self.view.state.revision, document.text()).await;
        let written = written.map_err(|away| unusable(self.store, &away))?;
        let before = mem::replace(&mut self.view, read(self.store).await?);
        let consequence = match written {
            Swap::Outdated => "nothing was written",
            Swap::Done(revision) if revision != self.view.state.revision => {
                "the written config was replaced at once"
            }
            Swap::Done(_) => {
                self.report(&announced(step))?;
                return if *step == Step::Pause { Ok(()) } else { self.wait().await };
            }
        };
        Err(Stop::Outcome(Outcome::conflict(&before, &self.view, consequence)))
    }

    /// Reads the cluster again, unless another operator has written the config.
    async fn reread(&mut self) -> Result<(), Stop> {
        let before = mem::replace(&mut self.view, read(self.store).await?);
        if before.state.revision == self.view.state.revision {
            return Ok(());
        }
        let consequence = "this command stops observing";
        Err(Stop::Outcome(Outcome::conflict(&before, &self.view, consequence)))
    }

    /// Waits until every node that reports has applied the config.
    async fn wait(&mut self) -> Result<(), Stop> {
        let deadline = Instant::now() + self.options.wait.timeout;
        let mut last = usize::MAX;
        loop {
            self.reread().await?;
            let lags = self.view.lags();
            if lags.len() != last {
                last = lags.len();
                let reporting = self.view.reporting().count();
                self.report(&format!("applied on {} of {reporting} nodes", reporting - last))?;
            }
            if lags.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let message =
                    "not all nodes have applied the config; tweedctl migrate status lists them";
                return Err(Stop::Outcome(Outcome::new(ExitStatus::Late, message).with(lags)));
            }
            sleep(PAUSE).await;
        }
    }

    /// Observes an applied stage, and stops at the first possible regression since `before`.
    async fn observe(&mut self, before: &ClusterView) -> Result<(), Stop> {
        let (started, mut next_report) = (Instant::now(), Duration::ZERO);
        let mut suspected = Suspected::default();
        loop {
            if let Some(troubles) = suspected.confirmed(self.view.degraded(before)) {
                return Err(self.degraded(&troubles).await);
            }
            let held = started.elapsed();
            if held >= self.options.hold && suspected.is_quiet() {
                return Ok(());
            }
            if held >= next_report {
                next_report = held + PROGRESS_INTERVAL;
                let left = short(self.options.hold.saturating_sub(held));
                self.report(&format!("observing for {left}; {}", suspected.summary()))?;
            }
            sleep(PAUSE).await;
            self.reread().await?;
        }
    }

    /// Ends a stage with these troubles, after a rollback if `--auto-rollback` is given.
    async fn degraded(&mut self, troubles: &Troubles) -> Stop {
        let message = match &self.view.state.under_way {
            None => "possible regression".to_owned(),
            Some(it) if !self.options.auto_rollback => {
                let stage = &it.stage;
                format!("possible regression at {stage}; tweedctl migrate rollback reverts it")
            }
            Some(_) => {
                // The answer shows the cluster as it was with the troubles, before the rollback.
                let degraded = self.view.clone();
                let back = self.go_back().await;
                self.view = degraded;
                match back {
                    Ok(back) => format!("possible regression, rolled back: {back}"),
                    Err(Stop::Outcome(Outcome { message, .. })) => {
                        format!("possible regression, and the rollback failed: {message}")
                    }
                    Err(error @ Stop::Error(_)) => return error,
                }
            }
        };
        let details = troubles.iter().map(sentence).collect();
        Stop::Outcome(Outcome::new(ExitStatus::Degraded, message).with(details))
    }

    async fn go_back(&mut self) -> Result<String, Stop> {
        let order = Order::Rollback { one_stage: true, wait: self.options.wait };
        let step = decide(&order, &self.view).map_err(Stop::Outcome)?;
        self.execute(&step).await?;
        Ok(Outcome::done(&step, &self.view).message)
    }

    fn report(&mut self, text: &str) -> Result<(), Error> {
        let line = format!("{}  {text}", self.author.now().strftime("%T"));
        writeln!(self.progress, "{}", wrap(&line, 10))?;
        Ok(self.progress.flush()?)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// The troubles of a stage, with their start. Short ones are ignored.
#[derive(Default)]
struct Suspected(BTreeMap<Subject, Instant>);

/// Each change disturbs paths for a moment.
const DISTURBANCE: Duration = Duration::from_secs(4);
/// A few lost probes are normal.
const NOISE: Duration = Duration::from_secs(45);

impl Suspected {
    /// Those of `troubles` that have lasted too long, if any.
    fn confirmed(&mut self, mut troubles: Troubles) -> Option<Troubles> {
        self.0.retain(|subject, _| troubles.contains_key(subject));
        troubles.retain(|subject, _| {
            let since = self.0.entry(subject.clone()).or_insert_with(Instant::now);
            since.elapsed() >= tolerance(subject)
        });
        Some(troubles).filter(|troubles| !troubles.is_empty())
    }

    /// Whether no trouble is confirmed or about to be.
    fn is_quiet(&self) -> bool {
        self.0.keys().all(|subject| tolerance(subject) == NOISE)
    }

    fn summary(&self) -> String {
        match self.0.len() {
            0 => "no problems".to_owned(),
            some => counted(some, "possible regression"),
        }
    }
}

/// How long a trouble may last before it counts.
const fn tolerance(subject: &Subject) -> Duration {
    match subject {
        Subject::Outage(_) | Subject::Pair(..) | Subject::Node(_) => DISTURBANCE,
        Subject::Probes(_) => NOISE,
    }
}

/// The operator, with a clock.
#[derive(Clone, Debug)]
pub(super) struct Author {
    started: Note,
    since: Instant,
}

impl Author {
    pub(super) fn new(started: Note) -> Self {
        Self { started, since: Instant::now() }
    }

    /// This user on this host.
    pub(super) fn here() -> Self {
        let user = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
        Self::new(Note { at: Timestamp::now(), by: format!("{user}@{}", host::name()) })
    }

    /// In whole seconds.
    pub(super) fn now(&self) -> Timestamp {
        let passed = self.since.elapsed().as_secs();
        let seconds = self.started.at.as_second().saturating_add_unsigned(passed);
        Timestamp::from_second(seconds).unwrap_or(self.started.at)
    }

    pub(super) fn note(&self) -> Note {
        Note { at: self.now(), by: self.started.by.clone() }
    }
}
