//! The only list of waiting tasks: in order, each with a ticket, so that one that gives up is removed.
//!
//! It only keeps the tasks. Its users wake them: events, permits and counts of a thread ([`crate::local`]), buffers,
//! tasks that yielded, and watched numbers between threads.

use std::collections::VecDeque;

/// Names a waiting task, uniquely in its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// Waiting tasks, first come first served.
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

    /// Puts one at the end.
    pub(crate) fn push(&mut self, waiter: W) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        debug_assert!(self.waiting.back().is_none_or(|&(last, _)| last < ticket), "tickets ascend");
        self.waiting.push_back((ticket, waiter));
        ticket
    }

    /// A task that still waits.
    pub(crate) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut W> {
        let place = self.place(ticket)?;
        Some(&mut self.waiting[place].1)
    }

    /// Whether this one still waits.
    pub(crate) fn contains(&self, ticket: Ticket) -> bool {
        self.place(ticket).is_some()
    }

    /// Whether this one is the first.
    pub(crate) fn is_first(&self, ticket: Ticket) -> bool {
        self.waiting.front().is_none_or(|&(first, _)| first >= ticket)
    }

    /// The first one, which keeps waiting.
    pub(crate) fn first(&self) -> Option<&W> {
        self.waiting.front().map(|(_, waiter)| waiter)
    }

    /// Takes the first one out.
    pub(crate) fn pop(&mut self) -> Option<W> {
        self.waiting.pop_front().map(|(_, waiter)| waiter)
    }

    /// Removes one; returns whether it was the first, in which case the next may be served now.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<(W, bool)> {
        let place = self.place(ticket)?;
        let (_, waiter) = self.waiting.remove(place)?;
        Some((waiter, place == 0))
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Frees memory beyond that for this many.
    pub(crate) fn shrink_to(&mut self, kept: usize) {
        self.waiting.shrink_to(kept);
    }

    /// Whether the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Tickets are given out in ascending order.
    fn place(&self, ticket: Ticket) -> Option<usize> {
        self.waiting.binary_search_by_key(&ticket, |&(known, _)| known).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_served_first_and_one_who_gives_up_is_passed_over() {
        let mut list = WaitList::default();
        let tickets: Vec<Ticket> = (0..5).map(|number| list.push(number)).collect();
        assert_eq!(list.remove(tickets[2]), Some((2, false)));
        assert_eq!(list.remove(tickets[2]), None);
        assert!(list.is_first(tickets[0]) && !list.is_first(tickets[1]));
        assert_eq!(list.remove(tickets[0]), Some((0, true)));
        assert!(list.is_first(tickets[1]) && list.contains(tickets[3]));
        assert_eq!(list.first(), Some(&1));
        assert_eq!(list.pop(), Some(1));
        assert_eq!((list.len(), list.pop(), list.pop(), list.pop()), (2, Some(3), Some(4), None));
        assert!(list.is_empty() && list.get_mut(tickets[4]).is_none());
        assert!(list.push(9) > tickets[4], "a ticket comes once");
    }
}
