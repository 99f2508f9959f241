//! Debian's container runtimes drive the CNI plugin, on nodes whose daemon is `tweedd`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(unreachable_pub, reason = "nothing of a test binary can be reached from outside")]

#[path = "../cluster/fixture/cluster.rs"]
#[allow(dead_code, reason = "made for more than is needed here")]
mod cluster;
mod site;
mod story;
mod traces;

use tweed_lab::{Containerd, Podman};

#[test]
fn pods_of_podman_reach_each_other_through_the_tunnel_and_after_a_flip() {
    story::pods_reach_each_other(Podman::on).unwrap();
}

#[test]
fn pods_of_containerd_reach_each_other_through_the_tunnel_and_after_a_flip() {
    story::pods_reach_each_other(Containerd::on).unwrap();
}

#[test]
fn a_port_published_by_podman_reaches_its_pod() {
    story::a_published_port_reaches_its_pod(Podman::on).unwrap();
}

#[test]
fn a_port_published_by_containerd_reaches_its_pod() {
    story::a_published_port_reaches_its_pod(Containerd::on).unwrap();
}

#[test]
fn pods_that_podman_removes_leave_nothing_behind() {
    story::removed_pods_leave_nothing_behind(Podman::on).unwrap();
}

#[test]
fn pods_that_containerd_removes_leave_nothing_behind() {
    story::removed_pods_leave_nothing_behind(Containerd::on).unwrap();
}

#[test]
fn podman_reports_what_a_daemon_without_a_lease_waits_for() {
    story::the_runtime_reports_what_the_daemon_waits_for(Podman::on).unwrap();
}

#[test]
fn containerd_reports_what_a_daemon_without_a_lease_waits_for() {
    story::the_runtime_reports_what_the_daemon_waits_for(Containerd::on).unwrap();
}

#[test]
fn containerd_removes_a_pod_lost_in_a_power_cut() {
    story::containerd_removes_a_pod_lost_in_a_power_cut().unwrap();
}

#[test]
fn podman_restarts_a_container_lost_in_a_power_cut() {
    story::podman_restarts_a_container_lost_in_a_power_cut().unwrap();
}
