//! Path probing as pure state: when to probe which peer, and the verdict on its direct path.

mod board;
mod pace;
mod state;
mod verdict;

pub use board::Board;
pub use pace::answer_timeout;
pub use state::{LocalProber, ProbeRequest, ProbeState, Target, Targets};
pub use verdict::ProbeSize;
