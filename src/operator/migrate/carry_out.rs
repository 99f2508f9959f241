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
use super::outcome::{ClusterProgress, CommandEnd, Outcome, announced, short};
use super::state::{Note, Step};
use super::{read, unusable, view_of};
use crate::kernel::host;
use crate::operator::layout::{counted, wrap};
use crate::operator::{Error, ExitStatus};
use crate::store::ClusterStore;
use crate::store::operator::{Swap, Unavailable};

/// Carries out `order`, and writes progress lines to `progress`.
pub(super) async fn carry_out<S: ClusterStore>(
    store: &S,
    author: Author,
    order: &Order,
    progress: &mut impl Write,
) -> Result<CommandEnd, Error> {
    let (view, options) = (read(store).await?, order.options());
    let mut work = Work { store, author, options, progress, view, pause: PAUSE, observed: None };
    let outcome = match work.carry_out(order).await {
        Ok(outcome) | Err(Halt::Outcome(outcome)) => outcome,
        Err(Halt::Degraded(troubles)) => work.degraded(&troubles).await,
        Err(Halt::Error(error)) => return Err(error),
    };
    let is_start = matches!(order, Order::Start(_));
    let outcome = if is_start { outcome.about_mixed(&work.view) } else { outcome };
    Ok(CommandEnd { outcome, progress: ClusterProgress::of(&work.view) })
}

struct Work<'a, S, W> {
    store: &'a S,
    author: Author,
    options: StageOptions,
    progress: &'a mut W,
    /// The last read.
    view: ClusterView,
    /// The pause before the next one.
    pause: Duration,
    /// The step that this command has written or observes. From then on, neither an unreachable store
    /// nor a closed output ends it early: the stage would stay without a rollback.
    observed: Option<String>,
}

/// Why an order ended before its last step.
#[derive(Debug, thiserror::Error)]
enum Halt {
    #[error("{}", .0.message)]
    Outcome(Outcome),
    /// A possible regression, with its troubles.
    #[error("{}", .0.iter().map(sentence).collect::<Vec<_>>().join(", "))]
    Degraded(Troubles),
    #[error(transparent)]
    Error(#[from] Error),
}

/// The pause between two reads; nodes need about as long to report.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause after a long read, as a multiple of its duration: of thousands of nodes, each read is tens
/// of megabytes, and an observation may take hours.
const PAUSE_FACTOR: u32 = 4;

/// The minimum time for which reads of an unreachable store are retried: elections and restarts of
/// its servers take less.
const RETRIES: Duration = Duration::from_secs(600);

/// A read that takes longer has observed nothing meanwhile.
const SLOW: Duration = Duration::from_secs(5);

/// The interval of progress lines while a stage is observed.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(60);

impl<S: ClusterStore, W: Write> Work<'_, S, W> {
    async fn carry_out(&mut self, order: &Order) -> Result<Outcome, Halt> {
        // The previous config must be applied before the next is written: a node without Mixed
        // would drop the first node that changes its backend.
        let continues = !matches!(order, Order::Pause | Order::Rollback { .. });
        let has_waited = continues && self.view.state.config.mixed;
        if has_waited {
            self.wait(None).await?;
        }
        let before = self.view.clone();
        // Only these write stages that a rollback reverts. A rollback does not stop halfway.
        let baseline = matches!(order, Order::Start(_) | Order::Next { .. }).then_some(&before);
        loop {
            let step = match decide(order, &self.view) {
                Ok(step) => step,
                Err(outcome) => {
                    // What the config selects already is done once all nodes have applied it.
                    let is_done = outcome.exit_status == ExitStatus::Done;
                    if is_done && !has_waited && !matches!(order, Order::Pause) {
                        self.wait(None).await?;
                    }
                    // A stage that is already reached is observed, too.
                    if is_done && !self.options.hold.is_zero() {
                        self.report(&outcome.message)?;
                        self.observed = Some(outcome.message.clone());
                        self.observe(&before).await?;
                    }
                    return Ok(outcome);
                }
            };
            self.execute(&step, baseline).await?;
            // All nodes must have applied Mixed before the first one changes its backend.
            if step != Step::Mix {
                let done = Outcome::done(&step, &self.view);
                return self.observe(&before).await.map(|()| done);
            }
        }
    }

