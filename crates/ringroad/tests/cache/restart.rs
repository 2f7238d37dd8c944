//! A cache across stops, crashes and reloads: every stored entry is used immediately, every response is correct, and no
//! key is stuck.
//!
//! Damage by a kill during a write is visible only after the next start, so each round requests all keys. Faults of
//! disks and origins are in `cache/faults.rs`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::cache::{
    checked, entries, get, get_until, setup, sized_objects, start, wait_for_entries, wait_for_no_leftovers,
};
use crate::common::ours_only;
use rustix::process::{Pid, Signal, kill_process};
use testkit::client::request_bytes;
use testkit::{Client, Deadline, Server, Setup, origin, wait};

/// Sizes below and above one chunk, some not a multiple of any block size.
const SIZES: [u64; 4] = [4_096, 15_530, 100_000, 600_000];

/// Returns this many targets, of all sizes.
fn targets(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("/{number}-{}", SIZES[number % SIZES.len()])).collect()
}

fn fill(server: &Server, setup: &Setup, targets: &[String]) {
    // If the disk is slow, some responses are not stored.
    targets.iter().for_each(|target| get_until(server, target, "HIT"));
    wait_for_entries(setup, targets.len());
}

#[test]
fn entries_are_usable_immediately_after_a_stop_and_after_a_crash() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for is_clean in [true, false] {
        let (_objects, origin) = sized_objects();
        // Directories are read so slowly that all entries are requested before they are known.
        let faults = "engine_fault readdir delay=3s path=@CACHE@/ while=@DATA@/slow;";
        let setup = setup(&origin, &[("FAULTS", faults)]);
        let targets = targets(24);
        let server = start(&setup);
        fill(&server, &setup, &targets);
        let asked = origin.stats().requests;
        match is_clean {
            true => assert!(server.quit_and_wait().success()),
            false => drop(server),
        }
        fs::write(setup.data().join("slow"), "").expect("a writable directory");
        let server = start(&setup);
        for target in &targets {
            assert_eq!(get(&server, target), "HIT", "clean {is_clean}\n{}", server.error_log());
        }
        if !is_clean {
            assert!(!server.error_log().contains("entries known"), "{}", server.error_log());
        }
        fs::remove_file(setup.data().join("slow")).expect("it is there");
        server.wait_for_log("24 entries", Deadline::default());
        for target in &targets {
            assert_eq!(get(&server, target), "HIT", "when all are known");
        }
        assert_eq!(get(&server, "/other-4096"), "MISS");
        assert_eq!(origin.stats().requests, asked + 1);
    }
}

fn kill(pid: i32) {
    let pid = Pid::from_raw(pid).expect("a process has an ID");
    kill_process(pid, Signal::KILL).expect("it runs");
}

