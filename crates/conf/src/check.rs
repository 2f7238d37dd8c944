//! Checks statements against the table: context, number of arguments, duplicates.
//!
//! [`Scope`] checks one statement at a time, for code that reads a typed configuration. [`check`] and [`visit`] walk a complete
//! tree: [`check`] returns the first error, [`visit`] reports on every statement. Values of arguments are checked by the module
//! of the directive.

use std::collections::HashSet;

use crate::error::{Error, ErrorKind, Level};
use crate::nginx::nginx_directives;
use crate::spec::{Args, Block, Contexts, Repeat, Spec, Support, Table};
use crate::tree::{Statement, Tree, Word};

/// State of checking one block: the directives seen so far.
#[derive(Debug)]
pub struct Scope<'t> {
    table: &'t Table,
    context: Contexts,
    seen: HashSet<&'static str>,
}

impl Table {
    /// Begins a block of this context; [`Contexts::MAIN`] for the top-level statements.
    pub fn scope(&self, context: Contexts) -> Scope<'_> {
        Scope { table: self, context, seen: HashSet::new() }
    }
}

impl Scope<'_> {
    /// Returns the context of this block.
    pub fn context(&self) -> Contexts {
        self.context
    }

    /// Returns the table row of this statement, or the error. It performs the checks of nginx before it calls the setter of the
    /// directive, and the check for duplicates, with which nginx's setters begin.
    ///
    /// Statements must be passed in order. For a statement that stands for unreadable text, the error of this text is
    /// returned.
    pub fn admit(&mut self, statement: &Statement) -> Result<&'static Spec, Error> {
        if let Some(fault) = statement.fault() {
            return Err(fault.clone());
        }
        let spec = match self.table.find(&statement.name.text, self.context) {
            Some(spec) => spec,
            None => return Err(self.absent(statement)),
        };
        self.check_form(statement, spec.args, spec.block != Block::No)?;
        if !self.seen.insert(spec.name) && spec.repeat == Repeat::Once {
            return Err(Error::new(ErrorKind::Duplicate(spec.name.to_owned()), statement));
        }
        Ok(spec)
    }

    /// Returns an argument that is probably the next directive, because the semicolon before it is missing: the first word of
    /// a later line that names a directive of this block and has arguments.
    pub fn swallowed<'s>(&self, statement: &'s Statement) -> Option<&'s Word> {
        let words: Vec<&Word> = std::iter::once(&statement.name).chain(&statement.args).collect();
        let is_directive = |before: &Word, word: &Word, after: &Word| {
            before.span.line < word.span.line
                && word.span.line == after.span.line
                && !word.quoted
                && self.table.find(&word.text, self.context).is_some()
        };
        words.windows(3).find(|three| is_directive(three[0], three[1], three[2])).map(|three| three[1])
    }

    fn check_form(&self, statement: &Statement, takes: Args, has_block: bool) -> Result<(), Error> {
        let name = || statement.name.text.clone();
        let given = statement.args.len();
        let kind = match (has_block, statement.block.is_some()) {
            (false, true) => ErrorKind::NotTerminated(name()),
            (true, false) => ErrorKind::NoOpening(name()),
            _ if !takes.allows(given) => {
                ErrorKind::ArgumentCount { name: name(), allowed: takes, found: given }
            }
            _ => return Ok(()),
        };
        let error = Error::new(kind, statement);
        Err(match surplus(statement, takes) {
            Some(advice) => error.advise(advice),
            None => error,
        })
    }

    /// Returns the reason why the table has no entry: not supported yet, not allowed here, or unknown.
    fn absent(&self, statement: &Statement) -> Error {
        let name = statement.name.text.as_str();
        if let Some(known) = self.table.not_supported(name, self.context) {
            // `include` is processed when the tree is read, so only a malformed `include` gets here.
            let fault = self.check_form(statement, known.args, known.has_block).err();
            let not_supported = ErrorKind::NotSupported { name: known.name, module: known.module };
            return fault.unwrap_or_else(|| Error::new(not_supported, statement));
        }
        let allowed = self.table.contexts_of(name);
        let kind = match allowed == Contexts::NONE {
            true => {
                let (similar, allowed) = self.table.similar(name, self.context);
                ErrorKind::Unknown { name: name.to_owned(), similar, allowed }
            }
            false => ErrorKind::NotAllowedHere { name: name.to_owned(), allowed },
        };
        Error::new(kind, statement)
    }

    /// Returns the kind of block of a refused statement, as far as its name determines it.
    fn block_of_refused(&self, statement: &Statement) -> Option<Block> {
        let name = statement.name.text.as_str();
        // The current context has precedence, because `server` has another meaning in `stream`.
        let here = self.table.find(name, self.context).map(|spec| spec.block);
        let of_nginx = || {
            let mut rows = nginx_directives().named(name);
            rows.find(|row| row.contexts.intersects(self.context)).map(|row| row.block(self.context))
        };
        let elsewhere = || self.table.named(name).first().map(|spec| spec.block);
        let elsewhere_in_nginx = || nginx_directives().named(name).next().map(|row| row.block(row.contexts));
        here.or_else(of_nginx).or_else(elsewhere).or_else(elsewhere_in_nginx)
    }
}

