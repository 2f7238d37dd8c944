//! Thread pools by name and number.

/// Names of thread pools, numbered in the order of first use.
#[derive(Debug)]
pub struct Pools(Vec<(String, Option<conf::Span>)>);

impl Default for Pools {
    fn default() -> Pools {
        Pools(vec![(Pools::DEFAULT.to_owned(), None)])
    }
}

impl Pools {
    /// The pool that always exists.
    pub const DEFAULT: &'static str = "default";

    /// Returns the number of this pool; `None` if the configuration names more than 256 pools.
    pub fn number(&mut self, name: &str, span: conf::Span) -> Option<u8> {
        let known = self.0.iter().position(|(known, _)| known == name);
        let index = known.unwrap_or_else(|| {
            self.0.push((name.to_owned(), Some(span)));
            self.0.len() - 1
        });
        u8::try_from(index).ok()
    }

    /// Returns the names in the order of their numbers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the names with the positions of their first use.
    pub fn uses(&self) -> impl Iterator<Item = (&str, &conf::Span)> {
        self.0.iter().filter_map(|(name, span)| Some((name.as_str(), span.as_ref()?)))
    }
}
