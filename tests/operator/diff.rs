//! The output of differences.

use expect_test::{Expect, expect};
use tweed::model::entry::{Entry, Fdb, Key, LinkName, Route};
use tweed::operator::{Error, ExitStatus};

use crate::host::Host;

async fn check(host: &Host, exit_status: ExitStatus, expected: Expect) {
    let before = host.entries();
    let (found, text) = host.run("diff").await.unwrap();
    assert_eq!(found, exit_status);
    assert_eq!(host.entries(), before);
    assert!(host.kernel.take_log().is_empty());
    let text = as_if_in_run(host, &text);
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    expected.assert_eq(&text);
}

/// The last sentence names the folder of the host: it is wrapped again for `/run/flannel`.
fn as_if_in_run(host: &Host, text: &str) -> String {
    let is_sentence = |line: &&str| line.contains("difference");
    let start = text.lines().take_while(|line| !is_sentence(line)).map(|line| line.len() + 1).sum();
    let (differences, sentence) = text.split_at(start);
    let mut wrapped = differences.to_owned();
    let mut column = 0;
    for word in host.anonymous(sentence, "/run/flannel").split_whitespace() {
        let separator = if column == 0 { "" } else { " " };
        let is_too_long = column + separator.len() + word.len() > 80;
        let separator = if is_too_long { "\n  " } else { separator };
        column = if is_too_long { 2 } else { column + separator.len() } + word.len();
        wrapped += separator;
        wrapped += word;
    }
    wrapped + "\n"
}

#[tokio::test]
async fn a_kernel_that_is_right_does_not_differ() {
    check(
        &Host::programmed().await,
        ExitStatus::Done,
        expect![[r"
        no difference from the plan of the checkpoint /run/flannel/subnet.state.json,
          because no daemon answers on /run/flannel/subnet.sock
    "]],
    )
    .await;
}

#[tokio::test]
async fn missing_wrong_and_unwanted_entries_are_shown_with_the_actual_ones() {
    let host = Host::programmed().await;
    let device = LinkName::new("flannel.1");
    let wrong = Route::via(
        "10.244.4.0/24".parse().unwrap(),
        "172.16.0.99".parse().unwrap(),
        LinkName::new("eth0"),
    );
    host.kernel.set(Entry::Route(wrong));
    host.kernel.lose(&Key::Neighbour(device.clone(), "10.244.3.0".parse().unwrap()));
    host.kernel.set(Entry::Fdb(Fdb {
        link: device,
        mac: "0a:00:00:00:00:63".parse().unwrap(),
        destination: "172.17.0.99".parse().unwrap(),
    }));
    check(
        &host,
        ExitStatus::Problems,
        expect![[r"
            + neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
            ~ route 10.244.4.0/24 nhid 4096512016 via 172.16.0.10 dev eth0
              now route 10.244.4.0/24 via 172.16.0.99 dev eth0
            - fdb 0a:00:00:00:00:63 dst 172.17.0.99 dev flannel.1
            3 differences from the plan of the checkpoint /run/flannel/subnet.state.json,
              because no daemon answers on /run/flannel/subnet.sock
        "]],
    )
    .await;
}

#[tokio::test]
async fn a_device_to_recreate_is_shown_with_all_entries_on_it() {
    let host = Host::programmed().await;
    host.kernel.lose(&Key::Link(LinkName::new("flannel.1")));
    check(
        &host,
        ExitStatus::Problems,
        expect![[r"
            + link flannel.1 up mtu 1450 address 0a:00:00:00:00:05 type vxlan id 1 local
                172.16.0.5 dev eth0 dstport 8472 nolearning
            + rp_filter loose dev flannel.1
            + accept_ra 0 dev flannel.1
            + addr 10.244.1.0/32 dev flannel.1
            + fdb 0a:00:00:00:00:09 dst 172.17.0.9 dev flannel.1
            + fdb 0a:00:00:00:00:0a dst 172.16.0.10 dev flannel.1
            + neigh 10.244.3.0 lladdr 0a:00:00:00:00:09 dev flannel.1
            + neigh 10.244.4.0 lladdr 0a:00:00:00:00:0a dev flannel.1
            + nexthop id 4029403148 via 10.244.3.0 dev flannel.1 onlink
            + route 10.244.3.0/24 nhid 4029403148 via 10.244.3.0 dev flannel.1 onlink
            + route 10.244.4.0/32 dev flannel.1
            11 differences from the plan of the checkpoint /run/flannel/subnet.state.json,
              because no daemon answers on /run/flannel/subnet.sock
        "]],
    )
    .await;
}

#[tokio::test]
async fn without_daemon_and_checkpoint_diff_fails() {
    let host = Host::bare();
    std::fs::remove_file(host.state_file()).unwrap();
    let error = host.run("diff").await.err().unwrap();
    assert!(matches!(&error, Error::Unavailable(why) if why.contains("there is no checkpoint")));
    std::fs::write(host.state_file(), "{").unwrap();
    let error = host.run("diff").await.err().unwrap();
    assert!(matches!(&error, Error::Unavailable(why) if why.contains("is damaged")));
}
