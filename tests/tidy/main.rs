//! The rules of the project that a program can check.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod imports;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Modules of values and functions without effects: see ARCHITECTURE.md.
const PURE: &[&str] = &[
    "client/src/api/request.rs",
    "client/src/backoff.rs",
    "netlink/src/attributes.rs",
    "netlink/src/excerpt.rs",
    "netlink/src/frame.rs",
    "netlink/src/mac.rs",
    "netlink/src/message.rs",
    "netlink/src/nftables/batch.rs",
    "netlink/src/nftables/decode.rs",
    "netlink/src/nftables/expression.rs",
    "netlink/src/nftables/family.rs",
    "netlink/src/nftables/rule.rs",
    "netlink/src/rtnl/address.rs",
    "netlink/src/rtnl/route.rs",
    "src/model",
    "src/plan",
    "src/probe/answer.rs",
    "src/probe/content.rs",
    "src/probe/datagram.rs",
    "src/probe/keyring.rs",
    "src/probe/packet.rs",
    "src/probe/replay.rs",
    "src/kernel/codec.rs",
    "src/kernel/codec",
    "src/store/allocate.rs",
    "src/store/backend_data.rs",
    "src/store/claim.rs",
    "src/store/etcd/key.rs",
    "src/store/etcd/pace.rs",
    "src/store/etcd/value.rs",
    "src/store/kube/annotations.rs",
    "src/store/kube/node.rs",
    "src/store/kube/own.rs",
    "src/store/kube/request.rs",
    "src/store/operator.rs",
    "src/daemon/metrics.rs",
    "src/operator/leases/change.rs",
    "src/operator/leases/usage.rs",
    "src/operator/migrate/cluster.rs",
    "src/operator/migrate/decision.rs",
    "src/operator/migrate/document.rs",
    "src/operator/migrate/obstacle.rs",
    "src/operator/migrate/outcome.rs",
    "src/operator/migrate/pairs.rs",
    "src/operator/migrate/plan.rs",
    "src/operator/migrate/reachability",
    "src/operator/migrate/state.rs",
    "src/operator/migrate/status.rs",
    "src/operator/nodes/evidence.rs",
    "cni-plugin/src/protocol/json.rs",
    "cni-plugin/src/protocol/version.rs",
    "cni-plugin/src/protocol/network_config.rs",
    "cni-plugin/src/delegate/mod.rs",
    "cni-plugin/src/protocol/result.rs",
    "cni-plugin/src/bridge/identity.rs",
    "cni-plugin/src/bridge/plan.rs",
    "cni-plugin/src/bridge/settings.rs",
    "cni-plugin/src/bridge/masquerade/names.rs",
    "netlink/src/nftables/key.rs",
    "proxy/src/kernel/codec.rs",
    "proxy/src/objects/endpoints.rs",
    "proxy/src/objects/object.rs",
    "proxy/src/objects/service.rs",
    "proxy/src/plan/cluster.rs",
    "proxy/src/plan/conntrack.rs",
    "proxy/src/plan/diff.rs",
    "proxy/src/plan/ruleset.rs",
    "proxy/src/state.rs",
];

/// Effects, which a pure module must not have.
const EFFECTS: &[&str] = &[
    "async ",
    ".await",
    "std::fs",
    "std::env",
    "std::process",
    "std::time::Instant",
    "SystemTime",
    "Timestamp::now",
    "std::thread",
    "crate::random",
    "tokio::",
    "rand::",
    "TcpStream",
    "UdpSocket",
    "UnixStream",
    "tracing::",
    "static mut",
    "OnceLock",
    "LazyLock",
    "thread_local",
];

/// The folders in which an operation on the kernel may be built.
const OPERATORS: &[&str] = &["src/kernel", "src/plan", "src/control"];

/// Each folder of `src` imports those before it in this list, and none after it.
const FOLDERS: [&str; 8] =
    ["model", "plan", "store", "kernel", "probe", "control", "daemon", "operator"];

/// The sources of the programs, and of the crates that they share.
const PRODUCTS: [&str; 6] =
    ["src", "client/src", "http/src", "netlink/src", "cni-plugin/src", "proxy/src"];

/// The sources of what tests and measures them.
const TOOLS: [&str; 5] =
    ["bench/src", "tests/judges/src", "tests/lab/src", "tests/model/src", "tests/simulation/src"];

const LONGEST_FILE: usize = 600;

