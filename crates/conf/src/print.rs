//! Output of configurations: the `-T` dump of the files, and a tree as text that parses to the same tree.

use std::fmt::{self, Write};

use crate::tree::{Statement, Tree, Word};

/// Returns the output of `-T`: each file once, in the order of reading, with its original bytes.
pub fn dump(tree: &Tree) -> Vec<u8> {
    let mut out = Vec::new();
    for file in tree.files.iter() {
        out.extend_from_slice(format!("# configuration file {}:\n", file.path.display()).as_bytes());
        out.extend_from_slice(&file.text);
        out.push(b'\n');
    }
    out
}

/// Formats the statements as text: one per line, blocks indented, faults omitted.
pub fn print(statements: &[Statement]) -> String {
    let mut out = String::new();
    write_statements(&mut out, statements, 0).expect("writing to a string cannot fail");
    out
}

fn write_statements(out: &mut String, statements: &[Statement], depth: usize) -> fmt::Result {
    for statement in statements.iter().filter(|statement| statement.fault.is_none()) {
        write!(out, "{:indent$}{}", "", statement.name, indent = 4 * depth)?;
        for word in &statement.args {
            write!(out, " {word}")?;
        }
        let Some(block) = &statement.block else {
            writeln!(out, ";")?;
            continue;
        };
        writeln!(out, " {{")?;
        write_statements(out, block, depth + 1)?;
        writeln!(out, "{:indent$}}}", "", indent = 4 * depth)?;
    }
    Ok(())
}

/// Formats the word as in a configuration: with quotes if it had quotes, or if it would be parsed differently without
/// them.
impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.quoted { write_quoted(f, &self.text) } else { Bare(&self.text).fmt(f) }
    }
}

/// A text that is formatted as one word of a configuration, with quotes only if it would be parsed differently without
/// them.
#[derive(Clone, Copy, Debug)]
pub struct Bare<'a>(pub &'a str);

impl fmt::Display for Bare<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_bare(self.0) { f.write_str(self.0) } else { write_quoted(f, self.0) }
    }
}

fn write_quoted(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_char('"')?;
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            f.write_char('\\')?;
        }
        f.write_char(character)?;
    }
    f.write_char('"')
}

fn is_bare(text: &str) -> bool {
    let is_plain = |character: char| !matches!(character, ' ' | '\t' | '\r' | '\n' | ';' | '{' | '\\');
    text.chars().all(is_plain) && !text.is_empty() && !text.starts_with(['}', '#', '"', '\''])
}
