//! How things are measured, whatever is measured: rounds of pairs in turn, medians with their spread, and the
//! folder that everything is made in.

pub(crate) mod rounds;
pub(crate) mod stats;
pub(crate) mod workspace;
