//! What the loop does, told in scripts: `tests/scenarios/*.txt`. See `tests/scenarios/README.md`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "scenarios/host.rs"]
mod host;
mod notation;
#[path = "scenarios/prober.rs"]
mod prober;
#[path = "scenarios/script.rs"]
mod script;
#[path = "scenarios/stage.rs"]
mod stage;

use std::io::Write;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use expect_test::expect_file;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

/// Plays the script and compares it with what happened; `UPDATE_EXPECT=1` writes that down instead.
fn check(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/scenarios/{name}.txt"));
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

const PATIENCE: Duration = Duration::from_secs(10);

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

macro_rules! scenarios {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*
    };
}

scenarios! {
    a_bridge_of_a_former_subnet_is_named
    a_broken_conversation_with_the_kernel_is_taken_up_again
    a_busy_store_does_not_put_off_a_withdrawal
    a_checkpoint_is_of_the_moment_it_was_asked_for
    a_config_that_cannot_be_used_changes_nothing
    a_deleted_device_comes_back_with_everything_on_it
    a_device_is_kept_while_a_peer_may_send_to_it
    a_device_of_another_shape_is_not_removed
    a_device_that_cannot_be_corrected_is_made_anew
    a_device_that_was_down_gets_its_routes_back
    a_direct_path_that_fails_is_left_for_the_tunnel
    a_filter_that_may_not_be_loosened_is_told
    a_flip_loosens_filters_before_it_replaces_routes
    a_flip_replaces_the_route_and_removes_the_tunnel_later
    a_flip_taken_back_in_time_removes_nothing
    a_flip_waits_for_the_answers_of_peers_that_can_give_them
    a_flip_waits_until_filters_are_loose
    a_host_without_an_interface_is_waited_for
    a_kernel_that_cannot_guard_lets_everybody_in
    a_lease_lost_as_the_store_goes_is_judged_when_it_is_back
    a_link_that_cannot_be_made_is_tried_ever_later
    a_lease_that_is_set_aside_changes_no_path
    a_lost_lease_is_held_again
    a_mac_that_another_lease_has_is_given_up
    a_network_around_the_underlay_is_named
    a_new_address_of_the_underlay_is_published
    a_node_flips_its_own_backend_live
    a_node_with_our_public_ip_is_named
    a_node_that_is_deleted_is_withdrawn_at_once
    a_node_that_replaces_another_is_routed_at_once
    a_nexthop_number_that_is_taken_meanwhile_is_left_alone
    a_peer_that_cannot_be_reached_is_left_out_with_its_reason
    a_peer_that_changes_is_followed
    a_peer_that_leaves_is_removed_soon
    a_peer_removed_alone_is_withdrawn_at_once
    a_public_ip_that_is_no_gateway_is_named
    a_reboot_without_the_store_forwards_from_what_was_known
    a_reboot_without_the_store_guards_the_tunnel_by_what_was_known
    a_record_that_cannot_be_read_takes_no_route_away
    a_refusal_delays_no_other_entry
    a_refused_entry_is_tried_again_ever_later
    a_refused_report_delays_no_removal
    a_refused_table_keeps_no_route_back
    a_removal_under_way_waits_for_the_store
    a_restart_changes_nothing
    a_restart_from_memory_keeps_the_tunnel_until_probes_are_answered
    a_restart_keeps_the_tunnel_until_probes_are_answered
    a_restart_leaves_the_tables_as_they_are
    a_restart_without_a_config_goes_on_with_the_last_one
    a_rollout_takes_nodes_one_after_the_other
    a_route_that_cannot_be_replaced_keeps_its_nexthop
    a_route_through_a_former_peer_is_foreign
    a_second_family_gets_a_device_of_its_own
    a_setting_that_cannot_be_written_and_does_no_harm_is_not_desired
    a_socket_that_stays_broken_does_not_keep_us_busy
    a_start_from_an_older_checkpoint_replaces_nothing
    a_source_that_no_node_can_have_is_not_let_in
    a_start_from_what_was_known_keeps_the_brake
    a_subnet_that_moves_to_another_lease_is_probed_on
    a_wiped_store_takes_no_route_away
    after_a_mass_a_single_loss_is_followed_soon
    an_adopted_device_keeps_its_address_over_a_reboot
    an_audit_finds_what_nobody_told
    an_overrun_is_answered_by_a_dump
    an_underlay_that_was_down_gets_its_routes_back
    another_address_beside_ours_changes_nothing
    another_firewall_takes_over_before_the_first_goes
    another_subnet_of_ours_moves_the_address
    another_vni_makes_another_device
    each_entry_that_drifts_is_put_right
    facts_that_could_not_be_read_are_read_again
    flannels_routes_are_adopted
    foreign_entries_are_not_touched
    hostile_leases_are_set_aside
    many_looks_do_not_multiply_retries
    many_refusals_are_told_in_few_words
    mixed_and_another_backend_in_one_edit_come_one_after_the_other
    mixed_loosens_strict_filters_and_restores_them
    mixed_removed_before_the_leases_are_read_stays_till_then
    mixed_stays_until_nobody_would_be_left_out
    mixed_twice_restores_the_filter_of_each_device
    nothing_is_removed_before_the_first_snapshot
    nodes_deleted_one_by_one_do_not_need_the_brake
    overruns_in_a_row_share_their_dumps
    peers_known_from_a_checkpoint_alone_do_not_need_the_brake
    programs_that_hang_hold_up_no_route
    rules_of_flanneld_go_once_ours_are_in_place
    silence_before_an_edit_says_nothing_of_after_it
    the_absence_of_the_store_changes_nothing
    the_address_of_the_tunnel_outlives_a_restart_without_mixed
    the_address_of_the_tunnel_stays_until_another_subnet
    the_brake_ends_after_an_hour_in_which_the_store_names_us
    the_brake_holds_when_most_peers_vanish
    the_brake_is_off_as_soon_as_all_are_back
    packets_of_pods_are_let_through_where_forward_drops
    the_chains_of_iptables_are_kept_as_planned
    the_device_follows_the_mtu_of_the_underlay
    the_first_snapshot_programs_every_peer
    the_guard_is_replaced_once_all_peers_are_known
    the_mtu_changes_while_pods_run
    the_only_peer_of_a_wiped_store_keeps_its_route
    the_tables_are_kept_as_planned
    the_tunnel_goes_with_mixed_once_nobody_uses_it
    the_tunnel_lets_in_who_holds_a_lease
    two_families_come_and_go_together
    two_leases_of_one_address_share_its_admission
    two_leases_of_one_address_share_the_end_of_the_tunnel
    unused_addresses_of_our_subnet_are_refused
    what_a_node_reports_names_who_is_not_reached
    what_a_reachable_store_has_not_is_told
    what_must_be_saved_is_told
    who_comes_back_late_to_a_wiped_store_keeps_its_route
    without_a_brake_every_loss_is_believed
    without_config_reload_an_edit_waits
    without_masquerading_an_old_table_is_removed
    without_mixed_another_backend_waits_for_the_next_start
}

#[test]
fn every_script_is_played() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scenarios");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    for script in files.filter(|path| path.extension().is_some_and(|end| end == "txt")) {
        let name = script.file_stem().unwrap().to_str().unwrap();
        assert!(NAMES.contains(&name), "{name}.txt is not in the list");
    }
}
