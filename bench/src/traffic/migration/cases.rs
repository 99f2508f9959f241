//! The table: every way to migrate, with every fault.

use tweed_lab::ReversePath;

use super::case::{Case, Company, Foreign, HeldTo, SHAPE, Stage};
use super::meanwhile::Meanwhile;
use super::order::Order;
use super::share::{ALL, NO_NODE, Share, plain};
use tweed_lab::cluster::{Reload, Shape};

/// Packets per second and ordered pair of pods, for clusters with six pairs.
const HIGH_RATE: u32 = 1000;

const TWO: Share = Share::named(2);
const FOUR: Share = Share::named(4);

pub(super) fn all() -> Vec<Case> {
    vec![
        one_edit(),
        three_nodes(),
        rollout(),
        migrate(),
        migrate_all(),
        strict(),
        member_lost(),
        killed(),
        joined(),
        rebooted(),
        two_operators(),
        flannel_among_them(),
        foreign_dropped_before(),
        foreign_dropped_meanwhile(),
        as_flannel_does_it(),
    ]
}

fn one_edit() -> Case {
    Case::of("one edit", vec![Stage::edit("→ host-gw", ALL), Stage::edit("→ vxlan", NO_NODE)])
}

fn three_nodes() -> Case {
    let case = Case::of(
        "one edit, three nodes at 1,000/s per pair",
        vec![Stage::edit("→ host-gw", ALL), Stage::edit("→ vxlan", NO_NODE)],
    );
    Case { shape: Shape { near: 3, far: 0, ..SHAPE }, rate: HIGH_RATE, ..case }
}

fn rollout() -> Case {
    Case::of(
        "`Rollout` in stages",
        vec![
            Stage::edit("2 of 8", TWO),
            Stage::edit("4 of 8", FOUR),
            Stage::edit("all", ALL),
            Stage::edit("back to 4 of 8", FOUR),
            Stage::edit("back to 2 of 8", TWO),
            Stage::edit("→ vxlan", NO_NODE),
        ],
    )
}

fn migrate() -> Case {
    let one = Share::named(1);
    let case = Case::of(
        "`tweedctl migrate`",
        vec![
            Stage::order(
                "start, one canary",
                Order::Migrate("start --to host-gw --canary 10.99.1.11", 0),
                one,
            ),
            // Of eight nodes the canary, and the three with the smallest hashes.
            Stage::order("next, 50 %", Order::Migrate("next --percent 50", 0), one.and_percent(25)),
            Stage::order("next, all", Order::Migrate("next --percent 100", 0), ALL),
            Stage::order("finish", Order::Migrate("finish", 0), ALL),
            Stage::order(
                "start back, all",
                Order::Migrate("start --to vxlan --percent 100", 0),
                NO_NODE,
            ),
            Stage::order("finish", Order::Migrate("finish", 0), NO_NODE),
        ],
    );
    Case { before: plain("vxlan"), ..case }
}

/// Without a router between nodes, `finish` turns `Mixed` off.
fn migrate_all() -> Case {
    let case = Case::of(
        "`tweedctl migrate`, six nodes on one segment",
        vec![
            Stage::order("start, all", Order::Migrate("start --to host-gw --percent 100", 0), ALL),
            Stage::order("finish, `Mixed` off", Order::Migrate("finish", 0), ALL),
            Stage::order(
                "start back, all",
                Order::Migrate("start --to vxlan --percent 100", 0),
                NO_NODE,
            ),
            Stage::order("finish, `Mixed` off", Order::Migrate("finish", 0), NO_NODE),
        ],
    );
    Case { shape: Shape { far: 0, ..SHAPE }, before: plain("vxlan"), ..case }
}

fn strict() -> Case {
    let case = Case::of(
        "strict reverse-path filters at start",
        vec![
            Stage::edit("`Mixed` on", NO_NODE),
            Stage::edit("→ host-gw", ALL),
            Stage::edit("→ vxlan", NO_NODE),
            Stage::order("`Mixed` off", Order::Plain("vxlan"), NO_NODE),
        ],
    );
    let shape = Shape { reverse_path: ReversePath::Strict, ..SHAPE };
    Case { shape, before: plain("vxlan"), ..case }
}

fn member_lost() -> Case {
    let case = Case::of(
        "etcd's leader of three killed",
        vec![
            Stage::edit("4 of 8", FOUR).meanwhile(Meanwhile::MemberLost),
            Stage::edit("all, without it", ALL),
            Stage::edit("→ vxlan, it is back", NO_NODE).meanwhile(Meanwhile::MemberBack),
        ],
    );
    Case { shape: Shape { members: 3, ..SHAPE }, ..case }
}

