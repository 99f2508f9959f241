//! The presentation of results: tables, goals, plots, and the machine.

pub(crate) mod goal;
pub(crate) mod machine;
pub(crate) mod plot;
pub(crate) mod sample;
pub(crate) mod sheet;
