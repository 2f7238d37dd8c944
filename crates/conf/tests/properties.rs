//! Random configurations: no panic, printed trees parse to the same tree, and the files read suffice to read the tree again.

use std::path::Path;

use conf::{Args, Contexts, MapLoader, Source, Spec, Statement, Table, Tree, value};
use proptest::prelude::*;

static SPECS: [Spec; 3] = [
    Spec::new("t", "a", Contexts::ANY, Args::Any, "Repeats.").block(Contexts::ANY).many(),
    Spec::new("t", "b", Contexts::ANY, Args::Between(1, 2), "Once."),
    Spec::new("t", "c", Contexts::ANY, Args::Any, "Rows.").raw(),
];

/// Generates random text that is likely to reach edge cases: elements of the language in any order.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let pieces: Vec<&'static [u8]> = vec![
        b"a",
        b"b",
        b"c",
        b" ",
        b"\n",
        b"\r",
        b"\t",
        b";",
        b"{",
        b"}",
        b"\"",
        b"'",
        b"\\",
        b"$",
        b"#",
        b")",
        b"(",
        b"include ",
        b"include x;",
        b"include *;",
        b"include y*;",
        b"b 1;",
        b"a {",
        b"\xff",
        b"\xc3\xa9",
        b"\0",
    ];
    prop::collection::vec(prop::sample::select(pieces), 0..60).prop_map(|pieces| pieces.concat())
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[a-z]{1,3}",
        2 => "[ab${}#;\"'\\\\ \n\t\r)(é]{0,6}",
    ]
}

/// Generates quoted words, so that any text is valid.
fn head() -> impl Strategy<Value = String> {
    let quoted = word().prop_map(|word| format!("'{}'", word.replace('\\', "\\\\").replace('\'', "\\'")));
    prop::collection::vec(quoted, 1..4).prop_map(|words| words.join(" "))
}

/// Returns a statement as text, built without the printer under test.
fn statement() -> impl Strategy<Value = String> {
    let simple = head().prop_map(|head| format!("{head};"));
    simple.prop_recursive(4, 40, 5, move |inner| {
        let block = prop::collection::vec(inner, 0..5);
        (head(), block).prop_map(|(head, block)| format!("{head} {{ {} }}", block.concat()))
    })
}

fn read(text: impl Into<Vec<u8>>) -> Tree {
    let loader: MapLoader = [("/n.conf", text.into())].into_iter().collect();
    conf::parse(&Source::new("/n.conf"), &loader).expect("the main file is there")
}

/// Returns everything that printing preserves: words and blocks without lines. Quoted words stay quoted.
fn shape(statements: &[Statement]) -> Vec<(Vec<String>, Option<Vec<String>>)> {
    let one = |statement: &Statement| {
        let words = std::iter::once(&statement.name).chain(&statement.args).map(|word| word.text.clone());
        let block = statement.block.as_deref().map(|block| vec![format!("{:?}", shape(block))]);
        (words.collect(), block)
    };
    statements.iter().map(one).collect()
}

proptest! {
    #[test]
    fn random_input_is_parsed_checked_printed_and_dumped(main in noise(), x in noise(), y in noise(), globals in ".{0,20}") {
        let files = [("/d/n.conf", main), ("/d/x", x), ("/d/y1", y)];
        let loader: MapLoader = files.into_iter().collect();
        let source = Source::new("/d/n.conf").with_globals(globals);
        let tree = conf::parse(&source, &loader).expect("the main file is there");
        let table = Table::new(&[&SPECS]);

        let mut statements = 0;
        conf::visit(&tree, &table, &mut |_| statements += 1);
        let report = conf::check(&tree, &table);
        prop_assert!(report.error.is_some() || tree.fault().is_none(), "a fault always surfaces");
        prop_assert_eq!(statements == 0, tree.statements.is_empty());
        conf::dump(&tree);

        let printed = conf::print(&tree.statements);
        if tree.fault().is_none() {
            prop_assert_eq!(shape(&read(printed).statements), shape(&tree.statements));
            let from_bundle = conf::parse(&source, &MapLoader::from(&tree.files));
            prop_assert_eq!(from_bundle.as_ref(), Ok(&tree));
        }
    }

    #[test]
    fn printed_trees_are_parsed_unchanged(text in prop::collection::vec(statement(), 0..6).prop_map(|all| all.concat())) {
        let tree = read(text);
        // A generated statement may be an include, which the single file cannot resolve.
        prop_assume!(tree.fault().is_none());
        let again = read(conf::print(&tree.statements));
        prop_assert_eq!(shape(&again.statements), shape(&tree.statements));
        prop_assert_eq!(again.fault(), None);
    }

    #[test]
    fn quoting_preserves_every_text(text in word()) {
        let tree = read(format!("a \"{}\";", text.replace('\\', "\\\\").replace('"', "\\\"")));
        prop_assert_eq!(tree.statements[0].arg(0), Some(text.as_str()));
    }

    #[test]
    fn value_parsers_never_panic_and_agree(text in "[0-9yMwdhmsKkgG é]{0,24}", number in 0..1_000_000_u64) {
        let _ = (value::size(&text), value::number(&text), value::flag(&text));
        if let Ok(bytes) = value::size(&text) {
            prop_assert_eq!(value::offset(&text), Ok(bytes));
        }
        if let (Ok(ms), Ok(s)) = (value::milliseconds(&text), value::seconds(&text)) {
            prop_assert_eq!(ms, s * 1000);
        }
        prop_assert_eq!(value::seconds(&format!("{number}m")), Ok(number * 60));
    }

    #[test]
    fn patterns_never_panic(pattern in "[ab*?\\[\\]!^\\\\/.-]{0,16}", path in "[ab/.-]{0,16}") {
        conf::glob_matches(Path::new(&pattern), Path::new(&path));
        let literal = path.replace('\\', "");
        prop_assert!(conf::glob_matches(Path::new(&literal), Path::new(&literal)));
    }
}

#[test]
fn include_loops_and_deep_nesting_are_refused() {
    let cases = [
        ("include n.conf;".to_owned(), "\"/n.conf\" includes itself in /n.conf:1"),
        ("include *.conf;".to_owned(), "\"/n.conf\" includes itself in /n.conf:1"),
        ("include ./n.conf;".to_owned(), "\"/./n.conf\" includes itself in /n.conf:1"),
        ("a {\n".repeat(65), "blocks are nested deeper than 64 in /n.conf:65"),
        ("a \"\0\";".to_owned(), "unexpected byte 0x00 in /n.conf:1; a word cannot contain NUL"),
    ];
    for (text, expected) in cases {
        let fault = read(text).fault().expect("it ends early").to_string();
        assert!(fault.starts_with(expected), "{fault}");
    }
    let latin1 = read(b"# caf\xe9\na b; a\ncaf\xe9;".to_vec());
    let fault = latin1.fault().expect("the word is not UTF-8").to_string();
    assert_eq!(
        fault,
        "unexpected byte 0xe9 in /n.conf:3; words must be UTF-8, only comments may contain other bytes"
    );
    assert_eq!(latin1.statements.len(), 2, "what was read before stays");
    let chain = (1..=33).map(|n| (format!("/{n}.conf"), format!("include /{}.conf;", n + 1)));
    let tree = conf::parse(&Source::new("/1.conf"), &chain.collect::<MapLoader>());
    let fault = tree.expect("the main file is there").fault().expect("it ends early").to_string();
    assert_eq!(fault, "includes are nested deeper than 32 in /32.conf:1");
}
