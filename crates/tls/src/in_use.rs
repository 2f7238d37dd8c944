//! Values that a new configuration shares with the old one, for example a session cache: a reload reuses them while the
//! old configuration holds them.

use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Values in use by key. A value is removed after its last user has dropped it.
#[derive(Debug)]
pub struct InUse<K, V>(Mutex<Vec<(K, Weak<V>)>>);

impl<K: PartialEq, V> InUse<K, V> {
    /// Creates an empty list.
    #[must_use]
    pub const fn empty() -> InUse<K, V> {
        InUse(Mutex::new(Vec::new()))
    }

    /// Returns the value with this key, or adds the result of `make`.
    pub fn get_or_add(&self, key: K, make: impl FnOnce() -> Arc<V>) -> Arc<V> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        values.retain(|(_, value)| value.strong_count() > 0);
        let known = values.iter().find(|(known, _)| *known == key);
        if let Some(value) = known.and_then(|(_, value)| value.upgrade()) {
            return value;
        }
        let value = make();
        values.push((key, Arc::downgrade(&value)));
        value
    }
}
