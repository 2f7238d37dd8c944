//! A cache whose origin, disk or clients fail: no client gets a truncated body that looks complete, no such body is
//! stored, and the next request is served.
//!
//! Disk faults come from the fault engine, from a small file system if the test runs as root, and from files changed by
//! the test. Restarts are tested in `cache/restart.rs`; the store's own tests are in crate `cache`.

use crate::common;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::cache::{
    checked, entries, get, get_until, object, setup, sized_objects, start, wait_for_entries,
};
use crate::common::ours_only;
use testkit::client::request_bytes;
use testkit::origin::{At, Do, Etag, Framing, Objects, Origin, Reply};
use testkit::{Burst, Client, Content, Deadline, Filesystem, Gate, Server, Setup, TempDir, burst, wait};

const NETS: [&str; 2] = ["io_uring", "epoll"];

/// Directives for each disk engine, for one location each.
const DISKS: [(&str, &str); 6] = [
    ("ring", "aio io_uring;"),
    ("direct", "aio io_uring; directio 1;"),
    ("libaio", "aio libaio; directio 1;"),
    ("threads", "aio threads;"),
    ("sync", "aio off;"),
    ("sendfile", "aio off; sendfile on;"),
];

/// Body sizes: one read, two chunks, and more than the window of concurrent reads.
const SIZES: [u64; 3] = [15_530, 100 << 10, 1 << 20];

fn disk_locations() -> String {
    let location = |(name, directives): &(&str, &str)| {
        format!("location /{name}/ {{ proxy_pass http://@ORIGIN@; {directives} }}\n")
    };
    DISKS.iter().map(location).collect()
}

#[test]
fn partial_reads_of_entries_are_continued_on_every_engine() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for net in NETS {
        let (_objects, origin) = sized_objects();
        // Half of the requested bytes each time: the worst case.
        let faults = "engine_fault read short every=1 path=@CACHE@/; engine_fault sendfile short every=1;";
        let setup = setup(&origin, &[("NET", net), ("FAULTS", faults), ("SERVER", &disk_locations())]);
        let filling = start(&setup);
        for (place, _) in DISKS {
            SIZES.iter().for_each(|size| {
                get(&filling, &format!("/{place}/a-{size}"));
            });
        }
        wait_for_entries(&setup, DISKS.len() * SIZES.len());
        drop(filling);
        // As after every start, the first lookup reads each entry to compare it; later the location's engine reads it.
        let server = start(&setup);
        for _ in 0..3 {
            for (place, _) in DISKS {
                for size in SIZES {
                    let target = format!("/{place}/a-{size}");
                    assert_eq!(get(&server, &target), "HIT", "{net} {target}\n{}", server.error_log());
                    let mut client = Client::connect(server.addr(0));
                    let part = client.request("GET", &target, &[("Range", "bytes=4095-14000")]);
                    assert_eq!((part.status, checked(&target, &part).as_str()), (206, "HIT"));
                }
            }
        }
        common::assert_no_errors(&server);
        assert_eq!(origin.stats().requests, (DISKS.len() * SIZES.len()) as u64);
    }
}

/// Every second send fails: a response that needs two sends would never arrive; every second response that needs one send
/// arrives.
#[test]
fn a_small_hit_is_sent_in_one_operation() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for (net, path) in [("io_uring", ""), ("io_uring", "memory=1m"), ("epoll", ""), ("epoll", "memory=1m")] {
        let (_objects, origin) = sized_objects();
        let faults = "engine_fault send error=EPIPE every=2 while=@DATA@/switch;";
        let setup = setup(&origin, &[("NET", net), ("PATH", path), ("FAULTS", faults)]);
        let server = start(&setup);
        get_until(&server, "/a-4096", "HIT");
        wait_for_entries(&setup, 1);
        get(&server, "/a-4096");
        switch(&setup, true);
        let whole = (0..8).filter(|_| {
            let mut client = Client::connect(server.addr(0));
            client.send(request_bytes("GET", "/a-4096", &[]));
            client.try_response().is_ok_and(|response| checked("/a-4096", &response) == "HIT")
        });
        assert_eq!(whole.count(), 4, "{net} {path}");
    }
}

/// Returns a response that fails in the way that its target names; with `is_mended`, a complete response.
fn broken(target: &str, is_mended: bool) -> Reply {
    let whole = Reply::ok().header("Cache-Control", "max-age=3600").header("ETag", "\"1\"");
    let whole = whole.content(BODY);
    if is_mended {
        return whole;
    }
    match target {
        "/closes" => whole.at(At::Body(100_000), Do::Close),
        "/resets" => whole.at(At::Body(100_000), Do::Reset),
        "/resets-at-once" => whole.at(At::Body(0), Do::Reset),
        "/hangs" => whole.at(At::Body(100_000), Do::Hang),
        "/says-too-much" => whole.declared_length(BODY.size() + 1).closing(),
        "/closes-small" => Reply::ok()
            .header("Cache-Control", "max-age=3600")
            .declared_length(10)
            .body("nine.....")
            .closing(),
        "/bad-chunk" => whole.chunked(&[16_384]).chunk_size_text(5, "xyz"),
        "/huge-chunk" => whole.chunked(&[16_384]).chunk_size_text(5, "fffffffffffffffff"),
        "/no-last-chunk" => whole.chunked(&[16_384]).without_last_chunk().closing(),
        "/chunks-reset" => whole.chunked(&[16_384]).at(At::Body(100_000), Do::Reset),
        "/until-reset" => whole.framing(Framing::UntilClose).at(At::Body(100_000), Do::Reset),
        "/never" => Reply::never(),
        "/half-a-head" => whole.at(At::Wire(30), Do::Close),
        "/no-head" => Reply::raw("HTTP/1.1 200 OK\r\nno field\r\n\r\n").closing(),
        other => panic!("no fault for {other}"),
    }
}

