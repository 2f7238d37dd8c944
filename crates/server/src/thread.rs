//! What the tasks of one worker thread share: the configuration in force, the list of connections, logs,
//! counters. Nothing here is visible to other threads.

use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use http::date::DateCache;
use rt::Timer;
use rt::local::{Counted, Event, Gauge};

use crate::config::Config;
use crate::files::RootFacts;
use crate::log::files::LogFiles;
use crate::process::shared::Shared;
use crate::request::{Generation, Request};
use crate::zone::{Zone, since_1970};

/// The state of one worker thread.
pub(crate) struct Thread {
    /// What all threads share.
    pub(crate) shared: Arc<Shared>,
    /// The kernel's number of this thread, for log lines.
    pub(crate) tid: i32,
    generation: RefCell<Rc<Generation>>,
    /// Log files by path, opened once.
    pub(crate) logs: LogFiles,
    /// Set when this thread accepts no more and ends its connections as they become idle.
    pub(crate) draining: Event,
    /// Connections that are open.
    pub(crate) connections: Gauge,
    idle: RefCell<IdleList<Timer>>,
    /// Connections that may be open at once (`worker_connections`).
    pub(crate) connections_max: Cell<usize>,
    dates: RefCell<DateCache>,
    zone: Zone,
    /// Requests of ended connections, with their memory, to be used again.
    spare_requests: RefCell<Vec<Request>>,
}

/// Requests whose memory is kept for later connections: a few screens full of browsers.
const SPARE_REQUESTS_MAX: usize = 256;

impl Thread {
    pub(crate) fn new(
        shared: Arc<Shared>,
        config: Arc<Config>,
        roots: Arc<Vec<RootFacts>>,
        logs: LogFiles,
    ) -> Thread {
        let connections_max = Cell::new(config.events().worker_connections as usize);
        let generation = RefCell::new(Rc::new(Generation { config, roots, number: 1 }));
        Thread {
            shared,
            tid: rustix::thread::gettid().as_raw_nonzero().get(),
            generation,
            logs,
            draining: Event::new(),
            connections: Gauge::new(),
            idle: RefCell::default(),
            connections_max,
            dates: RefCell::new(DateCache::new(0, 0)),
            zone: Zone::default(),
            spare_requests: RefCell::default(),
        }
    }

    /// The texts of the present second.
    pub(crate) fn dates(&self) -> Ref<'_, DateCache> {
        let (now, _) = since_1970(rt::wall());
        if self.dates.borrow().unix() != now {
            self.dates.borrow_mut().update(now, (self.zone.offset_at(now) / 60) as i16);
        }
        self.dates.borrow()
    }

    /// The configuration that the next request starts under.
    pub(crate) fn generation(&self) -> Rc<Generation> {
        Rc::clone(&self.generation.borrow())
    }

    /// Puts another configuration in force. Requests under way keep theirs; idle connections are served
    /// under the new one when they ask again.
    pub(crate) fn replace(&self, config: Arc<Config>, roots: Arc<Vec<RootFacts>>) {
        let number = self.generation.borrow().number + 1;
        *self.generation.borrow_mut() = Rc::new(Generation { config, roots, number });
        // Spare requests hold the old configuration.
        self.spare_requests.borrow_mut().clear();
    }

    /// Stops: idle connections end at once, others after the answer that is under way.
    pub(crate) fn drain(&self) {
        self.draining.set();
        for timer in self.idle.borrow().timers() {
            timer.expire_now();
        }
    }

    /// Whether this thread is stopping.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_set()
    }

    /// Counts a connection for as long as the answer lives.
    pub(crate) fn enter(&self) -> Counted {
        self.connections.enter()
    }

    /// Ends the connection that has been idle longest, to make room; whether there was one.
    pub(crate) fn end_an_idle_one(&self) -> bool {
        self.idle.borrow_mut().take_oldest().inspect(Timer::expire_now).is_some()
    }

    /// Marks a connection as idle while the answer lives: its timer can be expired from here.
    pub(crate) fn idle(&self, timer: &Timer) -> Idle<'_> {
        let place = self.idle.borrow_mut().insert(timer.clone());
        Idle { thread: self, place }
    }

    pub(crate) fn take_request(&self) -> Option<Request> {
        self.spare_requests.borrow_mut().pop()
    }

    /// Gives up the memory of ended connections; of how many.
    pub(crate) fn drop_spare_requests(&self) -> usize {
        std::mem::take(&mut *self.spare_requests.borrow_mut()).len()
    }

    pub(crate) fn keep_request(&self, request: Request) {
        let mut spare = self.spare_requests.borrow_mut();
        if spare.len() < SPARE_REQUESTS_MAX && Rc::ptr_eq(&request.generation, &self.generation.borrow()) {
            spare.push(request);
        }
    }
}

/// A connection that waits for its next request.
pub(crate) struct Idle<'a> {
    thread: &'a Thread,
    place: u32,
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.thread.idle.borrow_mut().remove(self.place);
    }
}

/// Idle connections, oldest first: a doubly linked list through a vector, so that coming and going costs no
/// search and no memory.
struct IdleList<T> {
    nodes: Vec<Node<T>>,
    free: Vec<u32>,
    first: Option<u32>,
    last: Option<u32>,
}

struct Node<T> {
    timer: Option<T>,
    previous: Option<u32>,
    next: Option<u32>,
}

impl<T> Default for IdleList<T> {
    fn default() -> Self {
        IdleList { nodes: Vec::new(), free: Vec::new(), first: None, last: None }
    }
}

impl<T> IdleList<T> {
    fn insert(&mut self, timer: T) -> u32 {
        let node = Node { timer: Some(timer), previous: self.last, next: None };
        let place = match self.free.pop() {
            Some(place) => {
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        match self.last.replace(place) {
            Some(last) => self.nodes[last as usize].next = Some(place),
            None => self.first = Some(place),
        }
        place
    }

    fn remove(&mut self, place: u32) {
        let node = &mut self.nodes[place as usize];
        node.timer = None;
        let (previous, next) = (node.previous, node.next);
        match previous {
            Some(previous) => self.nodes[previous as usize].next = next,
            None => self.first = next,
        }
        match next {
            Some(next) => self.nodes[next as usize].previous = previous,
            None => self.last = previous,
        }
        self.free.push(place);
    }

    /// The timer of the oldest one. Its node leaves the list when its connection wakes up; until then it is
    /// not answered again.
    fn take_oldest(&mut self) -> Option<T> {
        let mut at = self.first;
        while let Some(place) = at {
            let node = &mut self.nodes[place as usize];
            if node.timer.is_some() {
                return node.timer.take();
            }
            at = node.next;
        }
        None
    }

    fn timers(&self) -> impl Iterator<Item = &T> {
        self.nodes.iter().filter_map(|node| node.timer.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_first_and_only_once() {
        let mut list = IdleList::default();
        let places: Vec<u32> = ["a", "b", "c", "d"].map(|name| list.insert(name)).to_vec();
        list.remove(places[0]);
        assert_eq!(list.take_oldest(), Some("b"));
        assert_eq!(list.take_oldest(), Some("c"), "b is on its way out");
        list.remove(places[1]);
        list.remove(places[2]);
        let again = list.insert("e");
        assert_eq!(list.timers().copied().collect::<Vec<_>>().len(), 2);
        assert_eq!(
            (list.take_oldest(), list.take_oldest(), list.take_oldest()),
            (Some("d"), Some("e"), None)
        );
        list.remove(places[3]);
        list.remove(again);
        assert_eq!((list.first, list.last), (None, None));
    }
}
