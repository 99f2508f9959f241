//! How each step changes the config.

use expect_test::{Expect, expect};
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::json;

use crate::model::config::BackendType;

use super::super::state::{MigrationState, Note, Stage, Step};
use super::world::{named, note, percent};

fn check(text: &str, steps: &[Step], expected: &Expect) {
    let mut written = text.to_owned();
    for (second, step) in (0..).zip(steps) {
        let state = MigrationState::parse(&written, 1).unwrap();
        written = state.after(step, &note(second), None).text().to_owned();
        // Daemons must be able to read every config that is written.
        MigrationState::parse(&written, 2).unwrap();
    }
    expected.assert_eq(&written);
}

const OPERATORS: &str = "{ \"Network\": \"10.244.0.0/16\", \"Owner\": \"net team\",\n  \"Backend\": { \"VNI\": 7, \"Type\": \"vxlan\", \"DirectRouting\": false } }\n";

fn begin() -> Step {
    Step::Begin { to: BackendType::HostGw, stage: named("172.16.0.1") }
}

#[test]
fn a_start_adds_mixed_and_then_the_rollout_and_nothing_else() {
    check(
        OPERATORS,
        &[Step::Mix, begin()],
        &expect![[r#"
        { "Network": "10.244.0.0/16", "Owner": "net team",
          "Backend": { "VNI": 7, "Type": "host-gw", "DirectRouting": false },
          "Mixed": true,
          "Rollout": {"From":{"Type":"vxlan"},"Percent":0,"Nodes":["172.16.0.1"],"History":[{"At":"2026-11-21T14:02:01Z","By":"root@n1","Nodes":1,"Percent":0}]} }
    "#]],
    );
}

#[test]
fn a_stage_is_recorded_and_ends_a_pause() {
    let quarter = Stage { percent: 25, ..named("172.16.0.1") };
    let steps = [Step::Mix, begin(), Step::Pause, Step::Reach(quarter)];
    check(
        OPERATORS,
        &steps,
        &expect![[r#"
        { "Network": "10.244.0.0/16", "Owner": "net team",
          "Backend": { "VNI": 7, "Type": "host-gw", "DirectRouting": false },
          "Mixed": true,
          "Rollout": {"From":{"Type":"vxlan"},"Percent":25,"Nodes":["172.16.0.1"],"History":[{"At":"2026-11-21T14:02:01Z","By":"root@n1","Nodes":1,"Percent":0},{"At":"2026-11-21T14:02:03Z","By":"root@n1","Nodes":1,"Percent":25}]} }
    "#]],
    );
}

#[test]
fn a_pause_records_its_author() {
    check(
        r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"host-gw"},"Rollout":{"From":{"Type":"vxlan"}}}"#,
        &[Step::Pause],
        &expect![[
            r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"host-gw"},"Rollout":{"From":{"Type":"vxlan"},"Paused":{"At":"2026-11-21T14:02:00Z","By":"root@n1"}}}"#
        ]],
    );
}

