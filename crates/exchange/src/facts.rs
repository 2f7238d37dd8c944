//! Cached results of modules about a request, by type, while they are valid.
//!
//! Handlers store values in `Extensions`. The functions of variables get only a shared reference to the request, but some
//! of them have to cache their results as facts. Facts are dropped when the request moves to another location, or ends.

use std::any::Any;
use std::cell::{OnceCell, RefCell};
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

/// Facts of different types, one of each. A request and the fetch that works for it may share them ([`Facts::shared`]).
#[derive(Default)]
pub struct Facts(OnceCell<Rc<List>>);

type List = RefCell<Vec<Rc<dyn Fact>>>;

impl Facts {
    fn of(list: Vec<Rc<dyn Fact>>) -> Facts {
        Facts(if list.is_empty() { OnceCell::new() } else { OnceCell::from(Rc::new(RefCell::new(list))) })
    }

    /// Returns the list, which is created at its first use: most requests have no facts.
    fn list(&self) -> &Rc<List> {
        self.0.get_or_init(Rc::default)
    }

    /// Returns the fact of this type.
    pub fn get<T: Fact>(&self) -> Option<Rc<T>> {
        let facts = self.0.get()?.borrow();
        let fact: Rc<dyn Any> = Rc::clone(facts.iter().find(|fact| is::<T>(fact))?) as _;
        fact.downcast().ok()
    }

    /// Stores a fact and replaces one of the same type.
    pub fn insert<T: Fact>(&self, fact: T) -> Rc<T> {
        let fact = Rc::new(fact);
        let mut facts = self.list().borrow_mut();
        facts.retain(|known| !is::<T>(known));
        facts.push(Rc::clone(&fact) as _);
        fact
    }

    /// Returns the initial facts of a subrequest.
    pub fn for_subrequest(&self) -> Facts {
        self.selected(|fact| fact.for_subrequest())
    }

    /// Returns the same facts, for a copy of the request in the same location. Later facts belong to only one of them.
    pub fn copied(&self) -> Facts {
        self.selected(|fact| Some(Rc::clone(fact)))
    }

    /// Returns the same facts, for a request that works for this one in the same location. A later fact belongs to both, whichever
    /// of them stores it, until one of them moves to another location or ends.
    pub fn shared(&self) -> Facts {
        Facts(OnceCell::from(Rc::clone(self.list())))
    }

    /// Drops facts that are not valid in a named location.
    pub fn leave_location(&mut self) {
        *self = self.selected(|fact| fact.outlives_location().then(|| Rc::clone(fact)));
    }

    /// Drops all facts; the memory of the list is retained unless another request shares it.
    pub fn clear(&mut self) {
        match self.0.get_mut().map(Rc::get_mut) {
            Some(Some(list)) => list.get_mut().clear(),
            Some(None) => *self = Facts::default(),
            None => {}
        }
    }

    /// Returns a separate list of selected facts.
    fn selected(&self, select: impl Fn(&Rc<dyn Fact>) -> Option<Rc<dyn Fact>>) -> Facts {
        self.0
            .get()
            .map_or_else(Facts::default, |list| Facts::of(list.borrow().iter().filter_map(select).collect()))
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
        assert_eq!((both(&facts), facts.0.get().is_none()), ((None, None), true));
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
    #[test]
    fn shared_facts_belong_to_both_requests_until_one_moves_or_ends() {
        let mut facts = Facts::default();
        let mut fetch = facts.shared();
        fetch.insert(Local(1));
        let copy = fetch.copied();
        facts.insert(OfUri(2));
        assert_eq!(
            [both(&facts), both(&fetch), both(&copy)],
            [(Some(1), Some(2)), (Some(1), Some(2)), (Some(1), None)]
        );
        facts.leave_location();
        assert_eq!([both(&facts), both(&fetch)], [(None, Some(2)), (Some(1), Some(2))]);
        let mut ended = fetch.shared();
        ended.clear();
        ended.insert(Local(3));
        assert_eq!([both(&ended), both(&fetch)], [(Some(3), None), (Some(1), Some(2))]);
        fetch.clear();
        assert_eq!(both(&fetch), (None, None));
    }
}
