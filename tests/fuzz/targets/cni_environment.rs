//! The variables of a call: no name of a container or an interface is a path out of a directory.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tweed_cni::protocol::request::{Request, Verb};

fuzz_target!(|text: &str| {
    let variable = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        lines.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
    };
    let Ok(Some(request)) = Request::parse(variable) else { return };
    for key in ["IP", "MAC", "K8S_POD_NAME"] {
        drop(request.argument(key));
    }
    if let Verb::Add(container) = &request.verb {
        let name = &container.attachment.container_id;
        assert!(!name.is_empty() && !name.contains('/') && !name.starts_with('.'));
        assert!((1..16).contains(&container.attachment.interface.len()));
    }
});
