//! Which way packets take between all nodes.

use anyhow::{Context, Result};

use crate::address::Family;
use crate::facts::Path;
use crate::matrix::Matrix;
use crate::node::Node;

/// The path from every node to the subnet of every other one; each needs its `subnet.env`.
pub fn paths(nodes: &[Node], family: Family) -> Result<Matrix<Path>> {
    let names = nodes.iter().map(|node| node.name().to_owned()).collect();
    let node = |index: usize| nodes.get(index).context("no such node");
    Matrix::build(names, |from, to| {
        let (from, to) = (node(from)?, node(to)?);
        let subnet = to.subnet_env()?.subnet(family);
        from.path_to(subnet.with_context(|| format!("{} has no {family:?} subnet", to.name()))?)
    })
}
