//! Executes the commands of a page while it is sent.

use http::uri::{Escape, escape, escape_html};

use crate::ssi::Conf;
use crate::ssi::parser::{Command, Element, PARAMETERS_MAX, Parser};
use crate::ssi::time::TimeFormat;
use crate::ssi::values::{self, Failed, fail};
use exchange::filter::{BodyFilter, Output};
use exchange::request::Request;
use exchange::subrequest::{self, Subrequest};
use telemetry::ForLog;
use transfer::coding::CodingError;

/// The text that replaces a failed command, unless the page sets another.
const MESSAGE: &[u8] = b"[an error occurred while processing the directive]";

/// Approximate maximum output bytes per push; a short command can have a long output.
const OUTPUT_MAX: usize = 64 << 10;

/// Maximum number of commands per push: each may compile a regular expression, while other requests wait.
const COMMANDS_MAX: usize = 4;

/// A page that is being sent.
pub(super) struct Page {
    parser: Parser,
    /// `ssi_silent_errors`
    silent: bool,
    /// Whether text and commands are output: not in a branch that was not chosen, nor in a block.
    output: bool,
    /// The block that text is added to.
    block: Option<usize>,
    branch: Branch,
    /// Whether a branch of the current `if` was chosen.
    chosen: bool,
    encoding: Encoding,
    message: Vec<u8>,
    /// The variable to be set to the response of a subrequest.
    waiting: Option<Vec<u8>>,
}

/// The branch of an `if` that a page is in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Branch {
    /// Not in an `if`.
    Outside,
    /// After `if` or `elif`.
    If,
    /// After `else`.
    Else,
}

/// The encoding of values by `echo`.
#[derive(Clone, Copy)]
enum Encoding {
    None,
    Url,
    Entity,
}

/// A kind of command: its name, and its parameters, each with whether it is required.
struct Kind {
    name: &'static str,
    parameters: &'static [(&'static str, bool)],
    /// The last branch in which it is allowed, for commands of an `if`.
    branch: Option<Branch>,
    run: fn(&mut Page, &mut Request, Values, &mut Output) -> Result<Next, Failed>,
}

/// Values of a command's parameters, in the order of its kind.
type Values = Vec<Option<Vec<u8>>>;

/// Whether the text after a command can be parsed now.
#[derive(PartialEq, Eq)]
enum Next {
    Continue,
    /// After the subrequest, because it may set variables used later.
    Wait,
}

// The commands, with the parameters that nginx accepts.
const KINDS: &[Kind] = &[
    // Inserts a response of this server.
    Kind {
        name: "include",
        parameters: &[("virtual", false), ("file", false), ("wait", false), ("set", false), ("stub", false)],
        branch: None,
        run: Page::include,
    },
    // Values may be from the request, so they are HTML-escaped unless the page sets another encoding.
    Kind {
        name: "echo",
        parameters: &[("var", true), ("default", false), ("encoding", false)],
        branch: None,
        run: Page::echo,
    },
    // Applies to the remaining page only, not to included pages.
    Kind {
        name: "config",
        parameters: &[("errmsg", false), ("timefmt", false)],
        branch: None,
        run: Page::config,
    },
    // The variable is valid in the page and in all its later includes.
    Kind { name: "set", parameters: &[("var", true), ("value", true)], branch: None, run: Page::set },
    // One level only, as in nginx: a nested `if` is an error in a chosen branch, and ignored elsewhere.
    Kind { name: "if", parameters: &[("expr", true)], branch: None, run: Page::begin_if },
    Kind { name: "elif", parameters: &[("expr", true)], branch: Some(Branch::If), run: Page::choose },
    Kind { name: "else", parameters: &[], branch: Some(Branch::If), run: Page::begin_else },
    Kind { name: "endif", parameters: &[], branch: Some(Branch::Else), run: Page::end_if },
    // Text that is stored for a `stub`.
    Kind { name: "block", parameters: &[("name", true)], branch: None, run: Page::begin_block },
    Kind { name: "endblock", parameters: &[], branch: None, run: Page::end_block },
];

impl BodyFilter for Page {
    fn push(&mut self, request: &mut Request, input: &[u8], out: &mut Output) -> Result<usize, CodingError> {
        let (mut used, mut commands) = (0, 0);
        while used < input.len() && commands < COMMANDS_MAX && out.bytes().len() < OUTPUT_MAX {
            let rest = &input[used..];
            let (count, found) = self.parser.next(rest);
            used += count;
            commands += usize::from(found == Element::Command);
            match found {
                Element::Nothing => {}
                Element::Text(range) => self.text(request, &rest[range], out),
                Element::Held(text) => self.text(request, text, out),
                Element::Fault(why) => request.log(telemetry::Level::Error, format_args!("{why}")),
                Element::Broken => self.complain(out),
                Element::Command => match self.command(request, out) {
                    Ok(Next::Continue) => {}
                    Ok(Next::Wait) => return Ok(used),
                    Err(Failed) => self.complain(out),
                },
            }
        }
        Ok(used)
    }

