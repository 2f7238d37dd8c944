//! Runs frequently executed functions thousands of times, so that callgrind can count the instructions of each. Unlike
//! times, these counts are exact on any machine. `cargo xtask instructions` runs this program, divides the counts by
//! the repetitions, and compares them with `counts.txt` in this crate.
//!
//! A *piece* is a measured function of [`pieces`], or of [`whole`] for complete requests; callgrind identifies it by
//! its name. Each piece is called twice, the second time with more repetitions: the difference of both counts excludes
//! the preparation and other work that happens only once. Servers are started before, because the cost of a start
//! varies.
//!
//! Crates of the workspace that it may use: `io`, `rt`, `http`, `conf`, `cache`, `telemetry`, `site`, `exchange`, `peers`,
//! `caching`, `frontend`, `modules`, `thread-alloc`.
//!
//! Each module imports only modules of the rows below it.
//!
//! | module | content |
//! |---|---|
//! | [`whole`] | complete requests |
//! | [`streams`] | an HTTP/2 client that sends concurrent requests |
//! | [`pieces`] | steps of a request that do no I/O |
#![forbid(unsafe_code)]

use std::error::Error;

mod pieces;
mod streams;
mod whole;

/// The server's allocator.
#[global_allocator]
static ALLOCATOR: thread_alloc::ThreadCachingAlloc = thread_alloc::ThreadCachingAlloc;

/// Number of repetitions of the first call, and of additional repetitions of the second one.
/// `crates/xtask/src/instructions.rs` divides by it.
const REPETITIONS: u32 = 1000;

/// Number of requests before the counted ones: after them, connections exist, the cache is filled, and tables have
/// grown.
const WARM_UP: u32 = 50;

/// Runs all pieces: together they take less time than the start of callgrind, so the command line has no selection.
fn main() -> Result<(), Box<dyn Error>> {
    for piece in pieces::ALL {
        fewer(piece);
        more(piece);
    }
    for (workload, http, location) in whole::ALL {
        let mut server = whole::Server::start(http, location)?;
        workload(&mut server, WARM_UP);
        fewer_requests(workload, &mut server);
        more_requests(workload, &mut server);
        server.end();
    }
    Ok(())
}

/// The first call of a piece. It is a separate function so that callgrind distinguishes the two calls.
#[inline(never)]
fn fewer(piece: fn(u32)) {
    piece(REPETITIONS);
}

/// The second call of a piece.
#[inline(never)]
fn more(piece: fn(u32)) {
    piece(2 * REPETITIONS);
}

/// The first call of complete requests.
#[inline(never)]
fn fewer_requests(workload: whole::Workload, server: &mut whole::Server) {
    workload(server, REPETITIONS);
}

/// The second call of complete requests.
#[inline(never)]
fn more_requests(workload: whole::Workload, server: &mut whole::Server) {
    workload(server, 2 * REPETITIONS);
}