const FULLEST_FOLDER: usize = 14;

/// Its files are found by number.
const NUMBERED: &str = "docs/adr";

/// Folders of the fuzzer with files that people neither write nor read.
const FUZZED: [&str; 5] = ["artifacts", "corpus", "coverage", "seeds", "target"];

/// Folders of code whose comments and texts avoid `PHRASES`, as all documents do.
const PLAIN: &[&str] =
    &["bench/src", "client", "cni-plugin", "http", "netlink", "proxy", "src", "tests"];

/// Phrases that make a reader pause, and what to write instead.
const PHRASES: &[(&[&str], &str)] = &[
    (&["anew"], "again"),
    (&["anybody", "everybody"], "any host, all nodes"),
    (&["believe", "believed", "believes"], "accept"),
    (&["beside"], "next to, in addition to"),
    (&["cure", "cured", "cures"], "fix"),
    (&["in force"], "in effect, applied"),
    (&["leaves out", "left out"], "skip"),
    (&["mend", "mended", "mends"], "fix"),
    (&["nobody", "somebody", "whoever"], "no node, another program, any host that"),
    (&["said", "say", "says"], "report, name"),
    (&["set aside", "sets aside"], "reject"),
    (&["stranger", "strangers"], "unknown source"),
    (&["taken in", "takes in", "took in"], "apply"),
    (&["tell", "tells", "told"], "report, notify"),
    (&["worse off"], "possible regression"),
];

/// Texts that people read before the code.
const DOCUMENTS: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "config",
    "docs",
    "tests/scenarios/README.md",
];

