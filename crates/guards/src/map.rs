//! `map`: a variable whose value is looked up in a table, by the value of another text.
//!
//! Texts are looked up by hash and regular expressions are tried in order, at the first use of the variable in a request.

use std::collections::HashMap;

use conf::{Args, Contexts, Error, Spec, Statement, Support};

use crate::{Declaration, Directive, Module};
use exchange::module::compute;
use site::config::Cx;
use site::declaration::NO_HASH;
use site::pattern::Pattern;
use site::template::Template;
use site::var_ref::VarRef;
use site::variables::{Compute, HasVariables};
use site::wildcard::{HostTable, Refusal};

/// The module.
pub(crate) static MODULE: Module =
    Module::of(Declaration { directives: &[DIRECTIVES], ..Declaration::named("http_map") });

/// The same directives in `stream`.
pub(crate) static STREAM: Module = Module::of(Declaration {
    directives: &[DIRECTIVES],
    twin: Some(&[]),
    ..Declaration::named("stream_map")
});

const DIRECTIVES: &[Directive] = &[
    // The value is computed at its first use, so unused maps cost a request nothing.
    Directive::http(
        Spec::new(
            "http_map",
            "map",
            Contexts::HTTP,
            Args::Exactly(2),
            "Defines a variable by a table of texts and regular expressions, in which the value of a text is looked up.",
        )
        .raw()
        .many(),
        add_map,
    ),
    // Without effect. Their values are checked, so that errors are reported as in nginx.
    Directive::http(tuning("map_hash_bucket_size", "64").state(Support::Accepted(NO_HASH)), |cx| {
        cx.number(&mut 0)
    }),
    Directive::http(tuning("map_hash_max_size", "2048").state(Support::Accepted(NO_HASH)), |cx| {
        cx.number(&mut 0)
    }),
];

/// Returns the row of a hash table size of nginx, which has no effect here.
const fn tuning(name: &'static str, default: &'static str) -> Spec {
    let help = "Sizes one of nginx's hash tables.";
    Spec::new("http_map", name, Contexts::HTTP, Args::Exactly(1), help).default(default)
}

/// One `map` block.
#[derive(Debug)]
struct Map {
    /// The text to look up.
    source: Template,
    /// Indices in `values`, by lower-case text.
    texts: HostTable<u32>,
    /// Regular expressions with indices in `values`, in the order of the configuration.
    patterns: Vec<(Pattern, u32)>,
    /// The values without duplicates.
    values: Vec<Template>,
    /// The index of the default value; without it the value is empty.
    default: Option<u32>,
    /// Whether texts are host names, which may have wildcards and a trailing dot.
    hostnames: bool,
    /// Whether the value is computed at each use, because its source may change during a request.
    volatile: bool,
}

/// Parses a `map` block. Rows are read in order: as in nginx `hostnames` applies only to rows after it.
fn add_map(cx: &mut Cx<'_>) -> Result<(), Error> {
    let source = cx.template(cx.arg(0))?;
    let name = cx.variable_name(cx.arg(1))?;
    // Before the rows, so that an invalid name is reported with the line of the block.
    let slot = cx.http.registry.define_computed(name, cx.statement)?;
    let mut reader = Reader {
        map: Map {
            source,
            texts: HostTable::default(),
            patterns: Vec::new(),
            values: Vec::new(),
            default: None,
            hostnames: false,
            volatile: false,
        },
        known: HashMap::new(),
    };
    let statement = cx.statement;
    for row in statement.rows() {
        let row = row?;
        reader.row(row, &mut cx.at(row))?;
    }
    let mut map = reader.map;
    cx.http.registry.add_values(&VarRef::Slot(slot), map.values.iter().cloned());
    // Tables may have a million rows, and grow by doubling.
    map.values.shrink_to_fit();
    map.texts.shrink_to_fit();
    compute(cx.http, slot, map);
    Ok(())
}

/// A `map` block while its rows are parsed.
struct Reader<'a> {
    map: Map,
    /// Indices of values by their text: tables are long, but have few different values.
    known: HashMap<&'a str, u32>,
}

impl<'a> Reader<'a> {
    /// Parses a row. Keywords without a value are switches; the others are `default`, regular expressions, and texts.
    fn row(&mut self, row: &'a Statement, cx: &mut Cx<'_>) -> Result<(), Error> {
        let key = row.name.text.as_str();
        let value = match (key, row.args.as_slice()) {
            ("hostnames", []) => {
                self.map.hostnames = true;
                return Ok(());
            }
            ("volatile", []) => {
                self.map.volatile = true;
                return Ok(());
            }
            (_, [value]) => self.value(&value.text, cx)?,
            _ => return Err(cx.error("invalid number of the map parameters")),
        };
        // Two defaults would be ambiguous.
        if key == "default" {
            return match self.map.default.replace(value) {
                Some(_) => Err(cx.error("duplicate default map parameter")),
                None => Ok(()),
            };
        }
        if let Some(pattern) = key.strip_prefix('~') {
            // Tried after the texts and in order, so that regular expressions cannot conflict.
            let caseless = pattern.strip_prefix('*');
            let pattern = cx.pattern(caseless.unwrap_or(pattern), caseless.is_some())?;
            self.map.patterns.push((pattern, value));
            return Ok(());
        }
        // A text that begins like a regular expression, or equals a keyword, is escaped by a backslash.
        let text = key.strip_prefix('\\').unwrap_or(key);
        // Converted to lower case once here, so that a lookup converts only its argument.
        let lower = text.to_ascii_lowercase();
        let added = match self.map.hostnames {
            true => self.map.texts.add(&lower, value),
            false => self.map.texts.add_exact(&lower, value),
        };
        added.map_err(|refusal| match refusal {
            Refusal::Taken => cx.error(format_args!("conflicting parameter \"{lower}\"")),
            Refusal::Invalid => cx.error(format_args!("invalid hostname or wildcard \"{text}\"")),
        })
    }

