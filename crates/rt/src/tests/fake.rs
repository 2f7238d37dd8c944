//! A scripted engine: operations stay in flight until the test completes them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use io::engine::{Caps, Counters, NetKind, Wake, Waker};
use io::op::DeviceId;
use io::{Completion, Drained, Engine, Errno, Op, OpId, Payload, Pool, Wait};

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
    /// Operations in flight by slot, with the slot's generation.
    slots: Vec<(u32, Option<Op>)>,
    /// Slots whose terminal completion was not returned yet.
    hidden: Vec<u32>,
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
        };
        let state = State {
            bell: Arc::default(),
            slots: Vec::new(),
            hidden: Vec::new(),
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
        let named = state.slots.iter().enumerate().filter_map(|(slot, (generation, op))| {
            let text = format!("{:?}", op.as_ref()?);
            let name = text.split([' ', '{']).next().unwrap_or_default().to_owned();
            Some((OpId { slot: slot as u32, generation: *generation }, name))
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
        let payload = match state.slots[id.slot as usize].1.take() {
            Some(Op::Send { data, .. } | Op::WriteSegments { data, .. }) => Payload::Segments(data),
            Some(Op::Read { mut buf, .. }) => {
                buf.set_len(result.unwrap_or(0) as usize);
                Payload::Buf(buf)
            }
            Some(Op::Write { buf, .. } | Op::Recv { into: io::op::RecvInto::Owned(buf), .. }) => {
                Payload::Buf(buf)
            }
            other => panic!("{other:?} gives nothing back"),
        };
        state.slots[id.slot as usize].1 = Some(Op::Nop);
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
        self.state.borrow_mut().ready.push(Completion { id, result, more: true, payload });
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
        let slot = self.slots.get_mut(id.slot as usize).filter(|slot| slot.0 == id.generation)?;
        let op = slot.1.take()?;
        slot.0 += 1;
        self.counters.completed += 1;
        self.hidden.push(id.slot);
        self.ready.push(Completion { id, result, more: false, payload });
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

    fn submit(&mut self, op: Op) -> Result<OpId, Op> {
        let state = &mut *self.state.borrow_mut();
        let is_refused = op.on_disk().is_some_and(|(_, device)| Some(device) == state.refused);
        if is_refused || state.slots.iter().filter(|slot| slot.1.is_some()).count() >= state.capacity {
            state.counters.table_full += 1;
            return Err(op);
        }
        state.counters.submitted += 1;
        let is_free = |(place, slot): (usize, &(u32, Option<Op>))| {
            (slot.1.is_none() && !state.hidden.contains(&(place as u32))).then_some(place)
        };
        let place = state.slots.iter().enumerate().find_map(is_free).unwrap_or_else(|| {
            state.slots.push((0, None));
            state.slots.len() - 1
        });
        let id = OpId { slot: place as u32, generation: state.slots[place].0 };
        let at_once = matches!(op, Op::Close { .. } | Op::Nop);
        state.slots[place].1 = Some(op);
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
        let slot = &mut state.slots[id.slot as usize];
        assert_eq!(slot.0, id.generation, "only what is in flight is abandoned");
        slot.1 = None;
        slot.0 += 1;
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
            state.hidden.clear();
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
