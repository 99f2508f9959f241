//! The store as a plugin of its own, to measure it against Go's host-local: ADD and DEL, no more.

use std::env;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use tweed_cni::host_local::{self, Config};
use tweed_cni::protocol::error::Error;
use tweed_cni::protocol::request::Attachment;

fn main() -> ExitCode {
    let (text, code) = match run() {
        Ok(text) => (text, ExitCode::SUCCESS),
        Err(error) => (error.to_string(), ExitCode::FAILURE),
    };
    let written = io::stdout().write_all(text.as_bytes());
    if written.is_ok() { code } else { ExitCode::FAILURE }
}

fn run() -> Result<String, Error> {
    let mut json = Vec::new();
    io::stdin().read_to_end(&mut json).map_err(|cause| Error::io(cause.to_string()))?;
    let json = serde_json::from_slice(&json).map_err(|cause| Error::decode(cause.to_string()))?;
    let config = Config::parse(&json, None)?;
    let variable = |name| env::var(name).unwrap_or_default();
    let attachment =
        Attachment { container_id: variable("CNI_CONTAINERID"), interface: variable("CNI_IFNAME") };
    if variable("CNI_COMMAND") == "DEL" {
        return host_local::release(&config.location, &attachment, None).map(|()| String::new());
    }
    let addresses = host_local::allocate(&config, &attachment, || Ok(None), |_| Ok(()))?.addresses;
    let texts = addresses.iter().map(|one| one.address.to_string());
    Ok(texts.collect::<Vec<_>>().join("\n"))
}
