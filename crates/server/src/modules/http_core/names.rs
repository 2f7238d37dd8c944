//! `server_name`: which server a host belongs to.
//!
//! In nginx's order: the exact name, the longest name that starts with a wildcard, the longest that ends
//! with one, the first pattern that matches.

use std::collections::HashMap;
use std::sync::Arc;

use conf::{Error, Level};

use crate::config::{Cx, ServerId};
use crate::modules::http_core::listen::ListenAddr;
use crate::pattern::{Match, Pattern};

/// One name of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerName {
    /// In lower case, without the `~` of a pattern.
    text: String,
    pattern: Option<Arc<Pattern>>,
}

impl ServerName {
    /// Reads one argument of `server_name`.
    pub(crate) fn read(text: &str, cx: &mut Cx<'_>) -> Result<ServerName, Error> {
        let bare_wildcard = text.starts_with('*') && (text.len() < 3 || !text.starts_with("*."));
        if bare_wildcard || text == "." {
            return Err(cx.error(format_args!("server name \"{text}\" is invalid")));
        }
        if text.contains('/') {
            cx.warn(format_args!("server name \"{text}\" has suspicious symbols"));
        }
        if let Some(pattern) = text.strip_prefix('~') {
            if pattern.is_empty() {
                return Err(cx.error(format_args!("empty regex in server name \"{text}\"")));
            }
            // Hosts are compared in lower case; a pattern with capitals must not miss them.
            let caseless = pattern.bytes().any(|byte| byte.is_ascii_uppercase());
            let compiled = cx.pattern(pattern, caseless)?;
            return Ok(ServerName { text: pattern.to_owned(), pattern: Some(Arc::new(compiled)) });
        }
        let text = match text.eq_ignore_ascii_case("$hostname") {
            true => cx.http.hostname.clone(),
            false => text.to_ascii_lowercase(),
        };
        Ok(ServerName { text, pattern: None })
    }

    /// As `$server_name` has it.
    pub(crate) fn shown(&self) -> String {
        match &self.pattern {
            Some(_) => format!("~{}", self.text),
            None => self.text.strip_prefix('.').unwrap_or(&self.text).to_owned(),
        }
    }
}

/// The names of the servers behind one address.
#[derive(Debug, Default)]
pub(crate) struct NameTable {
    exact: HashMap<Box<[u8]>, ServerId>,
    /// `*.example.com` by `example.com`.
    heads: HashMap<Box<[u8]>, ServerId>,
    /// `www.example.*` by `www.example`.
    tails: HashMap<Box<[u8]>, ServerId>,
    patterns: Vec<(Arc<Pattern>, ServerId)>,
}

impl NameTable {
    /// The table of these names. Names that are taken already are left out with a warning. With a single
    /// server (`!several`) its names decide nothing, and nginx does not look at them closely.
    pub(crate) fn build(
        names: &[(&ServerName, ServerId)],
        addr: &ListenAddr,
        several: bool,
        warnings: &mut Vec<Error>,
    ) -> Result<NameTable, Error> {
        let mut table = NameTable::default();
        for &(name, server) in names {
            let text = &name.text;
            match (&name.pattern, Form::of(text)) {
                (Some(pattern), _) => table.patterns.push((Arc::clone(pattern), server)),
                (None, Some(form)) if table.add(form, server) => {}
                (None, Some(_)) => {
                    let message = format_args!("conflicting server name \"{text}\" on {addr}, ignored");
                    warnings.push(Error::nowhere(message).with_level(Level::Warn));
                }
                (None, None) if several => {
                    let message = format_args!("invalid server name or wildcard \"{text}\" on {addr}");
                    return Err(Error::nowhere(message));
                }
                (None, None) => {}
            }
        }
        Ok(table)
    }

    /// The server of a host, given in lower case and without port.
    pub(crate) fn find(&self, host: &[u8]) -> Option<Named<'_>> {
        if let Some(server) = self.find_text(host) {
            return Some(Named { server, matched: None });
        }
        self.patterns.iter().find_map(|(pattern, server)| {
            let matched = pattern.find(host)?;
            Some(Named { server: *server, matched: Some(matched) })
        })
    }

    /// Exact, then wildcards: longer ones first, so a suffix is tried from its longest form on.
    fn find_text(&self, host: &[u8]) -> Option<ServerId> {
        if let Some(&server) = self.exact.get(host) {
            return Some(server);
        }
        let dots = || host.iter().enumerate().filter(|(_, byte)| **byte == b'.').map(|(dot, _)| dot);
        if !self.heads.is_empty() {
            let mut suffixes = dots().filter(|&dot| dot > 0).map(|dot| &host[dot + 1..]);
            if let Some(&server) = suffixes.find_map(|suffix| self.heads.get(suffix)) {
                return Some(server);
            }
        }
        if self.tails.is_empty() {
            return None;
        }
        let mut beginnings = Vec::new();
        beginnings.extend(dots().filter(|&dot| dot > 0 && dot + 1 < host.len()).map(|dot| &host[..dot]));
        beginnings.iter().rev().find_map(|beginning| self.tails.get(*beginning).copied())
    }

    /// Adds a name; `false` when it is taken.
    fn add(&mut self, form: Form<'_>, server: ServerId) -> bool {
        let (map, text) = match form {
            Form::Exact(text) => (&mut self.exact, text),
            Form::Head(text) => (&mut self.heads, text),
            Form::Tail(text) => (&mut self.tails, text),
            Form::HeadAndExact(text) => {
                let taken =
                    self.exact.contains_key(text.as_bytes()) || self.heads.contains_key(text.as_bytes());
                if !taken {
                    self.exact.insert(text.as_bytes().into(), server);
                    self.heads.insert(text.as_bytes().into(), server);
                }
                return !taken;
            }
        };
        let taken = map.contains_key(text.as_bytes());
        if !taken {
            map.insert(text.as_bytes().into(), server);
        }
        !taken
    }
}

/// The server that a host belongs to.
#[derive(Debug)]
pub(crate) struct Named<'t> {
    pub(crate) server: ServerId,
    /// What a pattern matched; [`Match::store`] makes it known to a request.
    pub(crate) matched: Option<Match<'t>>,
}

/// What a name's wildcard says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form<'n> {
    Exact(&'n str),
    /// `*.x`
    Head(&'n str),
    /// `.x`
    HeadAndExact(&'n str),
    /// `x.*`
    Tail(&'n str),
}

impl Form<'_> {
    /// `None` for what is no name: two wildcards, one inside, or two dots in a row.
    fn of(text: &str) -> Option<Form<'_>> {
        let form = match text {
            _ if text.contains("..") => return None,
            _ if text.len() > 1 && text.starts_with('.') => Form::HeadAndExact(&text[1..]),
            _ if text.len() > 2 && text.starts_with("*.") => Form::Head(&text[2..]),
            _ if text.len() > 2 && text.ends_with(".*") => Form::Tail(&text[..text.len() - 2]),
            _ => Form::Exact(text),
        };
        let (Form::Exact(rest) | Form::Head(rest) | Form::HeadAndExact(rest) | Form::Tail(rest)) = form;
        (!rest.contains('*')).then_some(form)
    }
}
