//! Cached results of modules about a request, by type, while they are valid.
//!
//! Handlers store values in `Extensions`. The functions of variables get only a shared reference to the request, but some
//! of them have to cache their results as facts. Facts are dropped when the request moves to another location, or ends.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

/// A cached result of a module about a request.
pub trait Fact: Any {
    /// Whether the fact remains valid when the request moves to a named location and keeps its URI.
    fn outlives_location(&self) -> bool {
        false
    }

    /// Returns the initial value in a subrequest.
    fn for_subrequest(&self) -> Option<Rc<dyn Fact>> {
        None
    }
}

/// Facts of different types, one of each.
#[derive(Default)]
pub struct Facts(RefCell<Vec<Rc<dyn Fact>>>);

impl Facts {
    /// Returns the fact of this type.
    pub fn get<T: Fact>(&self) -> Option<Rc<T>> {
        let facts = self.0.borrow();
        let fact: Rc<dyn Any> = Rc::clone(facts.iter().find(|fact| is::<T>(fact))?) as _;
        fact.downcast().ok()
    }

    /// Stores a fact and replaces one of the same type.
    pub fn insert<T: Fact>(&self, fact: T) -> Rc<T> {
        let fact = Rc::new(fact);
        let mut facts = self.0.borrow_mut();
        facts.retain(|known| !is::<T>(known));
        facts.push(Rc::clone(&fact) as _);
        fact
    }

    /// Returns the initial facts of a subrequest.
    pub fn for_subrequest(&self) -> Facts {
        Facts(RefCell::new(self.0.borrow().iter().filter_map(|fact| fact.for_subrequest()).collect()))
    }

    /// Drops facts that are not valid in a named location.
    pub fn leave_location(&mut self) {
        self.0.get_mut().retain(|fact| fact.outlives_location());
    }

    /// Drops all facts; the memory of the list is retained.
    pub fn clear(&mut self) {
        self.0.get_mut().clear();
    }
}

/// Whether a fact has this type.
fn is<T: Fact>(fact: &Rc<dyn Fact>) -> bool {
    let fact: &dyn Any = &**fact;
    fact.is::<T>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Belongs to a location.
    #[derive(Debug, PartialEq)]
    struct Local(u8);

    impl Fact for Local {
        fn for_subrequest(&self) -> Option<Rc<dyn Fact>> {
            Some(Rc::new(Local(self.0 + 1)))
        }
    }

    /// Belongs to a URI.
    #[derive(Debug, PartialEq)]
    struct OfUri(u8);

    impl Fact for OfUri {
        fn outlives_location(&self) -> bool {
            true
        }
    }

    fn both(facts: &Facts) -> (Option<u8>, Option<u8>) {
        (facts.get::<Local>().map(|fact| fact.0), facts.get::<OfUri>().map(|fact| fact.0))
    }

    #[test]
    fn facts_are_valid_for_the_lifetime_of_their_type() {
        let mut facts = Facts::default();
        assert_eq!((both(&facts), facts.0.borrow().capacity()), ((None, None), 0));
        facts.insert(Local(1));
        facts.insert(OfUri(2));
        facts.insert(Local(3));
        assert_eq!(both(&facts), (Some(3), Some(2)));
        assert_eq!(both(&facts.for_subrequest()), (Some(4), None));
        facts.leave_location();
        assert_eq!(both(&facts), (None, Some(2)));
        facts.clear();
        assert_eq!(both(&facts), (None, None));
    }
}
