//! Runtime changes of a group's servers. They last until the next configuration, unless the group has a `state` file.

use std::sync::Arc;

use super::address::Url;
use super::lines::{Accepts, Line, Source};
use super::table::Shape;
use super::{Group, PeerState};

/// New settings of a server; `None` leaves a setting unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerChange {
    /// `weight`
    pub weight: Option<i64>,
    /// `max_conns`
    pub max_conns: Option<u64>,
    /// `max_fails`
    pub max_fails: Option<u64>,
    /// `fail_timeout`, in seconds.
    pub fail_timeout: Option<i64>,
    /// `slow_start`, in milliseconds.
    pub slow_start_ms: Option<i64>,
    /// `down`
    pub down: Option<bool>,
    /// `drain`
    pub drain: Option<bool>,
    /// `backup`, for a new server.
    pub backup: Option<bool>,
}

/// Reason why a server cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddError {
    /// The address is a name, which would not be resolved.
    Name,
    /// The group already has this server.
    Duplicate,
    /// The group's method does not support a setting, so that the `state` file could not be read again.
    Unsupported,
}

impl ServerChange {
    fn apply(&self, line: &mut Line) {
        let ServerChange { weight, max_conns, max_fails, fail_timeout, slow_start_ms, down, drain, backup } =
            *self;
        line.weight = weight.unwrap_or(line.weight);
        line.max_conns = max_conns.unwrap_or(line.max_conns);
        line.max_fails = max_fails.unwrap_or(line.max_fails);
        line.fail_timeout = fail_timeout.unwrap_or(line.fail_timeout);
        line.slow_start_ms = slow_start_ms.unwrap_or(line.slow_start_ms);
        let is_down = down.unwrap_or(line.accepts == Accepts::Nothing);
        let is_drained = drain.unwrap_or(line.accepts == Accepts::Sessions);
        line.accepts = match () {
            () if is_down => Accepts::Nothing,
            () if is_drained => Accepts::Sessions,
            () => Accepts::All,
        };
        line.backup = backup.unwrap_or(line.backup);
    }
}

impl Group {
    /// Whether the group's method supports the changed settings.
    pub fn supports(&self, change: &ServerChange) -> bool {
        let needs_support = change.backup == Some(true) || change.slow_start_ms.is_some_and(|time| time > 0);
        !needs_support || self.method.takes_backup()
    }

    /// Changes the server with this ID, and other addresses of its directive. Requests in flight continue.
    pub fn change(&self, id: u32, change: &ServerChange) -> bool {
        self.with_lines(|lines, server| {
            let server = server(id)?;
            lines.iter_mut().filter(|line| line.text == server).for_each(|line| change.apply(line));
            Some(())
        })
        .is_some()
    }

    /// Removes the server with this ID, and other addresses of its directive. Requests in flight continue.
    pub fn remove(&self, id: u32) -> bool {
        self.with_lines(|lines, server| {
            let server = server(id)?;
            lines.retain(|line| line.text != server);
            Some(())
        })
        .is_some()
    }

    /// Adds a server with these settings.
    pub fn add(&self, text: &str, url: &Url, change: &ServerChange) -> Result<(), AddError> {
        if !self.supports(change) {
            return Err(AddError::Unsupported);
        }
        self.with_lines(|lines, _| {
            let mut line = Line::new(text, url);
            if !matches!(line.source, Source::Fixed(_)) {
                return Err(AddError::Name);
            }
            if lines.iter().any(|known| known.text == line.text) {
                return Err(AddError::Duplicate);
            }
            change.apply(&mut line);
            lines.push(line);
            Ok(())
        })
    }

    /// Returns the servers as directives, for the file of `state`.
    pub fn state_text(&self) -> String {
        let lines = self.state().lock().shape().lines;
        lines.iter().map(|line| format!("{line};\n")).collect()
    }

    /// Returns the server with this ID.
    pub fn peer(&self, id: u32) -> Option<PeerState> {
        self.peers(rt::now()).into_iter().find(|peer| peer.id == id)
    }

    /// Changes the lines; `change` gets a function that finds the text of a server's line by ID.
    fn with_lines<T>(&self, change: impl FnOnce(&mut Vec<Line>, &dyn Fn(u32) -> Option<Arc<str>>) -> T) -> T {
        let mut done = None;
        self.state().update(|state| {
            let peers = state.sets.iter().flat_map(|set| &set.peers);
            let texts: Vec<(u32, Arc<str>)> = peers.map(|peer| (peer.id, Arc::clone(&peer.line))).collect();
            let find = |id| texts.iter().find(|(known, _)| *known == id).map(|(_, text)| Arc::clone(text));
            let shape = state.shape();
            let mut lines = shape.lines.to_vec();
            done = Some(change(&mut lines, &find));
            state.reshape(Shape { lines: lines.into(), ..shape });
        });
        done.expect("the change was made")
    }
}