#[test]
fn pure_modules_have_no_effects() {
    let files = PURE.iter().flat_map(|path| sources(path)).filter(|path| !is_test(path));
    let offences = files.flat_map(|file| {
        let text = product(&file);
        let found = EFFECTS.iter().filter(move |effect| text.contains(**effect));
        found.map(move |effect| format!("{}: {effect}", file.display())).collect::<Vec<_>>()
    });
    assert_eq!(offences.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn the_list_of_pure_modules_is_true() {
    for path in PURE {
        assert!(root().join(path).exists(), "{path}");
    }
}

#[test]
fn folders_import_in_one_direction() {
    let offences = FOLDERS.iter().enumerate().flat_map(|(place, folder)| {
        let later = FOLDERS.iter().skip(place + 1);
        let imports = later.map(|later| format!("crate::{later}"));
        let imports: Vec<String> = imports.collect();
        let files = sources(&format!("src/{folder}")).into_iter().filter(|file| !is_test(file));
        files.flat_map(move |file| {
            let text = product(&file);
            let found = imports.iter().filter(move |import| text.contains(*import));
            found.map(|import| format!("{}: {import}", file.display())).collect::<Vec<_>>()
        })
    });
    assert_eq!(offences.collect::<Vec<_>>(), Vec::<String>::new());
    let at_the_top = fs::read_dir(root().join("src")).unwrap().count();
    assert!(at_the_top <= 12, "{at_the_top} entries");
}

#[test]
fn siblings_import_in_one_direction() {
    let sources = PRODUCTS.iter().chain(&["bench/src", "tests/lab/src", "tests/simulation/src"]);
    let cycles = sources.flat_map(|source| imports::cycles(source));
    assert_eq!(cycles.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn only_the_loop_builds_operations() {
    let builds =
        |text: &str| ["Op::Create", "Op::Replace", "Op::Remove"].iter().any(|op| text.contains(op));
    let offenders: Vec<_> = sources("src")
        .into_iter()
        .filter(|file| !OPERATORS.iter().any(|place| file.starts_with(root().join(place))))
        .filter(|file| !is_test(file))
        .filter(|file| builds(&without_patterns(&product(file))))
        .collect();
    assert_eq!(offenders, Vec::<PathBuf>::new());
}

#[test]
fn no_file_is_too_long() {
    let long = members().flat_map(sources).filter_map(|file| {
        let lines = read(&file).lines().count();
        (lines > LONGEST_FILE && !is_test(&file)).then(|| format!("{}: {lines}", file.display()))
    });
    assert_eq!(long.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn no_folder_is_too_full() {
    let others = ["cni-plugin/tests", "netlink/tests", "proxy/tests", "tests", "docs"];
    let places = members().chain(others);
    let files: BTreeSet<PathBuf> = places.flat_map(texts).collect();
    let mut folders: BTreeMap<&Path, usize> = BTreeMap::new();
    for file in files.iter().filter(|file| is_written(file)) {
        *folders.entry(file.parent().unwrap()).or_default() += 1;
    }
    let is_bounded = |folder: &Path| !folder.ends_with(NUMBERED);
    let full =
        folders.into_iter().filter(|(folder, files)| *files > FULLEST_FOLDER && is_bounded(folder));
    assert_eq!(full.collect::<Vec<_>>(), Vec::<(&Path, usize)>::new());
}

#[test]
fn the_linter_limits_functions_and_forbids_unsafe_code() {
    let manifest = read(&root().join("Cargo.toml"));
    for lint in [
        "unsafe_code = \"forbid\"",
        "too_many_lines = \"deny\"",
        "unwrap_used = \"deny\"",
        "indexing_slicing = \"deny\"",
    ] {
        assert!(manifest.contains(lint), "{lint}");
    }
    let bounds = read(&root().join("clippy.toml"));
    assert!(bounds.contains("too-many-lines-threshold = 60"));
    for member in members().filter_map(|sources| sources.strip_suffix("/src")) {
        let manifest = read(&root().join(member).join("Cargo.toml"));
        assert!(manifest.contains("[lints]\nworkspace = true"), "{member}");
    }
}

#[test]
fn only_tests_may_unwrap() {
    let allows = |text: &str| {
        [
            "allow(clippy::unwrap_used",
            "allow(clippy::expect_used",
            "allow(clippy::panic",
            "allow(clippy::indexing_slicing",
            "allow(clippy::too_many_lines",
            "allow(unsafe",
        ]
        .iter()
        .any(|allow| text.contains(allow))
    };
    let offenders: Vec<_> = PRODUCTS
        .into_iter()
        .flat_map(sources)
        .filter(|file| !is_test(file) && allows(&product(file)))
        .collect();
    assert_eq!(offenders, Vec::<PathBuf>::new());
}

#[test]
fn every_file_begins_with_its_purpose() {
    let silent: Vec<_> =
        members().flat_map(sources).filter(|file| !read(file).starts_with("//! ")).collect();
    assert_eq!(silent, Vec::<PathBuf>::new());
}

#[test]
fn no_module_has_a_catch_all_name() {
    let drawers: Vec<_> = PRODUCTS
        .into_iter()
        .chain(["tests"])
        .flat_map(sources)
        .filter(|file| {
            let name = file.file_stem().unwrap_or_default().to_string_lossy().to_string();
            ["util", "utils", "common", "helper", "helpers", "types"].contains(&name.as_str())
        })
        .collect();
    assert_eq!(drawers, Vec::<PathBuf>::new());
}

#[test]
fn every_path_that_the_documents_name_exists() {
    for document in ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"] {
        let text = read(&root().join(document));
        let quoted = text.split('`').skip(1).step_by(2);
        let tables = text.split(['(', ')']).filter(|word| word.starts_with("docs/"));
        for path in quoted.chain(tables).filter(|word| is_path(word)) {
            let file = path.split('#').next().unwrap_or(path);
            assert!(root().join(file).exists(), "{document} names {path}");
        }
    }
}

#[test]
fn every_link_of_a_document_leads_to_a_page_and_a_heading() {
    for document in DOCUMENTS.iter().flat_map(|place| texts(place)).filter(|file| is_page(file)) {
        let prose: String = read(&document).split("```").step_by(2).collect();
        let links = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let folder = document.parent().unwrap_or(&document);
            let page = if path.is_empty() { document.clone() } else { folder.join(path) };
            let place = format!("{}: {link}", document.display());
            assert!(page.exists(), "{place}");
            let headings = read(&page);
            let mut headings = headings.lines().filter(|line| line.starts_with('#'));
            assert!(heading.is_empty() || headings.any(|line| anchor(line) == heading), "{place}");
        }
    }
}

#[test]
fn plain_words_are_used() {
    let files = DOCUMENTS.iter().chain(PLAIN).flat_map(|place| texts(place));
    // This file lists the phrases.
    let files = files.filter(|file| is_written(file) && !file.ends_with("tests/tidy/main.rs"));
    let offences = files.flat_map(|file| {
        let (text, mut is_quoted) = (read(&file), false);
        let mut found = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            is_quoted ^= is_page(&file) && line.starts_with("```");
            // Names that programs read cannot be changed.
            let is_key = ["serde(rename = ", "serde(alias = "].iter().any(|it| line.contains(it));
            let is_exempt = is_quoted || is_key;
            let line = if line.contains("fn ") { line.replace('_', " ") } else { line.to_owned() };
            let words = if is_exempt { String::new() } else { words(&line) };
            for (phrases, instead) in PHRASES {
                let used = phrases.iter().filter(|it| words.contains(&format!(" {it} ")));
                let place = format!("{}:{number}", file.display());
                found.extend(used.map(|phrase| format!("{place}: {phrase} (write: {instead})")));
            }
        }
        found
    });
    assert_eq!(offences.collect::<Vec<_>>(), Vec::<String>::new());
}

/// Each row of a table with the column "held by" names tests, and these tests exist.
#[test]
fn protections_against_attackers_name_existing_tests() {
    let places = PRODUCTS.into_iter().chain(["cni-plugin/tests", "tests"]);
    let code: String = places.flat_map(sources).map(|file| read(&file)).collect();
    let scenarios = texts("tests/scenarios");
    let text = read(&root().join("docs/security.md"));
    let tables = text.split("| held by |\n").skip(1);
    let rows =
        tables.flat_map(|table| table.lines().skip(1).take_while(|row| row.starts_with('|')));
    let rows: Vec<&str> = rows.collect();
    assert!(rows.len() > 20, "{rows:?}");
    for row in rows {
        let holders = row.trim_end_matches(" |").rsplit(" | ").next().unwrap_or_default();
        let names: Vec<&str> = holders.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test holds {row}");
        for name in names {
            let is_scenario = scenarios.iter().any(|it| it.ends_with(format!("{name}.txt")));
            assert!(is_scenario || code.contains(&format!("fn {name}(")), "no test {name}");
        }
    }
}

/// The sources of all members of the workspace.
fn members() -> impl Iterator<Item = &'static str> {
    PRODUCTS.into_iter().chain(TOOLS)
}

/// The anchor by which a link names a heading.
fn anchor(heading: &str) -> String {
    let title = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = title.chars().filter(|it| it.is_alphanumeric() || [' ', '-', '_'].contains(it));
    kept.map(|it| if it == ' ' { '-' } else { it }).collect()
}

/// The words of a line between single spaces, without what it quotes as code.
fn words(line: &str) -> String {
    let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" ` ");
    let is_kept = |letter: char| letter.is_alphanumeric() || ['_', '-'].contains(&letter);
    let kept: String = prose.chars().map(|it| if is_kept(it) { it } else { ' ' }).collect();
    let words: Vec<String> = kept.split_whitespace().map(str::to_lowercase).collect();
    format!(" {} ", words.join(" "))
}

fn is_page(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "md")
}

