//! Values by host name, exact or with one wildcard: the lookup of `server_name`, `map` with `hostnames` and
//! `valid_referers`.
//!
//! nginx's order: the exact name, the longest name with a leading wildcard, the longest name with a trailing wildcard.
//! Regular expressions belong to the modules.

use rustc_hash::FxHashMap;

/// Values by name; names and hosts are in lower case. The tables are filled from the configuration, so a client cannot
/// add colliding names, and a fast hash suffices.
#[derive(Clone, Debug)]
pub struct HostTable<T> {
    exact: FxHashMap<Box<[u8]>, T>,
    /// `*.example.com` by `example.com`.
    heads: FxHashMap<Box<[u8]>, T>,
    /// `www.example.*` by `www.example`.
    tails: FxHashMap<Box<[u8]>, T>,
}

impl<T> Default for HostTable<T> {
    fn default() -> Self {
        HostTable { exact: FxHashMap::default(), heads: FxHashMap::default(), tails: FxHashMap::default() }
    }
}

/// The reason why a name was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The table already contains it.
    Taken,
    /// The name is invalid: it has two wildcards, a wildcard inside, or two dots in a row.
    Invalid,
}

impl<T: Copy> HostTable<T> {
    /// Adds a name, which may have a wildcard.
    pub fn add(&mut self, name: &str, value: T) -> Result<(), Refusal> {
        let (map, text) = match Form::of(name).ok_or(Refusal::Invalid)? {
            Form::Exact(text) => (&mut self.exact, text),
            Form::Head(text) => (&mut self.heads, text),
            Form::Tail(text) => (&mut self.tails, text),
            Form::HeadAndExact(text) => {
                if self.heads.contains_key(text.as_bytes()) {
                    return Err(Refusal::Taken);
                }
                insert(&mut self.exact, text, value)?;
                (&mut self.heads, text)
            }
        };
        insert(map, text, value)
    }

    /// Adds a text unchanged, without interpreting wildcards.
    pub fn add_exact(&mut self, text: &str, value: T) -> Result<(), Refusal> {
        insert(&mut self.exact, text, value)
    }

    /// Releases the memory for further names.
    pub fn shrink_to_fit(&mut self) {
        self.exact.shrink_to_fit();
        self.heads.shrink_to_fit();
        self.tails.shrink_to_fit();
    }

    /// Returns the value of a host.
    pub fn find(&self, host: &[u8]) -> Option<T> {
        if let Some(&value) = self.exact.get(host) {
            return Some(value);
        }
        let dots = || host.iter().enumerate().filter(|(_, byte)| **byte == b'.').map(|(dot, _)| dot);
        if !self.heads.is_empty() {
            // Suffixes are tried from the longest to the shortest.
            // As in nginx the wildcard may stand for an empty text: `.example.com` matches `*.example.com`.
            let mut suffixes = dots().map(|dot| &host[dot + 1..]);
            if let Some(&value) = suffixes.find_map(|suffix| self.heads.get(suffix)) {
                return Some(value);
            }
        }
        if self.tails.is_empty() {
            return None;
        }
        let mut beginnings = Vec::new();
        beginnings.extend(dots().filter(|&dot| dot > 0 && dot + 1 < host.len()).map(|dot| &host[..dot]));
        beginnings.iter().rev().find_map(|beginning| self.tails.get(*beginning).copied())
    }
}

fn insert<T>(map: &mut FxHashMap<Box<[u8]>, T>, text: &str, value: T) -> Result<(), Refusal> {
    if map.contains_key(text.as_bytes()) {
        return Err(Refusal::Taken);
    }
    map.insert(text.as_bytes().into(), value);
    Ok(())
}

/// The form of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form<'n> {
    Exact(&'n str),
    /// `*.x`
    Head(&'n str),
    /// `.x`
    HeadAndExact(&'n str),
    /// `x.*`
    Tail(&'n str),
}

impl Form<'_> {
    fn of(text: &str) -> Option<Form<'_>> {
        let form = match text {
            _ if text.contains("..") => return None,
            _ if text.len() > 1 && text.starts_with('.') => Form::HeadAndExact(&text[1..]),
            _ if text.len() > 2 && text.starts_with("*.") => Form::Head(&text[2..]),
            _ if text.len() > 2 && text.ends_with(".*") => Form::Tail(&text[..text.len() - 2]),
            _ => Form::Exact(text),
        };
        let (Form::Exact(rest) | Form::Head(rest) | Form::HeadAndExact(rest) | Form::Tail(rest)) = form;
        (!rest.contains('*')).then_some(form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_names_precede_wildcards_and_longer_ones_shorter_ones() {
        let mut table = HostTable::default();
        let names =
            ["a.b.c", "*.b.c", "*.c", "a.*", "a.b.*", ".both.d", "x.*", "*.e.f", "", "a*b", "*", "a..b"];
        let added: Vec<bool> = (0..).zip(names).map(|(value, name)| table.add(name, value).is_ok()).collect();
        assert_eq!(added, [true, true, true, true, true, true, true, true, true, false, false, false]);
        for (host, expected) in [
            ("a.b.c", Some("a.b.c")),
            ("z.b.c", Some("*.b.c")),
            ("y.z.b.c", Some("*.b.c")),
            ("b.c", Some("*.c")),
            ("c", None),
            ("a.b.x", Some("a.b.*")),
            ("a.x.y", Some("a.*")),
            ("a", None),
            ("a.", None),
            ("both.d", Some(".both.d")),
            ("x.both.d", Some(".both.d")),
            ("x.c", Some("*.c")),
            (".e.f", Some("*.e.f")),
            (".both.d", Some(".both.d")),
            (".x.c", Some("*.c")),
            (".c", Some("*.c")),
            (".", None),
            (".x.", None),
            ("e.f", None),
            ("", Some("")),
        ] {
            assert_eq!(table.find(host.as_bytes()).map(|value| names[value]), expected, "{host}");
        }
    }

    #[test]
    fn duplicate_names_are_refused() {
        let mut table = HostTable::default();
        for (name, expected) in [
            ("a", Ok(())),
            ("a", Err(Refusal::Taken)),
            (".a", Err(Refusal::Taken)),
            ("*.a", Ok(())),
            ("*.a", Err(Refusal::Taken)),
            (".b", Ok(())),
            ("b", Err(Refusal::Taken)),
            ("*.b", Err(Refusal::Taken)),
            ("*.c", Ok(())),
            (".c", Err(Refusal::Taken)),
            ("c", Ok(())),
            ("*.*", Err(Refusal::Invalid)),
        ] {
            assert_eq!(table.add(name, ()), expected, "{name}");
        }
        assert_eq!(table.add_exact("*.*", ()), Ok(()));
    }
}
