//! Counting of requests by their results.

use super::Worker;
use crate::load::link::Pending;
use crate::load::outcome::Failed;
use crate::load::plan::LoopKind;
use crate::load::reader::Response;

impl Worker<'_> {
    /// Counts a response, and whether it meets the expectations.
    pub(super) fn count(&mut self, pending: Pending, response: Response) {
        self.has_outcome = true;
        let tally = &mut self.tally;
        tally.responses += 1;
        tally.body_bytes += response.body_bytes;
        *tally.statuses.entry(response.status).or_default() += 1;
        // Wrong responses count too: the latency of a 503 is a valid result.
        tally.latency.saturating_record(self.now - pending.due.min(self.now));
        if self.plan.loop_kind != LoopKind::Closed {
            tally.service.saturating_record(self.now - pending.sent);
        }
        let expect = &self.plan.expect;
        // A response with a wrong status usually has a different body, so its content is not checked.
        let is_expected = match expect.status {
            Some(status) => response.status == status,
            None => (200..400).contains(&response.status),
        };
        if !is_expected {
            tally.errors.count(Failed::BadStatus);
        } else if expect.length.is_some_and(|length| length != response.body_bytes)
            || expect.crc32c.is_some_and(|crc32c| crc32c != response.crc32c)
        {
            tally.errors.count(Failed::BadCheck);
        }
    }

    /// Counts a failed request by its due time.
    pub(super) fn count_failed(&mut self, failed: Failed, due: u64) {
        self.has_outcome = true;
        self.tally.errors.count(failed);
        if failed == Failed::Timeout {
            // Omitting the slowest requests would make a stalled server look fast.
            self.tally.latency.saturating_record(self.now - due);
        }
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
