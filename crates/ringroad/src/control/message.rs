//! The messages between the master and a worker.
//!
//! ```text
//! master                          worker
//!   | -- Start, bundle, fds ------> |   reads, drops its privileges, starts its threads
//!   | <------------- Ready, Failed -|
//!   | -- Reload, bundle, fds -----> |   swaps the configuration in place
//!   | <---- Reloaded, ReloadFailed -|
//!   | <------------------- Retired -|   later: the last request under an older configuration has ended
//!   | <----------------- Addresses -|   later: host names have other addresses; the next worker uses them
//!   | <------------------- Replaced -|   later: the sandbox has refused a path that was replaced since the start
//!   | -- Acme --------------------> |   a challenge or a certificate, see `acme`
//!   | <------------------ AcmeDone -|   all threads have applied it
//!   | -- Watch, fd ---------------> |   the socket of a client that watches requests, see `admin`
//!   | -- Explain, fd -------------> |   socket of a client to which the worker sends an explanation of a cache
//!   | -- Signer, fds -------------> |   no response: sockets to the next signing process, see `signer`
//!   | -- Reopen, fds -------------> |   no response: a worker reports logs that it cannot write in the error log
//!   | -- Leave, Drain ------------> |   no response: readiness checks fail, or succeed again
//!   | -- Reloads -----------------> |   no response: sets the numbers that the status pages show
//!   | -- Ping --------------------> |   for the watchdog of systemd
//!   | <---------------------- Pong -|   the event loops of all threads have made a turn since the ping
//!   | -- Quit, Stop --------------> |   the response is the end of the process
//! ```
//!
//! The master sends [`ToWorker`], the worker sends [`ToMaster`]. `expected` has the rules by which the master checks them. The largest message is the [`Bundle`]. It contains everything
//! that a worker needs to serve a configuration, so that the worker opens no file and no socket itself. Both processes run the
//! same executable. [`VERSION`] detects the exception: a file that was replaced on disk.

use std::path::PathBuf;
use std::time::Duration;

use site::allowed_paths::AllowedPath;
use site::needs::Access;
use site::path_snapshot::{Identity, PathSnapshot};

use super::acme::{AcmeChange, put_change, take_change};
use super::wire::{Malformed, Reader, Writer};
use crate::limits::ProcessLimits;
use crate::listen::ListenAddr;
use crate::paths::{Paths, Request};
use crate::privilege::Credentials;
use crate::reloads::Reloads;

/// Maximum length in bytes of a text in a message of a worker or of the agent. It must be below the master's limit on the size of
/// a packet.
pub(super) const TEXT_MAX: usize = 32 * 1024;

/// Maximum length in bytes of the name of a network engine.
const NAME_MAX: usize = 64;

/// Version of the message format; changes with every change of the messages.
const VERSION: u64 = 12;

/// A configuration for a worker. Its descriptors are sent in the same packet: those of the listeners in order, then one for each
/// log file, then the sockets to the signing process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bundle {
    /// The number of the configuration in this master.
    pub(crate) generation: u64,
    /// The source to parse: file names, `-g`, default paths.
    pub(crate) request: Request,
    /// All files that the configuration was read from.
    pub(crate) files: Vec<(PathBuf, Vec<u8>)>,
    /// The user of the worker; `None` stands for the user of the master.
    pub(crate) credentials: Option<Credentials>,
    /// Limits, priority and working directory of the process.
    pub(crate) limits: ProcessLimits,
    /// Addresses, with the number of sockets of each.
    pub(crate) listeners: Vec<(ListenAddr, u64)>,
    /// Log files, one descriptor each.
    pub(crate) logs: Vec<PathBuf>,
    /// Addresses of host names that another worker sent last. Only used by [`ToWorker::Start`]; a serving worker has newer
    /// addresses.
    pub(crate) addresses: String,
    /// Number of worker processes that have ended unexpectedly so far, for the status API.
    pub(crate) respawned: u64,
    /// Numbers of reloads, for [`ToWorker::Start`]. A serving worker receives [`ToWorker::Reloads`] after each reload.
    pub(crate) reloads: Reloads,
    /// Certificates obtained by ACME, and active challenges.
    pub(crate) acme: Vec<AcmeChange>,
    /// The secret from which keys of session tickets are derived. Only used by [`ToWorker::Start`]; a serving worker already has
    /// it.
    pub(crate) tickets: Vec<u8>,
    /// The secret of QUIC without `quic_host_key`, for [`ToWorker::Start`].
    pub(crate) quic_secret: Vec<u8>,
    /// Number of sockets to the signing process, for [`ToWorker::Start`]; 0 if the worker holds its private keys itself.
    pub(crate) signer_sockets: u64,
    /// The bank of the sockets of QUIC: 0 or 1.
    pub(crate) bank: u8,
    /// The paths of the sandbox, for [`ToWorker::Start`].
    pub(crate) paths: PathSnapshot,
}