    fn finish(&mut self, request: &mut Request, out: &mut Output) -> Result<(), CodingError> {
        let held = self.parser.finish();
        self.text(request, held, out);
        Ok(())
    }

    fn captured(&mut self, request: &mut Request, status: u16, body: Vec<u8>) {
        let Some(name) = self.waiting.take() else { return };
        if status < 300 {
            // A value above the limit is only logged, because the command's position in the page has passed.
            let _ = values::set(request, &name, body);
        }
    }
}

impl Page {
    /// Creates the filter of a page, with the settings of its location.
    pub(super) fn new(conf: &Conf) -> Page {
        Page {
            parser: Parser::new(usize::try_from(conf.value_length).unwrap_or(usize::MAX)),
            silent: conf.silent_errors,
            output: true,
            block: None,
            branch: Branch::Outside,
            chosen: false,
            encoding: Encoding::Entity,
            message: MESSAGE.to_vec(),
            waiting: None,
        }
    }

    /// Outputs text, adds it to a block, or drops it.
    fn text(&self, request: &mut Request, text: &[u8], out: &mut Output) {
        match self.block {
            _ if self.output => out.extend(text),
            Some(block) => values::add_to_block(request, block, text),
            None => {}
        }
    }

    /// Outputs the message of a failed command.
    fn complain(&self, out: &mut Output) {
        if !self.silent {
            out.extend(&self.message);
        }
    }

    /// Checks the parsed command, and executes it.
    fn command(&mut self, request: &mut Request, out: &mut Output) -> Result<Next, Failed> {
        let command = self.parser.take_command();
        let name = command.name.for_log();
        let Some(kind) = KINDS.iter().find(|kind| kind.name.as_bytes() == command.name) else {
            return match self.output {
                true => fail(request, format_args!("invalid SSI command: \"{name}\"")),
                false => Ok(Next::Continue),
            };
        };
        if !self.output && kind.name != "endblock" {
            if let Some(block) = self.block {
                // The command is executed when the block is used.
                values::add_to_block(request, block, &command.to_text());
                return Ok(Next::Continue);
            }
            if kind.branch.is_none() {
                return Ok(Next::Continue);
            }
        }
        if kind.branch.is_some_and(|last| self.branch == Branch::Outside || self.branch > last) {
            return fail(request, format_args!("invalid context of SSI command: \"{name}\""));
        }
        let values = command.values(kind, request)?;
        (kind.run)(self, request, values, out)
    }

    /// Executes `include`. The parameters are checked in nginx's order, so that the first error is the same.
    fn include(&mut self, request: &mut Request, values: Values, out: &mut Output) -> Result<Next, Failed> {
        let [by_uri, by_file, wait, set, stub] = take(values);
        let text = match (by_uri, by_file) {
            (Some(uri), Some(file)) => {
                let (uri, file) = (uri.for_log(), file.for_log());
                let why = format_args!("inclusion may be either virtual=\"{uri}\" or file=\"{file}\"");
                return fail(request, why);
            }
            (None, None) => return fail(request, format_args!("no parameter in \"include\" SSI command")),
            (None, Some(file)) if wait.is_some() => {
                let file = file.for_log();
                return fail(request, format_args!("\"wait\" cannot be used with file=\"{file}\""));
            }
            (Some(text), None) | (None, Some(text)) => text,
        };
        if set.is_some() && stub.is_some() {
            let why = "\"set\" and \"stub\" cannot be used together in \"include\" SSI command";
            return fail(request, format_args!("{why}"));
        }
        let waits = match &wait {
            Some(wait) if wait.eq_ignore_ascii_case(b"yes") => true,
            Some(wait) if !wait.eq_ignore_ascii_case(b"no") => {
                let wait = wait.for_log();
                return fail(request, format_args!("invalid value \"{wait}\" in the \"wait\" parameter"));
            }
            _ => set.is_some(),
        };
        let uri = resolve_relative(request, &text, values::evaluate(request, &text)?);
        let Some((uri, args)) = subrequest::parse_uri(request, &uri) else { return Err(Failed) };
        let stub = stub.map(|name| find_block(request, &name)).transpose()?;
        if let Some(name) = &set {
            let mut value = Vec::new();
            // The variable exists from now on; the response sets its value.
            if !values::variable(request, name, &mut value) {
                values::set(request, name, Vec::new())?;
            }
        }
        if !subrequest::is_allowed(request, &uri) {
            return Err(Failed);
        }
        let capture = set.is_some();
        self.waiting = set;
        out.subrequest(Subrequest { uri, args, capture, stub, waits, ..Subrequest::default() });
        // Without `wait` the page continues, so that subrequests run concurrently.
        Ok(if waits { Next::Wait } else { Next::Continue })
    }

