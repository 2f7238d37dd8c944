//! The `ringroad` binary: command line, master process, control channel to the worker. Crate `server` serves requests.
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`, `conf`, `cache`, `tls`, `acme`, `lint`, `sandbox`, `site`,
//! `server`, `bench`, `thread-alloc`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`cli`] | a file for each command; `options` is the table of commands, from which help, manual page and completions are generated; `letters` parses the options of nginx; `serve/authority` is the local CA |
//! | [`reach`] | directories that the user of the worker can access |
//! | [`master`] | opens privileged resources and handles signals: `cycle` (one configuration with its sockets), `process` (the handle of a worker), `reload`, `respawn`, `daemon`, `single` (master and worker in one process), `upgrade` (another binary), `supervise` (messages to systemd), `operators` (commands through the admin socket), `acme` (the agent), `signer` (the process that holds private keys), `observer` (replaced paths of a sandbox) |
//! | [`systemd`], [`pidfile`], [`inherit`] | sd_notify(3); the file with the process id; sockets of another process |
//! | [`agent`], [`signer`] | the process that obtains certificates; the process that holds private keys |
//! | [`worker`] | the main thread of a worker process |
//! | [`signatures`] | the sockets of a worker to the process that holds private keys |
//! | [`reload_report`] | the result of a reload or an upgrade for the command that has requested it |
//! | [`signals`] | signals through a descriptor |
//! | [`admin`] | the admin socket, its calls, and lines for clients that watch requests |
//! | [`explain`] | how a configuration handles a request |
//! | [`adapter`] | the interface to `site` and `server`: a configuration and its settings, the threads of a worker |
//! | [`loader`] | configuration files |
//! | [`control`] | the control socket and its messages; `acme` has those of the agent, `signer` those of the process that holds private keys; `expected` and `budget` limit what the master accepts |
//! | [`reloads`] | counts of reloads |
//! | [`restrict`] | the sandbox of the worker |
//! | [`privilege`] | the user of the worker |
//! | [`paths`] | default paths |
//! | [`limits`] | limits of the worker process |
//! | [`templates`] | configuration files whose variables are those of the environment |
//! | [`listen`] | listening sockets |
//! | [`log`] | the error log of the master |
//! | [`owned_links`] | opens paths in directories that the user of workers may write to |
//! | [`contain`] | the panic boundary of the commands of operators and of the reading of a configuration: a fault in one of these never ends the master |
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
mod owned_links;
mod paths;
mod pidfile;
mod privilege;
mod reach;
mod reload_report;
mod reloads;
mod restrict;
mod signals;
mod signatures;
mod signer;
mod systemd;
mod templates;
mod worker;

use std::process::ExitCode;

/// Allocator with free lists for each server thread, in front of the C library's allocator.
#[global_allocator]
static ALLOCATOR: thread_alloc::ThreadCachingAlloc = thread_alloc::ThreadCachingAlloc;

fn main() -> ExitCode {
    inherit::note_parent();
    cli::run(std::env::args_os().skip(1).collect())
}