const BODY: Content = Content::new(99, 300_000);

/// Failures after the head has been sent, and failures instead of a head.
const IN_BODIES: [&str; 11] = [
    "/closes",
    "/resets",
    "/resets-at-once",
    "/hangs",
    "/says-too-much",
    "/closes-small",
    "/bad-chunk",
    "/huge-chunk",
    "/no-last-chunk",
    "/chunks-reset",
    "/until-reset",
];
const IN_HEADS: [(&str, u16); 3] = [("/never", 504), ("/half-a-head", 502), ("/no-head", 502)];

/// Three clients request a failing resource: none gets a body that looks complete.
fn assert_broken(server: &Server, target: &str) {
    let burst = Burst::new(server.addr(0)).get(target, 3).keep(0);
    for outcome in burst.run() {
        let looks_whole = outcome.fault.is_none() && outcome.last_byte.is_some() && outcome.status == 200;
        assert!(!looks_whole, "{target}: {outcome:?}");
    }
}

#[test]
fn a_truncated_response_is_not_completed_and_not_stored() {
    if !ours_only("nginx forwards a body without a length as complete") {
        return;
    }
    let mended = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let is_mended = std::sync::Arc::clone(&mended);
    let origin = Origin::start(move |request| {
        broken(&request.target, is_mended.load(std::sync::atomic::Ordering::SeqCst))
    });
    // Failing responses have a short timeout; responses without a fault may take any time.
    let settings = "proxy_next_upstream off;
        location ~ ^/(hangs|never)$ { proxy_read_timeout 300ms; proxy_pass http://@ORIGIN@; }
        location ~ ^/mended(?<target>/.*)$ { proxy_cache_key $target; proxy_pass http://@ORIGIN@$target; }";
    let setup = setup(&origin, &[("THREADS", "2"), ("SERVER", settings)]);
    let server = start(&setup);
    for target in IN_BODIES {
        assert_broken(&server, target);
    }
    for (target, status) in IN_HEADS {
        for outcome in Burst::new(server.addr(0)).get(target, 3).run() {
            assert_eq!((outcome.status, outcome.is_right()), (status, true), "{target}: {outcome:?}");
        }
    }
    mended.store(true, std::sync::atomic::Ordering::SeqCst);
    for target in IN_BODIES.into_iter().chain(IN_HEADS.map(|(target, _)| target)) {
        let mut client = Client::connect(server.addr(0));
        let response = client.get(&format!("/mended{target}"));
        assert_eq!(response.field("X-Cache"), Some("MISS"), "{target}: nothing was stored");
        BODY.assert_body(&response.body);
        let again = client.get(target);
        assert_eq!(again.field("X-Cache"), Some("HIT"), "{target}");
        BODY.assert_body(&again.body);
    }
    wait_for_entries(&setup, IN_BODIES.len() + IN_HEADS.len());
    common::cache::wait_for_no_leftovers(&setup);
    drop(server);
    origin.take_faults();
}

#[test]
fn surplus_bytes_of_an_origin_are_not_part_of_any_response() {
    let origin = Origin::start(|request| {
        let reply = Reply::ok().header("Cache-Control", "max-age=3600").closing();
        match request.target.as_str() {
            "/small" => reply.declared_length(4).body("goodXXXX"),
            _ => reply.declared_length(200_000).content(BODY),
        }
    });
    let setup = setup(&origin, &[]);
    let server = start(&setup);
    for _ in 0..3 {
        let mut client = Client::connect(server.addr(0));
        assert_eq!(client.get("/small").text(), "good");
        BODY.assert_range(0..200_000, &client.get("/large").body);
    }
    drop(server);
    origin.take_faults();
}

#[test]
fn a_fill_continues_without_its_client_or_stops_as_configured() {
    if !ours_only("nginx has no proxy_cache_finish") {
        return;
    }
    for finishes in ["on", "off"] {
        let gate = Gate::new();
        let (at, objects) = (gate.clone(), Objects::new());
        objects.put(
            "/a",
            object(16 << 20).tune(move |_, reply| reply.wait_at(150_000, &at).wait_at(8 << 20, &at)),
        );
        let origin = Origin::objects(&objects);
        let server_text = format!("proxy_cache_finish {finishes};");
        let setup = setup(&origin, &[("SERVER", &server_text)]);
        let server = start(&setup);
        let mut client = Client::connect(server.addr(0));
        client.send(request_bytes("GET", "/a", &[]));
        assert_eq!(client.head().status, 200);
        gate.wait_reached();
        client.reset();
        if finishes == "on" {
            gate.open();
            wait_for_entries(&setup, 1);
            assert_eq!(get(&server, "/a"), "HIT");
            assert_eq!(origin.stats().requests, 1);
        } else {
            // The upstream sends more bytes after its client has disconnected. The remaining body is held until the server has
            // noticed this.
            gate.let_through(1);
            server.wait_for_log("while sending response to client", Deadline::default());
            gate.open();
            origin.wait_for("the connection's end", |stats| stats.in_flight == 0);
            wait::until("another fetch", Deadline::default(), || (get(&server, "/a") == "HIT").then_some(()))
                .expect("it is stored in the end");
            assert_eq!(origin.stats().requests, 2, "the first one was not stored");
        }
        drop(server);
        origin.take_faults();
    }
}

#[test]
fn followers_survive_the_end_of_the_first_request() {
    let gate = Gate::new();
    let (at, objects) = (gate.clone(), Objects::new());
    objects.put("/a", object(2 << 20).tune(move |_, reply| reply.wait_at(150_000, &at)));
    let origin = Origin::objects(&objects);
    let setup = setup(&origin, &[("THREADS", "2")]);
    let server = start(&setup);
    let mut first = Client::connect(server.addr(0));
    first.send(request_bytes("GET", "/a", &[]));
    assert_eq!(first.head().status, 200);
    gate.wait_reached();
    let others = Burst::new(server.addr(0)).get("/a", 10).expect(objects.content("/a")).start();
    if ours_only("in nginx, waiting requests need the complete response") {
        others.wait_for("heads", |progress| progress.heads == 10);
    }
    first.reset();
    gate.open();
    burst::assert_all_right(&others.join(), 200);
    if ours_only("nginx without proxy_cache_lock forwards each request") {
        assert_eq!(origin.stats().requests, 1);
    }
    drop(server);
    origin.take_faults();
}

// ---- the disk

/// Creates or removes the file that enables faults.
fn switch(setup: &Setup, is_on: bool) {
    let path = setup.data().join("switch");
    match is_on {
        true => fs::write(path, "").expect("a writable directory"),
        false => fs::remove_file(path).expect("it was turned on"),
    }
}

/// Checks that every target is served correctly, including new ones, whatever the disk does.
fn served(server: &Server, round: &str) {
    for size in SIZES {
        for number in 0..3 {
            get(server, &format!("/{round}-{number}-{size}"));
        }
    }
    let burst = Burst::new(server.addr(0)).get(&format!("/{round}-burst-300000"), 20);
    burst::assert_all_right(
        &burst.expect(Content::named(&format!("/{round}-burst-300000"), 1, 300_000)).run(),
        200,
    );
}

fn assert_degrades(fault: &str) {
    let (_objects, origin) = sized_objects();
    let fault = format!("engine_fault {fault} path=@CACHE@/ while=@DATA@/switch;");
    let setup = setup(&origin, &[("FAULTS", &fault), ("THREADS", "2")]);
    let server = start(&setup);
    get(&server, "/before-100000");
    wait_for_entries(&setup, 1);
    switch(&setup, true);
    served(&server, "during");
    assert_eq!(get(&server, "/before-100000"), "HIT", "{fault}: stored entries can be read");
    // Logged once for an entire failure, not for each request. Intermittent errors are several failures.
    let line = server.wait_for_log("responses pass through", Deadline::default());
    assert!(line.contains("[error]") || line.contains("[crit]"), "{line}");
    let is_once = || {
        let log = server.error_log();
        let (failures, ends) = (log.matches("responses pass through"), log.matches(": the disk works again"));
        (failures.count() <= 1 + ends.count()).then_some(())
    };
    wait::until("an end of each failure but the last", Deadline::default(), is_once)
        .unwrap_or_else(|late| panic!("{late}: {}", server.error_log()));
    switch(&setup, false);
    get_until(&server, "/after-100000", "HIT");
    get_until(&server, "/after-4096", "HIT");
    server.wait_for_log(": the disk works again", Deadline::default());
    served(&server, "later");
    common::cache::wait_for_no_leftovers(&setup);
}

#[test]
fn a_full_disk_does_not_affect_responses() {
    if ours_only("faults come from the fault engine") {
        assert_degrades("write error=ENOSPC");
    }
}

#[test]
fn a_disk_with_write_errors_does_not_affect_responses() {
    if ours_only("faults come from the fault engine") {
        assert_degrades("write error=EIO");
    }
}

#[test]
fn intermittent_disk_errors_do_not_affect_responses() {
    if ours_only("faults come from the fault engine") {
        assert_degrades("write error=EIO every=2");
    }
}

#[test]
fn failing_renames_do_not_affect_responses() {
    if ours_only("faults come from the fault engine") {
        assert_degrades("rename error=EROFS");
    }
}

/// Disk operations must not count as connections: otherwise a slow disk could prevent the accept of new clients.
#[test]
fn a_slow_disk_does_not_block_new_clients() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    let (_objects, origin) = sized_objects();
    let faults = "worker_connections 16; engine_fault write delay=20s path=@CACHE@/;";
    let setup = setup(&origin, &[("FAULTS", faults)]);
    let server = start(&setup);
    let mut first = Client::connect(server.addr(0));
    for number in 0..40 {
        let target = format!("/behind-{number}-4096");
        assert_eq!(checked(&target, &first.get(&target)), "MISS");
    }
    // Several clients: one is accepted before the thread checks its limit.
    for number in 40..43 {
        assert_eq!(get(&server, &format!("/behind-{number}-4096")), "MISS");
    }
    assert_eq!(entries(&setup).len(), 0, "no wait for the disk");
    wait_for_entries(&setup, 43);
}

#[test]
fn a_disk_error_during_a_fill_does_not_affect_its_readers() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    let gate = Gate::new();
    let (at, objects) = (gate.clone(), Objects::new());
    objects.put("/a", object(24 << 20).tune(move |_, reply| reply.wait_at(6 << 20, &at)));
    let origin = Origin::objects(&objects);
    let fault = "engine_fault write error=ENOSPC path=@CACHE@/ while=@DATA@/switch;";
    let setup = setup(&origin, &[("FAULTS", fault), ("THREADS", "2")]);
    let server = start(&setup);
    let fast = Burst::new(server.addr(0)).get("/a", 3).expect(objects.content("/a")).start();
    // One client reads only the head until the disk has failed: the rest of its body is in the file, or retained in
    // memory for it.
    let mut slow = Client::connect(server.addr(0));
    slow.send(request_bytes("GET", "/a", &[]));
    let head = slow.head();
    gate.wait_reached();
    switch(&setup, true);
    gate.open();
    server.wait_for_log("responses pass through", Deadline::default());
    let mut body = slow.body(&head);
    objects.content("/a").compare(0..24 << 20, &mut body).unwrap_or_else(|wrong| panic!("{wrong}"));
    burst::assert_all_right(&fast.join(), 200);
    assert_eq!((origin.stats().requests, entries(&setup).len()), (1, 0));
    switch(&setup, false);
    get_until(&server, "/a", "HIT");
}

