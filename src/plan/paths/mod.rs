//! Which direct paths carry packets: which peer is asked when, and the verdict on its path.

mod board;
mod pace;
mod subject;
mod verdict;

pub use board::Board;
pub use pace::answer_timeout;
pub use subject::{Local, Question, Subject, Target, Targets};
pub use verdict::Size;
