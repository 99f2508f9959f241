//! Packets dropped by full queues of the machine: no route has lost these.

use std::collections::HashSet;

use anyhow::{Context, Result};

use super::Pair;
use crate::network::namespace::Namespace;

/// As [`overruns_at`], for all receiving pods.
pub(super) fn overruns(pairs: &[Pair]) -> Result<u64> {
    let pods: HashSet<_> = pairs.iter().map(|pair| pair.to.namespace()).collect();
    overruns_at(pods)
}

/// Packets dropped so far: by the processors' backlogs, which all namespaces share, and by the
/// sockets of the `receivers`.
pub fn overruns_at<'a>(receivers: impl IntoIterator<Item = &'a Namespace>) -> Result<u64> {
    let snmp = |receiver: &Namespace| receiver.within(|| read("/proc/thread-self/net/snmp"))?;
    let sockets = receivers.into_iter().map(|receiver| socket_overruns(&snmp(receiver)?));
    Ok(sockets.sum::<Result<u64>>()? + backlog_overruns(&read("/proc/net/softnet_stat")?)?)
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).context(path.to_owned())
}

/// A line of hexadecimal numbers per processor; the second number counts drops.
fn backlog_overruns(text: &str) -> Result<u64> {
    let dropped = text.lines().filter_map(|line| line.split_whitespace().nth(1));
    dropped.map(|number| Ok(u64::from_str_radix(number, 16)?)).sum()
}

/// A line of names, then a line of numbers.
fn socket_overruns(text: &str) -> Result<u64> {
    let lines = || text.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let (names, numbers) = (lines().next(), lines().nth(1));
    let (names, numbers) = (names.context("no names")?, numbers.context("no numbers")?);
    let mut columns = names.split_whitespace().zip(numbers.split_whitespace());
    let found = columns.find(|(name, _)| *name == "RcvbufErrors").context("no RcvbufErrors")?;
    Ok(found.1.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_are_read_as_the_kernel_lists_them() {
        let softnet = "000a 00000010 0000\n000b 00000002 0000\n";
        assert_eq!(backlog_overruns(softnet).unwrap(), 18);
        let snmp = "Tcp: A B\nTcp: 1 2\nUdp: InDatagrams RcvbufErrors\nUdp: 900 7\nUdpLite: X\n";
        assert_eq!(socket_overruns(snmp).unwrap(), 7);
        assert!(socket_overruns("Udp: InDatagrams\nUdp: 900\n").is_err());
    }
}