#[test]
fn unreadable_entries_are_fetched_from_the_origin() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    let (_objects, origin) = sized_objects();
    let faults = "engine_fault read error=EIO path=@CACHE@/ while=@DATA@/switch;
        engine_fault open error=EIO path=@CACHE@/ while=@DATA@/open;";
    let setup = setup(&origin, &[("FAULTS", faults), ("THREADS", "2")]);
    let filling = start(&setup);
    SIZES.iter().for_each(|size| drop(get(&filling, &format!("/a-{size}"))));
    wait_for_entries(&setup, SIZES.len());
    drop(filling);
    let server = start(&setup);
    switch(&setup, true);
    for _ in 0..3 {
        for size in SIZES {
            // A request that arrives while the response is being written to the disk again joins that fetch, which is a
            // hit too.
            let target = format!("/a-{size}");
            let missed = || (get(&server, &target) != "HIT").then_some(());
            wait::until("a read that fails", Deadline::default(), missed).expect("it comes from the origin");
        }
    }
    switch(&setup, false);
    SIZES.iter().for_each(|size| get_until(&server, &format!("/a-{size}"), "HIT"));
    fs::write(setup.data().join("open"), "").expect("a writable directory");
    SIZES.iter().for_each(|size| drop(get(&server, &format!("/a-{size}"))));
    fs::remove_file(setup.data().join("open")).expect("it is there");
    SIZES.iter().for_each(|size| get_until(&server, &format!("/a-{size}"), "HIT"));
}