/// Result for a complete tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The first error in file order, where nginx stops too.
    pub error: Option<Error>,
    /// Directives that are accepted without effect, or that differ from nginx.
    pub notices: Vec<Error>,
}

/// Checks a tree, except the values of arguments.
pub fn check(tree: &Tree, table: &Table) -> Report {
    let mut report = Report::default();
    visit(tree, table, &mut |visit| match visit.verdict {
        CheckResult::Fault(error) => {
            report.error.get_or_insert(error);
        }
        CheckResult::Known(spec) => report.notices.extend(notice(visit.statement, spec)),
        CheckResult::Row | CheckResult::Unjudged => {}
    });
    report
}

/// One statement of a tree, as passed to a visitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit<'a> {
    /// The statement; its children follow.
    pub statement: &'a Statement,
    /// The context of the statement; [`Contexts::NONE`] for rows that are not directives.
    pub context: Contexts,
    /// Number of enclosing blocks.
    pub depth: usize,
    /// Result of checking the statement.
    pub verdict: CheckResult,
}

/// Result of checking a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// Accepted; [`Spec::state`] is the degree of support.
    Known(&'static Spec),
    /// Refused: the directive is unknown, not supported, not allowed here or malformed, or the text is unreadable.
    Fault(Error),
    /// A row in a block of rows.
    Row,
    /// Not checked, because the enclosing block belongs to an unknown directive.
    Unjudged,
}

/// Visits every statement in order, continuing after errors.
pub fn visit<'a>(tree: &'a Tree, table: &Table, visitor: &mut dyn FnMut(Visit<'a>)) {
    visit_statements(&tree.statements, table.scope(Contexts::MAIN), 0, visitor);
}

fn visit_statements<'a>(
    statements: &'a [Statement],
    mut scope: Scope<'_>,
    depth: usize,
    visitor: &mut dyn FnMut(Visit<'a>),
) {
    for statement in statements {
        let (verdict, block) = match scope.admit(statement) {
            Ok(spec) => (CheckResult::Known(spec), Some(spec.block)),
            Err(error) => (CheckResult::Fault(error), scope.block_of_refused(statement)),
        };
        visitor(Visit { statement, context: scope.context, depth, verdict });
        match block {
            Some(Block::Statements(inside)) => {
                visit_statements(statement.children(), scope.table.scope(inside), depth + 1, visitor);
            }
            Some(Block::Raw) => visit_rows(statement.children(), &CheckResult::Row, depth + 1, visitor),
            Some(Block::No) | None => {
                visit_rows(statement.children(), &CheckResult::Unjudged, depth + 1, visitor);
            }
        }
    }
}

fn visit_rows<'a>(
    rows: &'a [Statement],
    kind: &CheckResult,
    depth: usize,
    visitor: &mut dyn FnMut(Visit<'a>),
) {
    for statement in rows {
        let verdict = match (statement.fault(), kind) {
            (None, CheckResult::Unjudged) => CheckResult::Unjudged,
            _ => statement.as_row().map_or_else(CheckResult::Fault, |_| CheckResult::Row),
        };
        visitor(Visit { statement, context: Contexts::NONE, depth, verdict });
        visit_rows(statement.children(), &CheckResult::Unjudged, depth + 1, visitor);
    }
}

