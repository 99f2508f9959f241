//! The page of metrics, the rules of alerts and the dashboard agree, and promtool accepts them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use regex::Regex;
use serde_json::{Value, json};

/// Written by the test of the page.
const PAGE: &str = "tests/monitoring/metrics.txt";
const RULES: &str = "config/monitoring/rules.yml";
const RULE_TESTS: &str = "tests/monitoring/rules_test.yml";
const DASHBOARD: &str = "config/monitoring/dashboard.json";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap()
}

fn yaml(name: &str) -> Value {
    serde_saphyr::from_str(&text(name)).unwrap()
}

fn promtool(words: &[&str], input: &str) -> Output {
    let mut promtool = Command::new("promtool");
    let promtool = promtool.args(words).current_dir(env!("CARGO_MANIFEST_DIR"));
    let promtool = promtool.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = promtool.spawn().expect("make packages installs promtool");
    running.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    running.wait_with_output().unwrap()
}

fn succeeds(words: &[&str], input: &str) {
    let Output { status, stdout, stderr } = promtool(words, input);
    let shown = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(status.success(), "{words:?}: {shown:?}");
}

#[test]
fn promtool_accepts_the_page_of_metrics() {
    succeeds(&["check", "metrics"], &text(PAGE));
}

#[test]
fn every_family_is_documented() {
    let document = text("docs/operations.md");
    let page = text(PAGE);
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names = families.filter_map(|line| line.split(' ').next());
    let missing: Vec<_> = names.filter(|name| !document.contains(*name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn promtool_rejects_a_page_with_a_fault() {
    let page = text(PAGE).replace("# TYPE tweed_ready gauge", "# TYPE tweed_ready counter");
    assert!(!promtool(&["check", "metrics"], &page).status.success());
}

#[test]
fn promtool_accepts_the_rules() {
    succeeds(&["check", "rules", "--lint-fatal", RULES], "");
}

#[test]
fn alerts_fire_on_bad_series_and_stay_silent_on_good_ones() {
    succeeds(&["test", "rules", RULE_TESTS], "");
}

/// As rules, with values in the place of the variables of the dashboard.
#[test]
fn promtool_accepts_the_queries_of_the_dashboard() {
    let dashboard: Value = serde_json::from_str(&text(DASHBOARD)).unwrap();
    let queries = under(&dashboard, "expr").into_iter().enumerate();
    let rules = queries.map(|(number, query)| {
        let query = query.replace("$__rate_interval", "5m").replace("$instance", ".*");
        json!({ "record": format!("query_{number}"), "expr": query })
    });
    let group = json!({ "name": "dashboard", "rules": rules.collect::<Vec<_>>() });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("queries.json");
    // JSON is YAML.
    fs::write(&file, json!({ "groups": [group] }).to_string()).unwrap();
    succeeds(&["check", "rules", file.to_str().unwrap()], "");
}

/// The strings under `key` anywhere in `value`.
fn all_under<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get(key).and_then(Value::as_str));
            for field in fields.values() {
                all_under(field, key, found);
            }
        }
        Value::Array(items) => {
            for item in items {
                all_under(item, key, found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn under<'a>(value: &'a Value, key: &str) -> Vec<&'a str> {
    let mut found = Vec::new();
    all_under(value, key, &mut found);
    found
}

/// The names of metrics in `text`.
fn metrics(text: &str) -> BTreeSet<String> {
    let name = Regex::new(r"\b(tweed|process)_[a-z_]+").unwrap();
    name.find_iter(text).map(|found| found.as_str().to_owned()).collect()
}

fn unknown(expressions: &[&str]) -> Vec<String> {
    let page = text(PAGE);
    let samples = page.lines().filter(|line| !line.starts_with('#'));
    let known: BTreeSet<&str> =
        samples.filter_map(|sample| sample.split(['{', ' ']).next()).collect();
    let used: BTreeSet<String> = expressions.iter().flat_map(|it| metrics(it)).collect();
    used.into_iter().filter(|name| !known.contains(name.as_str())).collect()
}

#[test]
fn every_metric_of_rules_and_dashboard_is_on_the_page() {
    let (rules, tests) = (yaml(RULES), yaml(RULE_TESTS));
    let dashboard: Value = serde_json::from_str(&text(DASHBOARD)).unwrap();
    let (rules, queries) = (under(&rules, "expr"), under(&dashboard, "expr"));
    assert!(rules.len() > 15 && queries.len() > 15, "{rules:?} {queries:?}");
    assert_eq!(unknown(&rules), Vec::<String>::new());
    assert_eq!(unknown(&queries), Vec::<String>::new());
    assert_eq!(unknown(&under(&tests, "series")), Vec::<String>::new());
    assert_eq!(unknown(&["tweed_nothing > 0"]), ["tweed_nothing"]);
}

/// The series of `selector` on the page: `name{label="value",other=~"a|b"}`.
fn is_on_page(selector: &str) -> bool {
    let page = text(PAGE);
    let (name, matchers) = selector.split_once('{').unwrap();
    let pair = Regex::new(r#"([a-z]+)(=~?)"([^"]*)""#).unwrap();
    let fixed = pair.captures_iter(matchers).filter(|pair| !pair[3].contains('$'));
    let matchers: Vec<(String, Regex)> = fixed
        .map(|pair| (pair[1].to_owned(), Regex::new(&format!("^({})$", &pair[3])).unwrap()))
        .collect();
    let mut samples = page.lines().filter(|line| line.starts_with(&format!("{name}{{")));
    samples.any(|sample| {
        let labels: Vec<_> = pair.captures_iter(sample).collect();
        let has = |(label, value): &(String, Regex)| {
            labels.iter().any(|pair| pair[1] == **label && value.is_match(&pair[3]))
        };
        matchers.iter().filter(|(label, _)| label != "instance").all(has)
    })
}

#[test]
fn every_selector_of_rules_and_dashboard_selects_a_series_of_the_page() {
    let rules = yaml(RULES);
    let dashboard: Value = serde_json::from_str(&text(DASHBOARD)).unwrap();
    let selector = Regex::new(r"(tweed|process)_[a-z_]+\{[^}]*[a-z][^}]*\}").unwrap();
    let expressions = [under(&rules, "expr"), under(&dashboard, "expr")].concat();
    let selectors: BTreeSet<&str> = expressions
        .iter()
        .flat_map(|expression| selector.find_iter(expression))
        .map(|found| found.as_str())
        .filter(|selector| selector.matches('=').count() > selector.matches("instance=~").count())
        .collect();
    assert!(selectors.len() > 8, "{selectors:?}");
    let missing: Vec<&&str> = selectors.iter().filter(|it| !is_on_page(it)).collect();
    assert_eq!(missing, Vec::<&&str>::new());
    assert!(!is_on_page(r#"tweed_peers{path="left_out"}"#));
}

#[test]
fn every_alert_is_tested_on_bad_and_on_good_series() {
    let (rules, tests) = (yaml(RULES), yaml(RULE_TESTS));
    let alerts: BTreeSet<&str> = under(&rules, "alert").into_iter().collect();
    let (mut fired, mut silent) = (BTreeSet::new(), BTreeSet::new());
    for test in tests["tests"].as_array().unwrap() {
        for expectation in test["alert_rule_test"].as_array().unwrap() {
            let name = expectation["alertname"].as_str().unwrap();
            match expectation.get("exp_alerts").and_then(Value::as_array) {
                Some(alerts) if !alerts.is_empty() => fired.insert(name),
                Some(_) | None => silent.insert(name),
            };
        }
    }
    assert_eq!(fired, alerts);
    assert_eq!(silent, alerts);
}
