//! Counting of requests by their results.

use super::Worker;
use crate::load::link::Pending;
use crate::load::outcome::Failed;
use crate::load::plan::LoopKind;
use crate::load::reader::Response;

impl Worker<'_> {
    /// Counts a response, and whether it meets the expectations.
    pub(super) fn count(&mut self, pending: Pending, response: Response) {
        self.tally.count(self.plan, pending, response, self.now);
    }

    /// Counts a failed request by its due time.
    pub(super) fn count_failed(&mut self, failed: Failed, due: u64) {
        self.tally.count_failed(failed, due, self.now);
    }

    /// In an open loop, counts every request that was due: one without a response at the end of the timeout counts with
    /// the time until then.
    pub(super) fn count_unanswered(&mut self) {
        if self.plan.loop_kind == LoopKind::Closed {
            return;
        }
        for index in 0..self.links.len() {
            if let Some(pending) = self.links[index].pending.take() {
                self.under_way -= 1;
                self.count_failed(Failed::Timeout, pending.due);
            }
        }
        while let Some(due) = self.schedule.take(self.now) {
            self.count_failed(Failed::Timeout, due);
        }
    }
}