impl Bundle {
    /// Returns the number of descriptors of the bundle.
    pub(crate) fn descriptors(&self) -> usize {
        let listeners = self.listeners.iter().map(|(_, count)| count);
        let sockets = listeners.fold(self.signer_sockets, |sum, count| sum.saturating_add(*count));
        usize::try_from(sockets).unwrap_or(usize::MAX).saturating_add(self.logs.len())
    }
}

/// A message from the master to a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToWorker {
    /// The first message: start to serve this configuration.
    Start(Box<Bundle>),
    /// Swap the configuration in place.
    Reload(Box<Bundle>),
    /// Write to these files from now on; the packet contains their descriptors.
    Reopen(Vec<PathBuf>),
    /// Change a certificate or a challenge, and confirm this number.
    Acme(u64, AcmeChange),
    /// Finish the requests in flight, then end; at the latest after this time.
    Quit(Option<Duration>),
    /// End immediately.
    Stop,
    /// Make readiness checks fail, and continue to serve.
    Leave,
    /// Start or stop draining at an operator's request: readiness checks fail, and the worker continues to serve.
    Drain(bool),
    /// Show these numbers of reloads on pages from now on.
    Reloads(Reloads),
    /// Confirm, with this number, that the event loop of every thread has made a turn.
    Ping(u64),
    /// Add the state of a cache to an explanation, in the format of `admin`, and send it through the socket in the packet.
    Explain(Vec<u8>),
    /// Show requests that match this filter to the client whose socket is in the packet.
    Watch(String),
    /// Request signatures through the sockets in the packet from now on.
    Signer,
    /// End all connections of QUIC: another worker uses the sockets from now on.
    EndQuic,
}

/// A message from a worker to the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToMaster {
    /// All threads accept connections.
    Ready {
        /// The name of the network engine.
        method: String,
        /// A remark for the operator about the choice of the engine.
        remark: Option<String>,
        /// Whether a path of the sandbox was replaced since the master made the bundle, so that the worker has other rules. Even if this is
        /// not true, the effect is only one more worker.
        is_outdated: bool,
    },
    /// The worker cannot serve and ends.
    Failed(String),
    /// The new configuration is in force.
    Reloaded(u64),
    /// The new configuration could not be used; the old one stays in force.
    ReloadFailed(u64, String),
    /// No request uses this configuration any more.
    Retired(u64),
    /// The addresses of host names, in the server's format, for the next worker.
    Addresses(String),
    /// All threads have applied the change with this number.
    AcmeDone(u64),
    /// The event loops of all threads have made a turn since the ping with this number.
    Pong(u64),
    /// The sandbox has refused a path that leads to another file than at the start of the worker. A hint: the master compares the
    /// paths itself.
    Replaced,
}