#[test]
fn rollback_and_finish_restore_the_config() {
    let back = Step::Finish { kind: BackendType::Vxlan, mixed: false };
    let steps = [Step::Mix, begin(), Step::Reach(Stage::default()), back];
    check(
        OPERATORS,
        &steps,
        &expect![[r#"
        { "Network": "10.244.0.0/16", "Owner": "net team",
          "Backend": { "VNI": 7, "Type": "vxlan", "DirectRouting": false } }
    "#]],
    );
}

#[test]
fn a_config_without_a_backend_gets_one() {
    check(
        r#"{"Network":"10.244.0.0/16"}"#,
        &[Step::Finish { kind: BackendType::HostGw, mixed: true }],
        &expect![[r#"{"Network":"10.244.0.0/16","Backend":{"Type": "host-gw"}}"#]],
    );
}

#[test]
fn the_record_is_bounded() {
    let steps: Vec<Step> = (0..100).map(|_| Step::Reach(percent(50))).collect();
    let mut text = r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"host-gw"},"Rollout":{"From":{"Type":"vxlan"}}}"#.to_owned();
    for (second, step) in (0..).zip(&steps) {
        let state = MigrationState::parse(&text, 1).unwrap();
        text = state.after(step, &note(second), None).text().to_owned();
    }
    let history = MigrationState::parse(&text, 1).unwrap().under_way.unwrap().history;
    assert_eq!((history.len(), history.last().unwrap().note.at), (16, note(99).at));
}

#[test]
fn a_rollout_written_by_hand_is_read() {
    let text = r#"{"network":"10.244.0.0/16","mixed":true,"backend":{"type":"host-gw"},"rollout":{"from":{"type":"vxlan"},"percent":30,"history":"mine"}}"#;
    let state = MigrationState::parse(text, 1).unwrap();
    let under_way = state.under_way.as_ref().unwrap();
    assert_eq!((under_way.stage.percent, under_way.history.len()), (30, 0));
    let next = state.after(&Step::Reach(percent(50)), &note(0), None);
    assert_eq!(MigrationState::parse(next.text(), 2).unwrap().config.rollout.unwrap().percent, 50);
}

#[test]
fn changes_of_other_operators_are_listed_by_field() {
    let before = MigrationState::parse(OPERATORS, 1).unwrap();
    let after = before.after(&Step::Mix, &note(0), None);
    let after = MigrationState::parse(after.text(), 2).unwrap().after(&begin(), &note(1), None);
    let after = MigrationState::parse(after.text(), 3).unwrap();
    expect![[r#"
        Backend.Type: "vxlan" → "host-gw"
        Mixed: nothing → true
        Rollout: nothing → {"From":{"Type":"vxlan"},"Percent":0,"Nodes":["172.16.0.1"],"History":[{"At":"2026-11-21T14:02:01Z","By":"root@n1","Nodes":1,"Percent":0}]}"#]]
    .assert_eq(&after.changes(&before).join("\n"));
    assert_eq!(after.author(&before), Some(&note(1)));
    let later = after.after(&Step::Reach(percent(25)), &note(2), None);
    let later = MigrationState::parse(later.text(), 4).unwrap();
    assert_eq!(
        later.changes(&after),
        ["Rollout.Percent: 0 → 25", r#"Rollout.Nodes: ["172.16.0.1"] → []"#]
    );
    assert_eq!(later.author(&after), Some(&note(2)));
    assert_eq!(after.author(&later), None);
}

fn shown(stages: impl IntoIterator<Item = Stage>) -> Vec<String> {
    stages.into_iter().map(|stage| stage.to_string()).collect()
}

#[test]
fn rollback_ends_with_no_node() {
    let all = Stage { percent: 100, nodes: vec!["n".into()] };
    let back = std::iter::successors(Some(all), |stage| {
        Some(stage.previous()).filter(|_| !stage.is_empty())
    });
    assert_eq!(shown(back), ["all nodes", "Percent 50 and n", "Percent 25 and n", "n", "no node"]);
}

fn read(at: &str) -> Result<Note, serde_json::Error> {
    serde_json::from_value(json!({ "At": at, "By": "" }))
}

fn written(seconds: i64) -> String {
    let note = Note { at: Timestamp::from_second(seconds).unwrap(), by: String::new() };
    json!(note)["At"].as_str().unwrap().to_owned()
}

#[test]
fn timestamps_are_written_in_rfc_3339() {
    for (seconds, text) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (1_000_000_000, "2001-09-09T01:46:40Z"),
        (1_795_269_729, "2026-11-21T14:02:09Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
    ] {
        assert_eq!(written(seconds), text);
    }
}

#[test]
fn invalid_timestamps_are_refused() {
    for text in [
        "",
        "2026-11-21",
        "2026-02-30T00:00:00Z",
        "2026-11-21T24:00:00Z",
        "0000-00-00T00:00:00Z",
        "2026-11-21 14:02:09Z",
        "2026-11-21T14:02:09.5Z",
        "2026-11-21T15:02:09+01:00",
        "ééééééééééé",
    ] {
        assert!(read(text).is_err(), "{text}");
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(seconds in 0..253_402_300_800_i64) {
        let note = read(&written(seconds)).unwrap();
        prop_assert_eq!(note.at, Timestamp::from_second(seconds).unwrap());
    }
}
