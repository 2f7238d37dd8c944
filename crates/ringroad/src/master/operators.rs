//! Handles requests of operators through the admin socket, in the master.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use conf::MapLoader;
use serde_json::{Value, json};

use super::process::{Stage, WorkerProcess};
use super::reload::replacement_reasons;
use super::{Cycle, Master, Phase};
use crate::adapter::{self, EntryQuery, Files, Filter, Reread};
use crate::admin::server::{AdminServer, Watching};
use crate::admin::{Call, contained, pack, refuse, send_response};
use crate::contain::contain;
use crate::control::message::ToWorker;
use crate::explain::{Explained, Query, explain};
use crate::log::Log;
use crate::paths::Request;
use crate::restrict::Plan;

impl Master {
    /// Handles the requests of operators.
    pub(super) fn serve_operators(&mut self) {
        let workers = self.workers.iter().map(WorkerProcess::pid);
        let children: Vec<u32> = workers.chain(self.acme.id()).chain(self.signer.id()).collect();
        for (call, socket) in calls(&mut self.admin_server, &children, &self.cycle.log) {
            let log = self.cycle.log.clone();
            contained(&log, socket, |socket| self.serve_operator(call, socket));
        }
    }

    /// Handles one request of an operator.
    fn serve_operator(&mut self, call: Call, socket: OwnedFd) {
        match call {
            Call::Log(filter) => {
                if let Some(watching) = admit(&mut self.admin_server, filter, socket) {
                    self.workers.iter_mut().for_each(|worker| send_watcher(worker, &watching));
                }
            }
            // Like a reload, this reads all files again.
            Call::Diff => {
                send_response(&socket, &differences(&self.cycle, &self.request, self.plan()));
            }
            Call::Explain(query) => self.explain(&query, socket),
            Call::Drain(_) if self.phase == Phase::Ending || self.quit_at.is_some() => {
                refuse(&socket, "the server is shutting down");
            }
            Call::Drain(is_drained) => {
                drain(&mut self.admin_server, is_drained, &self.cycle.log, &socket);
                self.workers
                    .iter_mut()
                    .for_each(|worker| worker.send(&ToWorker::Drain(is_drained), Vec::new()));
            }
        }
    }

    /// Explains a request. If a cache is involved, the serving worker adds the state of the cache.
    fn explain(&mut self, query: &Query, socket: OwnedFd) {
        let Some((text, entry_query)) = explained(&self.cycle, &self.request, query, &socket) else { return };
        match self.workers.iter_mut().find(|worker| worker.stage == Stage::Serving) {
            Some(worker) => worker.send(&ToWorker::Explain(pack(&text, &entry_query)), vec![Rc::new(socket)]),
            None => send_response(&socket, &json!({ "ok": true, "text": text })),
        }
    }

    /// Opens the admin socket of the configuration in force. If this fails, the server continues with its present admin socket.
    pub(super) fn open_admin_server(&mut self) {
        let path = self.cycle.site.settings.admin_socket.as_deref();
        if let Err(message) = self.admin_server.listen(path, false) {
            self.cycle.log.emerg(message);
        }
    }

    /// Creates the admin socket again after the exit of the new binary, which had replaced the socket.
    pub(super) fn restore_admin_server(&mut self) {
        if let Err(message) = self.admin_server.restore() {
            self.cycle.log.alert(message);
        }
    }
}

/// Returns the received calls; none after a fault in their reception.
pub(super) fn calls(admin_server: &mut AdminServer, children: &[u32], log: &Log) -> Vec<(Call, OwnedFd)> {
    let received = contain("the reception of commands", || admin_server.calls(children));
    received.inspect_err(|fault| log.alert(fault)).unwrap_or_default()
}

/// Sends a new worker the state that operators have requested: the clients that watch requests, and draining.
pub(super) fn brief(admin_server: &AdminServer, worker: &mut WorkerProcess) {
    admin_server.watchers().iter().for_each(|watching| send_watcher(worker, watching));
    if admin_server.is_drained {
        worker.send(&ToWorker::Drain(true), Vec::new());
    }
}

/// Sets whether the server is drained, and responds with the previous state.
pub(super) fn drain(admin_server: &mut AdminServer, is_drained: bool, log: &Log, socket: &OwnedFd) {
    let was_drained = std::mem::replace(&mut admin_server.is_drained, is_drained);
    if was_drained != is_drained {
        log.notice(match is_drained {
            true => "drained by an operator: readiness checks fail, connections are closed after their next response",
            false => "no longer drained: readiness checks pass",
        });
    }
    send_response(socket, &json!({ "ok": true, "was_drained": was_drained }));
}

/// Sends a worker a duplicate of the socket. The filter has already been checked.
fn send_watcher(worker: &mut WorkerProcess, watching: &Watching) {
    worker.send(&ToWorker::Watch(watching.filter.clone()), vec![Rc::clone(&watching.socket)]);
}

/// Adds a client that watches requests, or responds with an error.
pub(super) fn admit(admin_server: &mut AdminServer, filter: String, socket: OwnedFd) -> Option<Watching> {
    if let Err(error) = Filter::parse(&filter) {
        refuse(&socket, &error.to_string());
        return None;
    }
    let watching = Watching { filter, socket: Rc::new(socket) };
    match admin_server.watch(watching.clone()) {
        Ok(count) => {
            send_response(&watching.socket, &json!({ "ok": true, "watchers": count }));
            Some(watching)
        }
        Err(message) => {
            refuse(&watching.socket, &message);
            None
        }
    }
}

/// Explains a request by the configuration in force. If no cache is involved, sends the explanation and returns `None`.
pub(super) fn explained(
    cycle: &Cycle,
    request: &Request,
    query: &Query,
    socket: &OwnedFd,
) -> Option<(String, EntryQuery)> {
    let files: MapLoader = cycle.site.files.iter().cloned().collect();
    let source = conf::Source::new(&request.main).with_globals(&request.globals);
    let tree = conf::parse(&source, &files).map_err(|error| error.to_string());
    let memory = cycle.files_for_workers();
    let reread = Reread { request, memory: Some(&memory) };
    match tree.and_then(|tree| explain(&cycle.site, reread, &tree, query, |_| Ok(()))) {
        Err(message) => refuse(socket, &message),
        Ok(Explained { text, entry_query: Some(entry_query) }) => return Some((text, entry_query)),
        Ok(Explained { text, entry_query: None }) => {
            send_response(socket, &json!({ "ok": true, "text": text }))
        }
    }
    None
}

/// Returns the changes that a reload would make now. The master reads the files with its own permissions, as for a reload. The
/// master's loop is blocked during this time. `plan` is the sandbox of the serving process.
pub(super) fn differences(cycle: &Cycle, request: &Request, plan: Option<&Plan>) -> Value {
    let site = match adapter::load(request, Files::Disk) {
        Ok(site) => site,
        Err(refused) => return json!({ "error": refused.message }),
    };
    json!({
        "ok": true,
        "file": request.main.display().to_string(),
        "generation": cycle.generation,
        "changes": adapter::changes(&cycle.site, &site, request),
        "replacement": replacement_reasons(cycle, &site, plan),
    })
}
