//! Checks the packages that `cargo metadata` lists (linked, or used in a build): their licences, and that none is
//! banned.
//!
//! cargo-deny could do this, but building it takes three minutes of CPU time, and it fetches its database of advisories
//! over the network. So the gate has its own checks; `rules` checks the sources of dependencies in Cargo.lock.
//! Advisories are checked by `cargo deny check advisories` on a machine with cargo-deny.
//!
//! The licence of a manifest is an SPDX expression; it is acceptable if one choice of its `OR`s needs only licences in
//! [`ALLOWED`]. Licence files are not read. A package without an expression fails and must be checked manually.

use std::collections::BTreeMap;

use crate::metadata::Package;
use crate::{Failure, metadata};

/// The SPDX identifiers of licences that permit linking into a program under Apache-2.0 OR MIT, with attribution as the
/// only duty.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Zlib",
];

/// Packages that must not be dependencies, with the reason.
const BANNED: &[(&str, &str)] = &[
    ("async-std", "tasks run on rt"),
    ("bindgen", "it needs libclang in every build"),
    ("hyper", "HTTP messages are parsed by crate http"),
    ("mio", "readiness is reported by crate io"),
    ("native-tls", "TLS is rustls"),
    ("openssl", "TLS is rustls"),
    ("openssl-sys", "TLS is rustls"),
    ("tokio", "tasks run on rt"),
];

/// Packages that are allowed in several versions, because dependencies require different ones.
const IN_SEVERAL_VERSIONS: &[&str] =
    &["bit-vec", "crypto-common", "digest", "getrandom", "syn", "untrusted", "windows-sys"];

/// Fails with the name of each package without an acceptable licence.
pub(crate) fn check() -> Result<(), Failure> {
    let metadata = metadata::load()?;
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for package in &metadata.packages {
        *counts.entry(package.license.as_deref().unwrap_or("none")).or_default() += 1;
    }
    println!("licences of {} packages:", metadata.packages.len());
    for (expression, count) in counts {
        println!("  {count:4}  {expression}");
    }
    let mut problems: Vec<String> = metadata.packages.iter().filter_map(judge).collect();
    problems.extend(banned(&metadata.packages));
    Failure::unless_empty("licences", problems)
}

/// Returns the banned packages, and the packages in several versions.
fn banned(packages: &[Package]) -> Vec<String> {
    let mut problems = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Package { name, version, .. } in packages {
        versions.entry(name).or_default().push(version);
        if let Some((_, reason)) = BANNED.iter().find(|(banned, _)| banned == name) {
            problems.push(format!("{name} {version} is banned: {reason}"));
        }
    }
    for (name, versions) in versions {
        let is_tolerated = IN_SEVERAL_VERSIONS.contains(&name);
        if (versions.len() > 1) != is_tolerated {
            let versions = versions.join(", ");
            problems
                .push(format!("{name} {versions}: does not agree with IN_SEVERAL_VERSIONS in licences.rs"));
        }
    }
    problems
}

/// Returns the problem with a package's licence, if any.
fn judge(package: &Package) -> Option<String> {
    let (name, version) = (&package.name, &package.version);
    match package.license.as_deref().map(is_acceptable) {
        Some(Ok(true)) => None,
        Some(Ok(false)) => {
            let license = package.license.as_deref().unwrap_or_default();
            Some(format!("{name} {version}: licence {license:?} is not in ALLOWED in licences.rs"))
        }
        Some(Err(detail)) => Some(format!("{name} {version}: {detail}")),
        None => Some(format!("{name} {version}: the manifest names no licence")),
    }
}

/// Whether a choice within the expression needs only allowed licences. `/` is the deprecated form of `OR`.
fn is_acceptable(expression: &str) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = Words { words: spaced.split_whitespace().collect(), next: 0 };
    let outcome = words.any_of();
    match (outcome, words.peek()) {
        (Some(acceptable), None) => Ok(acceptable),
        _ => Err(format!("{expression:?} is not an SPDX expression")),
    }
}

/// A cursor over the words of an expression: `OR` has the lowest precedence, then `AND`, then `WITH`.
struct Words<'a> {
    words: Vec<&'a str>,
    next: usize,
}

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.next).copied()
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.peek() == Some(word);
        self.next += usize::from(found);
        found
    }

    fn any_of(&mut self) -> Option<bool> {
        let mut acceptable = self.all_of()?;
        while self.take("OR") {
            // Not `||`, because the words of the next choice must be parsed in any case.
            acceptable |= self.all_of()?;
        }
        Some(acceptable)
    }

    fn all_of(&mut self) -> Option<bool> {
        let mut acceptable = self.single()?;
        while self.take("AND") {
            acceptable &= self.single()?;
        }
        Some(acceptable)
    }

    fn single(&mut self) -> Option<bool> {
        if self.take("(") {
            let inner = self.any_of()?;
            return self.take(")").then_some(inner);
        }
        let identifier = self.peek().filter(|word| !matches!(*word, "OR" | "AND" | "WITH" | ")"))?;
        self.next += 1;
        if !self.take("WITH") {
            return Some(ALLOWED.contains(&identifier));
        }
        let exception = self.peek()?;
        self.next += 1;
        Some(ALLOWED.contains(&format!("{identifier} WITH {exception}").as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_evaluated() {
        for (expression, expected) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("GPL-3.0-only OR MIT", true),
            ("MIT AND GPL-3.0-only", false),
            ("MIT/Apache-2.0", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND MPL-2.0", false),
            ("MPL-2.0 AND MIT OR ISC", true),
            ("Apache-2.0 WITH LLVM-exception OR GPL-2.0-only", true),
            ("GPL-2.0-only WITH Classpath-exception-2.0", false),
        ] {
            assert_eq!(is_acceptable(expression), Ok(expected), "{expression}");
        }
    }

    #[test]
    fn invalid_expressions_are_refused() {
        for expression in ["", "MIT OR", "(MIT", "MIT Apache-2.0", "AND", "MIT WITH"] {
            assert!(is_acceptable(expression).is_err(), "{expression}");
        }
    }

    #[test]
    fn banned_and_duplicate_packages_are_reported() {
        let package = |name: &str, version: &str| Package {
            name: name.to_owned(),
            version: version.to_owned(),
            ..Package::default()
        };
        let found = banned(&[package("tokio", "1.0.0"), package("a", "1.0.0"), package("a", "2.0.0")]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("tokio 1.0.0 is banned"), "{found:?}");
        assert!(found[1].starts_with("a 1.0.0, 2.0.0: "), "{found:?}");
    }

    #[test]
    fn a_bad_package_is_reported() {
        let license = Some("AGPL-3.0-only".to_owned());
        let package =
            Package { name: "bad".to_owned(), version: "1.2.3".to_owned(), license, ..Package::default() };
        assert!(judge(&package).expect("it is refused").starts_with("bad 1.2.3: licence"));
        let silent = Package { name: "silent".to_owned(), ..Package::default() };
        assert!(judge(&silent).expect("it is refused").contains("names no licence"));
    }
}