#[test]
fn a_small_hit_needs_one_read() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for net in NETS {
        let (_objects, origin) = sized_objects();
        // The first read succeeds, and each later one fails.
        let fault = "engine_fault read error=EIO after=1 path=@CACHE@/ while=@DATA@/switch;";
        let setup = setup(&origin, &[("NET", net), ("FAULTS", fault)]);
        let filling = start(&setup);
        let targets = ["/a-15530", "/b-15530"];
        targets.iter().for_each(|target| drop(get(&filling, target)));
        wait_for_entries(&setup, 2);
        drop(filling);
        let server = start(&setup);
        server.wait_for_log("entries known", Deadline::default());
        switch(&setup, true);
        assert_eq!(get(&server, targets[0]), "HIT", "{net}: more than one read");
        assert_ne!(get(&server, targets[1]), "HIT", "{net}: no read at all");
    }
}

/// Returns the number of bytes of the cache's files in the page cache; `None` if the kernel does not report it.
fn in_page_cache(setup: &Setup) -> Option<u64> {
    let pages = |path: &PathBuf| {
        let file = fs::File::open(path).expect("an entry");
        io::sys::cached_pages(&file, 0, 0).ok()
    };
    entries(setup).iter().map(pages).sum::<Option<u64>>().map(|pages| pages * 4096)
}

