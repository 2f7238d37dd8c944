//! The counts of requests that have ended, and which requests count.

use super::Worker;
use crate::load::link::Pending;
use crate::load::plan::Pace;
use crate::load::reader::Answer;

/// How a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    Connect,
    Reset,
    Timeout,
    ShortBody,
    Parse,
}

impl Worker<'_> {
    /// Whether a request that was due then is counted: in an open loop a late response to one of the warm-up is not.
    fn counts(&self, due: u64) -> bool {
        self.plan.pace == Pace::Closed || due >= self.counted_from || self.now < self.counted_from
    }

    /// Counts a response, and whether it is what was expected.
    pub(super) fn count(&mut self, pending: Pending, answer: Answer) {
        if !self.counts(pending.due) {
            return;
        }
        self.has_outcome = true;
        let tally = &mut self.tally;
        tally.answers += 1;
        tally.body_bytes += answer.body_bytes;
        tally.statuses.count(answer.status);
        // Wrong responses count too: how long a server takes to say 503 is a finding.
        tally.latency.saturating_record(self.now - pending.due.min(self.now));
        if self.plan.pace != Pace::Closed {
            tally.service.saturating_record(self.now - pending.sent);
        }
        let expect = self.requests.expect(pending.target);
        // A wrong status has another body as a rule, so that the content is not looked at any more.
        let is_expected = match expect.status {
            Some(status) => answer.status == status,
            None => (200..400).contains(&answer.status),
        };
        if !is_expected {
            tally.errors.bad_status += 1;
        } else if expect.length.is_some_and(|length| length != answer.body_bytes)
            || expect.crc32c.is_some_and(|crc32c| crc32c != answer.crc32c)
        {
            tally.errors.bad_check += 1;
        }
    }

    /// Counts a request that was due then and will have no response.
    pub(super) fn count_failed(&mut self, failed: Failed, due: u64) {
        if !self.counts(due) {
            return;
        }
        self.has_outcome = true;
        let errors = &mut self.tally.errors;
        match failed {
            Failed::Connect => errors.connect += 1,
            Failed::Reset => errors.reset += 1,
            Failed::ShortBody => errors.short_body += 1,
            Failed::Parse => errors.parse += 1,
            Failed::Timeout => {
                errors.timeout += 1;
                // Leaving the slowest out would make a stalled server look fast.
                self.tally.latency.saturating_record(self.now - due);
            }
        }
    }

    /// In an open loop every request that was due has an outcome: one without a response at the end of the timeout is late by
    /// as much as it has waited.
    pub(super) fn count_unanswered(&mut self) {
        if self.plan.pace == Pace::Closed {
            return;
        }
        for index in 0..self.links.len() {
            while let Some(pending) = self.links[index].pending.pop_front() {
                self.under_way -= 1;
                self.count_failed(Failed::Timeout, pending.due);
            }
        }
        while let Some(due) = self.schedule.take(self.now) {
            self.count_failed(Failed::Timeout, due);
        }
    }
}
