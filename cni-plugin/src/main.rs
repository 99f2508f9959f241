//! The CNI plugin `flannel`: what a runtime calls for every pod.

use std::env;
use std::io::{self, Write};
use std::process::ExitCode;

use tweed_cni::install::{self, Task};
use tweed_cni::protocol::request::Request;
use tweed_cni::protocol::result::render_error;
use tweed_cni::protocol::version::Version;
use tweed_cni::verbs;

fn main() -> ExitCode {
    let words = install::words(env::args());
    if !words.is_empty() {
        return carry_out(&words);
    }
    match Request::from_environment() {
        Ok(Some(request)) => answer(verbs::carry_out(&request, io::stdin().lock())),
        Ok(None) => introduce(),
        Err(error) => answer(Err(render_error(&error, Version::V1_1_0))),
    }
}

/// Results and errors both go to standard output, where runtimes read them.
fn answer(outcome: Result<String, String>) -> ExitCode {
    let (text, code) = match outcome {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(report) => (report, ExitCode::FAILURE),
    };
    let written = io::stdout().write_all(text.as_bytes());
    if written.is_ok() { code } else { ExitCode::FAILURE }
}

fn introduce() -> ExitCode {
    let (version, protocols) = (env!("CARGO_PKG_VERSION"), Version::ALL.map(Version::as_str));
    eprintln!("CNI Plugin flannel version v{version} of tweed");
    eprintln!("CNI protocol versions supported: {}", protocols.join(", "));
    ExitCode::SUCCESS
}

fn carry_out(words: &[String]) -> ExitCode {
    let program = env::current_exe().unwrap_or_default();
    match Task::parse(words).and_then(|task| task.carry_out(&program)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
