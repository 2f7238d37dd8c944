//! Values of SSI: variables of a page and its includes, and text with variables.

use std::cell::RefMut;

use exchange::request::Request;
use site::extensions::Extensions;
use site::pattern::{self, Groups};
use telemetry::{ForLog, Level};

/// The state shared by a page and all its includes.
#[derive(Default)]
pub(super) struct Common {
    /// Variables by lower-case name.
    variables: Vec<(Vec<u8>, Vec<u8>)>,
    pub(super) blocks: Vec<Block>,
    /// The subject and the groups of the last match.
    captures: Option<(Vec<u8>, Groups)>,
    /// Total bytes of all values and blocks.
    used: usize,
}

/// Named text for `stub`.
#[derive(Default)]
pub(super) struct Block {
    pub(super) name: Vec<u8>,
    pub(super) text: Vec<u8>,
}

/// Maximum length of an evaluated text in bytes, which stops a page that keeps doubling a variable.
const TEXT_MAX: usize = 64 << 10;

/// Maximum bytes of all variables and blocks of one request: far more than pages need.
const COMMON_MAX: usize = 1 << 20;

/// A command has failed; the reason was logged.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failed;

/// Logs why a command fails.
pub(super) fn fail<T>(request: &Request, why: std::fmt::Arguments<'_>) -> Result<T, Failed> {
    request.log(Level::Error, why);
    Err(Failed)
}

/// Returns the state shared by the page and its includes.
pub(super) fn common(request: &Request) -> RefMut<'_, Common> {
    RefMut::map(request.shared.extensions.borrow_mut(), Extensions::get_or_default)
}

/// Appends the value of a variable: a group of the last match, a variable of the page, or a variable of the configuration.
pub(super) fn variable(request: &Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    let name = name.to_ascii_lowercase();
    let digit = matches!(name.as_slice(), [b'0'..=b'9']);
    if let Some(common) = request.shared.extensions.borrow().get::<Common>() {
        if let (true, Some((subject, groups))) = (digit, &common.captures)
            && let Some(span) = groups.spans.get(usize::from(name[0] - b'0'))
        {
            // A group that did not participate is empty.
            let (start, end) = span.unwrap_or_default();
            out.extend_from_slice(&subject[start..end]);
            return true;
        }
        if let Some((_, value)) = common.variables.iter().find(|(known, _)| *known == name) {
            out.extend_from_slice(value);
            return true;
        }
    }
    // Digits would be groups of the configuration's regular expressions, and are not supported here.
    let found = std::str::from_utf8(&name).ok().filter(|_| !digit);
    found
        .and_then(|name| request.config().http.registry.find(name))
        .is_some_and(|found| found.value(request, out))
}

/// Sets a variable of the page.
pub(super) fn set(request: &mut Request, name: &[u8], value: Vec<u8>) -> Result<(), Failed> {
    let name = name.to_ascii_lowercase();
    let mut common = common(request);
    let known = common.variables.iter().position(|(known, _)| *known == name);
    let before = known.map_or(0, |index| common.variables[index].1.len());
    // The replaced value no longer counts, so a page may change a variable any number of times.
    let added = if known.is_some() { value.len() } else { name.len() + value.len() };
    if common.used - before + added > COMMON_MAX {
        let name = name.for_log();
        return fail(request, format_args!("too many SSI variables and blocks, \"{name}\" is not set"));
    }
    common.used = common.used - before + added;
    match known {
        Some(index) => common.variables[index].1 = value,
        None => common.variables.push((name, value)),
    }
    Ok(())
}

/// Starts a block; returns its index.
pub(super) fn add_block(request: &mut Request, name: Vec<u8>) -> Result<usize, Failed> {
    let mut common = common(request);
    if common.used + name.len() > COMMON_MAX {
        return fail(request, format_args!("too many SSI variables and blocks"));
    }
    common.used += name.len().max(1);
    common.blocks.push(Block { name, text: Vec::new() });
    Ok(common.blocks.len() - 1)
}

/// Adds text to a block; text above the limit is dropped.
pub(super) fn add_to_block(request: &mut Request, block: usize, text: &[u8]) {
    let mut common = common(request);
    let text = &text[..text.len().min(COMMON_MAX - common.used.min(COMMON_MAX))];
    common.used += text.len();
    if let Some(block) = common.blocks.get_mut(block) {
        block.text.extend_from_slice(text);
    }
}

/// Returns the text with the values of its variables. A backslash before `\`, `'`, `"` and `$` is removed.
pub(super) fn evaluate(request: &Request, text: &[u8]) -> Result<Vec<u8>, Failed> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        match byte {
            b'\\' => {
                // A backslash at the end is dropped, as in nginx.
                let Some(&escaped) = text.get(at) else { break };
                if !matches!(escaped, b'\\' | b'\'' | b'"' | b'$') {
                    out.push(b'\\');
                }
                out.push(escaped);
                at += 1;
            }
            b'$' => {
                let (name, len) = variable_name(request, text, &text[at..])?;
                variable(request, name, &mut out);
                at += len;
            }
            byte => out.push(byte),
        }
        if out.len() > TEXT_MAX {
            return fail(request, format_args!("too long value of \"{}\"", text.for_log()));
        }
    }
    Ok(out)
}

/// Returns the name after a dollar sign, and its length including braces.
fn variable_name<'t>(request: &Request, text: &[u8], rest: &'t [u8]) -> Result<(&'t [u8], usize), Failed> {
    let braces = usize::from(rest.first() == Some(&b'{'));
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let name = &rest[braces..];
    let end = name.iter().position(|byte| !is_name(byte)).unwrap_or(name.len());
    let (name, behind) = name.split_at(end);
    if rest.len() == braces {
        return fail(request, format_args!("invalid variable name in \"{}\"", text.for_log()));
    }
    if braces == 1 && behind.first() != Some(&b'}') {
        let name = name.for_log();
        return fail(request, format_args!("the closing bracket in \"{name}\" variable is missing"));
    }
    if name.is_empty() {
        return fail(request, format_args!("invalid variable name in \"{}\"", text.for_log()));
    }
    Ok((name, end + 2 * braces))
}

/// Whether a pattern matches; stores its groups.
pub(super) fn matches(request: &mut Request, subject: Vec<u8>, pattern: &[u8]) -> Result<bool, Failed> {
    let groups = match pattern::search(pattern, &subject) {
        Ok(Some(groups)) => groups,
        Ok(None) => return Ok(false),
        Err(complaint) => return fail(request, format_args!("{complaint}")),
    };
    // Named groups become variables of the page, which remain after the next match.
    for (name, group) in &groups.names {
        let (start, end) = groups.spans.get(*group).copied().flatten().unwrap_or_default();
        set(request, name.as_bytes(), subject[start..end].to_vec())?;
    }
    common(request).captures = Some((subject, groups));
    Ok(true)
}
