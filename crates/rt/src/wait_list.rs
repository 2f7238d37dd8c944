//! The list type that all waits of this crate use: waiting tasks, first in, first out. Each task has a ticket, by which
//! it is removed when it no longer waits.
//!
//! The list only stores the tasks. Its users wake them: events, semaphores and wait groups of a thread
//! ([`crate::local`]), buffer requests, tasks that yielded, and watches between threads.

use std::collections::VecDeque;

/// Identifier of a waiting task, unique in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// Waiting tasks, first in, first out.
#[derive(Debug)]
pub(crate) struct WaitList<W> {
    waiting: VecDeque<(Ticket, W)>,
    next: u64,
}

impl<W> Default for WaitList<W> {
    fn default() -> WaitList<W> {
        WaitList::new()
    }
}

impl<W> WaitList<W> {
    pub(crate) const fn new() -> WaitList<W> {
        WaitList { waiting: VecDeque::new(), next: 0 }
    }

    /// Appends a task.
    pub(crate) fn push(&mut self, waiter: W) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        debug_assert!(self.waiting.back().is_none_or(|&(last, _)| last < ticket), "tickets ascend");
        self.waiting.push_back((ticket, waiter));
        ticket
    }

    /// Returns a task that still waits.
    pub(crate) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut W> {
        let index = self.position(ticket)?;
        Some(&mut self.waiting[index].1)
    }

    /// Whether this task still waits.
    pub(crate) fn contains(&self, ticket: Ticket) -> bool {
        self.position(ticket).is_some()
    }

    /// Whether no task waits before this one.
    pub(crate) fn is_first(&self, ticket: Ticket) -> bool {
        self.waiting.front().is_none_or(|&(first, _)| first >= ticket)
    }

    /// Returns the first task without removing it.
    pub(crate) fn first(&self) -> Option<&W> {
        self.waiting.front().map(|(_, waiter)| waiter)
    }

    /// Removes and returns the first task with its ticket.
    pub(crate) fn pop(&mut self) -> Option<(Ticket, W)> {
        self.waiting.pop_front()
    }

    /// Removes a task; returns whether it was the first, in which case the next task may be served now.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<(W, bool)> {
        let index = self.position(ticket)?;
        let (_, waiter) = self.waiting.remove(index)?;
        Some((waiter, index == 0))
    }

    /// Returns the number of waiting tasks.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Frees memory beyond that for `kept` tasks.
    pub(crate) fn shrink_to(&mut self, kept: usize) {
        self.waiting.shrink_to(kept);
    }

    /// Whether the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the index of a task. Tickets are issued in ascending order.
    fn position(&self, ticket: Ticket) -> Option<usize> {
        self.waiting.binary_search_by_key(&ticket, |&(known, _)| known).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_are_served_in_order_and_dropped_waiters_are_skipped() {
        let mut list = WaitList::default();
        let tickets: Vec<Ticket> = (0..5).map(|number| list.push(number)).collect();
        assert_eq!(list.remove(tickets[2]), Some((2, false)));
        assert_eq!(list.remove(tickets[2]), None);
        assert!(list.is_first(tickets[0]) && !list.is_first(tickets[1]));
        assert_eq!(list.remove(tickets[0]), Some((0, true)));
        assert!(list.is_first(tickets[1]) && list.contains(tickets[3]));
        assert_eq!(list.first(), Some(&1));
        assert_eq!((list.pop(), list.len()), (Some((tickets[1], 1)), 2));
        assert_eq!(
            (list.pop(), list.pop(), list.pop()),
            (Some((tickets[3], 3)), Some((tickets[4], 4)), None)
        );
        assert!(list.is_empty() && list.get_mut(tickets[4]).is_none());
        assert!(list.push(9) > tickets[4], "a ticket comes once");
    }
}
