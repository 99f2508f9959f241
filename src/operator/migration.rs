//! Moving a cluster from one backend to another: what the config says, what comes next, what is wrong.

mod changes;
mod course;
mod document;
mod lag;
mod moment;
mod obstacle;
mod order;
mod outlook;
mod picture;
mod stage;
#[cfg(test)]
pub(crate) mod tests;
mod trouble;

pub use changes::{author, changes};
pub use course::{Course, Entry, Error, Note, Step, UnderWay};
pub use document::Document;
pub use lag::{Lag, following, lags};
pub use moment::Moment;
pub use obstacle::{Forgivable, Obstacle, obstacles};
pub use order::{Back, Decision, Force, OnPause, Order, Refusal, decide, stages};
pub use outlook::{Mixing, Outlook, Reach, Situation};
pub use picture::{Member, Picture};
pub use stage::{ALL, Stage};
pub use trouble::{Subject, Troubles, degraded, troubles};
