//! Packets dropped by full queues of the machine: no route has lost these.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Pair, Shared, is_set};
use crate::network::namespace::Namespace;

/// Between two readings.
const INTERVAL: Duration = Duration::from_millis(20);

/// Packets dropped so far: by the processors' backlogs, which all namespaces share, and by the
/// sockets of the `receivers`.
pub fn overruns_at<'a>(receivers: impl IntoIterator<Item = &'a Namespace>) -> Result<u64> {
    Queues::open(receivers)?.dropped()
}

/// The kernel's counters, which an open file shows to every thread as those of its own namespace.
#[derive(Debug)]
pub(super) struct Queues {
    backlogs: File,
    sockets: Vec<File>,
}

/// Packets that were dropped between two readings, from the start of the probe on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    pub(super) since: Duration,
    pub(super) until: Duration,
    pub(super) dropped: u64,
}

impl Queues {
    /// Those of all receiving pods.
    pub(super) fn of(pairs: &[Pair]) -> Result<Self> {
        let pods: HashSet<_> = pairs.iter().map(|pair| pair.to.namespace()).collect();
        Self::open(pods)
    }

    fn open<'a>(receivers: impl IntoIterator<Item = &'a Namespace>) -> Result<Self> {
        let snmp = |receiver: &Namespace| receiver.within(|| open("/proc/thread-self/net/snmp"))?;
        let sockets = receivers.into_iter().map(snmp).collect::<Result<_>>()?;
        Ok(Self { backlogs: open("/proc/net/softnet_stat")?, sockets })
    }

    /// Reads until the probe has received its last packet, and once more.
    pub(super) fn watch(&self, shared: &Shared) -> Result<Vec<Burst>> {
        let (mut bursts, mut since, mut before) =
            (Vec::new(), shared.epoch.elapsed(), self.dropped()?);
        loop {
            let is_last = !is_set(&shared.watching);
            let (next, now) = (shared.epoch.elapsed(), self.dropped()?);
            if now > before {
                let until = shared.epoch.elapsed();
                bursts.push(Burst { since, until, dropped: now - before });
            }
            if is_last {
                return Ok(bursts);
            }
            (since, before) = (next, now);
            std::thread::sleep(INTERVAL);
        }
    }

    fn dropped(&self) -> Result<u64> {
        let sockets = self.sockets.iter().map(|file| socket_overruns(&read(file)?));
        Ok(sockets.sum::<Result<u64>>()? + backlog_overruns(&read(&self.backlogs)?)?)
    }
}

fn open(path: &str) -> Result<File> {
    File::open(path).context(path.to_owned())
}

/// From its beginning, where the kernel counts again.
fn read(file: &File) -> Result<String> {
    let (mut bytes, mut block) = (Vec::new(), [0; 4096]);
    loop {
        let length = file.read_at(&mut block, bytes.len() as u64).context("counters")?;
        if length == 0 {
            return Ok(String::from_utf8(bytes)?);
        }
        bytes.extend_from_slice(block.get(..length).unwrap_or_default());
    }
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
