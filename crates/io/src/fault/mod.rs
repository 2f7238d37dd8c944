//! An engine that injects faults into another engine, according to a plan.
//!
//! [`FaultEngine`] is inserted between a caller and a real engine. It shortens operations, and delays, ends or drops
//! completions, so that every failure looks like a failure of the kernel. A short receive leaves the remaining bytes
//! for the next one. A failed send returns its segments. A delayed completion ends the wait of a turn when it is due.
//! The operations have separate identifiers, because an operation may have ended in the real engine while its caller
//! still waits; the real engine has them as tokens. [`FaultPlan`] is the plan.

mod carry;
mod paths;
mod plan;

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::buf::{Buf, Pool};
use crate::engine::{Caps, Counters, Drained, Engine, Note, Wait, Waker};
use crate::fd::Fd;
use crate::op::{Completion, DiskOp, NetOp, Op, OpId, Payload, READ_DIR_BYTES_MIN, RecvInto, StatTarget};
use crate::segments::Ends;
use crate::slab::Slab;
use carry::Carried;
use paths::Paths;
use plan::{Fault, RuleState};
pub use plan::{FaultParseError, FaultParseErrorKind, FaultPlan};

/// Minimum length of a direct read in bytes: the alignment that every device accepts.
const DIRECT_BYTES_MIN: u32 = 4096;

/// Maximum wait of a turn while a receive waits for a buffer.
const PARKED_FOR: Duration = Duration::from_millis(1);

/// An engine with injected faults.
pub struct FaultEngine {
    inner: Box<dyn Engine>,
    rules: Vec<RuleState>,
    table: Slab<Option<Live>>,
    /// Completions to be returned in the next turn.
    ready: VecDeque<Completion>,
    /// Delayed completions, unordered.
    delayed: Vec<(Instant, Completion)>,
    /// Terminal completions that were dropped, with their payloads.
    lost: Vec<Completion>,
    paths: Paths,
    carried: Carried,
    /// Completions of the real engine in a turn; a field so that its memory is reused.
    batch: Vec<Completion>,
    /// Number of operations that were not passed to the real engine.
    injected: u64,
    /// Receives that wait for a buffer: they start in a later turn, as in a real engine.
    parked: Vec<(OpId, Op)>,
}

/// An operation of the caller.
struct Live {
    /// The caller's token.
    token: u64,
    name: Option<&'static str>,
    /// Its identifier in the real engine, while it is in flight there.
    inner: Option<OpId>,
    path: Option<String>,
    /// The socket of a receive.
    socket: Option<Fd>,
    undo: Undo,
    shortens: bool,
    delay: Option<Duration>,
    loses: bool,
    /// The latest completion of a multishot operation that is being cancelled by a fault.
    ending: Option<Completion>,
}

/// The remaining bytes of an earlier shortened receive.
enum Remainder {
    /// The operation completes with them.
    All(Result<u32, Errno>, Payload),
    /// A stream returns this buffer first.
    First(Buf),
    /// Bytes remain, but no buffer is available for them.
    NoBuffer,
}

/// Changes of an operation that must be reverted in its completion.
enum Undo {
    Nothing,
    Segments(Ends),
    Len(usize),
}

impl FaultEngine {
    /// Returns an engine that behaves like `inner`, except for the faults of `plan`.
    pub fn new(inner: Box<dyn Engine>, plan: &FaultPlan) -> FaultEngine {
        FaultEngine {
            inner,
            rules: plan.rules.iter().cloned().map(RuleState::new).collect(),
            table: Slab::default(),
            ready: VecDeque::new(),
            delayed: Vec::new(),
            lost: Vec::new(),
            paths: Paths::default(),
            carried: Carried::default(),
            batch: Vec::new(),
            injected: 0,
            parked: Vec::new(),
        }
    }

    /// Returns the fault of an operation, when it is submitted.
    fn fault(&mut self, operation: &str, names: &[String]) -> Option<Fault> {
        let at_submit = self.rules.iter_mut().filter(|state| state.rule.fault != Fault::End);
        at_submit.filter_map(|state| state.strikes(operation, names).then_some(state.rule.fault)).next()
    }

    /// Whether a rule makes this completion the last one of its multishot operation.
    fn ends(&mut self, operation: Option<&str>) -> bool {
        let Some(operation) = operation else { return false };
        let mut at_completion = self.rules.iter_mut().filter(|state| state.rule.fault == Fault::End);
        at_completion.any(|state| state.strikes(operation, &[]))
    }

