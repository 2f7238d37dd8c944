//! `ringroad-peers [--sessions N] [--seed N]`: sessions between Ringroad's HTTP/2 and the crate h2, with consecutive
//! seeds.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use ringroad_peers::outcome::Totals;
use ringroad_peers::session;

const USAGE: &str = "usage: ringroad-peers [--sessions N] [--seed N]";

fn main() -> ExitCode {
    let Some((sessions, seed)) = options(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut totals = Totals::default();
    for seed in seed..seed + sessions {
        if catch_unwind(AssertUnwindSafe(|| session(seed, &mut totals))).is_err() {
            eprintln!("the ends disagree: repeat this session with --sessions 1 --seed {seed}");
            return ExitCode::FAILURE;
        }
    }
    let Totals { sessions, exchanges, whole, reset, not_processed, pongs, bytes } = totals;
    println!(
        "{sessions} sessions with the crate h2: {exchanges} exchanges, {whole} complete, {reset} reset, \
         {not_processed} not processed, {pongs} pings, {bytes} bytes"
    );
    ExitCode::SUCCESS
}

/// Parses the number of sessions and the first seed.
fn options(mut args: impl Iterator<Item = String>) -> Option<(u64, u64)> {
    let (mut sessions, mut seed) = (1000, 1);
    while let Some(name) = args.next() {
        let value = args.next()?.parse().ok()?;
        match name.as_str() {
            "--sessions" => sessions = value,
            "--seed" => seed = value,
            _ => return None,
        }
    }
    Some((sessions, seed))
}
