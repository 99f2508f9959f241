//! `tweedctl diff`: how the kernel differs from the plan. Changes nothing.

use std::fmt;

use serde::Serialize;

use super::layout::{Tone, Toned, counted, wrap, wrap_entry};
use super::node::{self, Files};
use super::{Answer, Error, ExitStatus};
use crate::kernel::Kernel;
use crate::model::entry::KernelState;
use crate::plan::diff::{Op, diff};

#[derive(Serialize)]
pub(super) struct DiffReport {
    /// Where the plan's inputs were read.
    source: String,
    differences: Vec<Difference>,
}

/// The operation that would fix it, and the present entry.
#[derive(Serialize)]
struct Difference {
    action: &'static str,
    entry: String,
    present: Option<String>,
    #[serde(skip)]
    text: String,
    #[serde(skip)]
    tone: Tone,
}

pub(super) async fn answer(files: &Files, mut kernel: impl Kernel) -> Result<DiffReport, Error> {
    let inputs = node::read_inputs(files).await?;
    let scope = inputs.scope();
    let actual = node::dump(&mut kernel, &scope).await?;
    let ops = diff(inputs.desired().state(), &actual, &scope);
    let differences = ops.iter().map(|op| Difference::of(op, &actual)).collect();
    Ok(DiffReport { source: inputs.source, differences })
}

impl Difference {
    fn of(op: &Op, actual: &KernelState) -> Self {
        let present = actual.get(&op.entry().key()).filter(|present| *present != op.entry());
        Self {
            action: op.verb(),
            entry: op.entry().to_string(),
            present: present.map(ToString::to_string),
            text: op.to_string(),
            tone: match op {
                Op::Create(_) => Tone::Good,
                Op::Replace(_) => Tone::Warning,
                Op::Remove(_) => Tone::Bad,
            },
        }
    }
}

impl Answer for DiffReport {
    fn exit_status(&self) -> ExitStatus {
        if self.differences.is_empty() { ExitStatus::Done } else { ExitStatus::Problems }
    }
}

impl fmt::Display for DiffReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for difference in &self.differences {
            let text = wrap_entry(&difference.text, 4);
            Toned(difference.tone, text).fmt(f)?;
            writeln!(f)?;
            if let Some(present) = &difference.present {
                writeln!(f, "{}", wrap_entry(&format!("  now {present}"), 6))?;
            }
        }
        let found = match self.differences.len() {
            0 => "no difference".to_owned(),
            count => counted(count, "difference"),
        };
        writeln!(f, "{}", wrap(&format!("{found} from the plan of {}", self.source), 2))
    }
}
