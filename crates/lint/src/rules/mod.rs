//! The rules. A file has the rules of one subject, each with its texts and its function.

mod access;
mod cache;
mod files;
mod headers;
mod limits;
mod locations;
mod logs;
mod patterns;
mod php;
mod proxy;
mod tls;

use crate::rule::Rule;

/// Returns all rules, in the order of docs/lint.md.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    let groups: [&'static [Rule]; 11] = [
        access::RULES,
        locations::RULES,
        headers::RULES,
        proxy::RULES,
        cache::RULES,
        php::RULES,
        files::RULES,
        patterns::RULES,
        limits::RULES,
        tls::RULES,
        logs::RULES,
    ];
    groups.into_iter().flatten()
}
