//! The master's part in requests of operators through the admin socket.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use conf::MapLoader;
use serde_json::{Value, json};

use super::process::{Stage, WorkerProcess};
use super::reload::replacement_reasons;
use super::{Cycle, Master, Phase};
use crate::admin::desk::{Desk, Watching};
use crate::admin::{Call, answer, pack, refuse};
use crate::control::message::ToWorker;
use crate::explain::{Explained, Query, explain};
use crate::log::Log;
use crate::places::Request;
use crate::site::{self, Files, Filter, Question};

impl Master {
    /// Handles the requests of operators.
    pub(super) fn serve_operators(&mut self) {
        for (call, socket) in self.desk.calls() {
            match call {
                Call::Log(filter) => {
                    if let Some(watching) = admit(&mut self.desk, filter, socket) {
                        self.workers.iter_mut().for_each(|worker| tell(worker, &watching));
                    }
                }
                // Like a reload, this reads all files again.
                Call::Diff => answer(&socket, &differences(&self.cycle, &self.request)),
                Call::Explain(query) => self.explain(&query, socket),
                Call::Drain(_) if self.phase == Phase::Ending || self.quit_at.is_some() => {
                    refuse(&socket, "the server is about to end");
                }
                Call::Drain(is_drained) => {
                    drain(&mut self.desk, is_drained, &self.cycle.log, &socket);
                    self.workers
                        .iter_mut()
                        .for_each(|worker| worker.tell(&ToWorker::Drain(is_drained), Vec::new()));
                }
            }
        }
    }

    /// Explains a request. If a cache is involved, the serving worker adds the state of the cache.
    fn explain(&mut self, query: &Query, socket: OwnedFd) {
        let Some((text, question)) = explained(&self.cycle, &self.request, query, &socket) else { return };
        match self.workers.iter_mut().find(|worker| worker.stage == Stage::Serving) {
            Some(worker) => worker.tell(&ToWorker::Explain(pack(&text, &question)), vec![Rc::new(socket)]),
            None => answer(&socket, &json!({ "ok": true, "text": text })),
        }
    }

    /// Opens the admin socket of the configuration in force. If this fails, the server continues with its present admin socket.
    pub(super) fn open_desk(&mut self) {
        let path = self.cycle.site.settings.admin_socket.as_deref();
        if let Err(message) = self.desk.listen(path, false) {
            self.cycle.log.emerg(message);
        }
    }

    /// Restores the name of the admin socket after the end of the new binary that had replaced it.
    pub(super) fn restore_desk(&mut self) {
        if let Err(message) = self.desk.restore() {
            self.cycle.log.alert(message);
        }
    }
}

/// Informs a new worker of the state that operators requested: watched requests, and draining.
pub(super) fn brief(desk: &Desk, worker: &mut WorkerProcess) {
    desk.watchers().iter().for_each(|watching| tell(worker, watching));
    if desk.is_drained {
        worker.tell(&ToWorker::Drain(true), Vec::new());
    }
}

/// Sets whether the server is drained, and responds with the previous state.
pub(super) fn drain(desk: &mut Desk, is_drained: bool, log: &Log, socket: &OwnedFd) {
    let was_drained = std::mem::replace(&mut desk.is_drained, is_drained);
    if was_drained != is_drained {
        log.notice(match is_drained {
            true => "drained by an operator: readiness checks fail, connections end with their next response",
            false => "no longer drained: readiness checks pass",
        });
    }
    answer(socket, &json!({ "ok": true, "was_drained": was_drained }));
}

/// Sends a worker a duplicate of the socket. The filter has already been checked.
fn tell(worker: &mut WorkerProcess, watching: &Watching) {
    worker.tell(&ToWorker::Watch(watching.filter.clone()), vec![Rc::clone(&watching.socket)]);
}

/// Adds a client that watches requests, or responds with an error.
pub(super) fn admit(desk: &mut Desk, filter: String, socket: OwnedFd) -> Option<Watching> {
    if let Err(error) = Filter::parse(&filter) {
        refuse(&socket, &error.to_string());
        return None;
    }
    let watching = Watching { filter, socket: Rc::new(socket) };
    match desk.watch(watching.clone()) {
        Ok(count) => {
            answer(&watching.socket, &json!({ "ok": true, "watchers": count }));
            Some(watching)
        }
        Err(message) => {
            refuse(&watching.socket, &message);
            None
        }
    }
}

/// Explains a request by the configuration in force. Sends the explanation if no cache is involved.
pub(super) fn explained(
    cycle: &Cycle,
    request: &Request,
    query: &Query,
    socket: &OwnedFd,
) -> Option<(String, Question)> {
    let files: MapLoader = cycle.site.files.iter().cloned().collect();
    let source = conf::Source::new(&request.main).with_globals(&request.globals);
    let tree = conf::parse(&source, &files).map_err(|error| error.to_string());
    match tree.and_then(|tree| explain(&cycle.site, &tree, query)) {
        Err(message) => refuse(socket, &message),
        Ok(Explained { text, question: Some(question) }) => return Some((text, question)),
        Ok(Explained { text, question: None }) => answer(socket, &json!({ "ok": true, "text": text })),
    }
    None
}

/// Returns the changes that a reload would make now. As for a reload, the master reads the files with its own permissions, which
/// other users may lack. The master's loop is blocked during this time.
pub(super) fn differences(cycle: &Cycle, request: &Request) -> Value {
    let site = match site::load(request, Files::Disk) {
        Ok(site) => site,
        Err(refused) => return json!({ "error": refused.message }),
    };
    json!({
        "ok": true,
        "file": request.main.display().to_string(),
        "generation": cycle.generation,
        "changes": site::changes(&cycle.site, &site, request),
        "replacement": replacement_reasons(cycle, &site),
    })
}
