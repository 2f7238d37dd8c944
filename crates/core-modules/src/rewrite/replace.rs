//! `rewrite`: another URI, or a redirect, for a URI that matches.

use conf::Error;

use crate::rewrite::condition::find;
use crate::rewrite::{is_url, note};
use exchange::config::Cx;
use exchange::pattern::Pattern;
use exchange::phases::Step;
use exchange::request::Request;
use exchange::template::Template;
use telemetry::Level;

/// One directive.
#[derive(Debug)]
pub(super) struct Rewrite {
    pattern: Pattern,
    /// The pattern as it was written, for the log.
    text: Box<str>,
    /// The new path, or all of a redirect.
    path: Template,
    /// The new query, where the replacement has a question mark.
    args: Option<Template>,
    /// Whether the old query follows: it does without a question mark at the very end.
    keeps_args: bool,
    kind: Kind,
}

/// The use of the replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The URI from here on.
    Uri(After),
    /// A redirect with this status; whether its text has a question mark.
    Redirect(u16, bool),
}

/// The next step after a rewritten URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The next instruction, and behind the last one the search for a location.
    Next,
    /// The search for a location.
    Search,
    /// The request continues in its location.
    Stay,
}

/// The result of a rewrite.
pub(super) enum Outcome {
    /// Nothing: the URI does not match.
    None,
    /// The URI was replaced.
    Replaced(After),
    /// The request is over.
    End(Step),
}

impl Rewrite {
    /// Reads a pattern, a replacement, and perhaps a flag.
    pub(super) fn read(cx: &mut Cx<'_>) -> Result<Rewrite, Error> {
        let (text, replacement) = (cx.arg(0), cx.arg(1));
        if replacement.is_empty() {
            return Err(cx.error("empty replacement"));
        }
        let pattern = cx.pattern(text, false)?;
        let (source, keeps_args) = match replacement.strip_suffix('?') {
            Some(source) => (source, false),
            None => (replacement, true),
        };
        let to_client = Kind::Redirect(302, source.contains('?'));
        let flag = cx.statement.args.get(2).map(|word| word.text.as_str());
        let kind = match flag {
            None if is_url(source) => to_client,
            None => Kind::Uri(After::Next),
            // A URL stays a redirect, with any flag.
            Some("last" | "break") if is_url(source) => to_client,
            Some("last") => Kind::Uri(After::Search),
            Some("break") => Kind::Uri(After::Stay),
            Some("redirect") => to_client,
            Some("permanent") => Kind::Redirect(301, source.contains('?')),
            Some(flag) => return Err(cx.error(format_args!("invalid parameter \"{flag}\""))),
        };
        let (path, args) = match (kind, source.split_once('?')) {
            (Kind::Uri(_), Some((path, args))) => (cx.template(path)?, Some(cx.template(args)?)),
            _ => (cx.template(source)?, None),
        };
        Ok(Rewrite { pattern, text: text.into(), path, args, keeps_args, kind })
    }

    /// Replaces the URI of the request if it matches.
    pub(super) fn run(&self, request: &mut Request, log: bool) -> Outcome {
        let uri = std::mem::take(&mut request.uri);
        let found = find(&self.pattern, &self.text, &uri, request, log);
        request.uri = uri;
        match found {
            Some(true) => {}
            Some(false) => return Outcome::None,
            None => return Outcome::End(Step::Status(500)),
        }
        // As in nginx: from here on the server itself has said where the request goes.
        request.internal = true;
        match self.kind {
            Kind::Redirect(status, has_question) => {
                request.response.location = Some(self.target(request, has_question, log));
                Outcome::End(Step::Status(status))
            }
            Kind::Uri(after) => {
                (request.uri, request.args) = self.uri_and_args(request);
                request.uri_replaced = true;
                let (uri, args) = (request.uri.escape_ascii(), request.args.escape_ascii());
                note(request, log, format_args!("rewritten data: \"{uri}\", args: \"{args}\""));
                if request.uri.is_empty() {
                    request.log(Level::Error, format_args!("the rewritten URI has a zero length"));
                    return Outcome::End(Step::Status(500));
                }
                request.uri_changed = after != After::Stay;
                request.left_location |= after == After::Stay;
                Outcome::Replaced(after)
            }
        }
    }

    /// The groups were decoded with the URI, so in a query they are encoded again; where the client had sent
    /// nothing that needed decoding they are as it sent them.
    fn uri_and_args(&self, request: &Request) -> (Vec<u8>, Vec<u8>) {
        let uri = self.path.rendered(request);
        let Some(template) = &self.args else {
            let args = if self.keeps_args { request.args.clone() } else { Vec::new() };
            return (uri, args);
        };
        let mut args = Vec::new();
        template.render_groups(request, request.was_encoded(), &mut args);
        if self.keeps_args && !request.args.is_empty() {
            args.push(b'&');
            args.extend_from_slice(&request.args);
        }
        (uri, args)
    }

    /// The `Location` of a redirect.
    fn target(&self, request: &Request, has_question: bool, log: bool) -> Vec<u8> {
        let mut text = Vec::new();
        self.path.render_groups(request, request.was_encoded(), &mut text);
        let mut target = Vec::with_capacity(text.len());
        http::uri::unescape_redirect(&text, &mut target);
        if self.keeps_args && !request.args.is_empty() {
            target.push(if has_question { b'&' } else { b'?' });
            target.extend_from_slice(&request.args);
        }
        note(request, log, format_args!("rewritten redirect: \"{}\"", target.escape_ascii()));
        target
    }
}
