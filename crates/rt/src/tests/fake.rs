//! A scripted engine: operations stay in flight until the test completes them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use io::engine::{Caps, Counters, NetKind, Wake, Waker};
use io::facts::DeviceId;
use io::slab::Slab;
use io::{Completion, DiskOp, Drained, Engine, Errno, NetOp, Op, OpId, Payload, Pool, Wait};

use super::settle;

/// The engine, and the test's control of it.
#[derive(Clone)]
pub(crate) struct Fake {
    caps: Rc<Caps>,
    pub(crate) pool: Pool,
    state: Rc<RefCell<State>>,
}

struct State {
    bell: Arc<Bell>,
    /// Operations in flight, with their tokens.
    slots: Slab<Option<(u64, Op)>>,
    capacity: usize,
    /// The device whose operations are refused.
    refused: Option<DeviceId>,
    ready: Vec<Completion>,
    cancelled: Vec<OpId>,
    abandoned: Vec<OpId>,
    /// Whether a cancelled operation ends immediately with `ECANCELED`.
    obeys: bool,
    waits: Vec<Wait>,
    counters: Counters,
}

#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Wake for Bell {
    fn wake(&self) -> bool {
        let was_asleep = !std::mem::replace(&mut *self.rung.lock().unwrap(), true);
        self.heard.notify_all();
        was_asleep
    }
}

impl Bell {
    fn wait(&self, wait: Wait) {
        let rung = self.rung.lock().unwrap();
        let mut rung = match wait {
            Wait::No => rung,
            Wait::Forever => self.heard.wait_while(rung, |rung| !*rung).unwrap(),
            Wait::Until(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                self.heard.wait_timeout_while(rung, left, |rung| !*rung).unwrap().0
            }
        };
        *rung = false;
    }
}

impl Fake {
    pub(crate) fn new() -> Fake {
        let caps = Caps {
            net: NetKind::Epoll,
            disk_ring: false,
            disk_libaio: false,
            pools: 0,
            send_zero_copy: true,
            recv_buffer_bytes: 4096,
            memory_max: None,
        };
        let state = State {
            bell: Arc::default(),
            slots: Slab::default(),
            capacity: 1000,
            refused: None,
            ready: Vec::new(),
            cancelled: Vec::new(),
            abandoned: Vec::new(),
            obeys: true,
            waits: Vec::new(),
            counters: Counters::default(),
        };
        Fake { caps: Rc::new(caps), pool: Pool::new(8 << 20), state: Rc::new(RefCell::new(state)) }
    }

    pub(crate) fn set_capacity(&self, operations: usize) {
        self.state.borrow_mut().capacity = operations;
    }

    pub(crate) fn refuse(&self, device: Option<DeviceId>) {
        self.state.borrow_mut().refused = device;
    }

    pub(crate) fn set_obeys(&self, obeys: bool) {
        self.state.borrow_mut().obeys = obeys;
    }

    /// Returns the operations in flight, each with the first word of its `Debug` form.
    pub(crate) fn flying(&self) -> Vec<(OpId, String)> {
        let state = self.state.borrow();
        let named = state.slots.iter().filter_map(|(id, operation)| {
            let text = match &operation.as_ref()?.1 {
                Op::Net(op) => format!("{op:?}"),
                Op::Disk { op, .. } => format!("{op:?}"),
            };
            let name = text.split([' ', '{']).next().unwrap_or_default().to_owned();
            Some((id, name))
        });
        named.collect()
    }

    /// Returns the only operation in flight with this name.
    pub(crate) fn only(&self, name: &str) -> OpId {
        let mut named = self.flying();
        named.retain(|(_, other)| other == name);
        assert_eq!(named.len(), 1, "operations in flight: {:?}", self.flying());
        named[0].0
    }

    pub(crate) fn abandoned(&self) -> usize {
        self.state.borrow().abandoned.len()
    }

    pub(crate) fn cancelled(&self) -> Vec<OpId> {
        self.state.borrow().cancelled.clone()
    }

    pub(crate) fn waits(&self) -> Vec<Wait> {
        std::mem::take(&mut self.state.borrow_mut().waits)
    }

    /// Completes an operation.
    pub(crate) fn complete(&self, id: OpId, result: Result<u32, Errno>, payload: Payload) {
        let op = self.state.borrow_mut().end(id, result, payload);
        assert!(op.is_some(), "{id:?} is not in flight");
    }

