//! `tweedctl`: parse, run, exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use dlmalloc::GlobalDlmalloc;
use tweed::excerpt;
use tweed::kernel::NetlinkKernel;
use tweed::operator::{self, Arguments, Error};

/// The reports of thousands of nodes are millions of values; musl's allocator is slow at that.
#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match answer(arguments) {
        Ok(exit_status) => exit_status.into(),
        Err(error) => {
            let code = ExitCode::from(&error);
            if code != ExitCode::SUCCESS {
                // If standard error is closed, too, the exit code is the only report.
                let error = excerpt::line(&error.to_string());
                drop(writeln!(io::stderr(), "tweedctl: {error}"));
            }
            code
        }
    }
}

fn answer(arguments: Arguments) -> Result<operator::ExitStatus, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let unusable = |error| Error::Unavailable(format!("netlink cannot be used: {error}"));
    let open = || NetlinkKernel::open().map_err(unusable);
    let mut out = io::BufWriter::new(io::stdout().lock());
    runtime.block_on(operator::run(arguments, open, &mut out))
}
