//! The configuration language: [`conf`], from text to a tree and back.

use std::path::Path;

use conf::{Args, CheckResult, Contexts, FileId, MapLoader, Source, Spec, Statement, Table, Tree, value};

use super::take_byte;
use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "configuration",
    run,
    tokens: &[
        "a ",
        "b 1;",
        "c x y;",
        ";",
        "{",
        "}",
        "\"",
        "'",
        "\\",
        "$",
        "${x}",
        "#",
        "\n",
        "include x;",
        "include *;",
        "include y?;",
        "a {",
        "\u{e9}",
        "\0",
        "10m",
        "1h30m",
        "on",
        "events {",
        "[a-z]",
    ],
};

static SPECS: [Spec; 3] = [
    Spec::new("t", "a", Contexts::ANY, Args::Any, "Repeats.").block(Contexts::ANY).many(),
    Spec::new("t", "b", Contexts::ANY, Args::Between(1, 2), "Once."),
    Spec::new("t", "c", Contexts::ANY, Args::Any, "Rows.").raw(),
];

/// Parses three files cut from the bytes, checks and prints the tree, and parses the output again.
pub fn run(mut data: &[u8]) {
    let (first, second) = (take_byte(&mut data), take_byte(&mut data));
    let (main, rest) = data.split_at(data.len() * usize::from(first) / 255);
    let (x, y) = rest.split_at(rest.len() * usize::from(second) / 255);
    let loader: MapLoader = [("/d/n.conf", main), ("/d/x", x), ("/d/y1", y)].into_iter().collect();
    let source = Source::new("/d/n.conf");
    let tree = conf::parse(&source, &loader).expect("the main file exists");
    let table = Table::new(&[&SPECS]);
    let report = conf::check(&tree, &table);
    assert!(report.error.is_some() || tree.fault().is_none(), "a fault is not reported");
    assert!(!conf::dump(&tree).is_empty());
    let printed = conf::print(&tree.statements);
    let past = conf::parse_past_faults(&source, &loader).expect("the main file exists");
    conf::visit(&past, &table, &mut |visit| {
        if let CheckResult::Fault(error) = visit.verdict {
            assert!(conf::excerpt(&error, &past.files).is_none_or(|text| text.ends_with('\n')), "{error}");
        }
    });
    check_format(main);
    if tree.fault().is_none() {
        let again = read(printed.as_bytes());
        assert_eq!(shape(&again.statements), shape(&tree.statements), "{printed}");
        let from_bundle = conf::parse(&source, &MapLoader::from(&tree.files));
        assert_eq!(from_bundle.as_ref(), Ok(&tree), "the files that were read do not yield the same tree");
    }
    if let Ok(text) = std::str::from_utf8(main) {
        check_values(text);
    }
}

/// Checks that formatted text has the same meaning, and is not changed by formatting again.
fn check_format(text: &[u8]) {
    let file = || FileId::file(Path::new("/n.conf"));
    if let Ok(formatted) = conf::format(text, file()) {
        assert_eq!(conf::format(&formatted, file()).as_ref(), Ok(&formatted), "formatting is not idempotent");
        assert_eq!(
            shape(&read(&formatted).statements),
            shape(&read(text).statements),
            "formatting changes the meaning"
        );
    }
}

fn read(text: &[u8]) -> Tree {
    let loader: MapLoader = [("/n.conf", text)].into_iter().collect();
    conf::parse(&Source::new("/n.conf"), &loader).expect("the main file exists")
}

/// Returns the parts that printing preserves: words and blocks.
fn shape(statements: &[Statement]) -> Vec<(Vec<String>, Option<String>)> {
    let one = |statement: &Statement| {
        let words = std::iter::once(&statement.name).chain(&statement.args).map(|word| word.text.clone());
        (words.collect(), statement.block.as_deref().map(|block| format!("{:?}", shape(block))))
    };
    statements.iter().map(one).collect()
}

fn check_values(text: &str) {
    if let Ok(bytes) = value::size(text) {
        assert_eq!(value::offset(text), Ok(bytes));
    }
    if let (Ok(ms), Ok(s)) = (value::milliseconds(text), value::seconds(text)) {
        assert_eq!(Some(ms), s.checked_mul(1000), "{text:?}");
    }
    let _ = (value::number(text), value::flag(text));
    let (pattern, path) = text.split_once('/').unwrap_or((text, ""));
    let _ = conf::glob_matches(Path::new(pattern), Path::new(path));
}
