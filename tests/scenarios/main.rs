//! The behaviour of the loop, as scripts: `tests/scenarios/*/*.txt`. See `tests/scenarios/README.md`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod host;
#[path = "../notation/mod.rs"]
mod notation;
mod prober;
mod script;
mod stage;

use std::io::Write;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use expect_test::expect_file;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

/// Plays the script and compares it with what happened; `UPDATE_EXPECT=1` writes that down instead.
fn check(name: &str) {
    let path = folder().join(name).with_extension("txt");
    let script = std::fs::read_to_string(&path).unwrap();
    let (done, played) = std::sync::mpsc::channel();
    let play = std::thread::spawn(move || drop(done.send(play(&script))));
    // No time passes for a loop that never rests, and its script never ends.
    match played.recv_timeout(PATIENCE) {
        Ok(played) => expect_file![path].assert_eq(&played),
        Err(RecvTimeoutError::Timeout) => panic!("the loop does not come to rest"),
        Err(RecvTimeoutError::Disconnected) => resume_unwind(play.join().unwrap_err()),
    }
}

const PATIENCE: Duration = Duration::from_secs(60);

fn play(script: &str) -> String {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .without_time()
        .with_target(false)
        .with_ansi(false)
        .finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    LocalSet::new().block_on(&runtime, stage::play(&script::parse(script), &log))
}

/// What the daemon has logged since the last look.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut self.0.lock().unwrap())).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios")
}

/// A module for each folder, with a test for each script.
macro_rules! scenarios {
    ($($folder:ident { $($name:ident)* })*) => {
        const NAMES: &[&str] = &[$($(concat!(stringify!($folder), "/", stringify!($name))),*),*];
        $(
            mod $folder {
                $(
                    #[test]
                    fn $name() {
                        crate::check(concat!(stringify!($folder), "/", stringify!($name)));
                    }
                )*
            }
        )*
    };
}