    /// Returns the index of a value, which may be a text with variables.
    fn value(&mut self, text: &'a str, cx: &mut Cx<'_>) -> Result<u32, Error> {
        if let Some(&index) = self.known.get(text) {
            return Ok(index);
        }
        // Compiled once for all rows with this value.
        let index = self.map.values.len() as u32;
        self.map.values.push(cx.template(text)?);
        self.known.insert(text, index);
        Ok(index)
    }
}

impl Map {
    /// Returns the index of the value of `text`. The groups of a matching regular expression are stored in the request.
    fn find<R: HasVariables>(&self, text: &[u8], request: &R) -> Option<u32> {
        let index = match text.iter().any(u8::is_ascii_uppercase) {
            true => self.texts.find(&text.to_ascii_lowercase()),
            false => self.texts.find(text),
        };
        // As in nginx an empty text is not matched with regular expressions, even if they would match it.
        if index.is_some() || text.is_empty() {
            return index;
        }
        for (pattern, index) in &self.patterns {
            match pattern.find(text) {
                Ok(None) => {}
                Ok(Some(found)) => {
                    found.store(text, request);
                    return Some(*index);
                }
                // As in nginx, the default applies if PCRE aborts the search.
                Err(gave_up) => {
                    gave_up.log(text, request);
                    return None;
                }
            }
        }
        None
    }
}

impl<R: HasVariables> Compute<R> for Map {
    fn value(&self, request: &R, out: &mut Vec<u8>) -> bool {
        let mut text = self.source.rendered(request);
        // A trailing dot does not change a host name.
        if self.hostnames && text.last() == Some(&b'.') {
            text.pop();
        }
        let index = self.find(&text, request).or(self.default);
        if let Some(index) = index {
            debug_assert!((index as usize) < self.values.len(), "tables have only indices of values");
            self.values[index as usize].render(request, out);
        }
        // Without a matching row and without a default the value is empty, but exists.
        true
    }

    fn is_volatile(&self) -> bool {
        self.volatile
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{error, load_with, loaded};

    #[test]
    fn wrong_rows_are_refused_with_their_line() {
        for (rows, expected) in [
            ("a;", "invalid number of the map parameters"),
            ("a b c;", "invalid number of the map parameters"),
            ("hostnames x y;", "invalid number of the map parameters"),
            ("default a; default b;", "duplicate default map parameter"),
            ("a b; A c;", "conflicting parameter \"a\""),
            ("hostnames; .a b; a c;", "conflicting parameter \"a\""),
            ("hostnames; *.*.a b;", "invalid hostname or wildcard \"*.*.a\""),
            ("~( b;", "pcre2_compile() failed: missing closing parenthesis in \"(\""),
            ("~(?<uri>.) b;", "the duplicate \"uri\" variable"),
            ("a $nonexist;", "unknown \"nonexist\" variable"),
            ("a $;", "invalid variable name"),
            ("a { }", "unexpected \"{\""),
        ] {
            let found = error(&format!("http {{ map $uri $m {{\n{rows} }} }}"));
            assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{rows}");
        }
    }

    #[test]
    fn wrong_map_parameters_are_refused() {
        for (head, expected) in [
            ("$uri m", "invalid variable name \"m\""),
            ("$uri $", "invalid variable name \"$\""),
            ("$uri $host", "the duplicate \"host\" variable"),
            ("$nonexist $m", "unknown \"nonexist\" variable"),
            ("$ $m", "invalid variable name"),
        ] {
            let found = error(&format!("http {{\nmap {head} {{ }} }}"));
            assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{head}");
        }
        let variables = ["variables_hash_max_size", "variables_hash_bucket_size"];
        for name in ["map_hash_max_size", "map_hash_bucket_size"].into_iter().chain(variables) {
            let found = error(&format!("http {{\n{name} x; }}"));
            let wanted = format!("\"{name}\" directive invalid number in /conf/nginx.conf:2");
            assert_eq!(crate::testing::without_remedy(&found), wanted);
            loaded(&format!("{name} 64;"));
        }
    }

    #[test]
    fn rows_may_be_included_from_files() {
        let text = "http { map $uri $m { include rows; } }";
        load_with(text, &[("/conf/rows", "/a b;\ndefault $host;")]).expect("it is right");
        let found = load_with(text, &[("/conf/rows", "/a b;\n/A b;")]).map(|_| ());
        let found = found.expect_err("it is wrong").to_string();
        assert_eq!(found, "conflicting parameter \"/a\" in /conf/rows:2");
    }

    #[test]
    fn a_map_may_be_defined_after_its_use_and_twice() {
        loaded("log_format x $m; map $uri $m { } map $args $m { } map $m $limit_rate { }");
        loaded("map $a $b { default $b; } map $b $a { } server { set $a x; }");
    }
}