#[test]
fn direct_hits_bypass_the_page_cache() {
    let (_objects, origin) = sized_objects();
    let locations = "location /direct/ { proxy_pass http://@ORIGIN@; aio on; directio 1; }";
    for net in NETS {
        let setup = setup(&origin, &[("NET", net), ("SERVER", locations)]);
        let filling = start(&setup);
        SIZES.iter().for_each(|size| drop(get(&filling, &format!("/direct/{size}-{size}"))));
        let files = wait_for_entries(&setup, SIZES.len());
        drop(filling);
        let drop_caches = |path: &PathBuf| {
            let file = fs::File::open(path).expect("an entry");
            file.sync_all().expect("a disk that works");
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("a regular file");
        };
        files.iter().for_each(drop_caches);
        if in_page_cache(&setup) != Some(0) {
            return testkit::skip("the page cache cannot be inspected or dropped here");
        }
        let server = start(&setup);
        // An entry's size decides how it is read.
        server.wait_for_log("entries known", Deadline::default());
        SIZES.iter().for_each(|size| assert_eq!(get(&server, &format!("/direct/{size}-{size}")), "HIT"));
        assert_eq!(in_page_cache(&setup), Some(0), "{net}");
    }
}

#[test]
fn a_body_with_a_read_error_continues_from_the_origin() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    // The head and some chunks are read from the disk; all further reads fail.
    for spared in [1, 2, 3, 7] {
        let (_objects, origin) = sized_objects();
        let fault = format!("engine_fault read error=EIO after={spared} path=@CACHE@/ while=@DATA@/switch;");
        let setup = setup(&origin, &[("FAULTS", &fault)]);
        let filling = start(&setup);
        get(&filling, "/a-1048576");
        wait_for_entries(&setup, 1);
        drop(filling);
        let server = start(&setup);
        switch(&setup, true);
        get(&server, "/a-1048576");
        switch(&setup, false);
        get_until(&server, "/a-1048576", "HIT");
    }
}

/// Returns the disk usage in bytes of everything in the cache's directory.
fn on_disk(setup: &Setup) -> u64 {
    let blocks = |path: &Path| fs::symlink_metadata(path).map_or(0, |stat| stat.blocks() * 512);
    setup.cache_files().iter().map(|path| blocks(path)).sum()
}

#[test]
fn max_size_is_obeyed_while_more_is_stored_than_fits() {
    const MAX: u64 = 8 << 20;
    let (_objects, origin) = sized_objects();
    let setup = setup(&origin, &[("THREADS", "2"), ("PATH", "max_size=8m")]);
    let server = start(&setup);
    let mut most = 0;
    for round in 0..8 {
        let mut burst = Burst::new(server.addr(0)).threads(2);
        for number in 0..40 {
            let size = [4_096, 60_000, 150_000, 700_000][number % 4];
            burst = burst.get(&format!("/{round}-{number}-{size}"), 1);
        }
        let running = burst.keep(0).start();
        loop {
            most = most.max(on_disk(&setup));
            if running.progress().ended == 40 {
                break;
            }
        }
        burst::assert_all_right(&running.join(), 200);
    }
    assert!(most <= MAX, "{most} bytes");
    assert!(most > MAX / 2, "{most} bytes are hardly a cache");
    // The last entries are stored, so others have been evicted for them.
    assert!(entries(&setup).len() < 8 * 40);
    get_until(&server, "/new-150000", "HIT");
}

#[test]
fn min_free_is_obeyed_on_a_small_file_system() {
    let Some(disk) = Filesystem::new(24) else { return };
    let (_objects, origin) = sized_objects();
    let setup = setup(&origin, &[("THREADS", "2"), ("PATH", "min_free=6m")]).cache_in(disk.path());
    let server = start(&setup);
    let mut least = disk.free_bytes();
    for round in 0..60 {
        let target = format!("/{round}-500000");
        get(&server, &target);
        least = least.min(disk.free_bytes());
    }
    assert!(least >= 6 << 20, "{least} bytes were free");
    assert!(entries(&setup).len() > 5, "{} entries", entries(&setup).len());
    drop(server);
    // Without the limit the disk fills up: only the log shows it.
    let setup = common::cache::setup(&origin, &[("THREADS", "2")]).cache_in(disk.path());
    let server = start(&setup);
    for round in 0..60 {
        get(&server, &format!("/full-{round}-500000"));
    }
    server.wait_for_log("responses pass through", Deadline::default());
    fs::remove_dir_all(setup.cache().join("ringroad.tmp")).ok();
    for file in entries(&setup).iter().take(20) {
        fs::remove_file(file).expect("an entry");
    }
    get_until(&server, "/then-500000", "HIT");
    drop(server);
}

