//! How results are shown: tables, goals, plots, and the machine that they are from.

pub(crate) mod goal;
pub(crate) mod machine;
pub(crate) mod plot;
pub(crate) mod sample;
pub(crate) mod sheet;