    /// Executes `echo`. An existing but empty value outputs nothing, not even the default.
    fn echo(&mut self, request: &mut Request, values: Values, out: &mut Output) -> Result<Next, Failed> {
        let [name, default, encoding] = take(values);
        let mut value = Vec::new();
        if !values::variable(request, &name.unwrap_or_default(), &mut value) {
            value = default.unwrap_or_else(|| b"(none)".to_vec());
        }
        if value.is_empty() {
            return Ok(Next::Continue);
        }
        // The encoding also applies to later `echo` commands. As in nginx, a command without a value does not set it.
        match encoding.as_deref() {
            None => {}
            Some(b"none") => self.encoding = Encoding::None,
            Some(b"url") => self.encoding = Encoding::Url,
            Some(b"entity") => self.encoding = Encoding::Entity,
            Some(other) => {
                let other = other.for_log();
                let why = format_args!("unknown encoding \"{other}\" in the \"echo\" command");
                request.log(telemetry::Level::Error, why);
            }
        }
        match self.encoding {
            Encoding::None => out.extend(&value),
            Encoding::Url => escape(Escape::Html, &value, out.bytes()),
            Encoding::Entity => escape_html(&value, out.bytes()),
        }
        Ok(Next::Continue)
    }

    /// Executes `config`. Date variables get the format from the request.
    fn config(&mut self, request: &mut Request, values: Values, _: &mut Output) -> Result<Next, Failed> {
        let [message, format] = take(values);
        if let Some(format) = format {
            request.extensions.insert(TimeFormat(String::from_utf8_lossy(&format).into_owned()));
        }
        if let Some(message) = message {
            self.message = message;
        }
        Ok(Next::Continue)
    }

    /// Executes `set`. The value is evaluated now, so later changes of its variables do not affect it.
    fn set(&mut self, request: &mut Request, values: Values, _: &mut Output) -> Result<Next, Failed> {
        let [name, value] = take(values);
        let value = values::evaluate(request, &value.unwrap_or_default())?;
        values::set(request, &name.unwrap_or_default(), value)?;
        Ok(Next::Continue)
    }

    /// Executes `if`. An `if` within another is an error, as in nginx.
    fn begin_if(&mut self, request: &mut Request, values: Values, out: &mut Output) -> Result<Next, Failed> {
        if self.branch != Branch::Outside {
            return fail(request, format_args!("the \"if\" command inside the \"if\" command"));
        }
        self.choose(request, values, out)
    }

    /// Executes `if` and `elif`: chooses this branch if no earlier one was chosen and the expression is true.
    fn choose(&mut self, request: &mut Request, values: Values, _: &mut Output) -> Result<Next, Failed> {
        let [expression] = take(values);
        if self.chosen {
            self.output = false;
            return Ok(Next::Continue);
        }
        self.output = holds(request, &expression.unwrap_or_default())?;
        self.chosen = self.output;
        self.branch = Branch::If;
        Ok(Next::Continue)
    }

    /// Executes `else`: chooses it if no branch was chosen. Only text may follow up to `endif`.
    fn begin_else(&mut self, _: &mut Request, _: Values, _: &mut Output) -> Result<Next, Failed> {
        self.output = !self.chosen;
        self.branch = Branch::Else;
        Ok(Next::Continue)
    }

    /// Executes `endif`. After it, outside of an `if`, everything is output.
    fn end_if(&mut self, _: &mut Request, _: Values, _: &mut Output) -> Result<Next, Failed> {
        (self.output, self.chosen, self.branch) = (true, false, Branch::Outside);
        Ok(Next::Continue)
    }

    /// Executes `block`. Nothing is output from here on; commands are stored as written.
    fn begin_block(&mut self, request: &mut Request, values: Values, _: &mut Output) -> Result<Next, Failed> {
        let [name] = take(values);
        self.block = Some(values::add_block(request, name.unwrap_or_default())?);
        self.output = false;
        Ok(Next::Continue)
    }

    /// Executes `endblock`. As in nginx it also ends a branch that was not chosen, in an invalid page.
    fn end_block(&mut self, _: &mut Request, _: Values, _: &mut Output) -> Result<Next, Failed> {
        (self.output, self.block) = (true, None);
        Ok(Next::Continue)
    }
}