    /// Writes `step` and waits until it is applied.
    async fn execute(&mut self, step: &Step, baseline: Option<&ClusterView>) -> Result<(), Halt> {
        self.write(step).await?;
        if *step == Step::Pause { Ok(()) } else { self.wait(baseline).await }
    }

    /// Writes `step`, unless another operator has changed the config.
    async fn write(&mut self, step: &Step) -> Result<(), Halt> {
        let document = self.view.state.after(step, &self.author.note(), self.view.quality());
        let mut since = None;
        loop {
            let swap = self.store.swap(self.view.state.revision, document.text()).await;
            let is_done = matches!(swap, Ok(Swap::Done(_)));
            if is_done {
                self.announce(step)?;
            }
            let (view, _) = self.read().await?;
            let before = mem::replace(&mut self.view, view);
            let found = &self.view.state.document;
            if *found == document {
                // A server may execute a write without an answer.
                return if is_done { Ok(()) } else { self.announce(step) };
            }
            let is_unchanged = *found == before.state.document;
            let consequence = match swap {
                Ok(Swap::Done(_)) => "the written config was replaced at once",
                Ok(Swap::Outdated) if is_unchanged => {
                    sleep(PAUSE).await;
                    continue;
                }
                Err(away) if is_unchanged && self.observed.is_none() => {
                    return Err(unusable(self.store, &away).into());
                }
                Err(away) if is_unchanged => {
                    self.pause_after(&away, &mut since).await?;
                    continue;
                }
                Ok(Swap::Outdated) | Err(_) => "nothing was written",
            };
            return Err(Halt::Outcome(Outcome::conflict(&before, &self.view, consequence)));
        }
    }

    fn announce(&mut self, step: &Step) -> Result<(), Halt> {
        let text = announced(step);
        self.observed = Some(text.clone());
        Ok(self.report(&text)?)
    }

    /// Reads the cluster again, unless another operator has changed the config. Returns for how long
    /// it could not be read.
    async fn reread(&mut self) -> Result<Duration, Halt> {
        let (view, away) = self.read().await?;
        let before = mem::replace(&mut self.view, view);
        if before.state.document == self.view.state.document {
            return Ok(away);
        }
        let consequence = "this command stops observing";
        Err(Halt::Outcome(Outcome::conflict(&before, &self.view, consequence)))
    }

    /// The cluster, and for how long it could not be read before: the store was unreachable, or has
    /// kept this command waiting.
    async fn read(&mut self) -> Result<(ClusterView, Duration), Halt> {
        let (begun, mut since) = (Instant::now(), None);
        loop {
            let asked = Instant::now();
            match self.store.read().await {
                Ok(contents) => {
                    self.pause = PAUSE.max(asked.elapsed().saturating_mul(PAUSE_FACTOR));
                    let took = Some(begun.elapsed()).filter(|took| since.is_some() || *took > SLOW);
                    return Ok((view_of(self.store, contents)?, took.unwrap_or_default()));
                }
                Err(away) => self.pause_after(&away, &mut since).await?,
            }
        }
    }

    /// Pauses before the next request to a store that is unreachable `since` then; gives up after
    /// some time.
    async fn pause_after(
        &mut self,
        Unavailable(why): &Unavailable,
        since: &mut Option<Instant>,
    ) -> Result<(), Halt> {
        let limit = self.options.wait.timeout.max(RETRIES);
        if since.is_none() {
            let limit = short(limit);
            self.report(&format!("the store cannot be used: {why}; retrying for up to {limit}"))?;
        }
        if since.get_or_insert_with(Instant::now).elapsed() >= limit {
            return Err(self.unobserved(why).into());
        }
        sleep(PAUSE).await;
        Ok(())
    }

