//! Which direct paths carry packets: which peer is asked when, and the verdict on its path.

mod board;
mod pace;
mod subject;
mod verdict;

pub use board::{Board, Question};
pub use pace::answer_timeout;
pub use subject::{Local, Subject, Target, Targets};
pub use verdict::Size;
