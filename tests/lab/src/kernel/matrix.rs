//! A table of every node or pod with every other one: paths, and answered pings.

use std::fmt::{Display, Formatter};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};

use crate::Lab;
use crate::config::Stack;
use crate::kernel::facts::Path;
use crate::network::address::Family;
use crate::network::pod::Pod;
use crate::node::Node;
use crate::wait::{PATIENCE, eventually};

/// A value per ordered pair of different names: rows are sources, columns destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matrix<T> {
    names: Vec<String>,
    rows: Vec<Vec<Option<T>>>,
}

/// The result of one ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ping {
    Answered,
    Lost,
}

/// The path from every node to the subnet of every other one; each needs its `subnet.env`.
pub fn paths(nodes: &[Node], family: Family) -> Result<Matrix<Path>> {
    let names = nodes.iter().map(|node| node.name().to_owned()).collect();
    let node = |index: usize| nodes.get(index).context("no such node");
    Matrix::build(names, |from, to| {
        let (from, to) = (node(from)?, node(to)?);
        from.path_to(to.subnet(family)?)
    })
}

/// Every ordered pair of different nodes, by index.
pub fn pairs(nodes: &[Node]) -> Vec<(usize, usize)> {
    let all = 0..nodes.len();
    let pairs = all.clone().flat_map(|from| all.clone().map(move |to| (from, to)));
    pairs.filter(|(from, to)| from != to).collect()
}

/// Waits until every node uses the `expected` path to every other, in all families.
pub fn wait_for_paths(
    nodes: &[Node],
    stack: Stack,
    expected: impl Fn(usize, usize) -> Path,
) -> Result<Duration> {
    let node = |index: usize| nodes.get(index).context("no such node");
    let mut wanted = Vec::new();
    for (from, to) in pairs(nodes) {
        for family in stack.families() {
            wanted.push((from, to, node(to)?.subnet(*family)?));
        }
    }
    eventually(PATIENCE, || {
        wanted.iter().try_for_each(|(from, to, subnet)| {
            let (near, far) = (node(*from)?, node(*to)?);
            let (path, expected) = (near.path_to(subnet)?, expected(*from, *to));
            let pair = format!("{} → {}", near.name(), far.name());
            ensure!(path == expected, "{pair}, {subnet}: {path}, not {expected}");
            Ok(())
        })
    })
}

impl<T> Matrix<T> {
    /// Computes `value` for each pair of different indices into `names`.
    pub fn build(
        names: Vec<String>,
        mut value: impl FnMut(usize, usize) -> Result<T>,
    ) -> Result<Self> {
        let all = 0..names.len();
        let mut cell = |from, to| if from == to { Ok(None) } else { value(from, to).map(Some) };
        let row = |from| all.clone().map(|to| cell(from, to)).collect();
        let rows = all.clone().map(row).collect::<Result<_>>()?;
        Ok(Self { names, rows })
    }

    /// The same table with other values.
    pub fn try_map<U>(self, mut change: impl FnMut(T) -> Result<U>) -> Result<Matrix<U>> {
        let mut row = |row: Vec<Option<T>>| {
            row.into_iter().map(|cell| cell.map(&mut change).transpose()).collect()
        };
        let rows = self.rows.into_iter().map(&mut row).collect::<Result<_>>()?;
        Ok(Matrix { names: self.names, rows })
    }

    /// Every cell with the names of its row and its column.
    pub fn cells(&self) -> impl Iterator<Item = (&str, &str, &T)> {
        self.names.iter().zip(&self.rows).flat_map(|(from, row)| {
            let cells = self.names.iter().zip(row);
            cells.filter_map(move |(to, cell)| Some((from.as_str(), to.as_str(), cell.as_ref()?)))
        })
    }
}

impl<T: Display> Display for Matrix<T> {
    fn fmt(&self, out: &mut Formatter<'_>) -> std::fmt::Result {
        let texts = |row: &Vec<Option<T>>| {
            let text = |cell: &Option<T>| cell.as_ref().map_or("·".to_owned(), T::to_string);
            row.iter().map(text).collect::<Vec<_>>()
        };
        let rows: Vec<_> = self.rows.iter().map(texts).collect();
        let width =
            self.names.iter().chain(rows.iter().flatten()).map(|it| it.chars().count()).max();
        let width = width.unwrap_or_default() + 2;
        let line = |out: &mut Formatter<'_>, head: &str, cells: &[String]| {
            write!(out, "{head:<width$}")?;
            cells.iter().try_for_each(|cell| write!(out, "{cell:<width$}"))?;
            writeln!(out)
        };
        line(out, "", &self.names)?;
        self.names.iter().zip(&rows).try_for_each(|(name, row)| line(out, name, row))
    }
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
    /// One ping from every pod to every other one, in parallel; takes a second if one is lost.
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

    /// Waits until all pings are answered at the same time: a busy machine answers some too late.
    pub fn all_reach_each_other(&self, family: Family) -> Result<()> {
        eventually(PATIENCE, || {
            let pings = self.ping_matrix(family)?;
            ensure!(pings.all_answered(), "{pings}");
            Ok(())
        })
        .map(drop)
    }
}

fn ping(from: &Pod, to: &Pod, family: Family) -> Ping {
    let answer = to.address(family).and_then(|address| from.ping(address, 56));
    if answer.is_ok() { Ping::Answered } else { Ping::Lost }
}