impl ToWorker {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(VERSION);
        match self {
            ToWorker::Start(bundle) => put_bundle(out.u64(1), bundle),
            ToWorker::Reload(bundle) => put_bundle(out.u64(2), bundle),
            ToWorker::Reopen(logs) => {
                out.u64(3).list(logs, |out, path| {
                    out.path(path);
                });
            }
            ToWorker::Quit(limit) => {
                out.u64(4).option(*limit, put_time);
            }
            ToWorker::Stop => {
                out.u64(5);
            }
            ToWorker::Acme(number, change) => put_change(out.u64(6).u64(*number), change),
            ToWorker::Leave => {
                out.u64(7);
            }
            ToWorker::Drain(is_drained) => {
                out.u64(11).u64(u64::from(*is_drained));
            }
            ToWorker::Reloads(reloads) => put_reloads(out.u64(12), reloads),
            ToWorker::Ping(number) => {
                out.u64(8).u64(*number);
            }
            ToWorker::Signer => {
                out.u64(13);
            }
            ToWorker::EndQuic => {
                out.u64(14);
            }
            ToWorker::Watch(filter) => {
                out.u64(9).text(filter);
            }
            ToWorker::Explain(text) => {
                out.u64(10).bytes(text);
            }
        }
        out.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<ToWorker, Malformed> {
        let mut from = Reader::new(bytes);
        check_version(&mut from)?;
        let message = match from.u64()? {
            1 => ToWorker::Start(Box::new(take_bundle(&mut from)?)),
            2 => ToWorker::Reload(Box::new(take_bundle(&mut from)?)),
            3 => ToWorker::Reopen(from.list(Reader::path)?),
            4 => ToWorker::Quit(from.option(take_time)?),
            5 => ToWorker::Stop,
            6 => ToWorker::Acme(from.u64()?, take_change(&mut from)?),
            7 => ToWorker::Leave,
            8 => ToWorker::Ping(from.u64()?),
            9 => ToWorker::Watch(from.text()?),
            10 => ToWorker::Explain(from.bytes()?.to_vec()),
            11 => ToWorker::Drain(from.u64()? != 0),
            12 => ToWorker::Reloads(take_reloads(&mut from)?),
            13 => ToWorker::Signer,
            14 => ToWorker::EndQuic,
            _ => return Err(Malformed),
        };
        from.end()?;
        Ok(message)
    }
}

impl ToMaster {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u64(VERSION);
        match self {
            ToMaster::Ready { method, remark, is_outdated } => out
                .u64(1)
                .text(method)
                .option(remark.as_deref().map(cut), Writer::text)
                .u64(u64::from(*is_outdated)),
            ToMaster::Failed(message) => out.u64(2).text(cut(message)),
            ToMaster::Reloaded(generation) => out.u64(3).u64(*generation),
            ToMaster::ReloadFailed(generation, message) => out.u64(4).u64(*generation).text(cut(message)),
            ToMaster::Retired(generation) => out.u64(5).u64(*generation),
            ToMaster::Addresses(text) => out.u64(6).text(cut(text)),
            ToMaster::AcmeDone(number) => out.u64(7).u64(*number),
            ToMaster::Pong(number) => out.u64(8).u64(*number),
            ToMaster::Replaced => out.u64(9),
        };
        out.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<ToMaster, Malformed> {
        let mut from = Reader::new(bytes);
        check_version(&mut from)?;
        let message = match from.u64()? {
            1 => ToMaster::Ready {
                method: from.text_up_to(NAME_MAX)?,
                remark: from.option(take_text)?,
                is_outdated: from.u64()? != 0,
            },
            2 => ToMaster::Failed(take_text(&mut from)?),
            3 => ToMaster::Reloaded(from.u64()?),
            4 => ToMaster::ReloadFailed(from.u64()?, take_text(&mut from)?),
            5 => ToMaster::Retired(from.u64()?),
            6 => ToMaster::Addresses(take_text(&mut from)?),
            7 => ToMaster::AcmeDone(from.u64()?),
            8 => ToMaster::Pong(from.u64()?),
            9 => ToMaster::Replaced,
            _ => return Err(Malformed),
        };
        from.end()?;
        Ok(message)
    }
}

/// Decodes a text that [`cut`] has shortened.
pub(super) fn take_text(from: &mut Reader<'_>) -> Result<String, Malformed> {
    from.text_up_to(TEXT_MAX)
}

