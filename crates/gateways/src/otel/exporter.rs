//! The spans of a thread that wait for their export, and the task that exports them.
//!
//! A span is encoded into the current batch when its request ends; this never waits. A full batch, or one older than `interval`, is sent
//! by the task of the thread, one after the other. While `batch_count` batches wait, further spans are dropped and counted. A batch
//! that a collector refuses temporarily is sent again, with increasing pauses, until [`RETRIES_TIME_MAX`] has passed.
//!
//! ```text
//! request --> current batch --(full, or interval)--> waiting batches --> task --> collector
//! ```

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rt::local::Event;

use super::collector::{self, Collector, Exported};
use super::context::Identifiers;
use exchange::error_log;
use exchange::thread::Thread;
use telemetry::Level;
use telemetry::limited::Limited;
use telemetry::otlp::{Batch, SpanHead, SpanWriter};
use telemetry::spans::{SpanResult, count};

/// Pause before a batch is sent again; each further pause is twice as long.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Maximum pause, also if a collector requests a longer one: its batch would only keep newer spans from the collector.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Time after which a batch is not sent again. nginx's module never does so.
const RETRIES_TIME_MAX: Duration = Duration::from_secs(60);

/// Time in which a thread that ends exports its last spans.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(3);

/// The spans of a thread.
#[derive(Default)]
pub(super) struct Exporter {
    pub(super) identifiers: Identifiers,
    queue: RefCell<Queue>,
    /// The collector of the last configuration with one, until all its batches are sent.
    collector: RefCell<Option<Rc<Collector>>>,
    /// Whether the configuration in force has a collector.
    is_on: Cell<bool>,
    /// Set when the task has work, or another time to wait for.
    wake: Event,
    /// Set when no batch waits and none is in flight.
    idle: Event,
    /// Set when the thread ends: batches are sent immediately, and once.
    ending: Event,
    has_task: Cell<bool>,
    drops: Limited,
    failures: Limited,
}

/// The batches of a thread.
#[derive(Default)]
struct Queue {
    current: Batch,
    /// Time of the first span of the current batch.
    begun: Option<Instant>,
    /// Batches to be sent, the oldest first. The first one may be in flight.
    waiting: VecDeque<Rc<Batch>>,
}

/// The next step of the task.
enum NextStep {
    Send(Rc<Batch>),
    /// The current batch is sent at this time.
    WaitUntil(Instant),
    Wait,
}

impl Exporter {
    /// Adds a span; `fill` adds its attributes.
    pub(super) fn add(&self, thread: &Thread, head: &SpanHead<'_>, fill: impl FnOnce(&mut SpanWriter<'_>)) {
        let limits = self.collector.borrow().as_ref().map(|collector| collector.conf().limits());
        // Without limits, only the configuration of the request had an exporter, and a later one has none.
        let Some((size, count_max)) = limits.filter(|_| self.is_on.get()) else {
            return count(SpanResult::Dropped, 1);
        };
        let mut queue = self.queue.borrow_mut();
        // The current batch counts too, as in nginx.
        if queue.waiting.len() >= count_max {
            drop(queue);
            return self.drop_one(thread);
        }
        let is_first = queue.current.count() == 0;
        queue.current.add(head, fill);
        if queue.current.is_full(size) {
            queue.seal();
        } else if is_first {
            queue.begun = Some(rt::now());
        } else {
            return;
        }
        drop(queue);
        self.idle.clear();
        self.wake.set();
    }

    fn drop_one(&self, thread: &Thread) {
        count(SpanResult::Dropped, 1);
        if let Some(more) = self.drops.due(rt::now()) {
            let what = "OTel dropped a record: all batches are full";
            error_log::write(thread, Level::Notice, format_args!("{what}{more}"));
        }
    }

    /// Returns the next step, for a configuration with this interval.
    fn next(&self, interval: Duration) -> NextStep {
        let mut queue = self.queue.borrow_mut();
        if let Some(first) = queue.waiting.front() {
            return NextStep::Send(Rc::clone(first));
        }
        let Some(begun) = queue.begun else { return NextStep::Wait };
        let due = begun + interval;
        if due > rt::now() && !self.ending.is_set() {
            return NextStep::WaitUntil(due);
        }
        queue.seal();
        queue.waiting.front().map_or(NextStep::Wait, |first| NextStep::Send(Rc::clone(first)))
    }

    /// Removes the batch that was sent, with its result.
    fn finish(&self, thread: &Thread, exported: &Exported) {
        let batch = self.queue.borrow_mut().waiting.pop_front();
        let spans = batch.map_or(0, |batch| batch.count()) as u64;
        match exported {
            Exported::Accepted(rejected) => {
                let lost = rejected.spans.min(spans);
                count(SpanResult::Exported, spans - lost);
                count(SpanResult::Rejected, lost);
                if lost > 0 || !rejected.message.is_empty() {
                    self.report(thread, format_args!("{lost} spans were rejected: {}", rejected.message));
                }
            }
            Exported::Failed(reason) | Exported::Postponed(reason, _) => {
                count(SpanResult::Failed, spans);
                self.report(thread, format_args!("{reason}; {spans} spans are lost"));
            }
        }
    }

    fn report(&self, thread: &Thread, what: fmt::Arguments<'_>) {
        if let Some(more) = self.failures.due(rt::now()) {
            error_log::write(thread, Level::Error, format_args!("OTel export failure: {what}{more}"));
        }
    }
}

