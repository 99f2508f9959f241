//! Path probing as pure state: when to probe which peer, the verdict on its direct path, and whether
//! it is reachable by the path in use.

mod board;
mod pace;
mod reachability;
mod state;
mod verdict;

pub use board::Board;
pub use pace::answer_timeout;
pub use state::{LocalProber, ProbeRequest, ProbeState, Target, Targets, UsedPath};
pub use verdict::ProbeKind;
