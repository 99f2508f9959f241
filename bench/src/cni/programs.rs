//! The size of the programs, the libraries that they load, and the resources of one run.

use std::fs::metadata;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::call::Container;
use super::comparison::Comparison;
use super::plugin::Plugin;
use crate::report::goal::Goal;
use crate::report::sample::Sample;
use crate::report::sheet::{Sheet, megabytes};

struct Program {
    name: &'static str,
    /// In KiB.
    size: u64,
    shared_objects: u32,
    /// One value for each round, in KiB.
    memory: Sample<u64>,
}

pub(super) fn run(
    comparison: &Comparison<'_>,
    container: &Container,
    rounds: usize,
    sheet: &mut Sheet,
) -> Result<()> {
    let (tweed, debian) = (&comparison.tweed.host, &comparison.debian.host);
    let mut programs = [
        Program::inspect("flannel", tweed.plugin.program())?,
        Program::inspect("`bridge`", debian.plugin.program())?,
        Program::inspect("`host-local`", Path::new(Plugin::HOST_LOCAL))?,
    ];
    let [flannel, bridge, host_local] = &mut programs;
    for _ in 0..rounds {
        flannel.memory.add(tweed.memory(tweed.plugin.program(), container)?);
        bridge.memory.add(debian.memory(debian.plugin.program(), container)?);
        host_local.memory.add(debian.memory(Path::new(Plugin::HOST_LOCAL), container)?);
    }
    show(&programs, sheet)
}

fn show(programs: &[Program; 3], sheet: &mut Sheet) -> Result<()> {
    let head = ["program", "size", "shared objects", "memory of an ADD"];
    sheet.table("The programs", &head)?;
    programs.iter().try_for_each(|program| {
        sheet.row(&[
            &program.name,
            &format!("{:.2} MB", megabytes(program.size)),
            &program.shared_objects,
            &format!("{:.2} MB", megabytes(program.memory.median())),
        ])
    })?;
    let [flannel, bridge, host_local] = programs;
    let larger = bridge.memory.median().max(host_local.memory.median());
    let memory = megabytes(flannel.memory.median()) / megabytes(larger);
    sheet.goals(&[
        Goal::at_most("memory of an ADD, against the larger of the two", memory, 0.4, "×"),
        Goal::at_most("size", megabytes(flannel.size), 1.2, "MB"),
        Goal::at_most("loaded with", flannel.shared_objects.into(), 0.0, "shared objects"),
    ])
}

impl Program {
    fn inspect(name: &'static str, path: &Path) -> Result<Self> {
        let size = metadata(path).with_context(|| path.display().to_string())?.len() / 1024;
        let shared_objects = shared_objects(path)?;
        Ok(Self { name, size, shared_objects, memory: Sample::default() })
    }
}

/// The number of shared objects that `ldd` lists, including the loader; zero for a static program.
fn shared_objects(program: &Path) -> Result<u32> {
    let output = Command::new("ldd").arg(program).output().context("ldd")?;
    let [output_text, complaint] =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let is_static = complaint.contains("not a dynamic executable");
    ensure!(output.status.success() || is_static, "ldd {}: {complaint}", program.display());
    Ok(u32::try_from(output_text.lines().filter(|line| line.contains(".so")).count())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_loads_a_c_library_and_a_loader() -> Result<()> {
        assert!(shared_objects(Path::new("/bin/sh"))? >= 2);
        assert!(shared_objects(Path::new("/nonexistent")).is_err());
        Ok(())
    }
}
