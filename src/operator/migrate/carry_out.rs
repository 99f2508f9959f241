//! Carries out an order: writes its steps, waits until each is applied, and watches the result.

use std::collections::BTreeMap;
use std::io::Write;
use std::mem;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::cluster::{ClusterView, Subject, Troubles};
use super::decision::decide;
use super::options::{Order, Watching};
use super::outcome::{Ended, Outcome, Progress, announced, short};
use super::state::Step;
use super::store::{self, Author};
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
    let (view, watching) = (store::read(store).await?, order.watching());
    let mut work = Work { store, author, watching, progress, view };
    let outcome = match work.carry_out(order).await {
        Ok(outcome) | Err(Stop::Outcome(outcome)) => outcome,
        Err(Stop::Error(error)) => return Err(error),
    };
    Ok(Ended { outcome, progress: Progress::of(&work.view) })
}

struct Work<'a, S, W> {
    store: &'a S,
    author: Author,
    watching: Watching,
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

/// The interval of progress lines while a stage is watched.
const SIGN_OF_LIFE: Duration = Duration::from_secs(60);

impl<S: ClusterStore, W: Write> Work<'_, S, W> {
    async fn carry_out(&mut self, order: &Order) -> Result<Outcome, Stop> {
        // The previous config must be applied before the next is written.
        let goes_on = !matches!(order, Order::Pause | Order::Rollback { .. });
        if goes_on && self.view.state.config.mixed {
            self.wait().await?;
        }
        loop {
            let step = match decide(order, &self.view) {
                Ok(step) => step,
                Err(outcome) if outcome.exit_status == ExitStatus::Well => {
                    return self.take_over(outcome).await;
                }
                Err(outcome) => return Ok(outcome),
            };
            let before = self.view.clone();
            self.take(&step).await?;
            // All nodes must have applied Mixed before the first one changes its backend.
            if step != Step::Mix {
                let done = Outcome::done(&step, &self.view);
                return self.watch(&before).await.map(|()| done);
            }
        }
    }

    /// A stage that is already reached is watched too, if `--hold` is given.
    async fn take_over(&mut self, outcome: Outcome) -> Result<Outcome, Stop> {
        if !self.watching.hold.is_zero() {
            self.say(&outcome.message)?;
            self.watch(&self.view.clone()).await?;
        }
        Ok(outcome)
    }

    /// Writes `step` and waits until it is applied.
    async fn take(&mut self, step: &Step) -> Result<(), Stop> {
        let document = self.view.after(step, &self.author.note());
        let written = store::swap(self.store, self.view.state.revision, &document).await?;
        let before = mem::replace(&mut self.view, store::read(self.store).await?);
        let conflict = |so| Err(Stop::Outcome(Outcome::conflict(&before, &self.view, so)));
        match written {
            Swap::Outdated => return conflict("nothing was written"),
            Swap::Done(revision) if revision != self.view.state.revision => {
                return conflict("what was written stood for a moment only");
            }
            Swap::Done(_) => {}
        }
        self.say(&announced(step))?;
        if *step == Step::Pause { Ok(()) } else { self.wait().await }
    }

    /// Reads the cluster again, unless another operator has written the config.
    async fn look(&mut self) -> Result<(), Stop> {
        let before = mem::replace(&mut self.view, store::read(self.store).await?);
        if before.state.revision == self.view.state.revision {
            return Ok(());
        }
        let so = "this command no longer watches";
        Err(Stop::Outcome(Outcome::conflict(&before, &self.view, so)))
    }

    /// Waits until every node that reports has applied the config.
    async fn wait(&mut self) -> Result<(), Stop> {
        let deadline = Instant::now() + self.watching.waiting.timeout;
        let mut last = usize::MAX;
        loop {
            self.look().await?;
            let lags = self.view.lags();
            if lags.len() != last {
                last = lags.len();
                let reporting = self.view.reporting().count();
                self.say(&format!("in force on {} of {reporting} nodes", reporting - last))?;
            }
            if lags.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let message =
                    "not every node does yet what is written: tweedctl migrate status tells when";
                return Err(Stop::Outcome(Outcome::new(ExitStatus::Late, message).with(lags)));
            }
            sleep(PAUSE).await;
        }
    }

    /// Watches an applied stage, and stops at the first possible regression since `before`.
    async fn watch(&mut self, before: &ClusterView) -> Result<(), Stop> {
        let (started, mut sign) = (Instant::now(), Duration::ZERO);
        let mut suspected = Suspected::default();
        loop {
            if let Some(troubles) = suspected.confirmed(self.view.degraded(before)) {
                return Err(self.degraded(&troubles).await);
            }
            let held = started.elapsed();
            if held >= self.watching.hold && suspected.is_quiet() {
                return Ok(());
            }
            if held >= sign {
                sign = held + SIGN_OF_LIFE;
                let left = short(self.watching.hold.saturating_sub(held));
                self.say(&format!("watching for {left}; {}", suspected.summary()))?;
            }
            sleep(PAUSE).await;
            self.look().await?;
        }
    }

    /// Ends a stage with these troubles, after a rollback if `--auto-rollback` is given.
    async fn degraded(&mut self, troubles: &Troubles) -> Stop {
        let details = troubles.iter().map(|(subject, why)| format!("{subject}: {why}")).collect();
        let stays = "worse off than before";
        let message = match &self.view.state.under_way {
            None => stays.to_owned(),
            Some(it) if !self.watching.auto_rollback => {
                format!("{stays}, at {}; tweedctl migrate rollback takes it back", it.stage)
            }
            Some(_) => {
                // The answer shows the cluster as it was with the troubles, before the rollback.
                let degraded = self.view.clone();
                let back = self.go_back().await;
                self.view = degraded;
                match back {
                    Ok(message) => message,
                    Err(Stop::Outcome(Outcome { message, .. })) => {
                        format!("{stays}, and it could not be taken back: {message}")
                    }
                    Err(error @ Stop::Error(_)) => return error,
                }
            }
        };
        Stop::Outcome(Outcome::new(ExitStatus::Degraded, message).with(details))
    }

    async fn go_back(&mut self) -> Result<String, Stop> {
        let order = Order::Rollback { one_stage: true, waiting: self.watching.waiting };
        match decide(&order, &self.view) {
            Ok(step) => {
                self.take(&step).await?;
                let back = Outcome::done(&step, &self.view).message;
                Ok(format!("worse off than before, and so taken back: {back}"))
            }
            Err(outcome) if outcome.exit_status == ExitStatus::Well => Ok(outcome.message),
            Err(outcome) => Err(Stop::Outcome(outcome)),
        }
    }

    fn say(&mut self, text: &str) -> Result<(), Error> {
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
    /// Those of `troubles` that have lasted longer than a temporary one, if any.
    fn confirmed(&mut self, mut troubles: Troubles) -> Option<Troubles> {
        self.0.retain(|subject, _| troubles.contains_key(subject));
        troubles.retain(|subject, _| {
            let since = self.0.entry(subject.clone()).or_insert_with(Instant::now);
            since.elapsed() >= passing(subject)
        });
        Some(troubles).filter(|troubles| !troubles.is_empty())
    }

    /// Whether no trouble is confirmed or about to be.
    fn is_quiet(&self) -> bool {
        self.0.keys().all(|subject| passing(subject) == NOISE)
    }

    fn summary(&self) -> String {
        match self.0.len() {
            0 => "all is well".to_owned(),
            some => format!("{} may be worse off", counted(some, "thing")),
        }
    }
}

/// How long a trouble may last before it counts.
const fn passing(subject: &Subject) -> Duration {
    match subject {
        Subject::Pair(..) | Subject::Node(_) => DISTURBANCE,
        Subject::Probes(_) => NOISE,
    }
}
