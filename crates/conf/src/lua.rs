//! Finds the end of a block of Lua code, such as `content_by_lua_block { … }` of the third-party module lua. Its braces, quotes
//! and comments are those of Lua.

/// Whether the block of a directive contains Lua code.
pub(crate) fn is_block(directive: &str) -> bool {
    directive.ends_with("_by_lua_block")
}

/// Returns the length of the code after the opening brace, including the closing brace. Returns `None` if the closing brace,
/// or the end of a string or comment, is missing.
pub(crate) fn block_len(code: &[u8]) -> Option<usize> {
    let mut depth = 1_usize;
    let mut at = 0;
    loop {
        let rest = &code[at..];
        at += match *rest.first()? {
            quote @ (b'"' | b'\'') => string_len(rest, quote)?,
            b'[' => match closing_bracket(rest) {
                Some(end) => len_to(rest, &end)?,
                None => 1,
            },
            b'-' if rest.starts_with(b"--") => match closing_bracket(&rest[2..]) {
                Some(end) => len_to(rest, &end)?,
                None => len_to(rest, b"\n")?,
            },
            b'{' => {
                depth += 1;
                1
            }
            b'}' if depth == 1 => return Some(at + 1),
            b'}' => {
                depth -= 1;
                1
            }
            _ => 1,
        };
    }
}

/// Returns the length of a string with its quotes.
fn string_len(text: &[u8], quote: u8) -> Option<usize> {
    let mut at = 1;
    loop {
        match *text.get(at)? {
            b'\\' => at += 2,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// Returns the bracket that closes a text in long brackets: `]==]` for `[==[`.
fn closing_bracket(text: &[u8]) -> Option<Vec<u8>> {
    let inside = text.strip_prefix(b"[")?;
    let level = inside.iter().take_while(|byte| **byte == b'=').count();
    (inside.get(level) == Some(&b'[')).then(|| [b"]", &inside[..level], b"]"].concat())
}

/// Returns the length up to and including `end`.
fn len_to(text: &[u8], end: &[u8]) -> Option<usize> {
    text.windows(end.len()).position(|found| found == end).map(|at| at + end.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_in_strings_and_comments_of_lua_do_not_close_the_block() {
        for code in [
            " }",
            " local t = { a = { 1 } } }",
            " ngx.say(\"}\\\"}\") }",
            " ngx.say('}\\\\') }",
            " -- it's }\n }",
            " --[[ } \n } ]] }",
            " x = [==[ } ]] } ]==] t[1] = 2 }",
        ] {
            assert_eq!(block_len(format!("{code} rest }}").as_bytes()), Some(code.len()), "{code}");
        }
    }

    #[test]
    fn an_unclosed_block_has_no_length() {
        for code in ["", " x", " { }", " '}", " '\\", " --[[ }", " -- }", " [[ }"] {
            assert_eq!(block_len(code.as_bytes()), None, "{code}");
        }
    }
}
