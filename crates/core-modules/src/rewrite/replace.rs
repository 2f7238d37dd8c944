//! Implements `rewrite`: another URI, or a redirect, for a URI that matches.

use conf::Error;

use crate::rewrite::condition::find;
use crate::rewrite::{is_url, note};
use exchange::phases::Step;
use exchange::request::Request;
use site::config::Cx;
use site::pattern::Pattern;
use site::template::Template;
use telemetry::{ForLog, Level};

/// One `rewrite` directive.
#[derive(Debug)]
pub(super) struct Rewrite {
    pattern: Pattern,
    /// The pattern as written, for the log.
    text: Box<str>,
    /// The new path, or the complete target of a redirect.
    path: Template,
    /// The new query, if the replacement has a question mark.
    args: Option<Template>,
    /// Whether the old query is appended: not if the replacement ends with a question mark.
    keeps_args: bool,
    kind: Kind,
}

/// The effect of the replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The replacement becomes the URI.
    Uri(After),
    /// A redirect with this status, and whether its text has a question mark.
    Redirect(u16, bool),
}

/// The next step after a rewritten URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The next instruction; after the last one the search for a location.
    Next,
    /// The search for a location.
    Search,
    /// The request continues in its location.
    Continue,
}

/// The result of a rewrite.
pub(super) enum RewriteResult {
    /// Nothing: the URI does not match.
    None,
    /// The URI was replaced.
    Replaced(After),
    /// The request is over.
    End(Step),
}

impl Rewrite {
    /// Parses a pattern, a replacement, and an optional flag.
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
            // A URL remains a redirect, with any flag.
            Some("last" | "break") if is_url(source) => to_client,
            Some("last") => Kind::Uri(After::Search),
            Some("break") => Kind::Uri(After::Continue),
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
    pub(super) fn run(&self, request: &mut Request, log: bool) -> RewriteResult {
        let uri = std::mem::take(&mut request.uri);
        let found = find(&self.pattern, &self.text, &uri, request, log);
        request.uri = uri;
        match found {
            Some(true) => {}
            Some(false) => return RewriteResult::None,
            None => return RewriteResult::End(Step::Status(500)),
        }
        // As in nginx the request is internal from here on.
        request.internal = true;
        match self.kind {
            Kind::Redirect(status, has_question) => {
                request.response.location = Some(self.target(request, has_question, log));
                RewriteResult::End(Step::Status(status))
            }
            Kind::Uri(after) => {
                (request.uri, request.args) = self.uri_and_args(request);
                request.uri_replaced = true;
                let (uri, args) = (request.uri.for_log(), request.args.for_log());
                note(request, log, format_args!("rewritten data: \"{uri}\", args: \"{args}\""));
                if request.uri.is_empty() {
                    request.log(Level::Error, format_args!("the rewritten URI has a zero length"));
                    return RewriteResult::End(Step::Status(500));
                }
                request.uri_changed = after != After::Continue;
                request.left_location |= after == After::Continue;
                RewriteResult::Replaced(after)
            }
        }
    }

    /// Returns the new URI and query. Groups were decoded with the URI, so they are encoded again in a query, unless
    /// the client's URI needed no decoding.
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

    /// Returns the `Location` of a redirect.
    fn target(&self, request: &Request, has_question: bool, log: bool) -> Vec<u8> {
        let mut text = Vec::new();
        self.path.render_groups(request, request.was_encoded(), &mut text);
        let mut target = Vec::with_capacity(text.len());
        http::uri::unescape_redirect(&text, &mut target);
        if self.keeps_args && !request.args.is_empty() {
            target.push(if has_question { b'&' } else { b'?' });
            target.extend_from_slice(&request.args);
        }
        note(request, log, format_args!("rewritten redirect: \"{}\"", target.for_log()));
        target
    }
}
