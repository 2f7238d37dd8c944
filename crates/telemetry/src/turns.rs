//! Event-loop metrics of each thread: the duration of turns, and the number of operations.
//!
//! A thread serves all of its connections in turn. A long turn, for example for a large page in `ssi` or a slow regular
//! expression, delays all other connections.

use std::sync::Arc;
use std::time::Duration;

use crate::histogram::{Distribution, Histogram};
use crate::metric::{Cells, Metric, Page, Series};

const TURN: Metric = Metric::histogram(
    "loop_turn_seconds",
    "Time between two waits of a thread for the kernel. Meanwhile the other connections of the thread wait.",
);

const ENTRIES: Series = Series::first(Metric::counter(
    "engine_kernel_entries_total",
    "calls",
    "System calls by which engines submit operations, wait for completions, or do both. One call may submit several operations.",
));

const OPERATIONS: Series = ENTRIES.after(Metric::counter(
    "engine_operations_total",
    "operations",
    "Operations submitted to the engines, on sockets and on files.",
));

const QUEUED: Series = OPERATIONS.after(Metric::counter(
    "disk_queued_total",
    "operations",
    "Operations on files that waited because their device already used its share of pool threads or of io_uring.",
));

const CELLS: usize = QUEUED.end();

/// The counters of the engines, in the order of [`LoopNumbers::note`].
const OF_ENGINES: [&Series; CELLS] = [&ENTRIES, &OPERATIONS, &QUEUED];

/// All metrics of this file, in the order of the documentation.
pub const METRICS: &[&Metric] = &[&TURN, &ENTRIES.metric, &OPERATIONS.metric, &QUEUED.metric];

/// The event-loop counters of one thread.
#[derive(Debug, Default)]
pub struct LoopNumbers {
    turns: Histogram,
    cells: Cells<CELLS>,
}

impl LoopNumbers {
    /// Counts a turn. `engine` contains the engine's totals since its start: entries into the kernel, operations, and
    /// queued operations.
    pub fn note(&self, busy: Duration, engine: [u64; CELLS]) {
        self.turns.add(busy);
        for (series, number) in OF_ENGINES.into_iter().zip(engine) {
            self.cells.set(series, number);
        }
    }
}

/// Appends the metrics of all threads.
pub(crate) fn write(loops: &[Arc<LoopNumbers>], page: &mut Page) {
    let (mut turns, mut sums) = (Distribution::default(), [0; CELLS]);
    for numbers in loops {
        numbers.turns.add_to(&mut turns);
        numbers.cells.add_to(&mut sums);
    }
    page.head(&TURN);
    page.times(&TURN, &[], &turns);
    for series in OF_ENGINES {
        page.head(&series.metric);
        page.numbers(&series.metric, &[], series.of(&sums));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Form;
    use crate::shared::Shared;

    #[test]
    fn threads_are_summed_and_engines_count_from_their_start() {
        let shared = Shared::default();
        let (first, second) = (shared.new_loop(), shared.new_loop());
        first.note(Duration::from_micros(5), [1, 2, 0]);
        first.note(Duration::from_micros(500), [3, 9, 0]);
        second.note(Duration::from_micros(5), [10, 20, 1]);
        let mut page = Page::new(Form::Plain);
        shared.write_loops(&mut page);
        let text = page.finish();
        for line in [
            "ringroad_loop_turn_seconds_count 3",
            "ringroad_engine_kernel_entries_total 13",
            "ringroad_engine_operations_total 29",
            "ringroad_disk_queued_total 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
