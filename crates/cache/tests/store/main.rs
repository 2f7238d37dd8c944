//! The store over the engines of this machine: lookups return stored entries and nothing else.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]
#![allow(clippy::disallowed_methods, reason = "a test looks at files as an operator would")]

mod common;
mod crowd;
mod damage;
mod dropped;
mod elsewhere;
mod entries;
mod limits;
mod purges;
mod recovery;
mod rot;
