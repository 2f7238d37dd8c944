//! Tests the slots of connections to upstreams while all others are in use.

use std::cell::RefCell;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use io::engine::{EngineConfig, NetKind};
use rt::local::{Counted, WaitGroup};
use rt::{Runtime, Socket, Timer};

use exchange::capacity::Waits;
use exchange::files::root_facts;
use exchange::request::{Address, ConnInfo};
use exchange::thread::{ConfigVersion, Thread};
use modules::testing;
use telemetry::files::{LogFiles, Opened};
use telemetry::shared::Shared;

/// Time that the connection takes to end: on a busy machine a few event-loop turns take as long.
const ENDING: Duration = Duration::from_millis(100);

fn thread(connections: usize) -> Rc<Thread> {
    let text = format!("events {{ worker_connections {connections}; }} http {{ server {{ }} }}");
    let config = testing::load(&text).expect("a configuration").config;
    let version = ConfigVersion::new(modules::all(), &config, root_facts(&config), 1, Arc::new(()));
    Rc::new(Thread::new(Arc::new(Shared::default()), version, LogFiles::new(1, true), Opened::default()))
}

/// Returns the two ends of a connection.
#[expect(clippy::disallowed_methods, reason = "to a listening socket of this test")]
fn connection() -> (TcpStream, Socket) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let client =
        TcpStream::connect(listener.local_addr().expect("a bound socket")).expect("a listening socket");
    let (accepted, _) = listener.accept().expect("a connection that was made");
    accepted.set_nonblocking(true).expect("a socket");
    (client, Socket::new(accepted.into()))
}

/// Takes the slot of a connection, which waits until it is chosen to be closed. `end` gets the slot then.
fn wait_to_be_chosen<F>(
    thread: &Rc<Thread>,
    kind: Waits,
    end: impl FnOnce(Counted) -> F + 'static,
) -> TcpStream
where
    F: Future<Output = ()> + 'static,
{
    let (client, socket) = connection();
    let (thread, slot) = (Rc::clone(thread), thread.capacity.enter());
    rt::spawn(async move {
        let timer = Timer::new();
        let waiting = thread.capacity.waits(kind, &timer, socket.fd());
        assert!(timer.limit(std::future::pending::<()>()).await.is_err(), "the timer expires");
        assert!(waiting.is_chosen());
        drop(waiting);
        end(slot).await;
    });
    client
}

/// Takes the slot of a connection that may be closed at once, and ends it late.
fn end_late(thread: &Rc<Thread>) -> TcpStream {
    wait_to_be_chosen(thread, Waits::Lingering, |slot| async {
        rt::sleep_until(rt::now() + ENDING).await;
        drop(slot);
    })
}

/// Takes all slots that upstreams may use.
async fn take_all(thread: &Rc<Thread>) -> Vec<Counted> {
    let mut taken = Vec::new();
    while let Some(slot) = thread.slot_for_upstream(None).await {
        taken.push(slot);
    }
    taken
}

/// Runs a test on a thread with this number of connections.
fn run<F: Future<Output = ()>>(connections: usize, test: impl FnOnce(Rc<Thread>) -> F) {
    let engine = io::build(EngineConfig { net: NetKind::Epoll, ..EngineConfig::default() });
    Runtime::new(engine.expect("epoll is everywhere")).block_on(async { test(thread(connections)).await });
}

#[test]
fn a_request_waits_for_the_end_of_a_chosen_connection() {
    wait_with(512);
}

/// No slots are left to clients here, so a request chooses connections only once.
#[test]
fn a_request_waits_for_the_end_of_a_chosen_connection_with_few_connections() {
    wait_with(12);
}

fn wait_with(connections: usize) {
    run(connections, |thread| async move {
        let mut taken = take_all(&thread).await;
        // Another request may have chosen the connection.
        for requests in [1, 2] {
            taken.truncate(taken.len() - requests);
            let clients: Vec<TcpStream> = (0..requests).map(|_| end_late(&thread)).collect();
            rt::yield_now().await;
            let (served, all) = (Rc::new(RefCell::new(Vec::new())), WaitGroup::new());
            for _ in 0..requests {
                let (thread, served, counted) = (Rc::clone(&thread), Rc::clone(&served), all.enter());
                rt::spawn(async move {
                    let slot = thread.slot_for_upstream(None).await;
                    served.borrow_mut().push(slot);
                    drop(counted);
                });
            }
            all.wait_empty().await;
            taken.extend(served.take().into_iter().map(|slot| slot.expect("a slot")));
            drop(clients);
        }
    });
}

#[test]
fn a_connection_with_many_requests_delays_another_by_one() {
    run(64, |thread| async move {
        let mut taken = take_all(&thread).await;
        taken.pop();
        // The requests wait for this connection, which may turn out to stall.
        let _client = wait_to_be_chosen(&thread, Waits::Reads, |slot| async { drop(slot) });
        let here = Address::Inet((Ipv4Addr::LOCALHOST, 80).into());
        let [greedy, other] = [(); 2].map(|()| ConnInfo::new(&thread, here.clone(), here.clone()));
        let (greedy, other) = (Rc::new(greedy), Rc::new(other));
        let (served, all) = (Rc::new(RefCell::new(Vec::new())), WaitGroup::new());
        for conn in [&greedy; 8].into_iter().chain([&other]) {
            let (conn, served, counted) = (Rc::clone(conn), Rc::clone(&served), all.enter());
            rt::spawn(async move {
                let slot = conn.thread.slot_for_upstream(Some(&conn)).await;
                served.borrow_mut().push((conn.number, slot.expect("a slot")));
                drop(counted);
            });
        }
        rt::yield_now().await;
        assert_eq!(served.borrow().len(), 0);
        taken.truncate(taken.len() - 9);
        all.wait_empty().await;
        let order: Vec<u64> = served.borrow().iter().map(|(number, _)| *number).collect();
        assert_eq!(order[..2], [greedy.number, other.number]);
    });
}

#[test]
fn accepted_connections_do_not_take_slots_that_were_freed_for_a_request() {
    run(64, |thread| async move {
        let accepted = Rc::new(RefCell::new(Vec::new()));
        let close = || {
            let (thread_of_end, accepted) = (Rc::clone(&thread), Rc::clone(&accepted));
            wait_to_be_chosen(&thread, Waits::Lingering, |slot| async move {
                drop(slot);
                // Further clients wait for each slot.
                while thread_of_end.capacity.exhausted().is_none() {
                    accepted.borrow_mut().push(thread_of_end.capacity.enter());
                }
            })
        };
        let clients: Vec<TcpStream> = (0..64).map(|_| close()).collect();
        rt::yield_now().await;
        assert!(thread.capacity.exhausted().is_some());
        assert!(thread.slot_for_upstream(None).await.is_some());
        // All other slots are available to clients.
        assert!(thread.capacity.exhausted().is_none());
        drop(clients);
    });
}