/// Returns the hint for too many arguments, which are probably a single value with unquoted spaces.
fn surplus(statement: &Statement, takes: Args) -> Option<String> {
    let max = usize::from(takes.range().1?);
    let (from, args) = (max.checked_sub(1)?, &statement.args);
    // Arguments on several lines indicate a missing semicolon instead.
    let is_one_line = args.iter().all(|word| word.span.line == statement.name.span.line);
    if args.len() <= max
        || !is_one_line
        || matches!(takes, Args::Flag)
        || args[from..].iter().any(|word| word.quoted)
    {
        return None;
    }
    let words: Vec<&str> = args[from..].iter().map(|word| word.text.as_str()).collect();
    let joined = words.join(" ");
    Some(match crate::value::probably(&joined) {
        Some(meant) => format!("did you mean \"{meant}\"?"),
        None => format!("for a single argument, write it in quotes: \"{joined}\""),
    })
}

/// Returns the notice for an accepted statement, if any.
fn notice(statement: &Statement, spec: &'static Spec) -> Option<Error> {
    let name = spec.name;
    let kind = match spec.state {
        Support::Honoured => return None,
        Support::Differs(how) => ErrorKind::Differs { name, how },
        Support::Accepted(why) | Support::Idle(why) => ErrorKind::NoEffect { name, why },
    };
    Some(Error::new(kind, statement).with_level(Level::Notice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MapLoader, Source, parse, value};

    const HTTP_LEVELS: Contexts = Contexts::HTTP.or(Contexts::SERVER).or(Contexts::LOCATION);
    const MASK: &[(&str, u64)] = &[("error", 1), ("timeout", 2)];

    static SPECS: [Spec; 8] = [
        Spec::new("event", "events", Contexts::MAIN, Args::None, "Engines.").block(Contexts::EVENTS),
        Spec::new("event", "accept_mutex", Contexts::EVENTS, Args::Flag, "Turns.")
            .state(Support::Accepted("there are no turns to take")),
        Spec::new("http", "http", Contexts::MAIN, Args::None, "HTTP.").block(Contexts::HTTP),
        Spec::new("http_core", "server", Contexts::HTTP, Args::None, "A site.")
            .block(Contexts::SERVER)
            .many(),
        Spec::new("http_core", "types", HTTP_LEVELS, Args::None, "Media types.").raw(),
        Spec::new("http_core", "root", HTTP_LEVELS, Args::Exactly(1), "A folder."),
        Spec::new("http_core", "output_buffers", HTTP_LEVELS, Args::Exactly(2), "Room."),
        Spec::new("http_proxy", "proxy_next_upstream", HTTP_LEVELS, Args::AtLeast(1), "When."),
    ];

    fn read(text: &str) -> Tree {
        let loader: MapLoader = [("/n.conf", text)].into_iter().collect();
        parse(&Source::new("/n.conf"), &loader).expect("the file is in the map")
    }

    fn first_error(text: &str) -> String {
        let report = check(&read(text), &Table::new(&[&SPECS]));
        report.error.map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    #[cfg_attr(miri, ignore = "compares names with all of nginx's, which takes minutes")]
    fn hints_describe_the_remedy() {
        let cases = [
            ("http { rot a; }", "unknown directive \"rot\" in /n.conf:1; did you mean \"root\"?"),
            ("http { orot a; }", "unknown directive \"orot\" in /n.conf:1; did you mean \"root\"?"),
            ("http { gzpi on; }", "unknown directive \"gzpi\" in /n.conf:1; did you mean \"gzip\"?"),
            ("http { completely_else on; }", "unknown directive \"completely_else\" in /n.conf:1"),
            (
                "http { content_by_lua_block { if a then s = \"}\" end }\n}",
                "unknown directive \"content_by_lua_block\" in /n.conf:1; the third-party module http_lua has it \
                 (docs/third-party-modules.md)",
            ),
            ("evnets {}", "unknown directive \"evnets\" in /n.conf:1; did you mean \"events\"?"),
            (
                "http { gzip on; }",
                "\"gzip\" directive is not supported yet in /n.conf:1; nginx 1.31.5 has it in module http_gzip",
            ),
            (
                "http { geoip_country /a; }",
                "\"geoip_country\" directive is not supported in /n.conf:1; MaxMind no longer publishes its \
                 files: use geoip2 with an .mmdb file, or geo with networks",
            ),
            (
                "http { gzip on off; }",
                "invalid number of arguments in \"gzip\" directive in /n.conf:1; it takes 1 argument, not 2",
            ),
            (
                "gzip on;",
                "\"gzip\" directive is not allowed here in /n.conf:1; \
                 it is allowed in http, server, location, if in location",
            ),
            (
                "http { server { upstream a { } } }",
                "\"upstream\" directive is not allowed here in /n.conf:1; it is allowed in http, stream",
            ),
            (
                "http { root; }",
                "invalid number of arguments in \"root\" directive in /n.conf:1; it takes 1 argument, not 0",
            ),
            (
                "http { root /srv/my site; }",
                "invalid number of arguments in \"root\" directive in /n.conf:1; it takes 1 argument, not 2; for a \
                 single argument, write it in quotes: \"/srv/my site\"",
            ),
            (
                "http { root 10 MB; }",
                "invalid number of arguments in \"root\" directive in /n.conf:1; it takes 1 argument, not 2; did you mean \
                 \"10m\"?",
            ),
            (
                "http {\nserver {\nroot a; }",
                "unexpected end of file, expecting \"}\" in /n.conf:3; the block \"http\" of line 1 is not closed",
            ),
            (
                "http {\nserver {\nroot a;",
                "unexpected end of file, expecting \"}\" in /n.conf:3; the block \"server\" of line 2 is not closed",
            ),
            (
                "include none.conf;",
                "open() \"/none.conf\" failed (2: No such file or directory) in /n.conf:1; relative names start from \"/\", \
                 the directory of the main file",
            ),
            (
                "http { root a\nb; }",
                "invalid number of arguments in \"root\" directive in /n.conf:2; it takes 1 argument, not 2",
            ),
            (
                "http { root \"a;\n}",
                "unexpected end of file, expecting \";\" or \"}\" in /n.conf:2; the \" opened on line 1 is not closed",
            ),
            (
                "\u{feff}events {}",
                "unknown directive \"\u{feff}events\" in /n.conf:1; \
                 the file starts with a byte order mark: save it without this mark",
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(first_error(text), expected);
        }
    }

    #[test]
    fn a_name_may_have_another_meaning_in_another_context() {
        let expected = "\"server\" directive is not supported yet in /n.conf:1; nginx 1.31.5 has it in module stream_core";
        let tree = read("stream { server { } }");
        let mut errors = Vec::new();
        visit(&tree, &Table::new(&[&SPECS]), &mut |visit| {
            if let CheckResult::Fault(error) = visit.verdict {
                errors.push(error.to_string());
            }
        });
        assert_eq!(errors.last().map(String::as_str), Some(expected), "{errors:?}");
    }

    #[test]
    fn directives_inside_unsupported_blocks_are_not_checked() {
        let tree = read("stream { server { proxy_pass a; root b; } }");
        let mut errors = Vec::new();
        visit(&tree, &Table::new(&[&SPECS]), &mut |visit| {
            if let CheckResult::Fault(error) = visit.verdict {
                errors.push(error.kind().to_string());
            }
        });
        let not_supported = |name: &str| format!("\"{name}\" directive is not supported yet");
        let mut expected = ["stream", "server", "proxy_pass"].map(not_supported).to_vec();
        expected.push("\"root\" directive is not allowed here".to_owned());
        assert_eq!(errors, expected);
    }

    #[test]
    fn checking_continues_after_errors() {
        let text = "events { accept_mutex on; }\nfoo { root a; }\nhttp { root a; gzip on; root b;\n\
                    types { a/b c; d { e; } } map $a $b { f g; } root; root \"h\"i";
        let mut seen = Vec::new();
        visit(&read(text), &Table::new(&[&SPECS]), &mut |visit| {
            let verdict = match visit.verdict {
                CheckResult::Known(_) => "known",
                CheckResult::Row => "row",
                CheckResult::Unjudged => "unjudged",
                CheckResult::Fault(error) => match error.kind() {
                    ErrorKind::Unknown { .. } => "unknown",
                    ErrorKind::NotSupported { .. } => "not supported",
                    ErrorKind::Duplicate(_) => "duplicate",
                    ErrorKind::ArgumentCount { .. } => "count",
                    _ => "syntax",
                },
            };
            seen.push(format!("{}{} {verdict}", "-".repeat(visit.depth), visit.statement.name.text));
        });
        let expected = [
            "events known",
            "-accept_mutex known",
            "foo unknown",
            "-root unjudged",
            "http known",
            "-root known",
            "-gzip not supported",
            "-root duplicate",
            "-types known",
            "--a/b row",
            "--d syntax",
            "---e unjudged",
            "-map not supported",
            "--f row",
            "-root count",
            "- syntax",
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn directives_without_effect_cause_notices() {
        let report = check(&read("events { accept_mutex on; }"), &Table::new(&[&SPECS]));
        let notices: Vec<String> =
            report.notices.iter().map(|notice| format!("[{}] {notice}", notice.level())).collect();
        let expected =
            "[notice] \"accept_mutex\" directive has no effect in /n.conf:1; there are no turns to take";
        assert_eq!((report.error, notices), (None, vec![expected.to_owned()]));
    }

    /// Acts like the module of a directive: checks statements, reads values, and reports errors in nginx's order.
    #[test]
    fn values_are_read_from_valid_statements() {
        let text =
            "output_buffers 2 32k; proxy_next_upstream error\ntimeout error; root a; types {\na/b c;\n}";
        let tree = read(&format!("http {{ {text} }}"));
        let table = Table::new(&[&SPECS]);
        let mut scope = table.scope(Contexts::HTTP);
        let statements = tree.statements[0].children();
        let specs: Result<Vec<&Spec>, Error> =
            statements.iter().map(|statement| scope.admit(statement)).collect();
        assert_eq!(specs.map(|specs| specs.len()), Ok(4));

        assert_eq!(statements[0].buffers(), Ok((2, 32 << 10)));
        let mut warnings = Vec::new();
        assert_eq!(statements[1].bits(MASK, &mut warnings), Ok(3));
        let warnings: Vec<String> =
            warnings.iter().map(|warning| format!("[{}] {warning}", warning.level())).collect();
        assert_eq!(warnings, ["[warn] duplicate value \"error\" in /n.conf:2"]);
        assert_eq!((statements[2].arg(0), statements[2].span().line), (Some("a"), 2));
        assert_eq!((statements[3].span().line, statements[3].end.line), (2, 4));
        assert_eq!(statements[3].rows().filter_map(Result::ok).count(), 1);

        let errors = [
            (statements[2].value(0, value::size).map(drop), "\"root\" directive invalid value in /n.conf:2"),
            (
                statements[2].value(0, value::number).map(drop),
                "\"root\" directive invalid number in /n.conf:2; it must be a whole number",
            ),
            (
                statements[2].value(0, value::flag).map(drop),
                "invalid value \"a\" in \"root\" directive, it must be \"on\" or \"off\" in /n.conf:2",
            ),
            (
                statements[2].value(0, value::choice(MASK)).map(drop),
                "invalid value \"a\" in /n.conf:2; it must be one of error, timeout",
            ),
            (
                statements[0].value(0, value::number_in(4, 8)).map(drop),
                "value must be between 4 and 8 in /n.conf:1",
            ),
            (Err(Error::directive(&statements[2], "is odd")), "\"root\" directive is odd in /n.conf:2"),
        ];
        for (result, expected) in errors {
            assert_eq!(result.map_err(|error| error.to_string()), Err(expected.to_owned()));
        }
    }
}
