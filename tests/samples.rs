//! Every sample in config/ and in the documents is valid: it parses, a node can be planned with it,
//! and commands are run by a test or give a reason why not.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;
use clap::error::ErrorKind;
use serde_json::Value;
use tweed::daemon::options::{Options, Stop};
use tweed::model::config::NetworkConfig;
use tweed::model::prefix::Family;
use tweed::operator::Arguments;

#[test]
fn every_network_config_parses() {
    for sample in network_configs() {
        let parsed = NetworkConfig::parse(&fs::read(&sample).unwrap());
        assert!(parsed.is_ok(), "{}: {}", sample.display(), parsed.unwrap_err());
    }
}

#[test]
fn every_network_config_can_be_planned_with() {
    for sample in network_configs() {
        let config = NetworkConfig::parse(&fs::read(&sample).unwrap()).unwrap();
        let mut tweedctl = Command::new(env!("CARGO_BIN_EXE_tweedctl"));
        tweedctl.args(["plan", "--leases", "/dev/null", "--config"]).arg(&sample);
        for pool in &config.pools {
            let public_ip = match pool.network.family() {
                Family::V4 => "172.16.0.5",
                Family::V6 => "fd00:172::5",
            };
            tweedctl.args(["--public-ip", public_ip]);
        }
        let planned = tweedctl.output().unwrap();
        assert!(planned.status.success(), "{}: {planned:?}", sample.display());
    }
}

#[test]
fn each_way_of_using_the_config_has_a_sample() {
    let names: Vec<String> = network_configs()
        .iter()
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(
        names,
        ["direct-routing", "dual-stack", "host-gw", "masquerade", "mixed", "rollout", "vxlan"]
    );
}

fn network_configs() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/config/networks");
    let mut samples: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    samples.sort();
    samples
}

/// Why commands are not run by a test.
const REASONS: [&str; 4] =
    ["only by make judge-kubernetes", "needs kubelets", "needs a registry", "changes the host"];

/// A fenced block of a document.
struct Block {
    page: String,
    /// The number of its first line.
    line: usize,
    /// The language after the fence: empty for commands.
    language: String,
    /// The line above the fence.
    above: String,
    text: String,
}

impl Block {
    fn place(&self) -> String {
        format!("{}:{}", self.page, self.line)
    }

    /// The words of each command; of a transcript, only the input.
    fn commands(&self) -> Vec<Vec<String>> {
        let typed: Vec<&str> =
            self.text.lines().filter_map(|line| line.strip_prefix("$ ")).collect();
        if typed.is_empty() { commands(&self.text) } else { commands(&typed.join("\n")) }
    }
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["docs", "docs/guides"].map(|folder| fs::read_dir(root.join(folder)).unwrap());
    let docs = folders.into_iter().flatten().map(|entry| entry.unwrap().path());
    let docs = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let top = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|page| root.join(page));
    let mut pages: Vec<PathBuf> = top.into_iter().chain(docs).collect();
    pages.sort();
    pages
}

fn blocks() -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for path in pages() {
        let page = path.file_name().unwrap().to_string_lossy().into_owned();
        let (mut above, mut is_open) = (String::new(), false);
        for (number, line) in (1..).zip(fs::read_to_string(&path).unwrap().lines()) {
            if let Some(language) = line.strip_prefix("```") {
                is_open = !is_open;
                if is_open {
                    let (page, language) = (page.clone(), language.to_owned());
                    let (line, above) = (number + 1, above.clone());
                    blocks.push(Block { page, line, language, above, text: String::new() });
                }
            } else if is_open {
                blocks.last_mut().unwrap().text.extend([line, "\n"]);
            }
            line.clone_into(&mut above);
        }
        assert!(!is_open, "{}: the last block is open", path.display());
    }
    blocks
}

/// The simple commands of a shell script, without redirections and comments.
fn commands(script: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let (mut quote, mut characters) = (None, script.chars().peekable());
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), close) if close == open => quote = None,
            (Some(_), inner) => word.get_or_insert_default().push(inner),
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, '\\') => drop(characters.next_if_eq(&'\n')),
            (None, '#') if word.is_none() => {
                while characters.next_if(|it| *it != '\n').is_some() {}
            }
            (None, ' ' | '>') => words.extend(word.take()),
            (None, '\n' | '|' | '&' | ';') => {
                words.extend(word.take());
                commands.push(std::mem::take(&mut words));
            }
            (None, other) => word.get_or_insert_default().push(other),
        }
    }
    assert_eq!(quote, None, "an open quote: {script}");
    words.extend(word);
    commands.push(words);
    commands.retain(|words| !words.is_empty());
    commands
}

/// The command lines of tweed in these words: alone, in a pod, in a container, in a patch.
fn ours(words: &[String]) -> Vec<Vec<String>> {
    let is_ours = |word: &String| word == "tweedd" || word == "tweedctl";
    let behind = |mark: &str| {
        let at = words.iter().position(|word| word == mark)?;
        words.get(at + 1).filter(|word| is_ours(word)).map(|_| words[at + 1..].to_vec())
    };
    let in_a_container = behind("--entrypoint").map(|words| {
        let image = words.iter().position(|word| word.contains("tweed:")).unwrap();
        [&words[..1], &words[image + 1..]].concat()
    });
    let alone = words.first().filter(|word| is_ours(word)).map(|_| words.to_vec());
    let patches = words.iter().filter_map(|word| word.strip_prefix("--patch="));
    let patches = patches.flat_map(|patch| in_a_patch(&serde_json::from_str(patch).unwrap()));
    alone.into_iter().chain(behind("--")).chain(in_a_container).chain(patches).collect()
}