    /// Returns the paths of an operation that rules compare; an empty list when no rule has a path.
    fn names(&self, op: &Op) -> Vec<String> {
        if self.rules.iter().all(|state| state.rule.path.is_none()) {
            return Vec::new();
        }
        let text = |path: &CString| path.to_string_lossy().into_owned();
        let below = |dir: &Option<Fd>, path: &CString| match dir.as_ref().map(|dir| self.paths.of(dir)) {
            Some(dirs) => {
                dirs.iter().map(|dir| format!("{}/{}", dir.trim_end_matches('/'), text(path))).collect()
            }
            None => vec![text(path)],
        };
        let Op::Disk { op, .. } = op else { return Vec::new() };
        match op {
            DiskOp::Open { dir, path, .. }
            | DiskOp::MkDir { dir, path, .. }
            | DiskOp::Unlink { dir, path, .. } => below(dir, path),
            DiskOp::Stat { target: StatTarget::Path(path) }
            | DiskOp::Space { target: StatTarget::Path(path) } => {
                vec![text(path)]
            }
            DiskOp::Rename { from_dir, from, to_dir, to } => {
                [below(from_dir, from), below(to_dir, to)].concat()
            }
            DiskOp::Put { new } => vec![text(&new.temp), text(&new.to)],
            DiskOp::Link { to, .. } => vec![text(to)],
            DiskOp::Stat { target: StatTarget::File(file) }
            | DiskOp::Space { target: StatTarget::File(file) }
            | DiskOp::Advise { file, .. }
            | DiskOp::Read { file, .. }
            | DiskOp::Write { file, .. }
            | DiskOp::WriteSegments { file, .. }
            | DiskOp::Sendfile { file, .. }
            | DiskOp::ReadDir { dir: file, .. }
            | DiskOp::StatMany { dir: file, .. }
            | DiskOp::Sync { file } => self.paths.of(file),
        }
    }

    /// Completes an operation without passing it to the real engine.
    fn inject(&mut self, id: OpId, result: Result<u32, Errno>, payload: Payload) {
        self.injected += 1;
        self.ready.push_back(completion(id, result, false, payload));
    }

    /// Returns the remaining bytes of an earlier shortened receive.
    fn remainder(&mut self, socket: &Fd, into: &mut RecvInto) -> Option<Remainder> {
        let bytes = self.carried.take(socket)?;
        let owned = match into {
            RecvInto::Owned(_) => std::mem::replace(into, RecvInto::Pool),
            RecvInto::Pool | RecvInto::Large => RecvInto::Pool,
            RecvInto::Stream => RecvInto::Stream,
        };
        let streams = matches!(owned, RecvInto::Stream);
        let buf = match owned {
            RecvInto::Owned(buf) => Some(buf),
            RecvInto::Pool | RecvInto::Large | RecvInto::Stream => self.inner.pool().get(bytes.len()),
        };
        let Some(mut buf) = buf else {
            self.carried.put(socket, &bytes);
            return Some(Remainder::NoBuffer);
        };
        let count = buf.append(&bytes);
        debug_assert!(!streams || count == bytes.len(), "`start` puts all of them back");
        self.carried.put(socket, &bytes[count..]);
        Some(match streams {
            true => Remainder::First(buf),
            false => Remainder::All(Ok(count as u32), Payload::Buf(buf)),
        })
    }

    /// Delays a receive until a buffer may be available.
    fn park(&mut self, id: OpId, op: Op) {
        self.injected += 1;
        self.parked.push((id, op));
    }

    /// Passes an operation to the real engine, or returns it if that engine is full. A receive first gets the remaining
    /// bytes of an earlier one, before a stream delivers newly received bytes.
    fn start(&mut self, id: OpId, mut op: Op) -> Result<(), Op> {
        let remainder = match &mut op {
            Op::Net(NetOp::Recv { socket, into }) => self.remainder(socket, into),
            _ => None,
        };
        let first = match remainder {
            Some(Remainder::NoBuffer) => {
                self.park(id, op);
                return Ok(());
            }
            Some(Remainder::All(result, payload)) => {
                self.inject(id, result, payload);
                return Ok(());
            }
            Some(Remainder::First(buf)) => Some(buf),
            None => None,
        };
        let inner = self.inner.submit(op, id.pack()).inspect_err(|op| {
            if let (Some(buf), Op::Net(NetOp::Recv { socket, .. })) = (&first, op) {
                self.carried.put(socket, buf);
            }
        })?;
        self.live(id).expect("an operation that starts is in the table").inner = Some(inner);
        self.ready.extend(first.map(|buf| {
            let (result, payload) = (Ok(buf.len() as u32), Payload::Buf(buf));
            completion(id, result, true, payload)
        }));
        Ok(())
    }

