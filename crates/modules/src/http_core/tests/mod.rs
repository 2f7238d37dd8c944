//! Tests of what the directives set, and of the tables that requests are matched against.

mod listen;
mod locations;
mod names;
mod settings;

use std::sync::Arc;

use crate::testing::loaded;
use exchange::config::Config;

/// A configuration with one server.
fn server(text: &str) -> Arc<Config> {
    loaded(&format!("server {{ {text} }}"))
}

/// Every directive of every module agrees with nginx about contexts, arguments and braces.
#[test]
fn the_tables_agree_with_nginx() {
    let table = crate::all().specs();
    let mut differences = conf::differences(table);
    // nginx reads `on` and `off` there too, and forgot to say so in its table.
    differences
        .retain(|difference| !difference.starts_with("http_uwsgi uwsgi_cache_background_update: takes"));
    assert_eq!(differences, Vec::<String>::new());
    let count = table.specs().count();
    assert!(count > 115, "{count} directives");
}

/// A directive is in the module that nginx has it in: `-V` tells tools by that name what is there.
#[test]
fn directives_are_in_their_modules() {
    for spec in crate::all().specs().specs() {
        let mut rows = conf::nginx_directives().iter().filter(|row| row.name == spec.name).peekable();
        let known = rows.peek().is_none() || rows.any(|row| row.module == spec.module);
        assert!(known || spec.module == "ringroad", "{} in {}", spec.name, spec.module);
    }
}

/// This server has all of nginx's HTTP core.
#[test]
fn nothing_is_missing_of_the_core() {
    let missing: Vec<&str> = conf::nginx_directives()
        .iter()
        .filter(|row| {
            matches!(row.module, "http_core" | "nginx" | "event" | "epoll" | "http_index" | "http_log")
        })
        .filter(|row| crate::all().specs().named(row.name).iter().all(|spec| spec.module != row.module))
        .map(|row| row.name)
        .collect();
    assert_eq!(missing, Vec::<&str>::new());
}