fn is_written(file: &Path) -> bool {
    let fuzz = root().join("tests/fuzz");
    !FUZZED.iter().any(|folder| file.starts_with(fuzz.join(folder)))
}

fn is_path(word: &str) -> bool {
    let places = [
        "bench/",
        "client/",
        "cni-plugin/",
        "config/",
        "docs/",
        "http/",
        "netlink/",
        "proxy/",
        "src/",
        "tests/",
    ];
    places.iter().any(|place| word.starts_with(place)) && !word.contains(' ')
}

/// The part of a file before its tests.
fn product(file: &Path) -> String {
    let text = read(file);
    let tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let code = text.get(..tests).unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Without the arms of a match, which only read operations.
fn without_patterns(text: &str) -> String {
    let is_pattern =
        |line: &&str| line.contains("=>") || line.contains("matches!") || line.contains("if let");
    text.lines().filter(|line| !is_pattern(line)).collect::<Vec<_>>().join("\n")
}

fn is_test(file: &Path) -> bool {
    file.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
        && !["tests/lab/src", "tests/model/src"]
            .iter()
            .any(|product| file.starts_with(root().join(product)))
}

fn sources(path: &str) -> Vec<PathBuf> {
    let is_source = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "rs");
    texts(path).into_iter().filter(is_source).collect()
}

fn texts(path: &str) -> Vec<PathBuf> {
    let path = root().join(path);
    if path.is_file() {
        return vec![path];
    }
    let entries = fs::read_dir(&path).into_iter().flatten();
    entries.flat_map(|entry| texts(&entry.unwrap().path().to_string_lossy())).collect()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| format!("{}: {error}", path.display()))
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