impl Queue {
    /// Lets the current batch wait to be sent.
    fn seal(&mut self) {
        let batch = std::mem::take(&mut self.current);
        self.begun = None;
        if batch.count() > 0 {
            self.waiting.push_back(Rc::new(batch));
        }
    }
}

/// Uses the collector of the configuration in force. Without a new one, the old one gets the last spans.
pub(super) fn configure(thread: &Rc<Thread>) {
    let exporter = thread.local::<Rc<Exporter>>();
    let collector = Collector::of(thread, &thread.thread_config());
    exporter.is_on.set(collector.is_some());
    if let Some(collector) = collector {
        exporter.collector.replace(Some(Rc::new(collector)));
        if !exporter.has_task.replace(true) {
            rt::spawn(run(Rc::clone(thread), Rc::clone(exporter)));
        }
    }
    exporter.wake.set();
}

/// Exports batches for as long as the thread runs.
async fn run(thread: Rc<Thread>, exporter: Rc<Exporter>) {
    loop {
        exporter.wake.clear();
        let Some(collector) = exporter.collector.borrow().clone() else {
            exporter.wake.wait().await;
            continue;
        };
        let is_on = exporter.is_on.get();
        match exporter.next(if is_on { collector.conf().interval } else { Duration::ZERO }) {
            NextStep::Send(batch) => {
                let exported = send(&exporter, &collector, &batch).await;
                exporter.finish(&thread, &exported);
            }
            NextStep::WaitUntil(due) => {
                let _ = rt::select(exporter.wake.wait(), rt::sleep_until(due)).await;
            }
            NextStep::Wait => {
                exporter.idle.set();
                drop(collector);
                if !is_on {
                    // Otherwise the old configuration would be retained.
                    exporter.collector.take();
                }
                exporter.wake.wait().await;
            }
        }
    }
}

/// Sends a batch, several times if the collector postpones it.
async fn send(exporter: &Exporter, collector: &Collector, batch: &Batch) -> Exported {
    let (begun, mut pause) = (rt::now(), RETRY_PAUSE);
    loop {
        let exported = collector::export(collector, batch).await;
        let Exported::Postponed(reason, requested) = exported else { return exported };
        let wait = requested.unwrap_or(pause).clamp(RETRY_PAUSE, RETRY_PAUSE_MAX);
        let is_late = rt::now() + wait > begun + RETRIES_TIME_MAX;
        if is_late || exporter.ending.is_set() {
            return Exported::Failed(reason);
        }
        let _ = rt::select(exporter.ending.wait(), rt::sleep_until(rt::now() + wait)).await;
        pause = pause.saturating_mul(2).min(RETRY_PAUSE_MAX);
    }
}

/// Exports the last spans of a thread that ends.
pub(super) fn flush(thread: &Rc<Thread>) -> Option<Pin<Box<dyn Future<Output = ()>>>> {
    let exporter = Rc::clone(thread.local::<Rc<Exporter>>());
    let is_idle = {
        let queue = exporter.queue.borrow();
        queue.waiting.is_empty() && queue.current.count() == 0
    };
    if is_idle || !exporter.has_task.get() {
        // Otherwise the collector would retain the thread.
        exporter.collector.take();
        return None;
    }
    let thread = Rc::clone(thread);
    Some(Box::pin(async move {
        exporter.ending.set();
        exporter.wake.set();
        let idle = Box::pin(exporter.idle.wait());
        if let rt::Either::Right(()) = rt::select(idle, rt::sleep_until(rt::now() + FLUSH_TIME_MAX)).await {
            let mut queue = exporter.queue.borrow_mut();
            queue.seal();
            let spans: usize = queue.waiting.iter().map(|batch| batch.count()).sum();
            drop(queue);
            count(SpanResult::Failed, spans as u64);
            exporter
                .report(&thread, format_args!("the collector is too slow at exit; {spans} spans are lost"));
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::otlp::SpanKind;

    fn add(queue: &mut Queue) {
        let head = SpanHead {
            trace_id: [1; 16],
            span_id: [1; 8],
            parent_id: None,
            state: b"",
            name: b"",
            kind: SpanKind::Server,
            start_ns: 0,
            end_ns: 0,
        };
        queue.current.add(&head, |_| {});
    }

    #[test]
    fn batches_wait_in_their_order() {
        let mut queue = Queue::default();
        queue.seal();
        assert!(queue.waiting.is_empty(), "an empty batch is not sent");
        for spans in 1..4 {
            (0..spans).for_each(|_| add(&mut queue));
            queue.seal();
        }
        let counts: Vec<usize> = queue.waiting.iter().map(|batch| batch.count()).collect();
        assert_eq!((counts, queue.current.count()), (vec![1, 2, 3], 0));
    }
}
