//! Results that no task has taken yet.
//!
//! They lie together, and not with the operation that they belong to: a place is used again as soon as its result is
//! taken, the last one first. So the results of a turn for many connections go through a few lines of memory that stay
//! in the cache. Main types: [`Outcomes`], and [`Results`], which an operation has.

use io::{Errno, Payload};

/// One result of an operation.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) result: Result<u32, Errno>,
    /// Whether further results follow.
    pub(crate) more: bool,
    pub(crate) payload: Payload,
}

/// End of a line, and of the places that are free.
const NONE: u32 = u32::MAX;

/// The results of all operations of a runtime.
pub(crate) struct Outcomes {
    places: Vec<OutcomeCell>,
    free: u32,
}

struct OutcomeCell {
    /// `None` in a place that is free.
    outcome: Option<Outcome>,
    /// The next result of the same operation, or the next free place.
    next: u32,
}

/// The results of one operation, in the order in which they came.
#[derive(Debug)]
pub(crate) struct Results {
    first: u32,
    last: u32,
}

impl Default for Results {
    fn default() -> Results {
        Results { first: NONE, last: NONE }
    }
}

impl Results {
    pub(crate) fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

impl Default for Outcomes {
    fn default() -> Outcomes {
        Outcomes { places: Vec::new(), free: NONE }
    }
}

impl Outcomes {
    /// Adds a result behind the others.
    pub(crate) fn push(&mut self, results: &mut Results, outcome: Outcome) {
        let place = OutcomeCell { outcome: Some(outcome), next: NONE };
        let index = if self.free == NONE {
            self.places.push(place);
            (self.places.len() - 1) as u32
        } else {
            let index = self.free;
            let free = &mut self.places[index as usize];
            assert!(free.outcome.is_none(), "a free place has no result");
            self.free = free.next;
            *free = place;
            index
        };
        match results.is_empty() {
            true => results.first = index,
            false => {
                let last = &mut self.places[results.last as usize];
                assert!(last.next == NONE && last.outcome.is_some(), "the last result ends the line");
                last.next = index;
            }
        }
        results.last = index;
    }

    /// Takes the first result.
    pub(crate) fn pop(&mut self, results: &mut Results) -> Option<Outcome> {
        let place = self.places.get_mut(results.first as usize)?;
        let free = std::mem::replace(&mut self.free, results.first);
        results.first = std::mem::replace(&mut place.next, free);
        let outcome = place.outcome.take();
        assert!(outcome.is_some(), "a place in a list has a result");
        outcome
    }

    /// Gives back the memory of places where none is in use.
    pub(crate) fn trim(&mut self) {
        if self.places.iter().all(|place| place.outcome.is_none()) {
            *self = Outcomes::default();
        }
    }

    /// Drops all results.
    pub(crate) fn clear(&mut self, results: &mut Results) {
        while self.pop(results).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(number: u32) -> Outcome {
        Outcome { result: Ok(number), more: true, payload: Payload::None }
    }

    #[test]
    fn each_operation_gets_its_own_in_their_order() {
        let mut all = Outcomes::default();
        let mut lines = [Results::default(), Results::default(), Results::default()];
        let mut next = [(0, 0); 3];
        // Of three lines one grows, one stays at one result, one is emptied now and then.
        for round in 0..100 {
            for (line, (pushed, popped)) in lines.iter_mut().zip(&mut next) {
                all.push(line, outcome(*pushed));
                *pushed += 1;
                if round % 3 != 0 {
                    assert_eq!(all.pop(line).map(|outcome| outcome.result), Some(Ok(*popped)));
                    *popped += 1;
                }
            }
            if round % 10 == 0 {
                all.clear(&mut lines[2]);
                assert!(lines[2].is_empty() && all.pop(&mut lines[2]).is_none());
                next[2].1 = next[2].0;
            }
        }
        assert!(all.places.len() < 80, "places are used again");
    }
}
