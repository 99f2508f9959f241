//! What this node programs for all objects, and the changes that lead there. Pure.

pub mod cluster;
pub mod conntrack;
pub mod deletions;
pub mod diff;
pub mod ruleset;
