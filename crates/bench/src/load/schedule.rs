//! The schedule of the requests of one thread.
//!
//! Times are nanoseconds on the thread's clock.

use super::outcome::Tally;
use super::plan::{Length, LoopKind, Plan};
use super::worker::nanos;

/// The due times of requests, and the number of remaining requests.
pub(crate) struct Schedule {
    /// Time between two requests of an open loop; `None` in a closed loop, where a request is always due.
    interval: Option<f64>,
    /// Due time of the first request of an open loop.
    start: u64,
    /// Number of the next request.
    next: u64,
    /// Number of remaining requests; `None` without a limit.
    left: Option<u64>,
    /// Time from which no request is due.
    end: u64,
}

impl Schedule {
    /// Creates the schedule of thread number `thread` of `threads`, from `start` until `end`, for its share of at most
    /// `requests`.
    pub(crate) fn new(
        loop_kind: LoopKind,
        (thread, threads): (usize, usize),
        (start, end): (u64, u64),
        requests: Option<u64>,
    ) -> Schedule {
        // Time between two requests of all threads together. The threads are offset against each other, so that their
        // requests are evenly spaced.
        let between = match loop_kind {
            LoopKind::Closed => None,
            LoopKind::Open { rate } => Some(1e9 / rate),
        };
        Schedule {
            interval: between.map(|between| between * threads as f64),
            start: start + between.map_or(0, |between| (between * thread as f64) as u64),
            next: 0,
            left: requests.map(|requests| requests.saturating_sub(thread as u64).div_ceil(threads as u64)),
            end,
        }
    }

    /// Creates the schedule of one thread for a plan that begins at this time.
    pub(crate) fn of_plan(plan: &Plan, share: (usize, usize), begin: u64) -> Schedule {
        let (end, requests) = match plan.length {
            Length::Time(length) => (begin.saturating_add(nanos(length)), None),
            Length::Requests(requests) => (u64::MAX, Some(requests)),
        };
        Schedule::new(plan.loop_kind, share, (begin, end), requests)
    }

    /// Returns the time from which no request is due.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Whether the load of the thread is over. A closed loop stops at its end, or at its first outcome if that is later: on a busy
    /// machine a thread may not have run at all within a brief load. An open loop, or a load of a number of requests,
    /// waits for the outstanding responses, of which there are `under_way`. Either waits at most for the timeout of a response.
    pub(crate) fn is_done(&self, plan: &Plan, tally: &Tally, under_way: u64, now: u64) -> bool {
        let is_past_patience = now >= self.end.saturating_add(nanos(plan.timeout));
        match (plan.loop_kind, plan.length) {
            (LoopKind::Closed, Length::Time(_)) if tally.has_outcome() => now >= self.end,
            (LoopKind::Closed, Length::Time(_)) => is_past_patience,
            _ => (under_way == 0 && self.is_over(now)) || is_past_patience,
        }
    }

    /// Takes a request that is due by `now`; returns its due time.
    pub(crate) fn take(&mut self, now: u64) -> Option<u64> {
        let due = self.next_due(now).filter(|&due| due <= now)?;
        self.next += 1;
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        Some(due)
    }

    /// Returns when the next request is due: immediately in a closed loop. Returns `None` if none is remaining, or if
    /// the next one would be due after the end. The first request of a closed loop is made even if the thread starts
    /// late.
    pub(crate) fn next_due(&self, now: u64) -> Option<u64> {
        if self.left == Some(0) {
            return None;
        }
        match self.interval {
            None => (now < self.end || self.next == 0).then_some(now),
            // Multiplied instead of accumulated, so that the rate stays exact over any length.
            Some(interval) => {
                Some(self.start + (interval * self.next as f64) as u64).filter(|due| *due < self.end)
            }
        }
    }

    /// Whether no request is due, now or later.
    pub(crate) fn is_over(&self, now: u64) -> bool {
        self.next_due(now).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_loop_that_begins_after_its_end_sends_one_request() {
        let mut schedule = Schedule::new(LoopKind::Closed, (0, 1), (5_000, 15_000), None);
        assert_eq!((schedule.take(20_000), schedule.take(20_001)), (Some(20_000), None));
        let mut none = Schedule::new(LoopKind::Closed, (1, 2), (5_000, 15_000), Some(1));
        assert_eq!(none.take(20_000), None, "another thread has the only one");
    }

    #[test]
    fn an_open_loop_is_distributed_evenly_over_its_threads() {
        let share = |thread| Schedule::new(LoopKind::Open { rate: 1e6 }, (thread, 2), (5_000, 15_000), None);
        let mut dues = Vec::new();
        for thread in 0..2 {
            let mut schedule = share(thread);
            assert_eq!(schedule.take(4_999), None);
            while let Some(due) = schedule.take(1_000_000) {
                dues.push(due);
            }
            assert!(schedule.is_over(1_000_000));
        }
        dues.sort_unstable();
        assert_eq!(dues, (5..15).map(|micros| micros * 1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_number_of_requests_is_distributed_completely() {
        let mut made = 0;
        for thread in 0..3 {
            let mut schedule = Schedule::new(LoopKind::Closed, (thread, 3), (0, u64::MAX), Some(8));
            while schedule.take(1).is_some() {
                made += 1;
            }
        }
        assert_eq!(made, 8);
    }
}