    /// Completes a send or disk operation and returns its memory.
    pub(crate) fn give_back(&self, id: OpId, result: Result<u32, Errno>) {
        let mut state = self.state.borrow_mut();
        let operation = state.slots.get(id).and_then(Option::as_mut).expect("it is in flight");
        let payload = match std::mem::take(&mut operation.1) {
            Op::Net(NetOp::Send { data, .. }) | Op::Disk { op: DiskOp::WriteSegments { data, .. }, .. } => {
                Payload::Segments(data)
            }
            Op::Disk { op: DiskOp::Read { mut buf, .. }, .. } => {
                buf.set_len(result.unwrap_or(0) as usize);
                Payload::Buf(buf)
            }
            Op::Disk { op: DiskOp::Write { buf, .. }, .. }
            | Op::Net(NetOp::Recv { into: io::op::RecvInto::Owned(buf), .. }) => Payload::Buf(buf),
            other => panic!("{other:?} gives nothing back"),
        };
        state.end(id, result, payload);
    }

    /// Completes the operation in flight with this name, once its task has started it, and runs the tasks.
    pub(crate) async fn end(&self, name: &str, result: Result<u32, Errno>, payload: Payload) {
        settle().await;
        self.complete(self.only(name), result, payload);
        settle().await;
    }

    /// As [`Fake::end`], for an operation that returns its memory.
    pub(crate) async fn end_with_memory(&self, name: &str, result: Result<u32, Errno>) {
        settle().await;
        self.give_back(self.only(name), result);
        settle().await;
    }

    /// Reports one result of an operation that continues.
    pub(crate) fn progress(&self, id: OpId, result: Result<u32, Errno>, payload: Payload) {
        let state = &mut *self.state.borrow_mut();
        let token = state.slots.get(id).and_then(Option::as_mut).expect("it is in flight").0;
        state.ready.push(Completion { id, token, result, more: true, payload });
    }

    /// Returns a received buffer as a payload.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Payload {
        let mut buf = self.pool.get(bytes.len()).unwrap();
        buf.append(bytes);
        Payload::Buf(buf)
    }
}

impl State {
    fn end(&mut self, id: OpId, result: Result<u32, Errno>, payload: Payload) -> Option<Op> {
        let (token, op) = self.slots.get(id)?.take()?;
        self.slots.remove(id);
        self.counters.completed += 1;
        self.ready.push(Completion { id, token, result, more: false, payload });
        Some(op)
    }
}

impl Engine for Fake {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn submit(&mut self, op: Op, token: u64) -> Result<OpId, Op> {
        let state = &mut *self.state.borrow_mut();
        let is_refused = op.on_disk().is_some_and(|(_, device)| Some(device) == state.refused);
        if is_refused || state.slots.len() >= state.capacity {
            state.counters.table_full += 1;
            return Err(op);
        }
        state.counters.submitted += 1;
        let at_once = matches!(op, Op::Net(NetOp::Close { .. } | NetOp::Nop));
        let (id, slot) = state.slots.insert();
        *slot = Some((token, op));
        if at_once {
            state.end(id, Ok(0), Payload::None);
        }
        Ok(id)
    }

    fn cancel(&mut self, id: OpId) {
        let state = &mut *self.state.borrow_mut();
        state.cancelled.push(id);
        if state.obeys {
            state.end(id, Err(Errno::CANCELED), Payload::None);
        }
    }

    fn abandon(&mut self, id: OpId) {
        let state = &mut *self.state.borrow_mut();
        state.abandoned.push(id);
        *state.slots.get(id).expect("only what is in flight is abandoned") = None;
        state.slots.remove(id);
        state.counters.completed += 1;
        state.ready.retain(|completion| completion.id != id);
    }

    fn turn(&mut self, wait: Wait, batch: &mut Vec<Completion>) -> Result<(), Errno> {
        let bell = {
            let state = &mut *self.state.borrow_mut();
            state.waits.push(wait);
            state.counters.kernel_entries += 1;
            let quiet = state.ready.is_empty();
            batch.append(&mut state.ready);
            if !quiet {
                return Ok(());
            }
            Arc::clone(&state.bell)
        };
        bell.wait(wait);
        Ok(())
    }

    fn waker(&self) -> Waker {
        Arc::clone(&self.state.borrow().bell) as Waker
    }

    fn drain(&mut self, _deadline: Instant) -> Drained {
        let left = self.flying().len();
        if left == 0 { Drained::Clean } else { Drained::Leaked(left) }
    }

    fn counters(&self) -> Counters {
        self.state.borrow().counters
    }

    fn trim(&mut self) -> usize {
        0
    }
}
