//! Shared code of the integration tests: a harness that starts the binary, a scripted client and origin, files.
//!
//! A test writes a configuration and lets [`Server`] run it in a separate directory. It connects through [`Client`],
//! and compares bodies with [`Content`], which can generate any range of a file of any size. No event is awaited by a
//! sleep of a fixed time: every wait ends with the event or with a [`Deadline`], and the message of a timeout names the
//! event.
//!
//! For proxy tests, [`Origin`] is a scripted server, which sends exactly the test's bytes and waits at a [`Gate`] if
//! the test requires it; [`origin::Objects`] makes it a correct origin. [`Setup`] completes a configuration and starts
//! the server under test or nginx with it, always with the same cache directory. [`Burst`] is many concurrent clients,
//! [`SlowClient`] a client that reads slowly; [`DnsServer`] resolves names, [`Filesystem`] is a small file system.
//!
//! This crate contains nothing that the server uses. It is a dev-dependency only, which `cargo xtask tidy` checks. Its
//! only callers are tests, so it panics where a library would return an error. The message contains the evidence: the
//! error log, the received bytes.
//!
//! ```no_run
//! use testkit::{Client, Content, Server, engines};
//!
//! // In an integration test of a crate with a binary: env!("CARGO_BIN_EXE_ringroad").
//! let binary = "target/debug/ringroad";
//! let server = Server::builder(binary)
//!     .conf("events {} http { server { listen 127.0.0.1:0; root html; } }")
//!     .file("html/a.bin", Content::new(1, 4097))
//!     .start();
//! let mut client = Client::connect(server.addr(0));
//! let response = client.get("/a.bin");
//! assert_eq!(response.status, 200);
//! Content::new(1, 4097).assert_body(&response.body);
//! engines::report_ran("io_uring", "threads");
//! assert!(server.quit_and_wait().success());
//! ```
//!
//! Crates of the workspace that it may use: `http`.
//!
//! | module | content |
//! |---|---|
//! | [`server`], [`setup`], [`nginx`] | the server under test; a proxy under test, Ringroad or nginx; nginx for comparisons |
//! | [`client`], [`burst`], [`receive`] | a scripted client; many clients, and slow ones; an incremental parser of responses |
//! | [`origin`], [`fastcgi`], [`memcached`], [`script`] | scripted servers of HTTP, FastCGI, memcached, SCGI and uwsgi |
//! | [`dns`] | a scripted DNS server |
//! | [`rounds`], [`bridge`] | relays: one counts round trips, one converts HTTP/1 to HTTP/2 |
//! | [`gate`], [`wait`] | a point at which a test stops a participant; waits with a deadline |
//! | [`response`], [`socket`] | a strict parser of responses; a connected stream socket |
//! | [`program`], [`process`] | a program that a test starts; data about a process |
//! | [`ports`] | reserved ports |
//! | [`files`], [`filesystem`], [`tempdir`], [`mmdb`] | files of known content; a small file system; temporary directories; databases of `geoip2` |
//! | [`cgroup`], [`seccomp`], [`takeover`] | a memory limit; a machine that forbids system calls; an attacker who executes calls in a process |
//! | [`engines`] | the engines that a run tested, and tests that were skipped |
//! | [`conf_text`], [`date`] | changes of configuration texts; dates |
#![forbid(unsafe_code)]

pub mod bridge;
pub mod burst;
pub mod cgroup;
pub mod client;
pub mod conf_text;
pub mod date;
pub mod dns;
pub mod engines;
pub mod fastcgi;
pub mod files;
pub mod filesystem;
pub mod gate;
pub mod memcached;
pub mod mmdb;
pub mod nginx;
pub mod origin;
pub mod ports;
pub mod process;
pub mod program;
mod receive;
pub mod response;
pub mod rounds;
pub mod script;
pub mod seccomp;
pub mod server;
pub mod setup;
mod socket;
#[cfg(target_arch = "x86_64")]
pub mod takeover;
pub mod tempdir;
pub mod wait;

pub use burst::{Burst, SlowClient};
pub use client::Client;
pub use dns::DnsServer;
pub use engines::{report_ran, report_skipped, skip};
pub use files::{Checksum, Content, check_body};
pub use filesystem::Filesystem;
pub use gate::Gate;
pub use origin::{Origin, Reply};
pub use program::Program;
pub use response::Response;
pub use rounds::Rounds;
pub use server::{ListenAddr, Server, ServerBuilder};
pub use setup::Setup;
pub use tempdir::{TempDir, copy, create_dir_all, write};
pub use wait::Deadline;