/// Returns the beginning of a text that may be long, such as an error that quotes the configuration.
pub(super) fn cut(text: &str) -> &str {
    let end = (0..=TEXT_MAX.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// Checks that the sender has the same version. The versions differ if the program file was replaced between the starts of
/// the two processes.
fn check_version(from: &mut Reader<'_>) -> Result<(), Malformed> {
    if from.u64()? == VERSION { Ok(()) } else { Err(Malformed) }
}

/// Encodes a bundle. The order of fields must be the same as in [`take_bundle`].
fn put_bundle(out: &mut Writer, bundle: &Bundle) {
    out.u64(bundle.generation);
    put_request(out, &bundle.request);
    out.list(&bundle.files, |out, (path, text)| {
        out.path(path).bytes(text);
    });
    out.option(bundle.credentials.as_ref(), put_credentials);
    put_limits(out, &bundle.limits);
    out.list(&bundle.listeners, |out, (address, count)| {
        out.text(&address.to_string()).u64(*count);
    });
    out.list(&bundle.logs, |out, path| {
        out.path(path);
    });
    out.text(&bundle.addresses).u64(bundle.respawned);
    put_reloads(out, &bundle.reloads);
    out.list(&bundle.acme, put_change)
        .bytes(&bundle.tickets)
        .bytes(&bundle.quic_secret)
        .u64(bundle.signer_sockets)
        .u64(u64::from(bundle.bank));
    put_paths(out, &bundle.paths);
}

/// Encodes the paths of a sandbox. The positions of their directives are not sent.
fn put_paths(out: &mut Writer, paths: &PathSnapshot) {
    let rules: Vec<(&AllowedPath, Option<Identity>)> = paths.rules().collect();
    out.list(&rules, |out, (allowed, identity)| {
        let AllowedPath { path, access, directive, is_stand_in, .. } = *allowed;
        out.path(path).u64(u64::from(*access == Access::Write)).text(directive).u64(u64::from(*is_stand_in));
        out.option(*identity, put_identity);
    });
    let observed: Vec<(&PathBuf, &Option<Identity>)> = paths.observed().iter().collect();
    out.list(&observed, |out, (path, identity)| {
        out.path(path).option(**identity, put_identity);
    });
}

/// Decodes the output of [`put_paths`].
fn take_paths(from: &mut Reader<'_>) -> Result<PathSnapshot, Malformed> {
    let rules = from.list(|from| {
        let path = from.path()?;
        let access = if from.u64()? == 0 { Access::Read } else { Access::Write };
        let (directive, is_stand_in) = (from.text()?, from.u64()? != 0);
        let allowed = AllowedPath { path, access, directive, position: None, is_stand_in };
        Ok((allowed, from.option(take_identity)?))
    })?;
    let observed = from.list(|from| Ok((from.path()?, from.option(take_identity)?)))?;
    Ok(PathSnapshot::received(rules, observed.into_iter().collect()))
}

fn put_identity(out: &mut Writer, Identity { device, inode }: Identity) -> &mut Writer {
    out.u64(device).u64(inode)
}

fn take_identity(from: &mut Reader<'_>) -> Result<Identity, Malformed> {
    Ok(Identity { device: from.u64()?, inode: from.u64()? })
}

pub(super) fn put_credentials<'w>(out: &'w mut Writer, who: &Credentials) -> &'w mut Writer {
    out.text(&who.user).u64(u64::from(who.uid)).u64(u64::from(who.gid))
}

pub(super) fn take_credentials(from: &mut Reader<'_>) -> Result<Credentials, Malformed> {
    Ok(Credentials { user: from.text()?, uid: take_u32(from)?, gid: take_u32(from)? })
}

