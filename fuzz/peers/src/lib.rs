//! Runs Ringroad's HTTP/2 ([`http::h2`]) against the crate h2, in memory and with random schedules.
//!
//! ```text
//!   Plan (of a seed) --> ours <--pipe, pieces of any size--> theirs
//!                          `--------- outcomes ----------------'
//! ```
//! A seed determines each session: messages, settings, resets, the end of the connection, and the order in which both
//! ends read, send and consume. Both ends compare the received messages with the plan; finally [`outcome::compare`]
//! compares the outcomes of both ends. h2 is polled manually, without a runtime or threads, so a failed session can be
//! repeated by its seed.
#![forbid(unsafe_code)]

pub mod ours;
pub mod outcome;
pub mod pipe;
pub mod plan;
pub mod random;
pub mod theirs;

use std::rc::Rc;

use crate::ours::Ours;
use crate::outcome::{Totals, compare};
use crate::pipe::{Direction, Io, Shared};
use crate::plan::Plan;
use crate::random::Random;
use crate::theirs::Theirs;

/// Number of turns without a change after which a session is considered stalled.
const IDLE_TURNS_MAX: usize = 400;

/// Number of turns after which a session is considered endless.
const TURNS_MAX: usize = 2_000_000;

/// Runs the session of a seed.
///
/// # Panics
/// Panics if the ends disagree.
pub fn session(seed: u64, totals: &mut Totals) {
    let random = &mut Random::new(seed);
    let plan = Rc::new(Plan::new(random));
    let we_are_client = random.once_in(2);
    let direction = || Shared::new(Direction::new(plan.wire_max).into());
    let (to_us, to_them) = (direction(), direction());
    let mut ours = Ours::new(we_are_client, &plan, Rc::clone(&to_us), Rc::clone(&to_them));
    let io = Io { incoming: Rc::clone(&to_them), outgoing: Rc::clone(&to_us), chunk_max: plan.chunk_max };
    let mut theirs = Theirs::new(!we_are_client, &plan, io);
    let mut idle = 0;
    for turn in 0.. {
        let passed = to_us.borrow().passed + to_them.borrow().passed;
        let mut moved = false;
        for _ in 0..1 + random.below(3) {
            moved |= if random.once_in(2) { ours.act(random) } else { theirs.act(random) };
        }
        moved |= passed != to_us.borrow().passed + to_them.borrow().passed;
        idle = if moved { 0 } else { idle + 1 };
        // h2 reads no further bytes after its connection has ended.
        if theirs.has_ended() {
            to_them.borrow_mut().take(usize::MAX);
        }
        let is_quiet = to_us.borrow().is_empty() && to_them.borrow().is_empty() && idle > 20;
        if is_quiet && ours.is_done() && theirs.is_done() {
            break;
        }
        let is_stuck = idle >= IDLE_TURNS_MAX;
        assert!(!is_stuck, "both ends are stuck: {:?}\n{}\n{}", plan.peer, ours.shown(), theirs.shown());
        assert!(turn < TURNS_MAX, "the session does not end");
    }
    // h2 ends its connection when no more bytes arrive.
    to_them.borrow_mut().is_closed = true;
    for _ in 0..IDLE_TURNS_MAX {
        theirs.act(random);
        ours.act(random);
    }
    assert!(theirs.has_ended(), "the connection does not end");
    let (client, server) = match we_are_client {
        true => (&ours.outcomes, &theirs.outcomes),
        false => (&theirs.outcomes, &ours.outcomes),
    };
    compare(&plan, client, server, totals);
    totals.sessions += 1;
    totals.pongs += ours.pongs as u64;
    totals.bytes += to_us.borrow().passed + to_them.borrow().passed;
}
