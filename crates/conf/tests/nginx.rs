//! Compares with nginx's results for configurations: texts, order and lines of errors, and the dump.
//!
//! The expectations are part of this file, so the tests run anywhere. If nginx is installed (`/usr/sbin/nginx`, or the path in
//! `NGINX`), the same cases are also run with it, to verify the expectations.

use std::path::{Path, PathBuf};
use std::process::Command;

use conf::{Args, Contexts, MapLoader, Source, Spec, Support, Table, Tree};

const HTTP_LEVELS: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);
const IFS: Contexts = Contexts::SERVER_IF.or(Contexts::LOCATION_IF);
const RETURNS: Contexts = Contexts::SERVER.or(Contexts::LOCATION).or(IFS);

static SPECS: [Spec; 16] = [
    Spec::new("nginx", "user", Contexts::MAIN, Args::Between(1, 2), "Whose rights."),
    Spec::new("event", "events", Contexts::MAIN, Args::None, "Engines.").block(Contexts::EVENTS),
    Spec::new("event", "worker_connections", Contexts::EVENTS, Args::Exactly(1), "How many."),
    Spec::new("event", "accept_mutex", Contexts::EVENTS, Args::Flag, "Takes turns.")
        .state(Support::Accepted("every thread has its own queue")),
    Spec::new("http", "http", Contexts::MAIN, Args::None, "All of HTTP.").block(Contexts::HTTP),
    Spec::new("http_core", "server", Contexts::HTTP, Args::None, "One site.").block(Contexts::SERVER).many(),
    Spec::new(
        "http_core",
        "location",
        Contexts::SERVER.or(Contexts::LOCATION),
        Args::Between(1, 2),
        "Paths.",
    )
    .block(Contexts::LOCATION)
    .many(),
    Spec::new("http_core", "types", HTTP_LEVELS, Args::None, "Media types.").raw(),
    Spec::new("http_core", "root", HTTP_LEVELS.or(Contexts::LOCATION_IF), Args::Exactly(1), "Folder."),
    Spec::new("http_core", "sendfile", HTTP_LEVELS.or(Contexts::LOCATION_IF), Args::Flag, "Without copying."),
    Spec::new("http_core", "server_name", Contexts::SERVER, Args::AtLeast(1), "Names.").many(),
    Spec::new("http_index", "index", HTTP_LEVELS, Args::AtLeast(1), "File of a folder.").many(),
    Spec::new("http_rewrite", "if", Contexts::SERVER, Args::AtLeast(1), "If.")
        .block(Contexts::SERVER_IF)
        .many(),
    Spec::new("http_rewrite", "if", Contexts::LOCATION, Args::AtLeast(1), "If.")
        .block(Contexts::LOCATION_IF)
        .many(),
    Spec::new("http_rewrite", "return", RETURNS, Args::Between(1, 2), "Answers.").many(),
    Spec::new("ringroad", "http_strict", HTTP_LEVELS, Args::Flag, "Refuses doubtful requests."),
];

/// Stands for the directory of a case whose files are in memory.
const DIR: &str = "/folder";

