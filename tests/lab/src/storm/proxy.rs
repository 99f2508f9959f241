//! `etcd grpc-proxy` between daemons and etcd: it opens one watch for many equal ones.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::gauge;
use crate::Lab;
use crate::network::http;
use crate::process::Process;
use crate::stores::etcd::Etcd;
use crate::wait::{PATIENCE, eventually};

const FIRST_PORT: u16 = 23_790;

/// Running proxies, in the namespace of the first member.
pub(super) struct Proxies {
    running: Vec<(SocketAddr, Process)>,
}

/// Processor time and peak memory of all proxies so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProxyCost {
    pub count: usize,
    pub cpu_seconds: f64,
    pub peak_kib: u64,
}

impl Proxies {
    pub(super) fn start(lab: &Lab, etcd: &Etcd, count: usize) -> Result<Self> {
        let mut proxies = Self { running: Vec::new() };
        for port in (FIRST_PORT..).take(count) {
            proxies.add(lab, etcd, (Ipv4Addr::LOCALHOST, port).into())?;
        }
        Ok(proxies)
    }

    fn add(&mut self, lab: &Lab, etcd: &Etcd, address: SocketAddr) -> Result<()> {
        let member = etcd.members().first().context("the cluster has no member")?;
        let mut command = Command::new("etcd");
        command.args(["grpc-proxy", "start", "--endpoints", &member.endpoint()]);
        command.args(["--listen-addr", &address.to_string()]);
        command.args(["--data-dir", &format!("/run/proxy-{}", address.port())]);
        let log = format!("proxy-{}", address.port());
        let process = lab.world.start(&mut command, member.namespace(), &log)?;
        eventually(PATIENCE, || {
            let answer = member.namespace().within(|| http::get(address, "/health"))??;
            ensure!(answer.status == 200, "{} {}", answer.status, answer.body);
            Ok(())
        })
        .with_context(|| process.last_words())?;
        self.running.push((address, process));
        Ok(())
    }

    /// Empty without proxies.
    pub(super) fn endpoints(&self) -> Vec<String> {
        self.running.iter().map(|(address, _)| format!("http://{address}")).collect()
    }

    pub(super) fn cost(&self) -> Result<ProxyCost> {
        let mut cost = ProxyCost { count: self.running.len(), ..ProxyCost::default() };
        for (_, process) in &self.running {
            cost.cpu_seconds += gauge::cpu_of(process)?;
            cost.peak_kib += process.peak_kib()?;
        }
        Ok(cost)
    }
}
