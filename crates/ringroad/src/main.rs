//! The `ringroad` binary: command line, master process, control channel to the worker.
//!
//! Crate `server` serves requests. This crate has the command line ([`cli`]), the process that opens privileged
//! resources and handles signals ([`master`]), the unprivileged process that serves ([`worker`]), and the messages
//! between these processes ([`control`]). [`explain`] follows a request through a configuration, [`admin`] handles
//! commands of operators.
#![forbid(unsafe_code)]

mod adapter;
mod admin;
mod agent;
mod cli;
mod contain;
mod control;
mod explain;
mod inherit;
mod limits;
mod listen;
mod loader;
mod log;
mod master;
mod paths;
mod pidfile;
mod privilege;
mod reach;
mod reloads;
mod signals;
mod systemd;
mod worker;

use std::process::ExitCode;

/// Allocator with free lists for each server thread, in front of the C library's allocator.
#[global_allocator]
static ALLOCATOR: thread_alloc::ThreadCachingAlloc = thread_alloc::ThreadCachingAlloc;

fn main() -> ExitCode {
    inherit::note_parent();
    cli::run(std::env::args_os().skip(1).collect())
}
