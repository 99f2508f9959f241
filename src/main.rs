//! `tweedd`: reads the command line, runs the daemon, and turns its end into an exit code.

use std::process::ExitCode;

use tracing::Level;
use tracing_subscriber::EnvFilter;
use tweed::options::{self, Options};

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args_os().skip(1), |name| std::env::var(name).ok()) {
        Ok(options) => options,
        Err(stop) => return stop.print(),
    };
    log_to_stderr(options.verbosity);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    match runtime.block_on(tweed::daemon::run(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    tracing::error!("{error:#}");
    ExitCode::FAILURE
}
