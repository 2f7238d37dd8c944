//! `server_name`: selects the server of a host.
//!
//! nginx's order: the exact name, the longest name with a leading wildcard, the longest name with a trailing wildcard,
//! the first regular expression that matches.

use std::sync::Arc;

use conf::{Error, Level, Span};

use crate::ids::ServerId;
use crate::pattern::{Match, Pattern, SearchAborted};
use crate::settings::listen::ListenAddr;
use crate::wildcard::{HostTable, Refusal};

/// One name of a server.
#[derive(Clone, Debug, Default)]
pub struct ServerName {
    /// The name in lower case, without the `~` of a regular expression.
    text: String,
    pattern: Option<Arc<Pattern>>,
    /// Position of the directive or of the server block, for messages.
    position: Option<Span>,
}

impl ServerName {
    /// Returns a server name: in lower case, or a regular expression and its text without the `~`.
    pub fn new(text: String, pattern: Option<Pattern>) -> ServerName {
        ServerName { text, pattern: pattern.map(Arc::new), position: None }
    }

    /// Returns the name with a position for messages.
    #[must_use]
    pub fn at(self, position: &Span) -> ServerName {
        ServerName { position: Some(position.clone()), ..self }
    }

    /// Returns the name in lower case, or the text of a regular expression without its `~`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the regular expression, if the name is one.
    pub fn pattern(&self) -> Option<&Arc<Pattern>> {
        self.pattern.as_ref()
    }

    /// Returns the name in the form of `$server_name`.
    pub fn shown(&self) -> String {
        match &self.pattern {
            Some(_) => format!("~{}", self.text),
            None => self.text.strip_prefix('.').unwrap_or(&self.text).to_owned(),
        }
    }
}

/// The names of the servers of one address.
#[derive(Debug, Default)]
pub struct NameTable {
    names: HostTable<ServerId>,
    patterns: Vec<(Arc<Pattern>, ServerId)>,
    /// Whether a name selects a server other than the default, so that a lookup is useful.
    decides: bool,
}

impl NameTable {
    /// Builds the table of these names. A duplicate name is omitted with a warning. With a single server (`!several`) the
    /// names select nothing, and as in nginx invalid and duplicate names are accepted.
    pub fn build(
        names: &[(&ServerName, ServerId)],
        default: ServerId,
        addr: &ListenAddr,
        several: bool,
        warnings: &mut Vec<Error>,
    ) -> Result<NameTable, Error> {
        let decides = names.iter().any(|(name, server)| *server != default || name.pattern.is_some());
        let mut table = NameTable { decides, ..NameTable::default() };
        for &(name, server) in names {
            let text = &name.text;
            if let Some(pattern) = &name.pattern {
                table.patterns.push((Arc::clone(pattern), server));
                continue;
            }
            match table.names.add(text, server) {
                Err(Refusal::Taken) if several => {
                    let message = format_args!("conflicting server name \"{text}\" on {addr}, ignored");
                    let position = name.position.as_ref();
                    warnings.push(Error::at_known(position, message).with_level(Level::Warn));
                }
                Err(Refusal::Invalid) if several => {
                    let message = format_args!("invalid server name or wildcard \"{text}\" on {addr}");
                    return Err(Error::at_known(name.position.as_ref(), message));
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(table)
    }

    /// Returns the server of a host, given in lower case and without port.
    pub fn find(&self, host: &[u8]) -> Result<Option<Named<'_>>, SearchAborted<'_>> {
        if self.decides { self.search(host) } else { Ok(None) }
    }

    /// Whether a host, given in lower case and without port, is one of the names of a server, also if the server is the default.
    pub fn is_name_of(&self, server: ServerId, host: &[u8]) -> bool {
        self.search(host).is_ok_and(|named| named.is_some_and(|named| named.server == server))
    }

    fn search(&self, host: &[u8]) -> Result<Option<Named<'_>>, SearchAborted<'_>> {
        if let Some(server) = self.names.find(host) {
            return Ok(Some(Named { server, matched: None }));
        }
        for (pattern, server) in &self.patterns {
            if let Some(matched) = pattern.find(host)? {
                return Ok(Some(Named { server: *server, matched: Some(matched) }));
            }
        }
        Ok(None)
    }
}

/// The server that a host belongs to.
#[derive(Debug)]
pub struct Named<'t> {
    /// The server that the name leads to.
    pub server: ServerId,
    /// The match of a regular expression; [`Match::store`] stores its groups in a request.
    pub matched: Option<Match<'t>>,
}
