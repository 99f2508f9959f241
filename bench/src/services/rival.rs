//! kube-proxy, which gets its objects without an API server.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use tweed_lab::{Family, Lab, Node, peak_kib};

use super::{Figures, Shape, service};

/// The most changes of one endpoint, and the time after which it is stopped.
const CHANGES: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(60);

struct Rival {
    child: Child,
    answers: BufReader<ChildStdout>,
}

pub(super) fn measure(program: &Path, shape: Shape) -> Result<Figures> {
    let lab = Lab::bare()?;
    let segment = lab.segment("10.99.1.0/24")?;
    let node = lab.node("n1", &segment)?;
    let mut rival = Rival::start(program, &node)?;
    let all = (0..shape.services).map(|number| [service(number), shape.slice(number, 0)]);
    let mut all: Vec<[Value; 2]> = all.collect();
    let mut figures = Figures { load: rival.program(&all)?, ..Figures::default() };
    if figures.load.is_none() {
        figures.is_stopped = true;
        return Ok(figures);
    }
    for round in 0..CHANGES {
        let number = round % shape.services;
        let index = usize::try_from(number)?;
        all.splice(index..=index, [[service(number), shape.slice(number, round % 2 + 1)]]);
        let Some(took) = rival.program(&all)? else {
            figures.is_stopped = true;
            break;
        };
        figures.endpoint.add(took);
    }
    figures.memory = Some(peak_kib(rival.child.id())?);
    Ok(figures)
}

impl Rival {
    fn start(program: &Path, node: &Node) -> Result<Self> {
        let address = node.address(Family::V4)?.to_string();
        let mut command = Command::new(program);
        command.args(["-hostname-override", "n1", "-node-ip", &address]);
        command.args(["-nodeport-addresses", &format!("{address}/32")]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = node.namespace().within(|| command.spawn())?.context("kube-proxy")?;
        let answers = BufReader::new(child.stdout.take().context("no output")?);
        Ok(Self { child, answers })
    }

    /// The time that it took; none if it was stopped.
    fn program(&mut self, all: &[[Value; 2]]) -> Result<Option<Duration>> {
        let flat: Vec<&Value> = all.iter().flatten().collect();
        let input = self.child.stdin.as_mut().context("no input")?;
        serde_json::to_writer(&mut *input, &flat)?;
        input.write_all(b"\n")?;
        let (begun, answers, child) = (Instant::now(), &mut self.answers, &mut self.child);
        let answer = thread::scope(|scope| -> Result<String> {
            let reader = scope.spawn(move || {
                let mut line = String::new();
                answers.read_line(&mut line).map(|_| line)
            });
            while !reader.is_finished() {
                if begun.elapsed() > PATIENCE {
                    child.kill()?;
                }
                thread::sleep(Duration::from_millis(10));
            }
            let Ok(line) = reader.join() else { bail!("reading the answer of kube-proxy") };
            Ok(line?)
        })?;
        Ok(answer.trim().parse().ok().map(Duration::from_nanos))
    }
}

impl Drop for Rival {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}