    /// Starts the receives that were delayed in an earlier turn, if a buffer is available for remaining bytes.
    fn begin_parked(&mut self) {
        for (id, op) in std::mem::take(&mut self.parked) {
            assert!(self.injected > 0, "a parked receive was counted");
            self.injected -= 1;
            if let Err(op) = self.start(id, op) {
                self.park(id, op);
            }
        }
    }

    /// Handles a completion of the real engine.
    fn pass(&mut self, mut completion: Completion, now: Instant) {
        let id = OpId::unpack(completion.token);
        let inner = std::mem::replace(&mut completion.id, id);
        let Some(live) = self.table.get(id).and_then(Option::as_mut) else { return };
        if !completion.more {
            live.inner = None;
        }
        undo(&live.undo, &mut completion.payload);
        if let (Payload::Opened(fd), Some(path)) = (&completion.payload, &live.path) {
            self.paths.opened(fd.as_fd(), path);
        }
        if let (true, Some(socket), Payload::Buf(buf)) =
            (live.shortens, &live.socket, &mut completion.payload)
            && let Ok(new @ 2..) = completion.result
        {
            // The earlier content of the buffer is not shortened.
            let new = new as usize;
            let kept = buf.len() - new + new / 2;
            if completion.more {
                return self.pass_in_halves(completion, kept, now);
            }
            self.carried.put(socket, &buf[kept..]);
            buf.set_len(kept);
            completion.result = Ok(new as u32 / 2);
        }
        self.pass_multishot(inner, completion, now);
    }

    /// Returns one completion of a stream as two.
    fn pass_in_halves(&mut self, whole: Completion, kept: usize, now: Instant) {
        let Completion { id, payload: Payload::Buf(mut buf), .. } = whole else { return };
        let rest = self.inner.pool().get(buf.len() - kept).map(|mut rest| {
            rest.append(&buf[kept..]);
            rest
        });
        if rest.is_some() {
            buf.set_len(kept);
        }
        for buf in [Some(buf), rest].into_iter().flatten() {
            let (result, payload) = (Ok(buf.len() as u32), Payload::Buf(buf));
            self.hold_or_deliver(completion(id, result, true, payload), now);
        }
    }

    /// Ends a multishot operation if a rule requires it. The latest completion is held back until the real engine has
    /// confirmed the end, and is then returned as the last one.
    fn pass_multishot(&mut self, inner: OpId, completion: Completion, now: Instant) {
        let id = completion.id;
        let Some(live) = self.live(id) else { return };
        let name = live.name;
        if let Some(mut held) = live.ending.take() {
            if completion.more {
                live.ending = Some(completion);
            } else if completion.result == Err(Errno::CANCELED) {
                held.more = false;
            } else {
                self.hold_or_deliver(held, now);
                return self.hold_or_deliver(completion, now);
            }
            return self.hold_or_deliver(held, now);
        }
        if completion.more && self.ends(name) {
            self.inner.cancel(inner);
            if let Some(live) = self.live(id) {
                live.ending = Some(completion);
            }
            return;
        }
        self.hold_or_deliver(completion, now);
    }

    fn hold_or_deliver(&mut self, completion: Completion, now: Instant) {
        let Some(live) = self.live(completion.id) else { return };
        match live.delay {
            _ if live.loses => self.lost.extend((!completion.more).then_some(completion)),
            Some(delay) => self.delayed.push((now + delay, completion)),
            None => self.ready.push_back(completion),
        }
    }

    /// Moves the due completions into `batch`.
    fn deliver(&mut self, batch: &mut Vec<Completion>) {
        let now = Instant::now();
        let mut index = 0;
        while index < self.delayed.len() {
            match self.delayed[index].0 <= now {
                true => self.ready.push_back(self.delayed.remove(index).1),
                false => index += 1,
            }
        }
        while let Some(mut completion) = self.ready.pop_front() {
            let live = self
                .live(completion.id)
                .expect("an operation is in the table until its completion is returned");
            completion.token = live.token;
            if !completion.more {
                self.remove(completion.id);
            }
            batch.push(completion);
        }
    }

