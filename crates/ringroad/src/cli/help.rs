//! The texts of `-h`, `ringroad help` and each `--help`, generated from the table of the command line.

use std::fmt::Write;

use super::options::{COMMANDS, Command, HELP, LETTERS, LONG, Operand, Opt, Value};
use super::version;
use crate::paths::{DEFAULT_PREFIX, default_conf};

/// Maximum line length.
const WIDTH: usize = 79;

/// Maximum length of a usage line. It is longer than other lines, because an unwrapped usage line is easier to read.
const USE_WIDTH: usize = 88;

/// Returns the text of `-h`: nginx's form, and the commands.
pub(super) fn usage() -> String {
    let mut text = version::version_line();
    text.push_str(
        "Usage: ringroad [-?hvVtTq] [-s signal] [-p prefix]
                [-e filename] [-c filename] [-g directives]
       ringroad COMMAND [ARGUMENTS]

Options:
  -?,-h         : show this help and exit
",
    );
    for option in LETTERS.iter().filter(|option| !matches!(option.letter, Some('?' | 'h'))) {
        let name = format!("-{}{}", option.letter.unwrap_or_default(), value(option.value, " "));
        let _infallible = writeln!(text, "  {name:13} : {}{}", option.help, default_of(option));
    }
    for option in LONG {
        row(&mut text, &format!("--{}", option.long.unwrap_or_default()), option.help, 13, " : ");
    }
    text.push_str("\nCommands:\n");
    for command in COMMANDS {
        let _infallible = writeln!(text, "  {:13} : {}", command.name, command.summary);
    }
    text.push_str("\n\"ringroad COMMAND --help\" shows the arguments of a command.\n\n");
    text
}

/// Returns the default of an nginx option, for display after its help.
fn default_of(option: &Opt) -> String {
    match option.letter {
        Some('p') => format!(" (default: {DEFAULT_PREFIX})"),
        Some('e') => "\n                  (default: logs/error.log below the prefix)".to_owned(),
        Some('c') => format!(
            "\n                  (default: {},\n                  with -p: conf/nginx.conf below the prefix)",
            default_conf()
        ),
        _ => String::new(),
    }
}

/// Returns the text of `--help` of a command.
pub(super) fn help_text(command: &Command) -> String {
    let mut text = format!("{}\n\n", synopsis(command));
    for (number, paragraph) in command.about.split("\n\n").enumerate() {
        text.push_str(if number == 0 { "" } else { "\n" });
        wrap(&mut text, paragraph, 0);
    }
    text.push_str("\nOptions:\n");
    let options: Vec<(String, &str)> =
        command.options.iter().chain([&HELP]).map(|option| (names(option), option.help)).collect();
    let width = options.iter().map(|(names, _)| names.len()).max().unwrap_or(0);
    for (names, help) in &options {
        row(&mut text, names, help, width, "  ");
    }
    text.push_str("\nExit status:\n");
    for (status, meaning) in command.exits {
        let _infallible = writeln!(text, "  {status}  {meaning}");
    }
    if !command.exits.iter().any(|(status, _)| *status == 2) {
        text.push_str("  2  usage error\n");
    }
    text.push_str("\nExamples:\n");
    for example in command.examples {
        let _infallible = writeln!(text, "  ringroad {example}");
    }
    text
}

/// Returns the usage line, with its continuation indented below the command.
pub(super) fn synopsis(command: &Command) -> String {
    let mut text = format!("Usage: ringroad {}", command.name);
    let indent = text.len();
    let mut column = indent;
    let options = command.options.iter().map(|option| format!("[{}]", names(option)));
    for word in options.chain(command.operands.iter().map(shown_operand)) {
        if column + 1 + word.len() > USE_WIDTH {
            let _infallible = write!(text, "\n{:indent$}", "");
            column = indent;
        }
        column += 1 + word.len();
        let _infallible = write!(text, " {word}");
    }
    text
}

/// Returns an operand, in brackets if it is optional.
pub(super) fn shown_operand(operand: &Operand) -> String {
    if operand.needed { operand.name.to_owned() } else { format!("[{}]", operand.name) }
}

/// Returns all names of an option, and its value.
fn names(option: &Opt) -> String {
    let letter = option.letter.map(|letter| format!("-{letter}"));
    let long = option.long.map(|long| format!("--{long}"));
    let names: Vec<String> = letter.into_iter().chain(long).collect();
    format!("{}{}", names.join(", "), value(option.value, " "))
}

/// Returns the name of the value, for display after the name of its option.
fn value(value: Value, between: &str) -> String {
    match value {
        Value::No => String::new(),
        Value::Needed(name, _) => format!("{between}{name}"),
        Value::Optional(name, _) => format!("{between}[{name}]"),
    }
}

/// Appends a name with its help, which continues on indented lines.
fn row(text: &mut String, name: &str, help: &str, width: usize, between: &str) {
    let _infallible = write!(text, "  {name:width$}{between}");
    let indent = 2 + width.max(name.len()) + between.len();
    let mut wrapped = String::new();
    wrap(&mut wrapped, help, indent);
    text.push_str(wrapped.trim_start());
}

/// Wraps words to lines.
fn wrap(text: &mut String, words: &str, indent: usize) {
    let mut column = 0;
    for word in words.split_ascii_whitespace() {
        if column > 0 && column + 1 + word.chars().count() > WIDTH {
            text.push('\n');
            column = 0;
        }
        match column {
            0 => {
                let _infallible = write!(text, "{:indent$}{word}", "");
                column = indent + word.chars().count();
            }
            _ => {
                text.push(' ');
                text.push_str(word);
                column += 1 + word.chars().count();
            }
        }
    }
    text.push('\n');
}
