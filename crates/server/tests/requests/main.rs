//! Requests to a server on threads of the test, one module of nginx at a time.

mod support;

mod access;
mod bodies;
mod compress;
mod files;
mod filters;
mod limits;
mod modules;
mod panics;
mod rewrite;
mod ssi;
mod status;
mod subrequests;
