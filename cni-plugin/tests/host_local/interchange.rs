//! Each program continues the work of the other.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::network::{BOTH, Network, Program};

/// Where more than one set is small, the first is the smallest: if another set fails, Go's program
/// continues after an address that no container got, and tweed's after the last one that a
/// container got.
fn pools() -> [Value; 5] {
    [
        json!({"subnet": "10.1.0.0/24"}),
        json!({"ranges": [[{"subnet": "10.1.0.0/28"}], [{"subnet": "fd00:10:244:7::/64"}]],
               "routes": [{"dst": "10.0.0.0/8"}, {"dst": "fd00::/16", "gw": "fd00:10:244:7::9"}]}),
        json!({"Subnet": "10.1.0.0/24", "RangeStart": "10.1.0.9", "rangeEnd": "10.1.0.14",
               "gateway": "10.1.0.11", "routes": [{"dst": "0.0.0.0/0"}]}),
        json!({"ranges": [[{"subnet": "10.1.0.0/30"}, {"subnet": "10.2.0.0/30"},
                           {"subnet": "10.3.0.0/24", "rangeStart": "10.3.0.250"}]]}),
        json!({"subnet": "10.1.0.0/29", "ranges": [[{"subnet": "10.2.0.0/28"}],
               [{"subnet": "2001:db8::/112", "rangeStart": "2001:db8::fff8"}]]}),
    ]
}

/// Adds and deletes until every address has been used once, with the program of each turn.
fn history(network: &Network, program: impl Fn(usize) -> Program) -> Vec<Value> {
    let mut answers = Vec::new();
    for turn in 0..24 {
        let by = program(turn);
        let id = format!("container{turn}");
        answers.push(match network.add(by, &id, "eth0") {
            Ok(result) => result,
            Err(msg) => json!(msg),
        });
        if turn % 3 == 2 {
            network.del(program(turn + 1), &format!("container{}", turn - 2), "eth0");
        }
        if turn % 7 == 6 {
            network.del(program(turn), "nothing", "eth0");
        }
    }
    answers
}

#[test]
fn the_same_history_gives_the_same_results_and_the_same_files() {
    for pool in pools() {
        let expected = Network::with(&pool);
        let results = history(&expected, |_| Program::Go);
        let histories: [fn(usize) -> Program; 4] = [
            |_| Program::Ours,
            |turn| BOTH[turn % 2],
            |turn| BOTH[usize::from(turn > 11)],
            |turn| BOTH[usize::from(turn <= 11)],
        ];
        for program in histories {
            let network = Network::with(&pool);
            assert_eq!(history(&network, program), results, "{pool}");
            assert_eq!(network.files(), expected.files(), "{pool}");
        }
    }
}

#[test]
fn each_program_checks_and_deletes_additions_of_the_other() {
    for pool in pools() {
        for (adder, other) in [(Program::Go, Program::Ours), (Program::Ours, Program::Go)] {
            let network = Network::with(&pool);
            network.add(adder, "a", "eth0").unwrap();
            network.add(adder, "a", "net1").unwrap();
            assert!(network.check(other, "a", "eth0") && network.check(other, "a", "net1"));
            assert!(!network.check(other, "a", "net2") && !network.check(other, "b", "eth0"));
            network.del(other, "a", "eth0");
            assert!(!network.check(adder, "a", "eth0") && network.check(adder, "a", "net1"));
            network.del(other, "a", "net1");
            assert!(network.held().is_empty());
        }
    }
}

#[test]
fn the_same_requests_get_the_same_answers() {
    let wishes = [
        json!({"args": {"cni": {"ips": ["10.1.0.5"]}}}),
        json!({"args": {"cni": {"ips": ["10.1.0.5/24"]}}}),
        json!({"runtimeConfig": {"ips": ["10.1.0.6/24", "fd00::7"]}}),
        json!({"runtimeConfig": {"ips": ["10.1.0.1"]}}),
        json!({"runtimeConfig": {"ips": ["10.9.0.1"]}}),
        json!({"runtimeConfig": {"IPRanges": [[{"Subnet": "10.7.0.0/24"}]]}}),
    ];
    let answers = BOTH.map(|program| {
        let mut network = Network::with(
            &json!({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}),
        );
        let plain = network.config.clone();
        let answers = (0..).zip(&wishes).map(|(turn, wish)| {
            network.config = plain.clone();
            for (key, value) in wish.as_object().unwrap() {
                network.config[key] = value.clone();
            }
            network.add(program, &format!("a{turn}"), "eth0")
        });
        let answers: Vec<_> = answers.collect();
        (answers, network.held())
    });
    assert_eq!(answers[0], answers[1]);
    assert!(answers[0].0.iter().filter(|answer| answer.is_ok()).count() == 3);
}

#[test]
fn the_same_configs_are_refused_with_the_same_errors() {
    let configs = [
        json!({}),
        json!({"ranges": [[]]}),
        json!({"ranges": [[{"subnet": "10.0.0.0/31"}]]}),
        json!({"ranges": [[{"subnet": "10.0.0.5/24"}]]}),
        json!({"ranges": [[{"subnet": "fd00::/127"}]]}),
        json!({"ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "fd00::/64"}]]}),
        json!({"ranges": [[{"subnet": "10.0.0.0/24"}, {"subnet": "10.0.0.0/25"}]]}),
        json!({"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "10.0.0.0/25"}]]}),
        json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.1.1"}),
        json!({"subnet": "10.0.0.0/24", "rangeEnd": "10.0.1.1"}),
        json!({"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "rangeEnd": "10.0.0.8"}),
    ];
    for config in configs {
        let network = Network::with(&config);
        let [go, ours] = BOTH.map(|program| network.add(program, "a", "eth0").unwrap_err());
        assert_eq!(ours, go, "{config}");
    }
}

#[test]
fn name_resolution_is_read_alike() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("resolv.conf");
    let text = "# comment\nnameserver 192.0.2.1\n\nnameserver 192.0.2.2\ndomain example.com\n\
                search a.example b.example\noptions ndots:5\n; comment\n";
    fs::write(&path, text).unwrap();
    let network = Network::with(&json!({"subnet": "10.0.0.0/24", "resolvConf": path}));
    let [go, ours] = BOTH.map(|program| {
        let answers = network.add(program, &format!("{program:?}"), "eth0").unwrap();
        answers["dns"].clone()
    });
    assert_eq!(ours, go);
    assert_eq!(ours["nameservers"][1], "192.0.2.2");
}

#[test]
fn directories_and_locks_have_the_same_modes() {
    let modes = BOTH.map(|program| {
        let network = Network::with(&json!({"subnet": "10.0.0.0/24"}));
        network.add(program, "a", "eth0").unwrap();
        ["", "lock"].map(|name| {
            let metadata = fs::metadata(network.directory().join(name)).unwrap();
            metadata.permissions().mode() & 0o7777
        })
    });
    assert_eq!(modes[0], modes[1]);
}
