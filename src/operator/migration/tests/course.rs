//! What each step writes into the config.

use expect_test::{Expect, expect};

use crate::model::config::Kind;
use crate::operator::migration::{Course, Mixing, Stage, Step, author, changes};

use super::{named, note};

fn check(text: &str, steps: &[Step], expected: &Expect) {
    let mut written = text.to_owned();
    for (second, step) in (0..).zip(steps) {
        let course = Course::parse(&written, 1).unwrap();
        written = course.after(step, &note(second), None).text().to_owned();
        // Whatever we write, daemons can read.
        Course::parse(&written, 2).unwrap();
    }
    expected.assert_eq(&written);
}

const OPERATORS: &str = "{ \"Network\": \"10.244.0.0/16\", \"Owner\": \"net team\",\n  \"Backend\": { \"VNI\": 7, \"Type\": \"vxlan\", \"DirectRouting\": false } }\n";

fn begin() -> Step {
    Step::Begin { to: Kind::HostGw, stage: named("172.16.0.1") }
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
fn a_stage_goes_on_record_and_ends_a_pause() {
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
fn a_pause_says_whose_it_is() {
    check(
        r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"host-gw"},"Rollout":{"From":{"Type":"vxlan"}}}"#,
        &[Step::Pause],
        &expect![[
            r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"host-gw"},"Rollout":{"From":{"Type":"vxlan"},"Paused":{"At":"2026-11-21T14:02:00Z","By":"root@n1"}}}"#
        ]],
    );
}

#[test]
fn taken_back_and_finished_the_config_is_as_it_was() {
    let back = Step::Finish { kind: Kind::Vxlan, mixing: Mixing::Off };
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
        &[Step::Finish { kind: Kind::HostGw, mixing: Mixing::On }],
        &expect![[r#"{"Network":"10.244.0.0/16","Backend":{"Type": "host-gw"}}"#]],
    );
}

#[test]
fn the_record_is_bounded() {
    let steps: Vec<Step> = (0..100).map(|_| Step::Reach(Stage::percent(50))).collect();
    let mut text = r#"{"Network":"10.244.0.0/16","Mixed":true,"Backend":{"Type":"host-gw"},"Rollout":{"From":{"Type":"vxlan"}}}"#.to_owned();
    for (second, step) in (0..).zip(&steps) {
        let course = Course::parse(&text, 1).unwrap();
        text = course.after(step, &note(second), None).text().to_owned();
    }
    let history = Course::parse(&text, 1).unwrap().under_way.unwrap().history;
    assert_eq!((history.len(), history.last().unwrap().note.at), (16, note(99).at));
}

#[test]
fn a_rollout_by_plain_put_is_understood() {
    let text = r#"{"network":"10.244.0.0/16","mixed":true,"backend":{"type":"host-gw"},"rollout":{"from":{"type":"vxlan"},"percent":30,"history":"mine"}}"#;
    let course = Course::parse(text, 1).unwrap();
    let under_way = course.under_way.as_ref().unwrap();
    assert_eq!((under_way.stage.percent, under_way.history.len()), (30, 0));
    let next = course.after(&Step::Reach(Stage::percent(50)), &note(0), None);
    assert_eq!(Course::parse(next.text(), 2).unwrap().config.rollout.unwrap().percent, 50);
}

#[test]
fn what_somebody_else_changed_is_told_field_by_field() {
    let before = Course::parse(OPERATORS, 1).unwrap();
    let after = before.after(&Step::Mix, &note(0), None);
    let after = Course::parse(after.text(), 2).unwrap().after(&begin(), &note(1), None);
    let after = Course::parse(after.text(), 3).unwrap();
    expect![[r#"
        Backend.Type: "vxlan" → "host-gw"
        Mixed: nothing → true
        Rollout: nothing → {"From":{"Type":"vxlan"},"Percent":0,"Nodes":["172.16.0.1"],"History":[{"At":"2026-11-21T14:02:01Z","By":"root@n1","Nodes":1,"Percent":0}]}"#]]
    .assert_eq(&changes(&before, &after).join("\n"));
    assert_eq!(author(&before, &after), Some(note(1)));
    let later = after.after(&Step::Reach(Stage::percent(25)), &note(2), None);
    let later = Course::parse(later.text(), 4).unwrap();
    assert_eq!(
        changes(&after, &later),
        ["Rollout.Percent: 0 → 25", r#"Rollout.Nodes: ["172.16.0.1"] → []"#]
    );
    assert_eq!(author(&after, &later), Some(note(2)));
    assert_eq!(author(&later, &after), None);
}
