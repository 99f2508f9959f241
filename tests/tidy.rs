//! House rules that a program can check; `ARCHITECTURE.md` says why each is one.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// Values in, values out: files, and folders with all that is in them.
const PURE: &[&str] = &[
    "src/prefix.rs",
    "src/mac.rs",
    "src/json.rs",
    "src/config.rs",
    "src/config",
    "src/lease.rs",
    "src/lease",
    "src/node.rs",
    "src/node",
    "src/backend",
    "src/kernel/mod.rs",
    "src/kernel/state.rs",
    "src/kernel/scope.rs",
    "src/kernel/diff.rs",
    "src/kernel/display.rs",
    "src/kernel/codec.rs",
    "src/kernel/codec",
    "src/subnet/allocate.rs",
    "src/subnet/claim.rs",
    "src/subnet/etcd/key.rs",
    "src/subnet/etcd/value.rs",
    "src/reconciler/desired.rs",
];

/// What a pure module has no use for: concurrency, clocks, files, sockets, processes, randomness,
/// and memory of its own.
const IMPURE: &[&str] = &[
    "async ",
    ".await",
    "tokio::",
    "std::thread",
    "std::time::Instant",
    "SystemTime",
    "std::fs",
    "File::",
    "Socket",
    "TcpStream",
    "std::process",
    "std::env",
    "rand::",
    "static mut",
    "OnceLock",
    "LazyLock",
    "thread_local",
];

/// Where people write the code that ships; tests may be long, but not these.
const SOURCES: &[&str] = &["src", "cni-plugin/src", "tests/lab/src"];

struct Source {
    /// Below the root of the project.
    path: String,
    text: String,
}

impl Source {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap();
        Self { path: path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned(), text }
    }

    fn is_test(&self) -> bool {
        let (_, below) = self.path.rsplit_once("src/").unwrap_or_default();
        below.ends_with("tests.rs") || below.contains("tests/")
    }

    /// The lines of code with their numbers, without comments and without the tests at the end of the file.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().map(|line| line.split("//").next().unwrap_or_default());
        let shipped = lines.take_while(|line| !line.starts_with("mod tests {"));
        shipped.enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Where in the code any of `words` is written.
    fn uses<'a>(&'a self, words: &'a [&str]) -> impl Iterator<Item = String> + 'a {
        self.code().flat_map(move |(number, line)| {
            let found = words.iter().filter(move |word| line.contains(**word));
            found.map(move |word| format!("{}:{number}: {word}", self.path))
        })
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The Rust files at `path`, which is one or a folder of them.
fn files(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.flat_map(|entry| if entry.is_dir() { files(&entry) } else { vec![entry] });
    files.filter(|file| file.extension().is_some_and(|end| end == "rs")).collect()
}

fn sources(paths: &[&str]) -> Vec<Source> {
    let files = paths.iter().flat_map(|path| files(&root().join(path)));
    files.map(|file| Source::read(&file)).collect()
}

fn assert_none(found: impl IntoIterator<Item = String>, rule: &str) {
    let found: Vec<String> = found.into_iter().collect();
    assert!(found.is_empty(), "{rule}:\n{}", found.join("\n"));
}

#[test]
fn pure_modules_touch_nothing() {
    let sources = sources(PURE);
    let shipped = sources.iter().filter(|source| !source.is_test());
    assert_none(shipped.flat_map(|source| source.uses(IMPURE)), "values in, values out");
}

#[test]
fn only_loop_and_kernel_build_ops() {
    let builds = |line: &str| {
        ["Op::Create(", "Op::Replace(", "Op::Remove("].iter().any(|op| {
            line.match_indices(op).any(|(at, _)| {
                // A pattern that looks at what it is builds nothing.
                let before = line[..at].chars().next_back();
                let is_of_another = before.is_some_and(char::is_alphanumeric);
                !is_of_another && !line[at + op.len()..].starts_with(['_', '.'])
            })
        })
    };
    let sources = sources(&["src"]);
    let others = sources.iter().filter(|source| {
        let may =
            source.path.starts_with("src/kernel/") || source.path.starts_with("src/reconciler");
        !may && !source.is_test()
    });
    let found = others.flat_map(|source| {
        let lines = source.code().filter(|(_, line)| builds(line));
        lines.map(|(number, line)| format!("{}:{number}: {}", source.path, line.trim()))
    });
    assert_none(found, "whatever changes the kernel is a difference");
}

#[test]
fn no_file_is_too_long() {
    let long = sources(SOURCES).into_iter().filter_map(|source| {
        let lines = source.text.lines().count();
        (lines > 300).then(|| format!("{}: {lines} lines", source.path))
    });
    assert_none(long, "a file of more than 300 lines holds more than one idea");
}

#[test]
fn clippy_watches_the_length_of_functions() {
    let clippy = fs::read_to_string(root().join("clippy.toml")).unwrap();
    assert!(clippy.contains("too-many-lines-threshold = 60"));
    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    assert!(workspace.contains("too_many_lines = \"deny\""));
    for member in ["", "cni-plugin", "tests/lab"] {
        let manifest = fs::read_to_string(root().join(member).join("Cargo.toml")).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "{member}");
    }
    let sources = sources(SOURCES);
    let shipped = sources.iter().filter(|source| !source.is_test());
    let found = shipped.flat_map(|source| source.uses(&["clippy::too_many_lines"]));
    assert_none(found, "a function of more than 60 lines is more than one thought");
}

#[test]
fn what_ships_does_not_panic_by_permission() {
    let lints = ["unwrap_used", "expect_used", "clippy::panic", "indexing_slicing"];
    let sources = sources(&["src", "cni-plugin/src"]);
    let shipped = sources.iter().filter(|source| !source.is_test());
    assert_none(shipped.flat_map(|source| source.uses(&lints)), "errors are returned");
}

#[test]
fn every_file_says_what_it_is_for() {
    let silent = sources(SOURCES).into_iter().chain(sources(&["tests"])).filter_map(|source| {
        let first = source.text.lines().next().unwrap_or_default();
        (!first.starts_with("//! ")).then_some(source.path)
    });
    assert_none(silent, "a file opens with a line that says what it is for");
}

#[test]
fn no_module_is_a_drawer_for_everything() {
    let drawers = ["util", "utils", "common", "helper", "helpers", "types", "misc"];
    let paths = sources(SOURCES).into_iter().chain(sources(&["tests"])).map(|source| source.path);
    let found = paths.filter(|path| {
        let mut rooms = path.trim_end_matches(".rs").split('/');
        rooms.any(|room| drawers.contains(&room))
    });
    assert_none(found, "a module is named after what is in it");
}

#[test]
fn every_path_that_the_architecture_names_is_there() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let words = text.split(|letter: char| letter.is_whitespace() || "`,;:()|".contains(letter));
    let folders = ["src/", "cni-plugin/", "tests/", "docs/", "config/"];
    let paths = words
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| folders.iter().any(|folder| word.starts_with(folder)));
    let paths: Vec<&str> = paths.collect();
    assert!(paths.len() > 20, "the architecture names its rooms: {paths:?}");
    let missing = paths.into_iter().filter(|path| !root().join(path).exists());
    assert_none(missing.map(ToOwned::to_owned), "a map shows what is there");
}
