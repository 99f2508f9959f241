//! The machine of the measurements.

use std::process::Command;

use anyhow::{Context, Result};

use crate::report::sheet::megabytes;

pub(crate) fn describe() -> Result<String> {
    let cores = std::thread::available_parallelism()?;
    let model = field("/proc/cpuinfo", "model name")?;
    let memory = megabytes(first_word(&field("/proc/meminfo", "MemTotal")?).parse()?) / 1000.0;
    let kernel = read("/proc/sys/kernel/osrelease")?;
    let (etcd, iproute) = (first_line("etcd", "--version")?, first_line("ip", "-V")?);
    let load = read("/proc/loadavg")?;
    let load = first_word(&load);
    Ok(format!(
        "Measured on {cores} cores ({model}), {memory:.0} GB of memory, Linux {}, {}, {}; load when it began: {load}.",
        kernel.trim(),
        etcd.replace("etcd Version:", "etcd"),
        iproute.replace("ip utility, ", ""),
    ))
}

/// The first value of that name in a file of `NAME: VALUE`.
fn field(path: &str, name: &str) -> Result<String> {
    let text = read(path)?;
    let value = text.lines().find_map(|line| value(line, name));
    value.map(str::to_owned).with_context(|| format!("{path} has no {name}"))
}

fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (found, value) = line.split_once(':')?;
    (found.trim() == name).then(|| value.trim())
}

fn first_word(text: &str) -> &str {
    text.split_whitespace().next().unwrap_or_default()
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.to_owned())
}

fn first_line(program: &str, flag: &str) -> Result<String> {
    let output = Command::new(program).arg(flag).output().with_context(|| program.to_owned())?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().with_context(|| format!("no output of {program} {flag}"))?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_by_its_whole_name() {
        assert_eq!(
            value("model name\t: Some CPU @ 2.00GHz", "model name"),
            Some("Some CPU @ 2.00GHz")
        );
        assert_eq!(value("model\t\t: 85", "model name"), None);
    }
}
