//! `ringroad bench`.
#![forbid(unsafe_code)]

#[path = "../control/mod.rs"]
mod control;

mod cold;
mod engines;
mod load;
mod page;
mod runs;
mod servers;