/// Decodes the output of [`put_bundle`].
fn take_bundle(from: &mut Reader<'_>) -> Result<Bundle, Malformed> {
    Ok(Bundle {
        generation: from.u64()?,
        request: take_request(from)?,
        files: from.list(|from| Ok((from.path()?, from.bytes()?.to_vec())))?,
        credentials: from.option(take_credentials)?,
        limits: take_limits(from)?,
        listeners: from.list(|from| {
            let address = ListenAddr::parse(&from.text()?).ok_or(Malformed)?;
            Ok((address, from.u64()?))
        })?,
        logs: from.list(Reader::path)?,
        addresses: from.text()?,
        respawned: from.u64()?,
        reloads: take_reloads(from)?,
        acme: from.list(take_change)?,
        tickets: from.bytes()?.to_vec(),
        quic_secret: from.bytes()?.to_vec(),
        signer_sockets: from.u64()?,
        bank: u8::try_from(from.u64()?).map_err(|_| Malformed)?,
        paths: take_paths(from)?,
    })
}

/// Encodes the numbers of reloads by outcome, in the order of the label values of the metric.
fn put_reloads(out: &mut Writer, reloads: &Reloads) {
    reloads.by_outcome.iter().for_each(|number| {
        out.u64(*number);
    });
    out.u64(u64::from(reloads.is_last_refused));
}

fn take_reloads(from: &mut Reader<'_>) -> Result<Reloads, Malformed> {
    let by_outcome = [from.u64()?, from.u64()?, from.u64()?];
    Ok(Reloads { by_outcome, is_last_refused: from.u64()? != 0 })
}

/// Encodes file names and settings of the command line, and the text that replaces the main file of `ringroad serve`.
fn put_request(out: &mut Writer, request: &Request) {
    let Paths { prefix, pid, error_log } = &request.places;
    out.path(&request.main).text(&request.globals);
    out.path(prefix).option(pid.as_deref(), Writer::path).option(error_log.as_deref(), Writer::path);
    out.option(request.text.as_deref(), Writer::text);
}

fn take_request(from: &mut Reader<'_>) -> Result<Request, Malformed> {
    let (main, globals) = (from.path()?, from.text()?);
    let places = Paths {
        prefix: from.path()?,
        pid: from.option(Reader::path)?,
        error_log: from.option(Reader::path)?,
    };
    Ok(Request { main, globals, places, text: from.option(Reader::text)? })
}

/// Encodes the limits. An absent limit is encoded differently from zero.
fn put_limits(out: &mut Writer, limits: &ProcessLimits) {
    out.option(limits.descriptors, Writer::u64).option(limits.core_bytes, Writer::u64);
    // The conversion to `u32` preserves the sign in two's complement.
    out.option(limits.priority.map(|nice| u64::from(nice as u32)), Writer::u64);
    out.option(limits.directory.as_deref(), Writer::path);
}

fn take_limits(from: &mut Reader<'_>) -> Result<ProcessLimits, Malformed> {
    Ok(ProcessLimits {
        descriptors: from.option(Reader::u64)?,
        core_bytes: from.option(Reader::u64)?,
        priority: from.option(take_u32)?.map(|nice| nice as i32),
        directory: from.option(Reader::path)?,
    })
}

