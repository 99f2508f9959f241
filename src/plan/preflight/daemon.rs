//! Whether tweedd of this node runs, answers and is ready.

use super::facts::Needs;
use super::{Finding, Level};
use crate::model::status::Readiness;

/// What is known about tweedd of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonAnswer {
    Answers(Readiness),
    /// Its process is stopped, as by SIGSTOP.
    Stopped(u32),
    /// It gives no usable answer, for this reason.
    Silent(String),
    /// Only root may query it.
    Forbidden,
    /// It does not run, and has left this file.
    Ended(String),
    /// It does not run, and has left no files.
    Absent,
}

/// `socket` is its control socket.
pub fn finding(state: &DaemonAnswer, socket: &str, needs: &Needs) -> Option<Finding> {
    const UNFOLLOWED: &str = "packets still flow by the present routes, but changes of peers, links \
                              and leases are not followed";
    let (id, level, what, why, fix) = match state {
        DaemonAnswer::Answers(readiness) if readiness.ready => return None,
        DaemonAnswer::Answers(readiness) => (
            "daemon-not-ready",
            Level::Warning,
            "tweedd is not ready".to_owned(),
            readiness.reasons.join("; "),
            "see docs/guides/troubleshooting.md, section Messages, for each reason".to_owned(),
        ),
        DaemonAnswer::Stopped(process) => (
            "daemon-silent",
            Level::Warning,
            format!("tweedd (process {process}) is stopped by a signal"),
            UNFOLLOWED.to_owned(),
            format!("kill -CONT {process}, or restart tweedd"),
        ),
        DaemonAnswer::Silent(reason) => (
            "daemon-silent",
            Level::Warning,
            "tweedd does not answer".to_owned(),
            format!("{reason}; {UNFOLLOWED}"),
            "read its log, and restart it".to_owned(),
        ),
        DaemonAnswer::Forbidden => (
            "not-examined",
            Level::Unknown,
            "tweedd and its peers were not examined".to_owned(),
            format!("only root may query tweedd{}", defaults(needs)),
            "run tweedctl doctor as root".to_owned(),
        ),
        DaemonAnswer::Ended(file) => (
            "daemon-ended",
            Level::Warning,
            "tweedd does not run".to_owned(),
            format!("it has left {file}; {UNFOLLOWED}"),
            "read its log, and start it again".to_owned(),
        ),
        DaemonAnswer::Absent => (
            "daemon-not-started",
            Level::Note,
            "tweedd does not run, and has left no files".to_owned(),
            format!(
                "no process answers, and there is no checkpoint: flannel's defaults are assumed{}",
                defaults(needs)
            ),
            "start tweedd; if it runs, name its socket with --socket".to_owned(),
        ),
    };
    let place = format!("socket {socket}");
    Some(Finding { id, level, what, place, why, fix, drop_in: None })
}

/// The checks that lack the node's config, as the end of a sentence.
fn defaults(needs: &Needs) -> String {
    let skipped = [
        needs.networks.is_empty().then_some("; firewalls are examined only with --network"),
        needs.underlay.is_none().then_some("; the link towards the peers is not known"),
    ];
    skipped.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn found(state: &DaemonAnswer) -> String {
        let needs = Needs::before_the_first_start(None, &[]);
        let Some(finding) = finding(state, "/run/flannel/subnet.sock", &needs) else {
            return String::new();
        };
        assert_eq!(finding.place, "socket /run/flannel/subnet.sock");
        format!("{} {}: {finding}", finding.level.as_str(), finding.id)
    }

    #[test]
    fn a_daemon_that_is_ready_has_no_finding() {
        let warned = Readiness { ready: true, reasons: vec!["paths are not probed".into()] };
        assert_eq!(found(&DaemonAnswer::Answers(warned)), "");
    }

    #[test]
    fn each_other_state_of_the_daemon_is_a_finding() {
        let reasons = vec!["no network config yet".into(), "no subnet is leased yet".into()];
        let states = [
            DaemonAnswer::Answers(Readiness { ready: false, reasons }),
            DaemonAnswer::Stopped(812),
            DaemonAnswer::Silent("timed out".into()),
            DaemonAnswer::Forbidden,
            DaemonAnswer::Ended("/run/flannel/subnet.sock".into()),
            DaemonAnswer::Absent,
        ];
        let found: Vec<String> = states.iter().map(found).collect();
        expect![[r"
            warning daemon-not-ready: tweedd is not ready: no network config yet; no subnet is leased yet: see docs/guides/troubleshooting.md, section Messages, for each reason
            warning daemon-silent: tweedd (process 812) is stopped by a signal: packets still flow by the present routes, but changes of peers, links and leases are not followed: kill -CONT 812, or restart tweedd
            warning daemon-silent: tweedd does not answer: timed out; packets still flow by the present routes, but changes of peers, links and leases are not followed: read its log, and restart it
            unknown not-examined: tweedd and its peers were not examined: only root may query tweedd; firewalls are examined only with --network; the link towards the peers is not known: run tweedctl doctor as root
            warning daemon-ended: tweedd does not run: it has left /run/flannel/subnet.sock; packets still flow by the present routes, but changes of peers, links and leases are not followed: read its log, and start it again
            note daemon-not-started: tweedd does not run, and has left no files: no process answers, and there is no checkpoint: flannel's defaults are assumed; firewalls are examined only with --network; the link towards the peers is not known: start tweedd; if it runs, name its socket with --socket"]].assert_eq(&found.join("\n"));
    }
}
