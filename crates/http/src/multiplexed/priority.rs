//! Priorities of responses (RFC 9218), and the order in which streams send.
//!
//! Main types: [`Priority`], [`Scheduler`]. The priority tree of RFC 7540 is not supported, which a setting of HTTP/2 announces to
//! clients.

use std::collections::VecDeque;

use crate::structured::{Dictionary, Value};

/// Priority of a response (RFC 9218 section 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// From 0, the most urgent, to 7.
    pub urgency: u8,
    /// Whether the client can use the response while it arrives. Incremental responses share the bandwidth.
    pub is_incremental: bool,
}

impl Default for Priority {
    /// Returns the default of RFC 9218 sections 4.1 and 4.2.
    fn default() -> Priority {
        Priority { urgency: 3, is_incremental: false }
    }
}

/// Number of urgency levels.
const URGENCIES: usize = 8;

impl Priority {
    /// Parses a field or the payload of PRIORITY_UPDATE: missing and invalid values are replaced by the default (RFC 9218 section
    /// 4).
    #[must_use]
    pub fn read(text: &[u8]) -> Priority {
        let Some(fields) = Dictionary::parse(text) else { return Priority::default() };
        let mut priority = Priority::default();
        if let Some(Value::Integer(urgency @ 0..=7)) = fields.get(b"u") {
            priority.urgency = urgency as u8;
        }
        if let Some(Value::Boolean(is_incremental)) = fields.get(b"i") {
            priority.is_incremental = is_incremental;
        }
        priority
    }
}

/// Streams that have bytes to send and may send them. `I` is the type of their numbers.
#[derive(Debug)]
pub struct Scheduler<I = u32> {
    urgencies: [Queue<I>; URGENCIES],
    len: usize,
}

/// Streams of one urgency.
#[derive(Debug)]
struct Queue<I> {
    /// Non-incremental streams, sent one after the other by number.
    non_incremental: Vec<I>,
    /// Incremental streams, which take turns.
    shared: VecDeque<I>,
    /// Whether an incremental stream is next, if there are both kinds.
    shared_is_next: bool,
}

impl<I> Default for Scheduler<I> {
    fn default() -> Scheduler<I> {
        let queue = || Queue { non_incremental: Vec::new(), shared: VecDeque::new(), shared_is_next: false };
        Scheduler { urgencies: std::array::from_fn(|_| queue()), len: 0 }
    }
}

impl<I: Copy + Ord> Scheduler<I> {
    /// Adds a stream that is not in the scheduler.
    pub fn add(&mut self, stream: I, priority: Priority) {
        let queue = &mut self.urgencies[usize::from(priority.urgency.min(7))];
        if priority.is_incremental {
            queue.shared.push_back(stream);
        } else {
            let index = queue.non_incremental.partition_point(|&other| other < stream);
            queue.non_incremental.insert(index, stream);
        }
        self.len += 1;
    }

    /// Removes a stream; returns whether it was in the scheduler.
    pub fn remove(&mut self, stream: I, priority: Priority) -> bool {
        let queue = &mut self.urgencies[usize::from(priority.urgency.min(7))];
        let found = if priority.is_incremental {
            let index = queue.shared.iter().position(|&other| other == stream);
            index.map(|index| queue.shared.remove(index)).is_some()
        } else {
            let index = queue.non_incremental.binary_search(&stream).ok();
            index.map(|index| queue.non_incremental.remove(index)).is_some()
        };
        self.len -= usize::from(found);
        found
    }

    /// Selects the stream that sends the next frame. It stays in the scheduler; an incremental stream moves to the end of its
    /// queue.
    pub fn pick(&mut self) -> Option<I> {
        if self.len == 0 {
            return None;
        }
        let has_some = |queue: &&mut Queue<I>| !queue.non_incremental.is_empty() || !queue.shared.is_empty();
        let queue = self.urgencies.iter_mut().find(has_some)?;
        let shares = queue.non_incremental.is_empty() || queue.shared_is_next && !queue.shared.is_empty();
        queue.shared_is_next = !shares;
        if !shares {
            return queue.non_incremental.first().copied();
        }
        let next = queue.shared.pop_front()?;
        queue.shared.push_back(next);
        Some(next)
    }

    /// Whether the scheduler is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priority(urgency: u8, is_incremental: bool) -> Priority {
        Priority { urgency, is_incremental }
    }

    /// RFC 9218 sections 4.1, 4.2 and 5: invalid values are replaced by the default.
    #[test]
    fn an_invalid_priority_becomes_the_default() {
        for (text, wanted) in [
            ("", (3, false)),
            ("u=0", (0, false)),
            ("u=7, i", (7, true)),
            ("i=?0, u=5", (5, false)),
            ("u=8", (3, false)),
            ("u=-1, i", (3, true)),
            ("u=1.5", (3, false)),
            ("i=1", (3, false)),
            ("u=1, x=\"y\", u=2", (2, false)),
            ("u=1,", (3, false)),
            ("\x00", (3, false)),
        ] {
            assert_eq!(Priority::read(text.as_bytes()), priority(wanted.0, wanted.1), "{text}");
        }
    }

    /// RFC 9218 section 10: urgent streams first, then in order of their numbers, and incremental streams in turns.
    #[test]
    fn urgent_streams_are_sent_first_and_incremental_ones_alternate() {
        let mut scheduler: Scheduler = Scheduler::default();
        for (stream, urgency, is_incremental) in
            [(1, 3, false), (3, 3, true), (5, 0, false), (7, 3, true), (9, 7, false)]
        {
            scheduler.add(stream, priority(urgency, is_incremental));
        }
        assert_eq!((scheduler.pick(), scheduler.pick()), (Some(5), Some(5)));
        assert!(scheduler.remove(5, priority(0, false)) && !scheduler.remove(5, priority(0, false)));
        let next: Vec<u32> = (0..6).filter_map(|_| scheduler.pick()).collect();
        assert_eq!(next, [1, 3, 1, 7, 1, 3], "incremental and other streams alternate");
        scheduler.remove(1, priority(3, false));
        let next: Vec<u32> = (0..3).filter_map(|_| scheduler.pick()).collect();
        assert_eq!(next, [7, 3, 7]);
        for stream in [3, 7] {
            scheduler.remove(stream, priority(3, true));
        }
        assert_eq!(scheduler.pick(), Some(9));
        scheduler.remove(9, priority(7, false));
        assert_eq!((scheduler.pick(), scheduler.is_empty()), (None, true));
    }

    #[test]
    fn streams_of_equal_urgency_are_sent_in_request_order() {
        let mut scheduler: Scheduler = Scheduler::default();
        for stream in [9, 1, 5] {
            scheduler.add(stream, Priority::default());
        }
        for wanted in [1, 5, 9] {
            assert_eq!(scheduler.pick(), Some(wanted));
            scheduler.remove(wanted, Priority::default());
        }
    }
}
