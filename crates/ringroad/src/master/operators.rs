//! What the master does for operators that ask through the admin socket.

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
    /// Takes the calls of operators.
    pub(super) fn serve_operators(&mut self) {
        for (call, socket) in self.desk.calls() {
            match call {
                Call::Log(filter) => {
                    if let Some(watching) = admit(&mut self.desk, filter, socket) {
                        self.workers.iter_mut().for_each(|worker| tell(worker, &watching));
                    }
                }
                // As a reload, this reads all files again.
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

    /// Explains a request; where a cache is part of it, the worker that serves adds what it holds.
    fn explain(&mut self, query: &Query, socket: OwnedFd) {
        let Some((text, question)) = explained(&self.cycle, &self.request, query, &socket) else { return };
        match self.workers.iter_mut().find(|worker| worker.stage == Stage::Serving) {
            Some(worker) => worker.tell(&ToWorker::Explain(pack(&text, &question)), vec![Rc::new(socket)]),
            None => answer(&socket, &json!({ "ok": true, "text": text })),
        }
    }

    /// Opens the admin socket that the configuration in force names. The server goes on with the one that it has.
    pub(super) fn open_desk(&mut self) {
        let path = self.cycle.site.settings.admin_socket.as_deref();
        if let Err(message) = self.desk.listen(path, false) {
            self.cycle.log.emerg(message);
        }
    }

    /// The new binary that had taken the name of the socket has ended.
    pub(super) fn restore_desk(&mut self) {
        if let Err(message) = self.desk.restore() {
            self.cycle.log.alert(message);
        }
    }
}

/// Tells a worker that starts what operators have asked for: to see requests, and to have clients sent elsewhere.
pub(super) fn brief(desk: &Desk, worker: &mut WorkerProcess) {
    desk.watchers().iter().for_each(|watching| tell(worker, watching));
    if desk.is_drained {
        worker.tell(&ToWorker::Drain(true), Vec::new());
    }
}

/// Notes whether clients are sent elsewhere, and answers whether they were before.
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

/// The worker gets a copy of the socket; the filter was read before.
fn tell(worker: &mut WorkerProcess, watching: &Watching) {
    worker.tell(&ToWorker::Watch(watching.filter.clone()), vec![Rc::clone(&watching.socket)]);
}

/// Takes a client that wants to watch, or tells it why not.
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

/// An explanation by the configuration in force. It is sent where no cache has a part in it.
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

/// What a reload would change now. The files are read as for a reload: with the rights of the master, which other users may not
/// have, and while its loop waits.
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
