//! Directives of a configuration as words, parsed and written without their meaning.

/// A directive, the start of a block, or the end of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Statement {
    /// The words as written, with their quotes.
    pub(super) words: Vec<String>,
    /// `;`, `{` or `}`.
    pub(super) end: char,
}

impl Statement {
    pub(super) fn new(words: &[&str], end: char) -> Statement {
        Statement { words: words.iter().map(|word| (*word).into()).collect(), end }
    }

    /// Returns a word without its quotes; empty if there are fewer words.
    pub(super) fn word(&self, index: usize) -> &str {
        let word = self.words.get(index).map_or("", String::as_str);
        let bare = |quote: char| word.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
        bare('"').or_else(|| bare('\'')).unwrap_or(word)
    }
}

/// Parses the statements of a text. Comments are omitted.
pub(super) fn parse(text: &str) -> Vec<Statement> {
    let (mut statements, mut words) = (Vec::new(), Vec::new());
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '#' => rest.find('\n').unwrap_or(rest.len()),
            ';' | '{' | '}' => {
                statements.push(Statement { words: std::mem::take(&mut words), end: first });
                1
            }
            _ => {
                let len = word_len(rest);
                words.push(rest[..len].to_string());
                len
            }
        };
        rest = rest[len..].trim_start();
    }
    statements
}

/// Returns the length in bytes of the word at the start.
fn word_len(text: &str) -> usize {
    let quote = text.chars().next().filter(|first| matches!(first, '"' | '\''));
    let (mut escaped, mut before) = (false, ' ');
    for (index, character) in text.char_indices() {
        let ends = match quote {
            Some(quote) => index > 0 && character == quote,
            None => character.is_whitespace() || character == ';' || (character == '{' && before != '$'),
        };
        if ends && !escaped {
            return index + usize::from(quote.is_some());
        }
        escaped = character == '\\' && !escaped;
        before = character;
    }
    text.len()
}

/// Formats statements, one per line.
pub(super) fn text(statements: &[Statement]) -> String {
    let line = |statement: &Statement| match statement.words.as_slice() {
        [] => format!("{}\n", statement.end),
        words => format!("{} {}\n", words.join(" "), statement.end).replace(" ;\n", ";\n"),
    };
    statements.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_end_as_in_nginx() {
        let source = "a 'b c;' ${d}e; # f\nmap $x $y { ~^\\;\\{z{2} \"1\"; }";
        let read = parse(source);
        assert_eq!(read[0], Statement::new(&["a", "'b c;'", "${d}e"], ';'));
        assert_eq!(read[0].word(1), "b c;");
        assert_eq!(read[1].end, '{');
        assert_eq!(read[2], Statement::new(&["~^\\;\\{z"], '{'));
        assert_eq!(text(&parse("a {b c;}")), "a {\nb c;\n}\n");
    }
}
