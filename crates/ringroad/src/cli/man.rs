//! The manual page in mdoc(7), generated from the table of the command line.

use std::fmt::Write;

use super::options::{COMMANDS, Command, HELP, LETTERS, LONG, Opt, Value};
use crate::paths::{DEFAULT_CONF, DEFAULT_PREFIX};

/// Date on the page: the date of the last change to the texts of this file.
const DATE: &str = "November 30, 2026";

/// Returns the page.
pub(super) fn page() -> String {
    let mut page = format!(
        ".Dd {DATE}
.Dt RINGROAD 8
.Os
.Sh NAME
.Nm ringroad
.Nd HTTP server and caching reverse proxy that reads nginx configuration
.Sh SYNOPSIS
.Nm
.Op Fl ?hvVtTq
.Op Fl s Ar signal
.Op Fl p Ar prefix
.Op Fl e Ar filename
.Op Fl c Ar filename
.Op Fl g Ar directives
"
    );
    for command in COMMANDS {
        synopsis(&mut page, command);
    }
    page.push_str(
        ".Sh DESCRIPTION
.Nm
serves files and passes requests to upstreams, with and without a cache.
It reads nginx configuration and accepts nginx's options.
If the first argument has no dash, it is the name of a command.
.Pp
Options without a command:
.Bl -tag -width Ds
",
    );
    for option in LETTERS.iter().chain(LONG) {
        item(&mut page, option);
    }
    page.push_str(".El\n");
    for command in COMMANDS {
        description(&mut page, command);
    }
    ending(&mut page);
    page
}

/// Appends the sections after the commands.
fn ending(page: &mut String) {
    let _infallible = write!(
        page,
        ".Sh SIGNALS
.Bl -tag -width Ds
.It Dv TERM , INT
stop immediately.
.It Dv QUIT
stop after all requests are finished.
.It Dv HUP
reload the configuration.
.It Dv USR1
reopen the log files.
.El
.Sh FILES
.Bl -tag -width Ds
.It Pa {DEFAULT_CONF}
the configuration, unless
.Fl c
or
.Fl p
names another.
.It Pa {DEFAULT_PREFIX}
the prefix of relative paths.
.El
.Sh EXIT STATUS
0 for success and 1 for failure, as nginx.
2 for a usage error of a command: an unknown option, a missing argument, or
an option with a wrong value.
Usage errors of single-letter options have status 1, as in nginx.
.Sh SEE ALSO
.Lk https://nginx.org/en/docs/
"
    );
}

/// Appends the lines of a command in the synopsis.
fn synopsis(page: &mut String, command: &Command) {
    let _infallible = writeln!(page, ".Nm\n.Cm {}", command.name);
    for option in command.options {
        let _infallible = writeln!(page, ".Op {}", macros(option));
    }
    for operand in command.operands {
        let _infallible = match operand.needed {
            true => writeln!(page, ".Ar {}", operand.name),
            false => writeln!(page, ".Op Ar {}", operand.name),
        };
    }
}

/// Appends the section of a command.
fn description(page: &mut String, command: &Command) {
    let _infallible = writeln!(page, ".Ss ringroad {}", command.name);
    text(page, command.about);
    page.push_str(".Bl -tag -width Ds\n");
    for option in command.options.iter().chain([&HELP]) {
        item(page, option);
    }
    page.push_str(".El\n.Pp\nExit status:\n");
    for (index, (status, meaning)) in command.exits.iter().enumerate() {
        let end = if index + 1 == command.exits.len() { "." } else { ";" };
        let _infallible = writeln!(page, "{status}: {}{end}", escaped(meaning));
    }
    page.push_str(".Bd -literal -offset indent\n");
    for example in command.examples {
        let _infallible = writeln!(page, "ringroad {}", escaped(example));
    }
    page.push_str(".Ed\n");
}

/// Appends an option as a list item.
fn item(page: &mut String, option: &Opt) {
    let _infallible = writeln!(page, ".It {}", macros(option));
    text(page, option.help);
}

/// Returns an option as macros: `Fl w , Fl -write`.
fn macros(option: &Opt) -> String {
    let letter = option.letter.map(|letter| format!("Fl {letter}"));
    let long = option.long.map(|long| format!("Fl -{}", escaped(long)));
    let names: Vec<String> = letter.into_iter().chain(long).collect();
    let value = match option.value {
        Value::No => String::new(),
        Value::Needed(name, _) => format!(" Ar {name}"),
        Value::Optional(name, _) => format!(" Op Ar {name}"),
    };
    format!("{}{value}", names.join(" , "))
}

/// Appends text; each sentence begins a new line, as mdoc requires, and lines are wrapped.
fn text(page: &mut String, words: &str) {
    const WIDTH: usize = 78;
    let mut column = 0;
    let mut ends_sentence = false;
    for word in words.split_ascii_whitespace() {
        let word_here = escaped(word);
        if column > 0 && (ends_sentence || column + 1 + word_here.len() > WIDTH) {
            page.push('\n');
            column = 0;
        }
        if column > 0 {
            page.push(' ');
            column += 1;
        }
        page.push_str(&word_here);
        column += word_here.len();
        ends_sentence = word.ends_with('.');
    }
    page.push('\n');
}

/// Escapes text for the formatter: literal dashes, and no accidental control lines.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}
