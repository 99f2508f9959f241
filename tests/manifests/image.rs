//! The Dockerfile, and what manifests expect in the image.

use std::process::Command;

use serde_json::Value;

use crate::single_file::daemon;
use crate::{read, root};

#[test]
fn everything_that_the_dockerfile_names_exists() {
    let dockerfile = read("Dockerfile");
    let stages: Vec<_> =
        dockerfile.lines().filter_map(|line| Some(line.split_once(" AS ")?.1)).collect();
    for line in dockerfile.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["FROM", from, ..] => {
                let is_there = from == "scratch" || from.contains('/') || stages.contains(&from);
                assert!(is_there, "{line}");
            }
            ["COPY", from, ..] if from.starts_with("--from=") => {
                assert!(stages.iter().any(|stage| from.ends_with(stage)), "{line}");
            }
            ["COPY", "target/image/${TARGETARCH}/", _] => {
                assert!(read("config/release/compile").contains("root=target/image/$name"));
            }
            ["COPY", from, ..] => assert!(root().join(from).exists(), "{line}"),
            ["RUN", program] => assert!(root().join(program).exists(), "{line}"),
            _ => {}
        }
    }
}

/// `make release` leaves those of other machines in `target/image`, which is not ignored.
#[test]
fn an_image_from_the_source_has_only_programs_that_it_compiled() {
    assert!(read(".dockerignore").lines().any(|line| line == "!target/image"));
    let dockerfile = read("Dockerfile");
    let (_, compiler) = dockerfile.split_once(" AS compiler\n").unwrap();
    let steps = compiler.lines().filter(|line| !line.starts_with('#'));
    let steps: Vec<_> = steps.skip_while(|line| *line != "COPY . .").take(3).collect();
    assert_eq!(steps, ["COPY . .", "RUN rm -rf target", "RUN config/release/compile"]);
}

#[test]
fn the_image_is_compiled_by_the_pinned_toolchain() {
    let toolchain = read("rust-toolchain.toml");
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap();
    let version = channel.trim_matches('"');
    assert_eq!(version.split('.').count(), 3, "{channel} is not an exact version");
    let base = format!("FROM docker.io/library/rust:{version}-alpine AS compiler");
    assert!(read("Dockerfile").lines().any(|line| line == base), "the Dockerfile lacks {base:?}");
}

#[test]
fn a_prebuilt_image_needs_no_registry() {
    let dockerfile = read("Dockerfile");
    let stages = dockerfile.split("FROM ").skip(1);
    let prebuilt: Vec<_> = stages.take_while(|stage| !stage.contains(" AS compiler")).collect();
    let names: Vec<_> = prebuilt.iter().map(|stage| stage.lines().next().unwrap()).collect();
    assert_eq!(names, ["scratch AS image", "image AS prebuilt"]);
}

#[test]
fn an_imported_image_has_the_name_that_kubelets_ask_for() {
    let named = |image: Option<&str>| {
        let mut build = Command::new(root().join("config/image/build"));
        build.arg("--name").env_remove("IMAGE");
        image.map(|image| build.env("IMAGE", image));
        String::from_utf8(build.output().unwrap().stdout).unwrap().trim().to_owned()
    };
    let daemon = daemon("config/kubernetes/tweed.yml");
    let image = daemon["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap();
    assert_eq!(named(None), format!("docker.io/library/{image}"));
    for (image, full) in [
        ("registry.example.org/tweed:1", "registry.example.org/tweed:1"),
        ("localhost:5000/tweed:1", "localhost:5000/tweed:1"),
        ("localhost/tweed:1", "localhost/tweed:1"),
        ("us/tweed:1", "docker.io/us/tweed:1"),
    ] {
        assert_eq!(named(Some(image)), full);
    }
    assert!(read("config/image/build").contains("oci-archive:$archive:$full"));
}

#[test]
fn every_program_that_manifests_start_is_in_the_image() {
    let daemon = daemon("config/kubernetes/tweed.yml");
    let pod = &daemon["spec"]["template"]["spec"];
    let containers = ["initContainers", "containers"].map(|key| pod[key].as_array().unwrap());
    let programs = containers.into_iter().flatten().map(|container| &container["command"][0]);
    let programs: Vec<_> = programs.filter_map(Value::as_str).collect();
    assert_eq!(programs, ["/flannel", "/flannel", "/opt/bin/flanneld"]);
    let entry = format!("ENTRYPOINT [{:?}]", programs[2]);
    assert!(read("Dockerfile").contains(&entry));
    for program in programs.into_iter().chain(["/opt/bin/install-conf", "/opt/bin/tweedctl"]) {
        assert!(
            read("config/release/compile").contains(&format!("\"$root{program}\"")),
            "{program}"
        );
    }
}

/// They are generated with each build, so that none can be out of date.
#[test]
fn man_pages_and_completions_come_with_the_binaries() {
    let compile = read("config/release/compile");
    assert!(compile.contains("\"$tweedctl\" man --dir \"$share/man\""));
    for shell in ["bash", "zsh", "fish"] {
        assert!(compile.contains(&format!("\"$tweedctl\" completions {shell} $program >")));
    }
    assert!(compile.contains("for program in tweedctl tweedd; do"));
}

#[test]
fn manifests_name_existing_tasks_of_the_plugin() {
    use tweed_cni::install::Task;
    let daemon = daemon("config/kubernetes/tweed.yml");
    let containers = daemon["spec"]["template"]["spec"]["initContainers"].as_array().unwrap();
    for container in containers {
        let words =
            ["command", "args"].into_iter().flat_map(|key| container[key].as_array().unwrap());
        let words: Vec<_> = words.skip(1).map(|word| word.as_str().unwrap().to_owned()).collect();
        assert!(Task::parse(&words).is_ok(), "{words:?}");
    }
}
