//! Runs pieces of hot code some thousand times, so that callgrind can count the instructions of each. The cost of a
//! request in instructions is exact on any machine, unlike times: `cargo xtask instructions` runs it, divides, and
//! compares with `counts.txt` beside this crate.
//!
//! Each piece is a function of [`pieces`], or of [`whole`] for whole requests, that callgrind finds by its name. It is
//! called twice, with as many repetitions more the second time: the difference excludes the preparation of a piece, and
//! work that happens once. A server is started before, as its start costs something else each time.
#![forbid(unsafe_code)]

use std::error::Error;

mod pieces;
mod streams;
mod whole;

/// The one of the server.
#[global_allocator]
static ALLOCATOR: thread_alloc::ThreadCachingAlloc = thread_alloc::ThreadCachingAlloc;

/// Repetitions of the first call, and how many more the second one has. `crates/xtask/src/instructions.rs` divides by it.
const REPETITIONS: u32 = 1000;

/// Requests before those that are compared: connections are made, the cache is filled, tables have grown.
const WARM_UP: u32 = 50;

/// Nothing is chosen on the command line: all of them take less time than callgrind needs to start.
fn main() -> Result<(), Box<dyn Error>> {
    for piece in pieces::ALL {
        fewer(piece);
        more(piece);
    }
    for (workload, location) in whole::ALL {
        let mut server = whole::Server::start(location)?;
        workload(&mut server, WARM_UP);
        fewer_requests(workload, &mut server);
        more_requests(workload, &mut server);
        server.end();
    }
    Ok(())
}

/// A separate function, which distinguishes the two calls.
#[inline(never)]
fn fewer(piece: fn(u32)) {
    piece(REPETITIONS);
}

/// The other one.
#[inline(never)]
fn more(piece: fn(u32)) {
    piece(2 * REPETITIONS);
}

/// The first call of whole requests.
#[inline(never)]
fn fewer_requests(workload: whole::Workload, server: &mut whole::Server) {
    workload(server, REPETITIONS);
}

/// The second one.
#[inline(never)]
fn more_requests(workload: whole::Workload, server: &mut whole::Server) {
    workload(server, 2 * REPETITIONS);
}