    /// Returns the record of an operation that has not ended for the caller.
    fn live(&mut self, id: OpId) -> Option<&mut Live> {
        self.table.get(id)?.as_mut()
    }

    /// Removes an operation; its identifier is invalid from now on.
    fn remove(&mut self, id: OpId) -> Option<Live> {
        let live = self.table.get(id)?.take();
        self.table.remove(id);
        live
    }

    /// Returns how long the real engine may wait.
    fn wait(&self, wait: Wait) -> Wait {
        // The release of a buffer causes no wake-up.
        let parked = (!self.parked.is_empty()).then(|| Instant::now() + PARKED_FOR);
        let next = self.delayed.iter().map(|(due, _)| *due).chain(parked).min();
        match (wait, next) {
            (Wait::No, _) => Wait::No,
            _ if !self.ready.is_empty() => Wait::No,
            (wait, None) => wait,
            (Wait::Forever, Some(due)) => Wait::Until(due),
            (Wait::Until(deadline), Some(due)) => Wait::Until(deadline.min(due)),
        }
    }
}

impl Engine for FaultEngine {
    fn caps(&self) -> &Caps {
        self.inner.caps()
    }

    fn pool(&self) -> &Pool {
        self.inner.pool()
    }

    fn submit(&mut self, mut op: Op, token: u64) -> Result<OpId, Op> {
        let name = name_of(&op);
        let mut names = self.names(&op);
        let fault = match &op {
            // The operations that `Put` consists of.
            Op::Disk { op: DiskOp::Put { .. }, .. } => {
                ["open", "write", "rename"].into_iter().find_map(|name| self.fault(name, &names))
            }
            _ => name.and_then(|name| self.fault(name, &names)),
        };
        let shortens = fault == Some(Fault::Short);
        let socket = match &op {
            Op::Net(NetOp::Recv { socket, .. }) if shortens => Some(socket.clone()),
            _ => None,
        };
        let (id, live) = self.table.insert();
        *live = Some(Live {
            token,
            name,
            inner: None,
            path: names.pop().filter(|_| name == Some("open")),
            socket,
            undo: if shortens { shorten(&mut op) } else { Undo::Nothing },
            shortens,
            delay: match fault {
                Some(Fault::Delay(delay)) => Some(delay),
                _ => None,
            },
            loses: fault == Some(Fault::Lost),
            ending: None,
        });
        match (fault, &op) {
            // A receive with its own buffer never lacks one.
            (Some(Fault::Error(Errno::NOBUFS)), Op::Net(NetOp::Recv { into: RecvInto::Owned(_), .. })) => {}
            (Some(Fault::Error(Errno::NOBUFS)), Op::Net(NetOp::Recv { .. })) => {
                self.park(id, op);
                return Ok(id);
            }
            (Some(Fault::Error(errno)), _) => {
                self.inject(id, Err(errno), op.into_payload());
                return Ok(id);
            }
            _ => {}
        }
        match self.start(id, op) {
            Ok(()) => Ok(id),
            Err(mut op) => {
                if let Some(live) = self.remove(id) {
                    undo_op(&live.undo, &mut op);
                }
                Err(op)
            }
        }
    }

    fn cancel(&mut self, id: OpId) {
        if let Some(index) = self.parked.iter().position(|(parked, _)| *parked == id) {
            let (_, op) = self.parked.remove(index);
            let (result, payload) = (Err(Errno::CANCELED), op.into_payload());
            return self.ready.push_back(completion(id, result, false, payload));
        }
        if let Some(inner) = self.live(id).and_then(|live| live.inner) {
            self.inner.cancel(inner);
        }
    }

    fn abandon(&mut self, id: OpId) {
        self.ready.retain(|completion| completion.id != id);
        self.delayed.retain(|(_, completion)| completion.id != id);
        self.parked.retain(|(parked, _)| *parked != id);
        if let Some(inner) = self.remove(id).and_then(|live| live.inner) {
            self.inner.abandon(inner);
        }
    }