/// Encodes a time in milliseconds, the resolution of `worker_shutdown_timeout`.
fn put_time(out: &mut Writer, time: Duration) -> &mut Writer {
    out.u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

fn take_time(from: &mut Reader<'_>) -> Result<Duration, Malformed> {
    Ok(Duration::from_millis(from.u64()?))
}

/// Decodes a number of 32 bits, which is encoded as 64 bits. A larger value is an error.
fn take_u32(from: &mut Reader<'_>) -> Result<u32, Malformed> {
    u32::try_from(from.u64()?).map_err(|_| Malformed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bundle() -> Bundle {
        let places =
            Paths { prefix: "/srv/".into(), pid: Some("/srv/logs/nginx.pid".into()), error_log: None };
        Bundle {
            generation: 3,
            request: Request {
                main: "/srv/a.conf".into(),
                globals: "daemon off;".into(),
                places,
                text: None,
            },
            files: vec![("/srv/a.conf".into(), b"events {}".to_vec()), ("/srv/b".into(), vec![0xff])],
            credentials: Some(Credentials { user: "www-data".to_owned(), uid: 33, gid: 34 }),
            limits: ProcessLimits {
                descriptors: Some(1024),
                core_bytes: None,
                priority: Some(-5),
                directory: Some("/srv/cores".into()),
            },
            listeners: vec![
                (ListenAddr::Tcp("[::1]:80".parse().expect("an address")), 4),
                (ListenAddr::Unix("/run/a socket".into()), 1),
                (ListenAddr::Quic("[::1]:80".parse().expect("an address")), 4),
            ],
            logs: vec!["/srv/logs/error.log".into()],
            addresses: "group\thost\n".to_owned(),
            respawned: 3,
            reloads: Reloads { by_outcome: [1, 2, 3], is_last_refused: true },
            acme: vec![AcmeChange::Certificate { id: "a/b".to_owned(), pem: b"pem".to_vec() }],
            tickets: vec![7; 40],
            quic_secret: vec![8; 32],
            signer_sockets: 4,
            bank: 1,
            paths: paths(),
        }
    }

    fn paths() -> PathSnapshot {
        let rule = |path: &str, access, is_stand_in| AllowedPath {
            path: path.into(),
            access,
            directive: "root".to_owned(),
            position: None,
            is_stand_in,
        };
        let identity = Some(Identity { device: 1, inode: u64::MAX });
        let rules =
            [(rule("/srv/a", Access::Read, false), identity), (rule("/srv", Access::Write, true), None)];
        PathSnapshot::received(rules, [("/srv/link".into(), identity), ("/srv/b".into(), None)].into())
    }

    #[test]
    fn messages_are_received_as_sent() {
        let messages = [
            ToWorker::Start(Box::new(bundle())),
            ToWorker::Reload(Box::new(Bundle { credentials: None, ..bundle() })),
            ToWorker::Reopen(vec!["/a".into(), "/b".into()]),
            ToWorker::Quit(None),
            ToWorker::Quit(Some(Duration::from_millis(1500))),
            ToWorker::Stop,
            ToWorker::Acme(4, AcmeChange::Certificate { id: "a/b".to_owned(), pem: b"pem".to_vec() }),
            ToWorker::Leave,
            ToWorker::Drain(true),
            ToWorker::Reloads(Reloads { by_outcome: [4, 5, 6], is_last_refused: false }),
            ToWorker::Ping(5),
            ToWorker::Watch("code=5xx".to_owned()),
            ToWorker::Explain(b"text".to_vec()),
            ToWorker::Signer,
            ToWorker::EndQuic,
        ];
        for message in messages {
            assert_eq!(ToWorker::decode(&message.encode()), Ok(message));
        }
        let answers = [
            ToMaster::Ready { method: "epoll".to_owned(), remark: Some("why".to_owned()), is_outdated: true },
            ToMaster::Failed("no".to_owned()),
            ToMaster::Reloaded(9),
            ToMaster::ReloadFailed(9, "why".to_owned()),
            ToMaster::Retired(8),
            ToMaster::Addresses("group\thost\n".to_owned()),
            ToMaster::AcmeDone(4),
            ToMaster::Pong(5),
        ];
        for answer in answers {
            assert_eq!(ToMaster::decode(&answer.encode()), Ok(answer));
        }
        assert_eq!(bundle().descriptors(), 14);
    }

    #[test]
    fn no_prefix_of_a_message_is_a_valid_message() {
        let whole = ToWorker::Start(Box::new(bundle())).encode();
        for end in 0..whole.len() {
            assert_eq!(ToWorker::decode(&whole[..end]), Err(Malformed), "{end} bytes");
        }
        let longer = [whole.as_slice(), &[0]].concat();
        assert_eq!(ToWorker::decode(&longer), Err(Malformed));
    }

    #[test]
    fn another_version_is_refused() {
        let mut bytes = ToWorker::Stop.encode();
        bytes[0] ^= 1;
        assert_eq!(ToWorker::decode(&bytes), Err(Malformed));
    }
}
