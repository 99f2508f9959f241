//! Who reaches whom by ICMP.

use std::fmt::{Display, Formatter};

use anyhow::{Context, Result, anyhow};

use crate::Lab;
use crate::address::Family;
use crate::matrix::Matrix;
use crate::pod::Pod;

/// The outcome of one echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ping {
    Answered,
    Lost,
}

impl Display for Ping {
    fn fmt(&self, out: &mut Formatter<'_>) -> std::fmt::Result {
        out.pad(match self {
            Self::Answered => "ok",
            Self::Lost => "LOST",
        })
    }
}

impl Matrix<Ping> {
    pub fn all_answered(&self) -> bool {
        self.cells().all(|(_, _, ping)| *ping == Ping::Answered)
    }
}

impl Lab {
    /// One echo from every pod to every other one, all at once; takes a second where one is lost.
    pub fn ping_matrix(&self, family: Family) -> Result<Matrix<Ping>> {
        let mut pods = self.pods();
        pods.retain(|pod| pod.families().contains(&family));
        let names = pods.iter().map(|pod| pod.label().to_owned()).collect();
        let pod = |index: usize| pods.get(index).context("no such pod");
        std::thread::scope(|scope| {
            let asked = Matrix::build(names, |from, to| {
                let (from, to) = (pod(from)?, pod(to)?);
                Ok(scope.spawn(move || ping(from, to, family)))
            })?;
            asked.try_map(|thread| thread.join().map_err(|_| anyhow!("a ping panicked")))
        })
    }
}

fn ping(from: &Pod, to: &Pod, family: Family) -> Ping {
    let answer = to.address(family).and_then(|address| from.ping(address, 56));
    if answer.is_ok() { Ping::Answered } else { Ping::Lost }
}