    fn turn(&mut self, wait: Wait, batch: &mut Vec<Completion>) -> Result<(), Errno> {
        self.begin_parked();
        let mut brought = std::mem::take(&mut self.batch);
        let turned = self.inner.turn(self.wait(wait), &mut brought);
        let now = Instant::now();
        for completion in brought.drain(..) {
            self.pass(completion, now);
        }
        self.batch = brought;
        self.deliver(batch);
        turned
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn drain(&mut self, deadline: Instant) -> Drained {
        self.parked.clear();
        self.ready.clear();
        self.delayed.clear();
        match (self.inner.drain(deadline), self.lost.len()) {
            (Drained::Clean, 0) => Drained::Clean,
            (Drained::Clean, lost) => Drained::Leaked(lost),
            (Drained::Leaked(left), lost) => Drained::Leaked(left + lost),
        }
    }

    fn counters(&self) -> Counters {
        let inner = self.inner.counters();
        Counters {
            submitted: inner.submitted + self.injected,
            completed: inner.completed + self.injected - self.lost.len() as u64,
            ..inner
        }
    }

    fn trim(&mut self) -> usize {
        self.inner.trim()
    }

    fn take_note(&mut self) -> Option<Note> {
        self.inner.take_note()
    }
}

/// Returns a completion, to which [`FaultEngine::deliver`] adds the caller's token.
fn completion(id: OpId, result: Result<u32, Errno>, more: bool, payload: Payload) -> Completion {
    Completion { id, token: 0, result, more, payload }
}

/// Halves the number of bytes of an operation; returns the data for reverting that.
fn shorten(op: &mut Op) -> Undo {
    match op {
        Op::Net(NetOp::Send { data, .. }) | Op::Disk { op: DiskOp::WriteSegments { data, .. }, .. } => {
            let half = data.len().div_ceil(2);
            Undo::Segments(data.cut(half))
        }
        Op::Net(_) => Undo::Nothing,
        Op::Disk { op, .. } => shorten_on_disk(op),
    }
}

fn shorten_on_disk(op: &mut DiskOp) -> Undo {
    match op {
        DiskOp::Read { file, len, .. } => {
            *len = match file.is_direct() {
                true => (*len / 2).next_multiple_of(DIRECT_BYTES_MIN).min(*len),
                false => len.div_ceil(2),
            };
        }
        DiskOp::Write { file, buf, .. } if !file.is_direct() => {
            let whole = buf.len();
            buf.set_len(whole.div_ceil(2));
            return Undo::Len(whole);
        }
        DiskOp::Sendfile { len, .. } => *len = len.div_ceil(2),
        DiskOp::ReadDir { bytes_max, .. } => *bytes_max = (*bytes_max / 2).max(READ_DIR_BYTES_MIN),
        _ => {}
    }
    Undo::Nothing
}

fn undo(undo: &Undo, payload: &mut Payload) {
    match (undo, payload) {
        (Undo::Segments(ends), Payload::Segments(data)) => data.restore(ends),
        (Undo::Len(whole), Payload::Buf(buf)) => buf.set_len(*whole),
        _ => {}
    }
}

fn undo_op(undo: &Undo, op: &mut Op) {
    match (undo, op) {
        (
            Undo::Segments(ends),
            Op::Net(NetOp::Send { data, .. }) | Op::Disk { op: DiskOp::WriteSegments { data, .. }, .. },
        ) => data.restore(ends),
        (Undo::Len(whole), Op::Disk { op: DiskOp::Write { buf, .. }, .. }) => buf.set_len(*whole),
        _ => {}
    }
}

/// Returns the name of the operation in rules.
fn name_of(op: &Op) -> Option<&'static str> {
    Some(match op {
        Op::Net(op) => match op {
            NetOp::Nop => return None,
            NetOp::Accept { .. } => "accept",
            NetOp::Recv { .. } => "recv",
            NetOp::Send { .. } => "send",
            NetOp::Connect { .. } => "connect",
            NetOp::Poll { .. } => "poll",
            NetOp::Close { .. } => "close",
        },
        Op::Disk { op, .. } => match op {
            DiskOp::Open { .. } => "open",
            DiskOp::Stat { .. } | DiskOp::StatMany { .. } => "stat",
            DiskOp::Read { .. } => "read",
            DiskOp::Write { .. } | DiskOp::WriteSegments { .. } | DiskOp::Put { .. } => "write",
            DiskOp::Sendfile { .. } => "sendfile",
            DiskOp::ReadDir { .. } => "readdir",
            DiskOp::Unlink { .. } => "unlink",
            DiskOp::Rename { .. } => "rename",
            DiskOp::MkDir { .. } => "mkdir",
            DiskOp::Link { .. } => "link",
            DiskOp::Advise { .. } => "advise",
            DiskOp::Space { .. } => "space",
            DiskOp::Sync { .. } => "sync",
        },
    })
}