impl Command {
    /// Returns the values of the parameters of this kind of command.
    fn values(self, kind: &Kind, request: &Request) -> Result<Values, Failed> {
        let name = kind.name;
        if self.parameters.len() > PARAMETERS_MAX {
            return fail(request, format_args!("too many SSI command parameters: \"{name}\""));
        }
        // Each value has a fixed index, so that commands need not search.
        let mut values: Values = vec![None; kind.parameters.len()];
        for (parameter, value) in self.parameters {
            let shown = parameter.for_log();
            let index = kind.parameters.iter().position(|(known, _)| known.as_bytes() == parameter);
            let Some(index) = index else {
                return fail(
                    request,
                    format_args!("invalid parameter name: \"{shown}\" in \"{name}\" SSI command"),
                );
            };
            if values[index].replace(value).is_some() {
                let why = format_args!("duplicate \"{shown}\" parameter in \"{name}\" SSI command");
                return fail(request, why);
            }
        }
        let mut missing =
            kind.parameters.iter().zip(&values).filter(|((_, must), value)| *must && value.is_none());
        match missing.next() {
            Some(((parameter, _), _)) => {
                let why =
                    format_args!("mandatory \"{parameter}\" parameter is absent in \"{name}\" SSI command");
                fail(request, why)
            }
            None => Ok(values),
        }
    }

    /// Returns the command as text of a page.
    fn to_text(&self) -> Vec<u8> {
        let mut text = b"<!--#".to_vec();
        text.extend_from_slice(&self.name);
        for (name, value) in &self.parameters {
            text.push(b' ');
            text.extend_from_slice(name);
            text.extend_from_slice(b"=\"");
            text.extend_from_slice(value);
            text.push(b'"');
        }
        text.extend_from_slice(b" -->");
        text
    }
}

/// Returns the values of a command with N parameters.
fn take<const N: usize>(values: Values) -> [Option<Vec<u8>>; N] {
    values.try_into().expect("each kind has its number of parameters")
}

/// Returns the text of the block with this name.
fn find_block(request: &mut Request, name: &[u8]) -> Result<Vec<u8>, Failed> {
    let common = values::common(request);
    let found = common.blocks.iter().find(|block| block.name == name).map(|block| block.text.clone());
    drop(common);
    match found {
        Some(text) => Ok(text),
        None => {
            let name = name.for_log();
            fail(request, format_args!("\"stub\"=\"{name}\" for \"include\" not found"))
        }
    }
}

/// Completes a URI without a leading slash, which is relative to the page.
fn resolve_relative(request: &Request, text: &[u8], uri: Vec<u8>) -> Vec<u8> {
    let nothing = uri.is_empty() && text.contains(&b'$');
    if uri.first() == Some(&b'/') || nothing {
        return uri;
    }
    let directory_len = memchr::memrchr(b'/', &request.uri).map_or(0, |slash| slash + 1);
    [&request.uri[..directory_len], &uri].concat()
}

/// Whether an expression is true: `text`, `text = text`, `text != text`, `text = /pattern/`.
fn holds(request: &mut Request, expression: &[u8]) -> Result<bool, Failed> {
    let is_left = |byte: &u8| byte.is_ascii_alphanumeric() || b"${}_\"'".contains(byte);
    let end = expression.iter().position(|byte| !is_left(byte)).unwrap_or(expression.len());
    // nginx converts the left side to lower case, names and text alike.
    let left = values::evaluate(request, &expression[..end].to_ascii_lowercase())?;
    let skip = |text: &[u8]| text.iter().position(|&byte| byte != b' ').unwrap_or(text.len());
    let rest = &expression[end..];
    let rest = &rest[skip(rest)..];
    let (negative, rest) = match rest {
        [] => return Ok(!left.is_empty()),
        [b'=', rest @ ..] => (false, rest),
        [b'!', b'=', rest @ ..] => (true, rest),
        _ => return invalid(request, expression),
    };
    let holds = match &rest[skip(rest)..] {
        [b'/', pattern @ .., b'/'] => {
            let pattern = values::evaluate(request, pattern)?;
            values::matches(request, left, &pattern)?
        }
        [b'/', _, ..] => return invalid(request, expression),
        // A text that begins with a slash, but is no regular expression.
        [b'\\', text @ ..] if text.len() > 1 && text[0] == b'/' => left == values::evaluate(request, text)?,
        text => left == values::evaluate(request, text)?,
    };
    Ok(holds != negative)
}

/// Logs an invalid expression completely, so that its author can find it in the page.
fn invalid(request: &Request, expression: &[u8]) -> Result<bool, Failed> {
    fail(request, format_args!("invalid expression in \"{}\"", expression.for_log()))
}