fn killed() -> Case {
    Case::of(
        "a daemon killed and restarted",
        vec![
            Stage::edit("4 of 8", FOUR).meanwhile(Meanwhile::Killed(0)),
            Stage::edit("all", ALL).meanwhile(Meanwhile::Killed(4)),
            Stage::edit("→ vxlan", NO_NODE).meanwhile(Meanwhile::Killed(1)),
        ],
    )
}

fn joined() -> Case {
    Case::of(
        "a node added",
        vec![
            Stage::edit("4 of 8", FOUR).meanwhile(Meanwhile::Joined),
            Stage::edit("all", ALL),
            Stage::edit("→ vxlan", NO_NODE).meanwhile(Meanwhile::Joined),
        ],
    )
}

fn rebooted() -> Case {
    Case::of(
        "a node rebooted in each stage",
        vec![
            Stage::edit("2 of 8", TWO).meanwhile(Meanwhile::Rebooted(0)),
            Stage::edit("4 of 8", FOUR).meanwhile(Meanwhile::Rebooted(4)),
            Stage::edit("all", ALL).meanwhile(Meanwhile::Rebooted(6)),
            Stage::edit("back to 4 of 8", FOUR).meanwhile(Meanwhile::Rebooted(1)),
            Stage::edit("back to 2 of 8", TWO).meanwhile(Meanwhile::Rebooted(3)),
            Stage::edit("→ vxlan", NO_NODE).meanwhile(Meanwhile::Rebooted(5)),
        ],
    )
}

fn two_operators() -> Case {
    Case::of(
        "two operators race",
        vec![
            Stage::order("all, and at once 2 of 8", Order::Twice(ALL, TWO), TWO),
            Stage::order("none, and at once all", Order::Twice(NO_NODE, ALL), ALL),
            Stage::order("4 of 8, and at once none", Order::Twice(FOUR, NO_NODE), NO_NODE),
        ],
    )
}

fn flannel_among_them() -> Case {
    let case = Case::of(
        "another implementation among them",
        vec![
            Stage::edit("4 of 8", FOUR),
            Stage::edit("all", ALL),
            Stage::edit("→ vxlan", NO_NODE),
            Stage::order(
                "by `migrate`",
                Order::Migrate("start --to host-gw --percent 100 --force", 0),
                ALL,
            ),
            Stage::order("back", Order::Migrate("rollback", 0), NO_NODE),
        ],
    );
    Case { company: Company::Flannel, ..case }
}

fn foreign_dropped_before() -> Case {
    let case = Case::of(
        "foreign sources dropped from the start",
        vec![
            Stage::order("`plan` reports it", Order::Ask("plan --to host-gw", 3), NO_NODE),
            Stage::edit("→ host-gw: no path is switched", ALL).cut(),
            Stage::edit("→ vxlan", NO_NODE),
        ],
    );
    Case { foreign: Foreign::Dropped, ..case }
}

fn foreign_dropped_meanwhile() -> Case {
    let next = "next --percent 100 --hold 20s --auto-rollback";
    let case = Case::of(
        "foreign sources dropped under way",
        vec![
            Stage::order(
                "start, one canary",
                Order::Migrate("start --to host-gw --canary 10.99.1.11", 0),
                Share::named(1),
            ),
            Stage::order(
                "next, all; it stops and goes back",
                Order::Migrate(next, 4),
                Share::named(1),
            )
            .meanwhile(Meanwhile::ForeignDropped)
            .cut(),
            Stage::order("let through", Order::None, Share::named(1))
                .meanwhile(Meanwhile::ForeignPasses),
            Stage::order("rollback", Order::Migrate("rollback", 0), NO_NODE),
        ],
    );
    Case { held_to: HeldTo::CutOff, ..case }
}

/// Nodes behind a router would have no path.
fn as_flannel_does_it() -> Case {
    let case = Case::of(
        "as flannel does it: no `Mixed`, a restart a second",
        vec![
            Stage::order("→ host-gw", Order::Restart("host-gw"), ALL),
            Stage::order("→ vxlan", Order::Restart("vxlan"), NO_NODE),
        ],
    );
    let shape = Shape { far: 0, reload: Reload::AtStart, ..SHAPE };
    Case { held_to: HeldTo::Comparison, shape, before: plain("vxlan"), ..case }
}
