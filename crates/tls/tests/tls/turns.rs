//! Many handshakes take turns with other tasks. Tests compare the order of actions, never times.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use io::engine::{EngineConfig, NetKind};
use rt::Runtime;
use tls::turns::{Counts, STEPS_PER_TURN_MAX, TIME_PER_TURN_MAX, Turns};

/// Runs a test on a worker thread.
fn run<F: Future<Output = ()>>(test: F) {
    let config = EngineConfig {
        net: NetKind::Epoll,
        ring_entries: 64,
        recv_buffers: 16,
        pool_bytes_max: 1 << 20,
        ..EngineConfig::default()
    };
    let mut runtime = Runtime::new(io::build(config).unwrap());
    runtime.block_on(test);
    runtime.shutdown(Instant::now() + Duration::from_secs(10));
}

/// An action in an event-loop turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Step(usize),
    /// A turn of the task that serves requests.
    Request,
}

type Order = Rc<RefCell<Vec<Done>>>;

/// Starts a task that acts in each turn, until this number of steps has run.
fn serve_requests(order: &Order, steps: usize) {
    let order = Rc::clone(order);
    rt::spawn(async move {
        while order.borrow().iter().filter(|done| matches!(done, Done::Step(_))).count() < steps {
            order.borrow_mut().push(Done::Request);
            rt::yield_now().await;
        }
    });
}

async fn flood(order: &Order, turns: &Turns, steps: usize, work: impl Fn() + Copy + 'static) {
    let left = Rc::new(Cell::new(steps));
    for number in 0..steps {
        let (order, turns, left) = (Rc::clone(order), turns.clone(), Rc::clone(&left));
        rt::spawn(async move {
            turns.run(work).await;
            order.borrow_mut().push(Done::Step(number));
            left.set(left.get() - 1);
        });
    }
    while left.get() > 0 {
        rt::yield_now().await;
    }
}

#[test]
fn requests_are_served_between_concurrent_handshakes() {
    run(async {
        const STEPS: usize = 100;
        let (order, turns) = (Order::default(), Turns::default());
        serve_requests(&order, STEPS);
        flood(&order, &turns, STEPS, || {}).await;
        let order = order.borrow();
        let steps: Vec<usize> = order
            .iter()
            .filter_map(|done| if let Done::Step(number) = done { Some(*number) } else { None })
            .collect();
        assert_eq!(steps, (0..STEPS).collect::<Vec<_>>(), "the first one is the first");
        let longest = order.split(|done| *done == Done::Request).map(<[Done]>::len).max().unwrap();
        assert!(longest <= 2 * STEPS_PER_TURN_MAX, "{longest} steps without a request");
        let Counts { postponed, offloaded: elsewhere } = turns.take_counts();
        assert!(postponed >= (STEPS - STEPS_PER_TURN_MAX) as u64 / 2 && elsewhere == 0, "{postponed}");
        assert!(!turns.is_crowded() || order.len() > STEPS);
    });
}

#[test]
fn a_long_handshake_step_is_the_last_of_its_turn() {
    run(async {
        const STEPS: usize = 12;
        let (order, turns) = (Order::default(), Turns::default());
        serve_requests(&order, STEPS);
        let slow = || {
            let begun = Instant::now();
            while begun.elapsed() < TIME_PER_TURN_MAX {
                std::hint::spin_loop();
            }
        };
        flood(&order, &turns, STEPS, slow).await;
        let order = order.borrow();
        let longest = order.split(|done| *done == Done::Request).map(<[Done]>::len).max().unwrap();
        assert!(longest <= 2, "{longest} slow steps without a request");
    });
}

#[test]
fn dropped_handshake_steps_leave_the_queue() {
    run(async {
        let turns = Turns::default();
        for _ in 0..STEPS_PER_TURN_MAX {
            turns.run(|| {}).await;
        }
        // Three steps wait; one of them is dropped, as at a timeout.
        let done = Rc::new(RefCell::new(Vec::new()));
        let step = |number: u32| {
            let (turns, done) = (turns.clone(), Rc::clone(&done));
            async move { turns.run(|| done.borrow_mut().push(number)).await }
        };
        let dropped = async {
            let waits = std::pin::pin!(step(2));
            rt::select(waits, async {}).await;
        };
        rt::join(step(1), rt::join(dropped, step(3))).await;
        assert_eq!(*done.borrow(), [1, 3]);
    });
}

#[test]
fn a_step_on_another_thread_is_counted_and_does_not_block_others() {
    run(async {
        let turns = Turns::default();
        let (release, released) = std::sync::mpsc::channel();
        let elsewhere = turns.run_offloaded(move || released.recv().is_ok());
        let here = async {
            // The step on the other thread waits for this step.
            turns.run(|| release.send(()).unwrap()).await;
        };
        let (came_back, ()) = rt::join(elsewhere, here).await;
        assert_eq!(came_back, Some(true));
        assert_eq!(turns.take_counts(), Counts { postponed: 0, offloaded: 1 });
    });
}