    fn unobserved(&self, why: &str) -> Error {
        Error::Store(match &self.observed {
            Some(step) => format!(
                "{why}; the last step is written ({step}), and no command observes it any more: \
                 run tweedctl migrate status, and on a problem tweedctl migrate rollback"
            ),
            None => format!("{why}; run tweedctl migrate status before you repeat this command"),
        })
    }

    /// Waits until every node that reports has applied the config; stops at the first possible
    /// regression since `baseline`.
    async fn wait(&mut self, baseline: Option<&ClusterView>) -> Result<(), Halt> {
        let mut deadline = Instant::now() + self.options.wait.timeout;
        let mut suspected = Suspected::default();
        let mut last = usize::MAX;
        loop {
            // Nodes do not reach the store then, either.
            deadline += self.reread().await?;
            let lags = self.view.lags();
            if lags.len() != last {
                last = lags.len();
                let reporting = self.view.reporting().count();
                self.report(&format!("applied on {} of {reporting} nodes", reporting - last))?;
            }
            if lags.is_empty() {
                return Ok(());
            }
            if let Some(before) = baseline {
                suspected.stop_if_confirmed(self.view.degraded(before))?;
            }
            if Instant::now() >= deadline && suspected.is_quiet() {
                let message =
                    "not all nodes have applied the config; tweedctl migrate status lists them";
                return Err(Halt::Outcome(Outcome::new(ExitStatus::Late, message).with(lags)));
            }
            sleep(self.pause).await;
        }
    }

    /// Observes an applied stage, and stops at the first possible regression since `before`.
    async fn observe(&mut self, before: &ClusterView) -> Result<(), Halt> {
        let (mut started, mut next_report) = (Instant::now(), Duration::ZERO);
        let mut suspected = Suspected::default();
        loop {
            suspected.stop_if_confirmed(self.view.degraded(before))?;
            let held = started.elapsed();
            if held >= self.options.hold && suspected.is_quiet() {
                return Ok(());
            }
            if held >= next_report {
                next_report = held + PROGRESS_INTERVAL;
                let left = short(self.options.hold.saturating_sub(held));
                self.report(&format!("observing for {left}; {}", suspected.summary()))?;
            }
            sleep(self.pause).await;
            // Nothing is observed while the store is unreachable.
            started += self.reread().await?;
        }
    }

    /// The outcome of a stage with these troubles, after a rollback if `--auto-rollback` is given.
    async fn degraded(&mut self, troubles: &Troubles) -> Outcome {
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
                    Err(Halt::Outcome(it)) if it.exit_status == ExitStatus::Late => {
                        format!("possible regression; the rollback is written, but {}", it.message)
                    }
                    Err(stop) => format!("possible regression, and the rollback failed: {stop}"),
                }
            }
        };
        let details = troubles.iter().map(sentence).collect();
        Outcome::new(ExitStatus::Degraded, message).with(details)
    }

    async fn go_back(&mut self) -> Result<String, Halt> {
        let order = Order::Rollback { one_stage: true, wait: self.options.wait };
        let step = decide(&order, &self.view).map_err(Halt::Outcome)?;
        self.execute(&step, None).await?;
        Ok(Outcome::done(&step, &self.view).message)
    }

    fn report(&mut self, text: &str) -> Result<(), Error> {
        let line = format!("{}  {text}", self.author.now().strftime("%T"));
        let written = writeln!(self.progress, "{}", wrap(&line, 10));
        match written.and_then(|()| self.progress.flush()) {
            Err(error) if self.observed.is_none() => Err(error.into()),
            Ok(()) | Err(_) => Ok(()),
        }
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
    /// Fails with those of `troubles` that have lasted too long, if any.
    fn stop_if_confirmed(&mut self, mut troubles: Troubles) -> Result<(), Halt> {
        self.0.retain(|subject, _| troubles.contains_key(subject));
        troubles.retain(|subject, _| {
            let since = self.0.entry(subject.clone()).or_insert_with(Instant::now);
            since.elapsed() >= tolerance(subject)
        });
        if troubles.is_empty() { Ok(()) } else { Err(Halt::Degraded(troubles)) }
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