/// Requests targets until `stop` is set, from any process that responds. Every complete response must be correct.
fn request_continuously(
    address: &testkit::ListenAddr,
    targets: &[String],
    stop: &AtomicBool,
    whole: &AtomicU64,
    first: usize,
) {
    let mut number = first;
    while !stop.load(Ordering::SeqCst) {
        number = (number * 5 + 7) % targets.len();
        let target = &targets[number];
        let Ok(mut client) = Client::try_connect(address) else { continue };
        if client.try_send(&request_bytes("GET", target, &[])).is_err() {
            continue;
        }
        // A crash truncates some responses. A status such as 500 would be a stuck entry.
        if let Ok(response) = client.try_response() {
            assert_eq!(response.status, 200, "{target}");
            origin::objects::check(target, &response).unwrap_or_else(|wrong| panic!("{target}: {wrong}"));
            whole.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Runs `crash` while clients cause fills; the clients stop after it. `crash` gets a function that waits for the given number of
/// further responses.
fn under_load(server: &Server, targets: &[String], crash: impl FnOnce(&dyn Fn(u64))) {
    let (stop, whole) = (AtomicBool::new(false), AtomicU64::new(0));
    let address = server.addr(0);
    std::thread::scope(|scope| {
        for first in 0..3 {
            let (stop, whole) = (&stop, &whole);
            scope.spawn(move || request_continuously(address, targets, stop, whole, first));
        }
        crash(&|count| {
            let enough = whole.load(Ordering::SeqCst) + count;
            let look = || (whole.load(Ordering::SeqCst) >= enough).then_some(());
            wait::until("answers", Deadline::default(), look).expect("answers come");
        });
        stop.store(true, Ordering::SeqCst);
    });
}

/// Stops the server by a signal during fills; the next start loads the complete index from the saved file.
fn a_stop_saves_the_index(signal: Signal) {
    if !ours_only("nginx has no index on disk") {
        return;
    }
    let (_objects, origin) = sized_objects();
    let setup = setup(&origin, &[("THREADS", "2")]);
    let targets = targets(60);
    let mut server = start(&setup);
    fill(&server, &setup, &targets[..20]);
    under_load(&server, &targets, |more| {
        more(15);
        server.signal(signal);
        server.wait_for_log(": exit", Deadline::default());
    });
    assert!(server.wait_until_ended(Deadline::default()).success(), "{}", server.error_log());
    let stored = entries(&setup).len();
    assert!(stored >= 20);
    let server = start(&setup);
    let log = server.wait_for_log("entries known", Deadline::default());
    assert!(log.contains(&format!("{stored} entries known")), "{stored} files\n{}", server.error_log());
    assert!(server.error_log().contains("from a snapshot"), "{}", server.error_log());
    targets[..20].iter().for_each(|target| assert_eq!(get(&server, target), "HIT", "{target}"));
}

#[test]
fn a_stop_by_term_saves_the_index() {
    a_stop_saves_the_index(Signal::TERM);
}

#[test]
fn a_stop_by_int_saves_the_index() {
    a_stop_saves_the_index(Signal::INT);
}

#[test]
fn a_stop_by_quit_saves_the_index() {
    a_stop_saves_the_index(Signal::QUIT);
}

/// Every key gets a correct response, and is in the cache in the end.
fn assert_none_is_stuck(server: &Server, setup: &Setup, targets: &[String]) {
    targets.iter().for_each(|target| drop(get(server, target)));
    targets.iter().for_each(|target| get_until(server, target, "HIT"));
    wait_for_no_leftovers(setup);
}

#[test]
fn a_worker_killed_during_fills_leaves_a_correct_cache() {
    if ours_only("nginx's loader takes a minute") {
        a_worker_is_killed(3);
    }
}

fn a_worker_is_killed(rounds: usize) {
    let (_objects, origin) = sized_objects();
    let setup = setup(&origin, &[("THREADS", "2"), ("PATH", "max_size=12m")]);
    let server = start(&setup);
    let targets = targets(60);
    for round in 1..=rounds {
        let [worker] = server.workers()[..] else { panic!("one worker: {:?}", server.workers()) };
        under_load(&server, &targets, |more| {
            more(15);
            kill(worker);
            server.wait_for_log_count(": start worker process ", round + 1, Deadline::default());
            more(15);
        });
        assert!(!server.workers().contains(&worker));
    }
    assert_none_is_stuck(&server, &setup, &targets[..20]);
    assert!(
        !server.error_log().contains("damaged"),
        "a crash of a process tears no entry\n{}",
        server.error_log()
    );
}

#[test]
fn a_server_killed_during_fills_leaves_a_correct_cache() {
    if ours_only("nginx's loader takes a minute") {
        the_server_is_killed(3);
    }
}

fn the_server_is_killed(rounds: usize) {
    let (_objects, origin) = sized_objects();
    let setup = setup(&origin, &[("THREADS", "2")]);
    let targets = targets(80);
    for _ in 0..rounds {
        let mut server = start(&setup);
        under_load(&server, &targets, |more| {
            more(12);
            wait::until("an entry", Deadline::default(), || (!entries(&setup).is_empty()).then_some(()))
                .expect("fills end");
            // The master is killed first, as it would start another worker.
            let workers = server.workers();
            kill(server.pid());
            workers.into_iter().for_each(kill);
        });
        server.wait_until_ended(Deadline::default());
    }
    let server = start(&setup);
    let stored = entries(&setup).len();
    assert!(stored > 0);
    assert_none_is_stuck(&server, &setup, &targets);
    assert!(!server.error_log().contains("damaged"), "{}", server.error_log());
}

#[test]
fn the_cache_survives_reloads_in_place_and_by_a_new_process() {
    let (_objects, origin) = sized_objects();
    let setup = setup(&origin, &[]);
    let mut server = start(&setup);
    let targets = targets(12);
    fill(&server, &setup, &targets);
    let text = server.conf().to_owned();
    let worker = server.workers();
    // A reload in the same process, with the same index.
    server.rewrite_conf(&text.replace("X-Cache", "X-Cache-Too x always; add_header X-Cache"));
    server.reload();
    let is_new = || Client::connect(server.addr(0)).get("/0-4096").field("X-Cache-Too").map(|_| ());
    wait::until("the new configuration", Deadline::default(), is_new).expect("it comes into force");
    assert_eq!(server.workers(), worker);
    targets.iter().for_each(|target| assert_eq!(get(&server, target), "HIT"));
    // A reload with a new process, while the old one still has requests.
    let mut slow = [Client::connect(server.addr(0)), Client::connect(server.addr(0))];
    for client in &mut slow {
        client.send("GET /");
    }
    wait::until("accepted", Deadline::default(), || {
        (testkit::process::open_fds(worker[0]) > 0).then_some(())
    })
    .expect("it runs");
    // A response on a later connection proves that the two before it were accepted.
    get(&server, "/0-4096");
    server.rewrite_conf(&text.replace("worker_processes 1", "worker_processes 2"));
    server.reload();
    server.wait_for_log("gracefully shutting down", Deadline::default());
    let two = || (server.workers().len() == 2).then_some(());
    wait::until("both workers", Deadline::default(), two).expect("the old one has requests");
    for target in &targets {
        assert_eq!(get(&server, target), "HIT", "{}", server.error_log());
    }
    get_until(&server, "/new-100000", "HIT");
    let [reading, missing] = &mut slow;
    reading.send("0-4096 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(checked("/0-4096", &reading.response()), "HIT", "the old one reads");
    let before = wait_for_entries(&setup, targets.len() + 1).len();
    missing.send("passed-4096 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(checked("/passed-4096", &missing.response()), "MISS");
    let one = || (server.workers().len() == 1).then_some(());
    wait::until("the old worker's end", Deadline::default(), one).expect("it has no requests");
    assert_eq!(entries(&setup).len(), before, "the old worker stores no response");
    assert_eq!(get(&server, "/passed-4096"), "MISS");
    get_until(&server, "/passed-4096", "HIT");
    assert!(server.quit_and_wait().success());
}

#[test]
fn entries_in_memory_need_no_file_and_obey_the_size_limit() {
    let (_objects, origin) = sized_objects();
    let setup = setup(&origin, &[("PATH", "memory=8m")]);
    let server = start(&setup);
    let targets: Vec<String> = (0..400).map(|number| format!("/{number}-30000")).collect();
    fill(&server, &setup, &targets);
    // After a start the memory cache is empty. Before it, some hits joined fills, others were read from the disk.
    assert!(server.quit_and_wait().success());
    let server = start(&setup);
    let (hot, others) = targets.split_at(20);
    for _ in 0..3 {
        hot.iter().for_each(|target| assert_eq!(get(&server, target), "HIT"));
    }
    others.iter().for_each(|target| assert_eq!(get(&server, target), "HIT"));
    for file in entries(&setup) {
        fs::remove_file(file).expect("an entry");
    }
    let hits =
        |targets: &[String]| targets.iter().filter(|target| get(&server, target) == "HIT").count() as u64;
    assert_eq!(hits(hot), 20, "frequent entries are served from memory");
    let hits = 20 + hits(others);
    assert!(hits * 30_000 <= 8 << 20, "{hits} hits in 8 MiB");
}

/// Purges as an operator does, with the request field that the configuration names.
fn purge(server: &Server, target: &str) -> u16 {
    Client::connect(server.addr(0)).request("GET", target, &[("X-Purge", "1")]).status
}

#[test]
fn purged_entries_do_not_reappear_after_a_crash() {
    if !ours_only("nginx has purges in its commercial edition") {
        return;
    }
    let (_objects, origin) = sized_objects();
    let setup = setup(&origin, &[("SERVER", "proxy_cache_purge $http_x_purge;")]);
    let targets: Vec<String> =
        (0..6).flat_map(|number| [format!("/all-{number}-4096"), format!("/one-{number}-100000")]).collect();
    let mut server = start(&setup);
    for round in 0..3 {
        targets.iter().for_each(|target| get_until(&server, target, "HIT"));
        wait_for_entries(&setup, targets.len());
        let one = format!("/one-{round}-100000");
        assert_eq!(purge(&server, &one), 204, "{}", server.error_log());
        assert_eq!(purge(&server, "/all-*"), 204);
        // Immediately after the start only the log of purges lists the removed entries.
        drop(server);
        server = start(&setup);
        for target in &targets {
            let is_purged = *target == one || target.starts_with("/all-");
            assert_eq!(get(&server, target), if is_purged { "MISS" } else { "HIT" }, "{target}");
        }
    }
}

#[test]
fn a_purge_removes_entries_in_memory() {
    if !ours_only("nginx has no memory cache") {
        return;
    }
    let (_objects, origin) = sized_objects();
    let setup = setup(&origin, &[("PATH", "memory=8m"), ("SERVER", "proxy_cache_purge $http_x_purge;")]);
    let server = start(&setup);
    for target in ["/a-4096", "/b-4096"] {
        get(&server, target);
    }
    let files = wait_for_entries(&setup, 2);
    // After a start no request joins a fill: the first read puts an entry into memory.
    assert!(server.quit_and_wait().success());
    let server = start(&setup);
    for target in ["/a-4096", "/b-4096"] {
        assert_eq!(get(&server, target), "HIT");
    }
    files.iter().for_each(|file| fs::remove_file(file).expect("an entry"));
    assert_eq!(get(&server, "/a-4096"), "HIT", "there is no file");
    assert_eq!(purge(&server, "/a-4096"), 204);
    assert_eq!(get(&server, "/a-4096"), "MISS");
    assert_eq!(get(&server, "/b-4096"), "HIT");
    assert_eq!(purge(&server, "/*"), 204);
    assert_eq!(get(&server, "/b-4096"), "MISS");
}

#[test]
fn changed_limits_apply_after_a_reload() {
    let (_objects, origin) = sized_objects();
    let setup = setup(&origin, &[("PATH", "max_size=64m")]);
    let mut server = start(&setup);
    let targets: Vec<String> = (0..30).map(|number| format!("/{number}-100000")).collect();
    // No response is stored in a limited cache before the existing entries are known.
    targets.iter().for_each(|target| get_until(&server, target, "HIT"));
    wait_for_entries(&setup, targets.len());
    let worker = server.workers();
    let text = server.conf().replace("max_size=64m", "max_size=1m");
    server.rewrite_conf(&text);
    server.reload();
    let few = || (entries(&setup).len() <= 10).then_some(());
    wait::until("entries for 1 MiB", Deadline::default(), few).expect("entries are removed");
    assert_eq!(server.workers(), worker, "in place");
    targets.iter().for_each(|target| drop(get(&server, target)));
    get_until(&server, "/new-100000", "HIT");
    assert!(entries(&setup).len() <= 10);
}

/// The normal test run has a few rounds of each crash; this test takes a minute.
#[test]
#[ignore = "many crashes"]
fn the_cache_is_correct_after_many_crashes() {
    (0..10).for_each(|_| a_worker_is_killed(3));
    the_server_is_killed(30);
}

#[test]
fn a_lock_file_of_another_user_is_reported_with_its_cause() {
    if !ours_only("the lock file") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        testkit::skip("changing the user takes root");
        return;
    }
    let (_objects, origin) = sized_objects();
    let setup = setup(&origin, &[("SERVER", "location = /metrics { metrics; }")]);
    fs::create_dir_all(setup.cache()).expect("a writable directory");
    let lock = setup.cache().join("ringroad.lock");
    fs::write(&lock, "").expect("a writable directory");
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o600)).expect("an own file");
    let server = start(&setup);
    let log = server.wait_for_log("ringroad.lock\" cannot be opened for writing: ", Deadline::default());
    assert!(log.contains("Permission denied") && !log.contains("another process"), "{log}");
    for _ in 0..2 {
        assert_eq!(get(&server, "/a-4096"), "MISS");
    }
    let page = Client::connect(server.addr(0)).get("/metrics").text();
    let line = page.lines().find(|line| line.starts_with("ringroad_cache_degraded{"));
    assert!(line.is_some_and(|line| line.ends_with(" 1")), "{line:?}");
}