/// A name, the main file, other files, and nginx's message after `[emerg] `; empty if it accepts the configuration. `DIR` stands
/// for the directory.
type Case = (&'static str, &'static [(&'static str, &'static str)], &'static str);

const CASES: &[Case] = &[
    // Words.
    ("bare_braces_in_words", &[("n.conf", "events {}\nhttp { server { return 200 a}#b; } }")], ""),
    (
        "variable_braces",
        &[("n.conf", "events {}\nhttp { server { return 200 a${host}b; return 200 ${host}; } }")],
        "",
    ),
    (
        "brace_after_plain_word",
        &[("n.conf", "events{}http{server{return 200 a{b}; } }")],
        r#"directive "return" is not terminated by ";" in DIR/n.conf:1"#,
    ),
    ("comment_only_at_word_start", &[("n.conf", "events {}\nhttp { root a#b; # \" } ;\n}")], ""),
    ("comment_within_statement", &[("n.conf", "events {}\nhttp { root # a\n b # ;\n ; }")], ""),
    ("crlf", &[("n.conf", "events {}\r\nhttp {\r\n root a;\r\n}\r\n")], ""),
    ("quoted_name", &[("n.conf", "\"events\" {}\nhttp { 'root' a; }")], ""),
    (
        "quoted_over_lines",
        &[("n.conf", "events {}\nhttp {\n root \"a\n b\" \n c;\n}")],
        r#"invalid number of arguments in "root" directive in DIR/n.conf:5"#,
    ),
    (
        "quote_then_bracket",
        &[("n.conf", "events {}\nhttp { server { if ($host = \"a\"){ return 403; } } }")],
        "",
    ),
    (
        "quote_then_letter",
        &[("n.conf", "events {}\nhttp { server { index \"a\"b; } }")],
        r#"unexpected "b" in DIR/n.conf:2"#,
    ),
    (
        "quote_then_quote",
        &[("n.conf", "events {}\nhttp { server { index \"a\"'b'; } }")],
        r#"unexpected "'" in DIR/n.conf:2"#,
    ),
    (
        "quote_then_comment",
        &[("n.conf", "events {}\nhttp { server { index \"a\"#b\n; } }")],
        r##"unexpected "#" in DIR/n.conf:2"##,
    ),
    ("escaped_space_and_semicolon", &[("n.conf", "events {}\nhttp { root a\\ b\\;c; }")], ""),
    ("escaped_quote", &[("n.conf", "events {}\nhttp { root \"a\\\"b\"; index 'a\\'b'; }")], ""),
    (
        "byte_order_mark",
        &[("n.conf", "\u{feff}events {}")],
        "unknown directive \"\u{feff}events\" in DIR/n.conf:1",
    ),
    ("empty_name", &[("n.conf", "events {}\n\"\" a;")], r#"unknown directive "" in DIR/n.conf:2"#),
    // Structure.
    (
        "end_in_statement",
        &[("n.conf", "events {}\nhttp {\n root a\n")],
        r#"unexpected end of file, expecting ";" or "}" in DIR/n.conf:4"#,
    ),
    (
        "end_in_word",
        &[("n.conf", "events {}\nhttp {\n root a")],
        r#"unexpected end of file, expecting ";" or "}" in DIR/n.conf:3"#,
    ),
    (
        "end_in_quote",
        &[("n.conf", "events {}\nhttp {\n root \"a;\n}\n")],
        r#"unexpected end of file, expecting ";" or "}" in DIR/n.conf:5"#,
    ),
    (
        "end_after_quote",
        &[("n.conf", "events {}\nhttp {\n root \"a\"")],
        r#"unexpected end of file, expecting ";" or "}" in DIR/n.conf:3"#,
    ),
    (
        "end_after_backslash",
        &[("n.conf", "events {}\nhttp {\n root \\")],
        r#"unexpected end of file, expecting ";" or "}" in DIR/n.conf:3"#,
    ),
    (
        "end_in_block",
        &[("n.conf", "events {}\nhttp {\n root a;\n")],
        r#"unexpected end of file, expecting "}" in DIR/n.conf:4"#,
    ),
    (
        "brace_within_statement",
        &[("n.conf", "events {}\nhttp {\n root a }\n}")],
        r#"unexpected "}" in DIR/n.conf:3"#,
    ),
    ("brace_too_many", &[("n.conf", "events {}}\n")], r#"unexpected "}" in DIR/n.conf:1"#),
    ("semicolon_alone", &[("n.conf", "events {};\n")], r#"unexpected ";" in DIR/n.conf:1"#),
    ("brace_alone", &[("n.conf", "events {}\n{")], r#"unexpected "{" in DIR/n.conf:2"#),
    // Directives.
    (
        "unknown_reports_the_last_line",
        &[("n.conf", "events {}\nfoo\nbar\n;\n")],
        r#"unknown directive "foo" in DIR/n.conf:4"#,
    ),
    (
        "names_are_case_sensitive",
        &[("n.conf", "events {}\nUser a;\n")],
        r#"unknown directive "User" in DIR/n.conf:2"#,
    ),
    (
        "not_here",
        &[("n.conf", "events {}\nhttp { location / {} }\n")],
        r#""location" directive is not allowed here in DIR/n.conf:2"#,
    ),
    (
        "not_here_before_form",
        &[("n.conf", "events {}\nhttp { worker_connections { } }\n")],
        r#""worker_connections" directive is not allowed here in DIR/n.conf:2"#,
    ),
    ("no_opening", &[("n.conf", "events ;\n")], r#"directive "events" has no opening "{" in DIR/n.conf:1"#),
    (
        "not_terminated",
        &[("n.conf", "events {}\nhttp { root a { } }\n")],
        r#"directive "root" is not terminated by ";" in DIR/n.conf:2"#,
    ),
    (
        "form_before_count",
        &[("n.conf", "events {}\nhttp { root a b\n{ } }\n")],
        r#"directive "root" is not terminated by ";" in DIR/n.conf:3"#,
    ),
    (
        "too_few",
        &[("n.conf", "events {}\nhttp { sendfile; }\n")],
        r#"invalid number of arguments in "sendfile" directive in DIR/n.conf:2"#,
    ),
    (
        "too_many",
        &[("n.conf", "events {}\nhttp { sendfile on off; }\n")],
        r#"invalid number of arguments in "sendfile" directive in DIR/n.conf:2"#,
    ),
    (
        "at_least_one",
        &[("n.conf", "events {}\nhttp { index; }\n")],
        r#"invalid number of arguments in "index" directive in DIR/n.conf:2"#,
    ),
    (
        "duplicate",
        &[("n.conf", "events {}\nhttp { root a;\n root b; }\n")],
        r#""root" directive is duplicate in DIR/n.conf:3"#,
    ),
    (
        "duplicate_block",
        &[("n.conf", "events {}\nevents {\n}\n")],
        r#""events" directive is duplicate in DIR/n.conf:2"#,
    ),
    ("twice_in_different_blocks", &[("n.conf", "events {}\nhttp { root a; server { root b; } }\n")], ""),
    (
        "servers_repeat",
        &[("n.conf", "events {}\nhttp { server { server_name a; } server { server_name b; } }\n")],
        "",
    ),
    // The first error of the file is reported, whatever its kind.
    (
        "unknown_before_syntax",
        &[("n.conf", "events {}\nfoo;\nhttp { root \"a\"b; }")],
        r#"unknown directive "foo" in DIR/n.conf:2"#,
    ),
    (
        "syntax_before_unknown",
        &[("n.conf", "events {}\nhttp { root \"a\"b; }\nfoo;")],
        r#"unexpected "b" in DIR/n.conf:2"#,
    ),
    (
        "block_head_before_its_content",
        &[("n.conf", "events {}\nfoo {\n root \"a\"b; }")],
        r#"unknown directive "foo" in DIR/n.conf:2"#,
    ),
    (
        "inner_before_later",
        &[("n.conf", "events {}\nhttp {\n foo;\n}\nbar;")],
        r#"unknown directive "foo" in DIR/n.conf:3"#,
    ),
    // Rows.
    ("rows", &[("n.conf", "events {}\nhttp { types { text/html html htm; 'a b' \"c\"; } }")], ""),
    (
        "block_in_rows",
        &[("n.conf", "events {}\nhttp { types {\n a/b c;\n x {\n } } }")],
        r#"unexpected "{" in DIR/n.conf:4"#,
    ),
    (
        "end_in_rows",
        &[("n.conf", "events {}\nhttp { types {\n a/b c;\n")],
        r#"unexpected end of file, expecting "}" in DIR/n.conf:4"#,
    ),
    (
        "include_in_rows",
        &[("n.conf", "events {}\nhttp { types {\n include t; } }"), ("t", "a/b c;\n\nx { }")],
        r#"unexpected "{" in DIR/t:3"#,
    ),
    // Includes.
    (
        "include",
        &[("n.conf", "include a; http { include DIR/b; }"), ("a", "events {}"), ("b", "root a;")],
        "",
    ),
    (
        "include_of_include",
        &[("n.conf", "include d/a;"), ("d/a", "\ninclude d/b;"), ("d/b", "events {}\n\nfoo;")],
        r#"unknown directive "foo" in DIR/d/b:3"#,
    ),
    (
        "include_missing",
        &[("n.conf", "events {}\nhttp {\n include\n nope; }")],
        r#"open() "DIR/nope" failed (2: No such file or directory) in DIR/n.conf:4"#,
    ),
    (
        "include_missing_after_unknown",
        &[("n.conf", "events {}\nfoo;\ninclude nope;")],
        r#"unknown directive "foo" in DIR/n.conf:2"#,
    ),
    ("include_pattern_without_match", &[("n.conf", "events {}\ninclude nope*; include d/*.conf;")], ""),
    (
        "include_pattern_in_order",
        &[
            ("n.conf", "events {}\ninclude d/*.conf;"),
            ("d/b.conf", "foo;"),
            ("d/a.conf", "bar;"),
            ("d/.c.conf", "baz;"),
            ("d/A.txt", "baz;"),
        ],
        r#"unknown directive "bar" in DIR/d/a.conf:1"#,
    ),
    (
        "include_pattern_sorts_by_bytes",
        &[("n.conf", "events {}\ninclude d/*/x;"), ("d/a/x", "foo;"), ("d/a-b/x", "bar;")],
        r#"unknown directive "bar" in DIR/d/a-b/x:1"#,
    ),
    (
        "include_pattern_set",
        &[("n.conf", "events {}\ninclude d/[b-c]?.conf;"), ("d/a1.conf", "foo;"), ("d/b1.conf", "bar;")],
        r#"unknown directive "bar" in DIR/d/b1.conf:1"#,
    ),
    (
        "include_ends_within_block",
        &[("n.conf", "events {}\nhttp { include a; }"), ("a", "root b; }")],
        r#"unexpected "}" in DIR/a:1"#,
    ),
    (
        "include_ends_within_statement",
        &[("n.conf", "events {}\nhttp { include a; }"), ("a", "root b")],
        r#"unexpected end of file, expecting ";" or "}" in DIR/a:1"#,
    ),
    (
        "include_opens_block",
        &[("n.conf", "events {}\nhttp { include a; }"), ("a", "server {\n")],
        r#"unexpected end of file, expecting "}" in DIR/a:2"#,
    ),
    (
        "include_two",
        &[("n.conf", "events {}\nhttp { include a b; }")],
        r#"invalid number of arguments in "include" directive in DIR/n.conf:2"#,
    ),
    (
        "include_block",
        &[("n.conf", "events {}\nhttp { include a {} }")],
        r#"directive "include" is not terminated by ";" in DIR/n.conf:2"#,
    ),
    (
        "include_twice",
        &[("n.conf", "events {}\nhttp { include a; server { include a; } }"), ("a", "root b;")],
        "",
    ),
    (
        "duplicate_by_include",
        &[("n.conf", "events {}\nhttp { root c; include a; }"), ("a", "root b;")],
        r#""root" directive is duplicate in DIR/a:1"#,
    ),
];

#[test]
fn messages_match_nginx() {
    let table = Table::new(&[&SPECS]);
    for (name, files, expected) in CASES {
        assert_eq!(error_of(&read(files, ""), &table), *expected, "{name}");
    }
}

#[test]
fn the_expected_messages_are_those_of_nginx() {
    let Some(nginx) = installed_nginx() else {
        return eprintln!("skipped: no nginx here");
    };
    for (name, files, expected) in CASES {
        let folder = Folder::with(name, files);
        let output = run(&nginx, folder.path(), "-t");
        if expected.is_empty() {
            assert!(output.contains("syntax is ok"), "{name}: {output}");
        } else {
            let wanted = format!(": {expected}\n").replace("DIR", &folder.path().display().to_string());
            assert!(output.contains(&wanted), "{name}: {output}\nexpected{wanted}");
        }
    }
}

#[test]
fn dumps_match_nginx() {
    let files = [
        ("n.conf", "events {} # \u{e9}\ninclude d/*.conf;\nhttp { include a; server { include a; } }"),
        ("a", "root b;\n\n"),
        ("d/2.conf", ""),
        ("d/1.conf", "# one\n"),
    ];
    let expected = "# configuration file DIR/n.conf:\nevents {} # \u{e9}\ninclude d/*.conf;\n\
         http { include a; server { include a; } }\n# configuration file DIR/d/1.conf:\n# one\n\n\
         # configuration file DIR/d/2.conf:\n\n# configuration file DIR/a:\nroot b;\n\n\n";
    assert_eq!(String::from_utf8_lossy(&conf::dump(&read(&files, ""))), expected.replace("DIR", DIR));
    if let Some(nginx) = installed_nginx() {
        let folder = Folder::with("dump", &files);
        let output = run(&nginx, folder.path(), "-T");
        assert!(output.ends_with(&expected.replace("DIR", &folder.path().display().to_string())), "{output}");
    }
}

#[test]
fn directives_of_option_g_are_first_and_have_no_line_numbers() {
    let table = Table::new(&[&SPECS]);
    let cases = [
        ("user a;", ""),
        ("foo bar;", r#"unknown directive "foo" in command line"#),
        ("user a", r#"unexpected end of parameter, expecting ";" in command line"#),
        ("user \"a", r#"unexpected end of parameter, expecting ";" in command line"#),
        ("events {}", "block directives are not supported in -g option in command line"),
        ("}", r#"unexpected "}" in command line"#),
    ];
    for (globals, expected) in cases {
        let tree = read(&[("n.conf", "events {}")], globals);
        assert_eq!(error_of(&tree, &table), expected, "{globals}");
    }
    let tree = read(&[("n.conf", "events {}\nuser b;")], "user a;");
    assert_eq!(error_of(&tree, &table), r#""user" directive is duplicate in DIR/n.conf:2"#);
}

#[test]
fn a_missing_main_file_is_reported_without_a_line() {
    let error = conf::parse(&Source::new("/x/n.conf"), &MapLoader::default()).expect_err("there is no file");
    assert_eq!(error.to_string(), r#"open() "/x/n.conf" failed (2: No such file or directory)"#);
}

#[test]
fn a_default_applies_unless_the_main_context_has_the_directive() {
    let names = |files: &[(&str, &str)], globals: &str| {
        let loader: MapLoader = files.iter().map(|(path, text)| (Path::new(DIR).join(path), *text)).collect();
        let source = Source::new(Path::new(DIR).join("n.conf")).with_globals(globals);
        let tree = conf::parse(&source.with_defaults("error_log stderr; pid p;"), &loader);
        let statements = tree.expect("n.conf is there").statements;
        let name = |statement: &conf::Statement| {
            statement.texts().fold(statement.name.text.clone(), |all, text| all + " " + text)
        };
        statements.iter().map(name).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(names(&[("n.conf", "user u;")], ""), "error_log stderr, pid p, user u");
    assert_eq!(names(&[("n.conf", "user u; error_log e;")], ""), "pid p, user u, error_log e");
    assert_eq!(names(&[("n.conf", "http { error_log e; }")], ""), "error_log stderr, pid p, http");
    assert_eq!(names(&[("n.conf", "include i;"), ("i", "error_log e;")], ""), "pid p, error_log e");
    assert_eq!(names(&[("n.conf", "pid q;")], "error_log e;"), "error_log e, pid q");
}

/// Parses files in memory; the directory is [`DIR`].
fn read(files: &[(&str, &str)], globals: &str) -> Tree {
    let place = |(path, text): &(&str, &str)| (Path::new(DIR).join(path), text.replace("DIR", DIR));
    let loader: MapLoader = files.iter().map(place).collect();
    let main = Path::new(DIR).join("n.conf");
    conf::parse(&Source::new(main).with_globals(globals), &loader).expect("n.conf is there")
}

/// Returns the error of a tree without hints, which follow the location; empty if there is none.
fn error_of(tree: &Tree, table: &Table) -> String {
    let text = conf::check(tree, table).error.map(|error| error.to_string()).unwrap_or_default();
    let end = text.find(" in /").and_then(|place| Some(place + text[place..].find("; ")?));
    text[..end.unwrap_or(text.len())].replace(DIR, "DIR")
}

fn installed_nginx() -> Option<PathBuf> {
    // Miri cannot start programs.
    if cfg!(miri) {
        return None;
    }
    let path = std::env::var_os("NGINX").map_or(PathBuf::from("/usr/sbin/nginx"), PathBuf::from);
    path.exists().then_some(path)
}

fn run(nginx: &Path, folder: &Path, option: &str) -> String {
    let mut command = Command::new(nginx);
    command.arg(option).arg("-p").arg(folder).arg("-c").arg(folder.join("n.conf")).args(["-e", "stderr"]);
    let output = command.output().expect("nginx starts");
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// A temporary directory with the files of a case, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn with(name: &str, files: &[(&str, &str)]) -> Folder {
        let path = std::env::temp_dir().join(format!("conf-{}-{name}", std::process::id()));
        for (file, text) in files {
            let file = path.join(file);
            std::fs::create_dir_all(file.parent().expect("it is in the folder")).expect("the folder is new");
            let text = text.replace("DIR", &path.display().to_string());
            std::fs::write(file, text).expect("the folder is writable");
        }
        Folder(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A leftover temporary directory does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