scenarios! {
    checkpoint {
        a_changed_checkpoint_is_reported
        a_checkpoint_has_the_state_at_its_request
        a_device_that_is_down_is_set_up_without_the_store
        a_reboot_with_a_slow_store_uses_the_checkpoint
        a_reboot_without_the_store_forwards_by_the_checkpoint
        a_reboot_without_the_store_guards_the_tunnel_by_the_checkpoint
        a_reboot_without_the_store_keeps_the_tunnel_where_the_direct_path_failed
        a_start_from_a_checkpoint_keeps_the_removal_limit
        a_start_from_a_checkpoint_keeps_the_tunnel_until_probes_are_answered
        a_start_from_an_older_checkpoint_replaces_nothing
        a_start_from_an_older_checkpoint_without_a_config_replaces_nothing
        peers_of_a_checkpoint_do_not_count_for_the_removal_limit
    }
    config {
        a_network_that_contains_the_underlay_is_reported
        a_second_family_gets_a_device_of_its_own
        a_second_family_without_a_subnet_leaves_that_of_the_first
        a_second_family_without_an_address_is_not_published
        an_invalid_config_changes_nothing
        an_invalid_tunnel_source_is_not_accepted
        a_narrower_network_waits_for_the_peers_outside
        another_network_waits_for_a_reboot
        another_vni_creates_another_device
        the_mtu_changes_while_pods_run
        two_families_are_added_and_removed_together
        without_config_reload_an_edit_waits
    }
    drift {
        a_deleted_device_is_recreated_with_its_entries
        a_device_is_kept_while_a_peer_may_send_to_it
        a_device_that_cannot_be_corrected_is_recreated
        a_device_that_was_down_gets_its_routes_again
        a_device_with_other_attributes_is_not_removed
        a_nexthop_id_that_another_program_takes_is_not_touched
        a_renamed_interface_keeps_the_device
        a_route_through_a_former_peer_is_foreign
        each_entry_that_drifts_is_repaired
        foreign_entries_are_not_touched
    }
    events {
        a_flip_is_recorded_with_the_paths_that_it_changes
        an_outage_of_the_store_is_recorded_with_its_length
        changes_of_peers_are_events
        only_entries_that_others_changed_are_repairs
    }
    firewall {
        a_kernel_without_nftables_does_not_protect_the_tunnel
        a_peer_is_shown_what_drops_its_packet
        a_tunnel_that_peers_may_use_keeps_its_guard
        another_firewall_is_complete_before_the_first_is_removed
        packets_of_pods_are_accepted_where_forward_drops
        programs_that_hang_delay_no_route
        the_chains_of_iptables_are_kept_as_planned
        the_guard_is_replaced_once_all_peers_are_known
        the_rules_of_a_former_vni_are_removed
        the_tables_are_kept_as_planned
        the_tunnel_accepts_packets_of_accepted_peers
        without_masquerading_an_old_table_is_removed
    }
    flip {
        a_flip_loosens_filters_before_it_replaces_routes
        a_flip_replaces_the_route_and_removes_the_tunnel_later
        a_flip_that_is_reverted_in_time_removes_nothing
        a_flip_waits_for_answers_of_peers_that_answer_probes
        a_flip_waits_until_filters_are_loose
        a_node_flips_its_own_backend_live
        a_node_that_comes_from_host_gw_shows_mixed_in_its_lease
        a_rollout_includes_nodes_one_after_the_other
        a_stage_back_keeps_the_tunnel_to_a_silent_vxlan_peer
        a_tunnel_is_published_after_its_device_exists
        without_mixed_another_backend_waits_for_the_next_start
    }
    kernel {
        a_broken_socket_causes_no_busy_loop
        a_failed_read_is_repeated_soon_while_an_interface_is_missing
        an_audit_finds_changes_without_notifications
        an_interrupted_dump_is_repeated
        an_overrun_causes_a_dump
        events_do_not_repeat_a_read_that_failed
        facts_that_could_not_be_read_are_read_again
        repeated_overruns_share_their_dumps
    }
    leases {
        a_lost_lease_is_held_again
        a_mac_of_another_lease_is_replaced
        a_node_with_our_public_ip_is_reported
        a_public_ip_that_is_no_gateway_is_reported
        a_rejected_lease_changes_no_path
        hostile_leases_are_rejected
        the_last_free_subnets_are_a_warning
        two_leases_of_one_address_share_its_admission
        two_leases_of_one_address_share_the_forwarding_entry
    }
    mixed {
        a_filter_that_cannot_be_loosened_is_reported
        a_node_that_has_not_read_mixed_keeps_its_path_to_one_that_has
        a_strict_filter_does_not_keep_a_node_without_ipv4_on_its_backend
        a_strict_filter_of_an_ipv6_tunnel_keeps_no_node_on_its_backend
        mixed_and_another_backend_in_one_edit_are_applied_in_two_steps
        mixed_ends_at_a_node_that_a_filter_kept_on_its_backend
        mixed_loosens_strict_filters_and_restores_them
        mixed_stays_until_direct_probes_are_answered
        mixed_stays_until_no_peer_would_be_skipped
        mixed_stays_until_the_leases_are_read
        mixed_that_an_edit_removed_stays_after_a_restart_while_peers_need_it
        mixed_that_an_edit_removed_while_the_daemon_was_down_waits_as_on_a_running_node
        mixed_twice_restores_the_filter_of_each_device
        the_tunnel_is_removed_with_mixed_when_no_node_uses_it
    }
    node {
        a_bridge_of_a_former_subnet_is_reported
        a_new_address_of_the_underlay_is_published
        an_address_that_is_missing_for_a_moment_stays
        an_underlay_that_was_down_gets_its_routes_again
        another_address_next_to_ours_changes_nothing
        another_subnet_of_ours_moves_the_address
        the_address_of_the_tunnel_stays_until_another_subnet
        the_device_follows_the_mtu_of_the_underlay
        unused_addresses_of_our_subnet_are_unreachable
    }
    peers {
        a_changed_peer_is_planned_again
        a_node_that_is_deleted_is_withdrawn_at_once
        a_node_that_replaces_another_is_routed_at_once
        a_peer_removed_alone_is_withdrawn_at_once
        a_peer_that_leaves_is_removed_soon
        a_report_lists_the_unreachable_peers
        an_unreachable_peer_is_skipped_with_its_reason
    }
    probes {
        a_direct_path_that_fails_is_replaced_by_the_tunnel
        a_direct_path_that_failed_is_not_used_when_probing_begins_again
        a_peer_with_two_families_counts_once
        a_restart_keeps_a_silent_peer_in_the_tunnel_where_the_direct_path_failed
        a_restart_without_probes_keeps_the_tunnel_where_the_direct_path_failed
        a_silent_peer_is_probed_again_after_an_edit
        a_subnet_that_moves_to_another_lease_is_still_probed
        an_edit_soon_after_a_restart_waits_for_no_silent_peer
        an_unreachable_peer_is_reported_until_it_answers
        without_a_tunnel_an_unreachable_peer_is_reported
        without_mixed_an_unreachable_peer_is_only_reported
    }
    refusal {
        a_harmless_setting_that_cannot_be_written_is_skipped
        a_link_that_cannot_be_created_is_retried_with_backoff
        a_refusal_delays_no_other_entry
        a_refused_entry_is_retried_with_backoff
        a_refused_table_delays_no_route
        a_route_that_cannot_be_replaced_keeps_its_nexthop
        a_route_that_cannot_be_replaced_keeps_its_tunnel
        a_route_that_is_wanted_again_leaves_no_former_forwarding_entry
        many_refusals_are_reported_in_one_line
        other_events_cause_no_extra_retries
    }
    removal_limit {
        a_late_peer_of_a_wiped_store_keeps_its_route
        a_wiped_store_removes_no_route
        after_a_mass_removal_a_single_removal_has_no_extra_delay
        nodes_deleted_one_by_one_do_not_reach_the_removal_limit
        the_only_peer_of_a_wiped_store_keeps_its_route
        the_removal_limit_ends_after_an_hour_with_our_lease_listed
        the_removal_limit_ends_when_all_leases_are_back
        the_removal_limit_keeps_routes_when_most_leases_vanish
        without_a_removal_limit_every_removal_is_applied
    }
    start {
        a_restart_changes_nothing
        a_restart_keeps_the_interface_without_one_family
        a_restart_keeps_the_tunnel_until_probes_are_answered
        a_restart_leaves_the_tables_as_they_are
        a_restart_without_a_config_uses_the_last_one
        a_start_waits_for_an_interface
        an_adopted_device_keeps_its_mac_after_a_reboot
        flannels_routes_are_adopted
        nothing_is_removed_before_the_first_snapshot
        peers_that_join_are_routed_before_our_lease_is_granted
        rules_of_flanneld_are_removed_after_ours_exist
        the_address_of_the_tunnel_outlives_a_restart_without_mixed
        the_first_snapshot_programs_every_peer
    }
    store {
        a_busy_store_does_not_delay_a_withdrawal
        a_delayed_removal_waits_for_the_store
        a_lease_lost_before_an_outage_is_evaluated_after_it
        a_refused_report_delays_no_removal
        a_subnet_that_the_store_no_longer_has_is_not_used
        an_unreachable_store_changes_nothing
        an_unreadable_record_removes_no_route
        missing_values_of_a_reachable_store_are_reported
    }
}

#[test]
fn every_script_is_played() {
    let list = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.collect::<Vec<_>>()
    };
    let folders = list(&folder()).into_iter().filter(|path| path.is_dir());
    let scripts = folders.chain([folder()]).flat_map(|folder| list(&folder));
    for script in scripts.filter(|path| path.extension().is_some_and(|end| end == "txt")) {
        let name = script.strip_prefix(folder()).unwrap().with_extension("");
        assert!(NAMES.contains(&name.to_str().unwrap()), "{} is not in the list", script.display());
    }
}
