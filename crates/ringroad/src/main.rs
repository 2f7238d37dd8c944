//! The `ringroad` binary: command line, master process, control channel to the worker.
//!
//! Serving itself is crate `server`. Here: the command line as nginx reads it ([`cli`]), the process that opens
//! privileged resources and obeys signals ([`master`]), the unprivileged process that serves ([`worker`]), and the
//! messages between the two ([`control`]). [`explain`] follows a request through a configuration, [`admin`] answers operators of a
//! running server.
#![forbid(unsafe_code)]

mod admin;
mod agent;
mod cli;
mod control;
mod explain;
mod inherit;
mod limits;
mod listen;
mod loader;
mod log;
mod master;
mod pidfile;
mod places;
mod privilege;
mod reach;
mod signals;
mod site;
mod systemd;
mod worker;

use std::process::ExitCode;

/// Lists of blocks for threads that serve, before the C library's allocator.
#[global_allocator]
static ALLOCATOR: thread_alloc::ThreadCachingAlloc = thread_alloc::ThreadCachingAlloc;

fn main() -> ExitCode {
    cli::run(std::env::args_os().skip(1).collect())
}
