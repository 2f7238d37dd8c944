//! Values of modules that belong to a request, by type: a module stores a value and reads it in a later phase or in its
//! variables. Some values are never read and exist only for their drop at the request's end.
//!
//! Most requests store no value, which costs only an empty vector. The values are dropped when the thread recycles the
//! request.

use std::any::{Any, TypeId};
use std::fmt;

/// Values of different types, one of each. The types are stored beside the values, so that a search calls no function of a value.
#[derive(Default)]
pub struct Extensions(Vec<(TypeId, Box<dyn Any>)>);

// A vector is searched instead of a map: few requests store more than two or three values.
impl Extensions {
    /// Returns the value of this type.
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.index_of::<T>().and_then(|index| self.0[index].1.downcast_ref())
    }

    /// Returns the value of this type, to be changed.
    pub fn get_mut<T: 'static>(&mut self) -> Option<&mut T> {
        self.index_of::<T>().and_then(|index| self.0[index].1.downcast_mut())
    }

    /// Returns the value of this type, to be changed; inserts a default if none exists.
    pub fn get_or_default<T: Default + 'static>(&mut self) -> &mut T {
        let index = self.index_of::<T>().unwrap_or_else(|| {
            self.0.push((TypeId::of::<T>(), Box::<T>::default()));
            self.0.len() - 1
        });
        self.0[index].1.downcast_mut().expect("the search found this type")
    }

    /// Stores a value and replaces one of the same type.
    pub fn insert<T: 'static>(&mut self, value: T) {
        match self.get_mut() {
            Some(known) => *known = value,
            None => self.0.push((TypeId::of::<T>(), Box::new(value))),
        }
    }

    /// Removes and returns the value of this type.
    pub fn remove<T: 'static>(&mut self) -> Option<T> {
        let index = self.index_of::<T>()?;
        // The order is irrelevant, and the search has found the type.
        self.0.swap_remove(index).1.downcast().ok().map(|value| *value)
    }

    /// Drops all values; the memory of the vector is retained.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn index_of<T: 'static>(&self) -> Option<usize> {
        self.0.iter().position(|(known, _)| *known == TypeId::of::<T>())
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Extensions").field(&self.0.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn stores_one_value_of_each_type() {
        let mut extensions = Extensions::default();
        assert_eq!(extensions.get::<u8>(), None);
        extensions.insert(1u8);
        extensions.insert("text");
        extensions.insert(2u8);
        assert_eq!((extensions.get::<u8>(), extensions.get::<&str>()), (Some(&2), Some(&"text")));
        *extensions.get_mut::<u8>().expect("it is there") += 1;
        assert_eq!(extensions.get_or_default::<u8>(), &3);
        assert_eq!(extensions.remove::<u8>(), Some(3));
        assert_eq!(extensions.get_or_default::<i64>(), &0);
        assert_eq!(extensions.remove::<i64>(), Some(0));
        assert_eq!((extensions.remove::<u8>(), extensions.0.len()), (None, 1));
    }

    #[test]
    fn drops_values_that_are_replaced_or_cleared() {
        let mut extensions = Extensions::default();
        let guard = Rc::new(());
        extensions.insert(Rc::clone(&guard));
        extensions.insert(Rc::clone(&guard));
        assert_eq!(Rc::strong_count(&guard), 2);
        extensions.clear();
        assert_eq!(Rc::strong_count(&guard), 1);
    }

    #[test]
    fn an_empty_map_needs_no_memory() {
        assert_eq!(Extensions::default().0.capacity(), 0);
    }
}