fn in_a_patch(patch: &Value) -> Vec<Vec<String>> {
    match patch {
        Value::Array(items) => items.iter().flat_map(in_a_patch).collect(),
        Value::Object(fields) => {
            let command = fields.get("command").and_then(Value::as_array);
            let words = command.map(|words| words.iter().map(|it| it.as_str().unwrap().to_owned()));
            words
                .map(Iterator::collect)
                .into_iter()
                .chain(fields.values().flat_map(in_a_patch))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// The error in a command line of tweed, if there is one; `whole` if no argument may be missing.
fn refused(words: &[String], whole: bool) -> Option<String> {
    if words[0] == "tweedd" {
        let variable = |name: &str| (name == "NODE_NAME").then(|| "n1".to_owned());
        let stop = Options::parse(&words[1..], variable).err()?;
        return (whole || matches!(stop, Stop::Unknown { .. })).then(|| stop.to_string());
    }
    let error = Arguments::try_parse_from(words).err()?;
    let is_incomplete = matches!(
        error.kind(),
        ErrorKind::MissingSubcommand
            | ErrorKind::MissingRequiredArgument
            | ErrorKind::DisplayHelp
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            | ErrorKind::DisplayVersion
    );
    (whole || !is_incomplete).then(|| error.to_string())
}

#[test]
fn every_tweed_command_in_a_block_can_be_parsed() {
    let mut seen = 0;
    for block in blocks().iter().filter(|block| block.language.is_empty()) {
        for words in block.commands().iter().flat_map(|words| ours(words)) {
            // In a synopsis, brackets mark optional arguments.
            let words: Vec<String> =
                words.iter().map(|word| word.trim_matches(['[', ']']).to_owned()).collect();
            let refused = refused(&words, true);
            assert_eq!(refused, None, "{}: {}", block.place(), words.join(" "));
            seen += 1;
        }
    }
    assert!(seen > 15, "only {seen} commands were found");
}

#[test]
fn every_tweed_command_within_a_sentence_can_be_parsed() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        let prose: String = text.split("```").step_by(2).collect();
        for code in prose.split('`').skip(1).step_by(2) {
            let is_example = code.contains(['…', '<', '[', '|', '\'', '\n']);
            let code = if is_example { "" } else { code };
            for words in commands(code).iter().flat_map(|words| ours(words)) {
                assert_eq!(refused(&words, false), None, "{}: {code}", page.display());
            }
        }
    }
}

#[test]
fn every_block_of_commands_is_run_or_gives_a_reason() {
    let makefile = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Makefile")).unwrap();
    for block in blocks().iter().filter(|block| block.language.is_empty()) {
        let commands = block.commands();
        let place = block.place();
        assert!(!commands.is_empty(), "{place}: what is no command has a language, such as text");
        let is_target = |words: &Vec<String>| {
            words[0] == "make" && makefile.contains(&format!("\n{}:", words[1]))
        };
        if commands.iter().all(is_target) {
            continue;
        }
        let mark = block.above.strip_prefix("<!-- ").and_then(|it| it.strip_suffix(" -->"));
        let mark = mark.unwrap_or_else(|| panic!("{place}: no comment states whether it is run"));
        if let Some(reason) = mark.strip_prefix("not run: ") {
            assert!(REASONS.contains(&reason), "{place}: {reason} is no reason");
        } else {
            let test = mark.strip_prefix("run by ").and_then(|test| test.split_once(": "));
            let (file, test) = test.unwrap_or_else(|| panic!("{place}: {mark} names no test"));
            is_run(block, &commands, file, test);
        }
    }
}

/// The test reads the page itself, or contains the subcommand and all options of each command in it.
fn is_run(block: &Block, commands: &[Vec<String>], file: &str, test: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let source = fs::read_to_string(&path).unwrap();
    let place = block.place();
    let found = ["#[test]\nfn", "#[tokio::test]\nasync fn"];
    let found = found.iter().find_map(|it| source.split_once(&format!("{it} {test}(")));
    assert!(found.is_some(), "{place}: {file} has no such test");
    let body = found.unwrap().1.split("\n}\n").next().unwrap();
    if source.contains(&format!("/{}\"", block.page)) {
        return;
    }
    for words in commands {
        let is_plain = |word: &&String| !word.starts_with(['-', '[', '/']) && !word.contains('.');
        let subcommand = words.iter().take_while(is_plain).last().unwrap();
        let options = words.iter().map(|word| word.trim_start_matches('['));
        let options = options.filter(|word| word.starts_with('-')).map(|word| {
            let name = word.trim_end_matches(']');
            name.split('=').next().unwrap()
        });
        for needed in options.chain([subcommand.as_str()]) {
            assert!(body.contains(needed), "{place}: no {needed} of {words:?} in the test");
        }
    }
}

#[test]
fn every_config_in_a_document_parses() {
    for block in blocks().iter().filter(|block| block.language == "json") {
        let value: Value = serde_json::from_str(&block.text).unwrap();
        if value.get("Network").is_some() {
            let parsed = NetworkConfig::parse(block.text.as_bytes());
            assert!(parsed.is_ok(), "{}: {}", block.place(), parsed.unwrap_err());
        }
    }
}