/// Starts a server with a cache of 20 MB and all temporary files on a file system with a few KiB of free space. The
/// origin responds to an upload with its length.
fn on_a_full_disk(disk: &Filesystem) -> (Setup, Server, Origin) {
    let objects = Objects::new();
    objects.rule(|target| Some(object(target.rsplit_once('-')?.1.parse().ok()?)));
    let handler = objects.handler();
    let origin = Origin::start(move |request| match request.body.len() {
        0 => handler(request),
        len => Reply::text(format!("{len} {:?}", request.header("content-length"))),
    });
    let path = disk.path().display();
    let server = format!(
        "client_max_body_size 0; client_body_temp_path {path}/body 1; proxy_temp_path {path}/proxy 1;
        location /passed/ {{ proxy_pass http://@ORIGIN@; proxy_cache off; }}
        location /stored/ {{ proxy_pass http://@ORIGIN@; proxy_cache off; proxy_store {path}/stored$uri; }}"
    );
    let setup = setup(&origin, &[("SERVER", &server)]).cache_in(disk.path());
    let server = start(&setup);
    for number in 0..40 {
        get(&server, &format!("/{number}-500000"));
    }
    wait_for_entries(&setup, 40);
    disk.fill(20 << 10);
    (setup, server, origin)
}

#[test]
fn a_full_cache_evicts_for_an_upload() {
    let Some(disk) = Filesystem::new(32) else { return };
    let (setup, server, _origin) = on_a_full_disk(&disk);
    let mut client = Client::connect(server.addr(0));
    client.send("POST /passed/a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let piece = vec![b'a'; 1 << 20];
    for _ in 0..6 {
        client.send("100000\r\n").send(&piece).send("\r\n");
    }
    client.send("0\r\n\r\n");
    // The origin receives a Content-Length: the complete body was in a file first.
    assert_eq!(client.response().text(), "6291456 Some(\"6291456\")");
    let left = entries(&setup).len();
    assert!((1..40).contains(&left), "{left} entries");
    assert!(!server.error_log().contains("[crit]"), "{}", server.error_log());
    // The cache can use the freed space again.
    get_until(&server, "/new-500000", "HIT");
}

#[test]
fn a_full_cache_evicts_for_a_response_to_a_slow_client() {
    const SIZE: usize = 16 << 20;
    let Some(disk) = Filesystem::new(32) else { return };
    let (setup, server, _origin) = on_a_full_disk(&disk);
    let testkit::ListenAddr::Tcp(address) = server.addr(0) else { panic!("it listens on TCP") };
    let mut client = Client::connect_narrow(*address, 4096);
    let target = format!("/passed/a-{SIZE}");
    client.send(request_bytes("GET", &target, &[]));
    let has_given = || (entries(&setup).len() < 30).then_some(());
    wait::until("entries that are gone", Deadline::default(), has_given).expect("they are removed");
    checked(&target, &client.response());
    assert!(!server.error_log().contains("[crit]"), "{}", server.error_log());
}

#[test]
fn a_full_cache_evicts_for_a_copy_and_a_failed_copy_leaves_no_file() {
    let Some(disk) = Filesystem::new(32) else { return };
    let (_setup, server, _origin) = on_a_full_disk(&disk);
    get(&server, "/stored/a-2000000");
    let is_stored = || disk.path().join("stored/stored/a-2000000").exists().then_some(());
    wait::until("a copy", Deadline::default(), is_stored).expect("the cache frees space");
    // Larger than all entries together.
    get(&server, "/stored/b-30000000");
    server.wait_for_log("failed (28: ", Deadline::default());
    let listed = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let levels = || listed(&disk.path().join("proxy"));
    assert!(!levels().is_empty(), "its directories remain");
    let is_clean = || levels().iter().all(|level| listed(level).is_empty()).then_some(());
    wait::until("no temporary files", Deadline::default(), is_clean).expect("they are removed");
}

/// Remounts a file system read-only during fills; retries, as the kernel refuses while a file is being written.
fn until_read_only(disk: &Filesystem) {
    let remounted = || disk.remount(true).ok();
    wait::until("a moment without writes", Deadline::default(), remounted).expect("fills have pauses");
}

#[test]
fn a_read_only_file_system_does_not_affect_responses() {
    if !ours_only("nginx logs each failure") {
        return;
    }
    let Some(disk) = Filesystem::new(64) else { return };
    let (_objects, origin) = sized_objects();
    let server_text = "proxy_cache_purge $arg_purge; location = /counters { cache_counters; }";
    let setup = setup(&origin, &[("THREADS", "2"), ("SERVER", server_text)]).cache_in(disk.path());
    let server = start(&setup);
    let kept = SIZES.map(|size| format!("/kept-{size}"));
    kept.iter().for_each(|target| drop(get(&server, target)));
    wait_for_entries(&setup, kept.len());
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let address = server.addr(0).clone();
    // Fills and hits continue throughout, and each of their responses must be correct.
    let traffic = &|name: &str| {
        let mut round = 0;
        while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
            round += 1;
            let targets = [format!("/{name}-{round}-4096"), format!("/{name}-{round}-100000")];
            for target in kept.iter().chain(&targets) {
                checked(target, &Client::connect(&address).get(target));
            }
        }
    };
    let purge = |target: &str| Client::connect(&address).get(&format!("{target}?purge=1")).status;
    std::thread::scope(|scope| {
        let threads = ["one", "two"].map(|name| scope.spawn(move || traffic(name)));
        until_read_only(&disk);
        server.wait_for_log("responses pass through", Deadline::default());
        // A purge that cannot be made durable is not reported as done.
        assert_eq!(purge(&kept[1]), 500);
        let counters = Client::connect(&address).get("/counters").text();
        assert!(counters.contains("ringroad_cache_degraded{zone=\"one\"} 1\n"), "{counters}");
        get(&server, "/during-100000");
        assert_eq!(get(&server, "/during-100000"), "MISS");
        assert_eq!(get(&server, &kept[0]), "HIT", "stored entries can be read");
        disk.remount(false).expect("no file is open");
        get_until(&server, "/after-100000", "HIT");
        server.wait_for_log(": the disk works again", Deadline::default());
        assert_eq!(purge(&kept[0]), 204);
        is_over.store(true, std::sync::atomic::Ordering::SeqCst);
        threads.into_iter().for_each(|thread| thread.join().expect("all was right"));
    });
    let log = server.error_log();
    assert_eq!(log.matches("responses pass through").count(), 1, "{log}");
    assert_eq!(log.matches(": the disk works again").count(), 1, "{log}");
    common::cache::wait_for_no_leftovers(&setup);
}

#[test]
fn requests_are_served_without_an_available_cache_directory() {
    let (_objects, origin) = sized_objects();
    // A directory cannot exist below a file, not even for root.
    let place = TempDir::new("no-folder");
    place.write("file", "");
    let setup = setup(&origin, &[]).cache_in(&place.path().join("file"));
    let server = start(&setup);
    get(&server, "/a-4096");
    assert_ne!(get(&server, "/a-4096"), "HIT");
    server.wait_for_log("responses pass through and are not stored", Deadline::default());
    // The server notices by itself when the directory becomes available.
    fs::remove_file(place.path().join("file")).expect("a file");
    let folder = place.dir("file");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).expect("a writable directory");
    get_until(&server, "/a-4096", "HIT");
    server.wait_for_log("cache \"one\" can be used now", Deadline::default());
    assert_eq!(server.error_log().matches("responses pass through").count(), 1, "{}", server.error_log());
    drop(server);
}

#[test]
fn a_server_stops_while_its_cache_is_unavailable() {
    let (_objects, origin) = sized_objects();
    let place = TempDir::new("no-folder");
    place.write("file", "");
    let setup = setup(&origin, &[]).cache_in(&place.path().join("file"));
    let server = start(&setup);
    get(&server, "/a-4096");
    server.wait_for_log("responses pass through", Deadline::default());
    assert!(server.quit_and_wait().success(), "the wait for the next try ends with the server");
}

#[test]
fn deleted_entries_are_fetched_again() {
    let (_objects, origin) = sized_objects();
    let setup = setup(&origin, &[]);
    let server = start(&setup);
    let all = || SIZES.map(|size| get(&server, &format!("/a-{size}")));
    // Files that are requested often stay open, and what was read from them is retained.
    let all_hit_often = || (0..5).for_each(|_| assert_eq!(all(), ["HIT"; 3]));
    all();
    let files = wait_for_entries(&setup, 3);
    all_hit_often();
    for file in files {
        fs::remove_file(file).expect("an entry");
    }
    // A file has its name before its fill has ended; until then other requests join the fill.
    let all_missed = || SIZES.iter().for_each(|size| get_until(&server, &format!("/a-{size}"), "MISS"));
    all_missed();
    wait_for_entries(&setup, 3);
    all_hit_often();
    // Removes everything in the cache's directory, including the server's own files.
    for entry in fs::read_dir(setup.cache()).expect("the cache").flatten() {
        match entry.path() {
            path if path.is_dir() => fs::remove_dir_all(path).expect("a directory"),
            path => fs::remove_file(path).expect("a file"),
        }
    }
    all_missed();
    wait_for_entries(&setup, 3);
    assert_eq!(all(), ["HIT"; 3]);
    drop(server);
    let server = start(&setup);
    assert_eq!(SIZES.map(|size| get(&server, &format!("/a-{size}"))), ["HIT"; 3]);
}

/// A function that changes the bytes of a file.
type Spoil = fn(&mut Vec<u8>);

/// Ways to damage a file, by name.
const DAMAGES: [(&str, Spoil); 11] = [
    ("first byte", |bytes| bytes[0] ^= 1),
    ("head", |bytes| bytes[100] ^= 0x10),
    ("head later", |bytes| bytes[300] ^= 0x10),
    ("page", |bytes| bytes[4096] ^= 1),
    ("middle", |bytes| {
        let at = bytes.len() / 2;
        bytes[at] ^= 0x80
    }),
    ("last byte", |bytes| *bytes.last_mut().expect("not empty") ^= 1),
    ("cut", |bytes| bytes.truncate(bytes.len() - 1)),
    ("cut to a page", |bytes| bytes.truncate(4096)),
    ("empty", Vec::clear),
    ("zeroes", |bytes| bytes.fill(0)),
    ("zeroes at the end", |bytes| {
        let at = bytes.len() / 2;
        bytes[at..].fill(0)
    }),
];

#[test]
fn damaged_entries_are_never_served() {
    let (_objects, origin) = sized_objects();
    let setup = setup(&origin, &[("THREADS", "2")]);
    let mut server = start(&setup);
    for (name, spoil) in DAMAGES {
        let targets = SIZES.map(|size| format!("/a-{size}"));
        targets.iter().for_each(|target| get_until(&server, target, "HIT"));
        wait_for_entries(&setup, 3);
        drop(server);
        for file in entries(&setup) {
            let mut bytes = fs::read(&file).expect("an entry");
            spoil(&mut bytes);
            fs::write(&file, bytes).expect("a file");
        }
        server = start(&setup);
        for target in &targets {
            // If damage is detected only after the head was sent, the remaining body is fetched from the origin. A large entry
            // has unused bytes between its sections, where damage has no effect.
            let first = get(&server, target);
            if target.ends_with("-15530") {
                assert_eq!(first, "MISS", "{name}: a small entry is verified before its head is sent");
            }
            get_until(&server, target, "HIT");
        }
    }
    server.wait_for_log("is damaged and not used: chunk ", Deadline::default());
    // Files whose names were swapped.
    wait_for_entries(&setup, 3);
    drop(server);
    let files = entries(&setup);
    let bytes: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).expect("an entry")).collect();
    for (index, file) in files.iter().enumerate() {
        fs::write(file, &bytes[(index + 1) % 3]).expect("a file");
    }
    let server = start(&setup);
    for size in SIZES {
        assert_eq!(get(&server, &format!("/a-{size}")), "MISS");
    }
}

/// Flips a bit of an entry's body in its file, this many bytes before the end.
fn rot(file: &Path, before_end: u64) {
    let open = fs::OpenOptions::new().read(true).write(true).open(file).expect("an entry");
    let at = open.metadata().expect("a file").len() - before_end;
    let mut byte = [0];
    open.read_exact_at(&mut byte, at).expect("a byte");
    open.write_all_at(&[byte[0] ^ 0x20], at).expect("a byte");
}

/// Waits until another epoch of `verify=100ms` has begun, which no log shows.
fn next_epoch() {
    let epoch = Deadline::after(Duration::from_millis(200));
    let is_over = || epoch.left().is_none().then_some(());
    wait::until("the next epoch", Deadline::default(), is_over).expect("time passes");
}

/// Sizes of bodies whose checksums are compared once an epoch: one is read together with its head, the other is not.
const LARGE: [u64; 2] = [100 << 10, 1 << 20];

#[test]
fn entries_that_rot_while_the_server_runs_are_never_sent() {
    for (net, is_at_start) in NETS.into_iter().flat_map(|net| [(net, true), (net, false)]) {
        let objects = Objects::new();
        objects.rule(move |target| {
            let object = object(target.rsplit_once('-')?.1.parse().ok()?);
            // Without a strong validator and ranges, parts cannot be combined: the complete object is fetched again.
            let alone = || object.clone().etag(Etag::Weak).without_last_modified().without_ranges();
            Some(if is_at_start { alone() } else { object })
        });
        let origin = Origin::objects(&objects);
        let server_conf = disk_locations();
        let parts = [("NET", net), ("PATH", "verify=100ms"), ("SERVER", &server_conf)];
        let setup = setup(&origin, &parts);
        let server = start(&setup);
        let targets = || DISKS.iter().flat_map(|(place, _)| LARGE.map(|size| format!("/{place}/a-{size}")));
        targets().for_each(|target| get_until(&server, &target, "HIT"));
        let files = wait_for_entries(&setup, targets().count());
        next_epoch();
        // The first request in an epoch verifies the checksums; the second response is sent without verification.
        for target in targets().chain(targets()) {
            assert_eq!(get(&server, &target), "HIT", "{net} {target}");
        }
        for file in &files {
            let size = LARGE[usize::from(fs::metadata(file).expect("an entry").len() > LARGE[1])];
            rot(file, if is_at_start { size } else { 1 });
        }
        next_epoch();
        for target in targets() {
            let status = get(&server, &target);
            assert!(status == "MISS" || !is_at_start, "{net} {target}: no byte had been sent");
            get_until(&server, &target, "HIT");
        }
        server.wait_for_log("is damaged and not used: chunk ", Deadline::default());
    }
}

#[test]
fn the_scrub_removes_rotten_entries_without_a_request() {
    let (_objects, origin) = sized_objects();
    let setup = setup(&origin, &[("PATH", "verify=off scrub=10ms")]);
    let server = start(&setup);
    SIZES.iter().for_each(|size| get_until(&server, &format!("/a-{size}"), "HIT"));
    wait_for_entries(&setup, 3).iter().for_each(|file| rot(file, 1));
    wait_for_entries(&setup, 0);
    SIZES.iter().for_each(|size| assert_eq!(get(&server, &format!("/a-{size}")), "MISS"));
}
