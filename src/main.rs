//! `tweedd`: reads the command line, runs the daemon, and turns its end into an exit code.

use std::process::ExitCode;

use dlmalloc::GlobalDlmalloc;
use tweed::daemon::log_to_stderr;
use tweed::daemon::options::Options;

/// Planning thousands of peers allocates much memory for a short time. This allocator is fast and
/// returns the memory to the system, whichever C library is linked.
#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args_os().skip(1), |name| std::env::var(name).ok())
    {
        Ok(options) => options,
        Err(stop) => return stop.print(),
    };
    log_to_stderr(options.verbosity, options.log_format);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&error.into()),
    };
    let ended = runtime.block_on(tweed::daemon::run(options));
    // A thread that waits for a disk or a resolver holds up no stop.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &anyhow::Error) -> ExitCode {
    tracing::error!("{error:#}");
    ExitCode::FAILURE
}
