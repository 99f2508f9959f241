//! Carries out an order: writes its step, waits until it is in force, and watches what comes of it.

use std::io::Write;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::lasting::Lasting;
use super::network::{self, Hand, Network};
use super::options::{OnHarm, Watching};
use super::outcome::{End, Outcome};
use super::words::{announced, conflict, late, refused, remarks, sentence, short};
use crate::operator::Error;
use crate::operator::layout::wrap;
use crate::operator::migration::{
    Back, Decision, Force, Order, Picture, Step, Troubles, decide, degraded, lags,
};
use crate::store::operator::Swap;

/// Who does it, where, and whom to tell of progress.
pub(super) struct Work<'a, N, W> {
    pub(super) network: &'a N,
    pub(super) hand: Hand,
    pub(super) progress: &'a mut W,
    pub(super) watching: Watching,
}

/// How a step ended that was not the last.
type Stopped = Result<Picture, Outcome>;

/// Between two looks; the nodes need about as long to report.
const LOOK: Duration = Duration::from_secs(1);

/// A stage that is held says so now and then.
const SIGN_OF_LIFE: Duration = Duration::from_secs(60);

impl<N: Network, W: Write> Work<'_, N, W> {
    pub(super) async fn carry_out(mut self, order: &Order) -> Result<Outcome, Error> {
        let mut picture = network::picture(self.network).await?;
        if waits_first(order, &picture) {
            match self.in_force(&picture).await? {
                Ok(settled) => picture = settled,
                Err(outcome) => return Ok(outcome),
            }
        }
        loop {
            let step = match decide(order, &picture, self.watching.force()) {
                Err(refusal) => return Ok(refused(&refusal, &picture)),
                Ok(Decision::Nothing(sentence)) => {
                    return self.take_over(&sentence, &picture).await;
                }
                Ok(Decision::Write(step)) => step,
            };
            let before = picture;
            picture = match self.take(&step, &before).await? {
                Ok(picture) => picture,
                Err(outcome) => return Ok(outcome),
            };
            // Only then may the first nodes change.
            if step != Step::Mix {
                let outcome = self.hold(&before, &picture, sentence(&step, &picture)).await?;
                let is_done = outcome.end == End::Done;
                return Ok(if is_done { outcome.with(remarks(&step, &picture)) } else { outcome });
            }
        }
    }

    /// What is done already is watched all the same, where that was asked for.
    async fn take_over(&mut self, sentence: &str, picture: &Picture) -> Result<Outcome, Error> {
        if self.watching.hold.is_zero() {
            return Ok(Outcome::new(End::Done, sentence, picture));
        }
        self.say(sentence)?;
        self.hold(picture, picture, sentence.to_owned()).await
    }

    /// Writes `step` and waits until it is in force.
    async fn take(&mut self, step: &Step, before: &Picture) -> Result<Stopped, Error> {
        let document = before.after(step, &self.hand.note());
        let seen = before.course.revision;
        let revision = match network::swap(self.network, seen, &document).await? {
            Swap::Done(revision) => revision,
            Swap::Outdated => {
                let now = network::picture(self.network).await?;
                return Ok(Err(conflict(before, &now, "nothing was written")));
            }
        };
        let written = network::picture(self.network).await?;
        if written.course.revision != revision {
            return Ok(Err(conflict(before, &written, "what was written stood for a moment only")));
        }
        self.say(&announced(step))?;
        if *step == Step::Pause { Ok(Ok(written)) } else { self.in_force(&written).await }
    }

    /// Waits until every node that reports does what the config says.
    async fn in_force(&mut self, written: &Picture) -> Result<Stopped, Error> {
        let deadline = Instant::now() + self.watching.patience.timeout;
        let mut told = usize::MAX;
        loop {
            let now = network::picture(self.network).await?;
            if now.course.revision != written.course.revision {
                return Ok(Err(conflict(written, &now, "this command no longer watches")));
            }
            let lags = lags(&now);
            if lags.len() != told {
                told = lags.len();
                let reporting = now.members.len() - now.silent().count();
                self.say(&format!("in force on {} of {reporting} nodes", reporting - told))?;
            }
            if lags.is_empty() {
                return Ok(Ok(now));
            }
            if Instant::now() >= deadline {
                return Ok(Err(late(&lags, &now)));
            }
            sleep(LOOK).await;
        }
    }

    /// Watches a stage that is in force, and stops as soon as a pair is worse off than `before`.
    async fn hold(
        &mut self,
        before: &Picture,
        reached: &Picture,
        done: String,
    ) -> Result<Outcome, Error> {
        let (started, mut sign) = (Instant::now(), Duration::ZERO);
        let mut lasting = Lasting::default();
        let mut now = reached.clone();
        loop {
            if let Some(troubles) = lasting.confirmed(degraded(before, &now)) {
                return self.harmed(&troubles, &now).await;
            }
            let held = started.elapsed();
            if held >= self.watching.hold && lasting.is_quiet() {
                return Ok(Outcome::new(End::Done, done, &now));
            }
            if held >= sign {
                sign = held + SIGN_OF_LIFE;
                let left = self.watching.hold.saturating_sub(held);
                self.say(&format!("watching for {}; {}", short(left), lasting.summary()))?;
            }
            sleep(LOOK).await;
            let next = network::picture(self.network).await?;
            if next.course.revision != now.course.revision {
                return Ok(conflict(&now, &next, "this command no longer watches"));
            }
            now = next;
        }
    }

    async fn harmed(&mut self, troubles: &Troubles, now: &Picture) -> Result<Outcome, Error> {
        let told = troubles.iter().map(|(subject, why)| format!("{subject}: {why}")).collect();
        let stays = "worse off than before";
        let message = match (self.watching.on_harm(), &now.course.under_way) {
            (_, None) => stays.to_owned(),
            (OnHarm::Stop, Some(it)) => {
                format!("{stays}, at {}; tweedctl migrate rollback takes it back", it.stage)
            }
            (OnHarm::GoBack, Some(_)) => self.go_back(now).await?.unwrap_or_else(|outcome| {
                format!("{stays}, and it could not be taken back: {}", outcome.message)
            }),
        };
        Ok(Outcome::new(End::Degraded, message, now).with(told))
    }

    async fn go_back(&mut self, now: &Picture) -> Result<Result<String, Outcome>, Error> {
        match decide(&Order::Rollback(Back::OneStage), now, Force::No) {
            Ok(Decision::Write(step)) => Ok(self.take(&step, now).await?.map(|back| {
                format!("worse off than before, and so taken back: {}", sentence(&step, &back))
            })),
            Ok(Decision::Nothing(sentence)) => Ok(Ok(sentence)),
            Err(refusal) => Ok(Err(refused(&refusal, now))),
        }
    }

    fn say(&mut self, what: &str) -> Result<(), Error> {
        let line = format!("{}  {what}", self.hand.now().clock());
        writeln!(self.progress, "{}", wrap(&line, 10))?;
        Ok(self.progress.flush()?)
    }
}

/// What is written next rests on what was written last.
fn waits_first(order: &Order, picture: &Picture) -> bool {
    let goes_on = matches!(order, Order::Start { .. } | Order::Next { .. } | Order::Finish);
    goes_on && picture.course.config.mixed
}
