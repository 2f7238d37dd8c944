//! The same bytes with every way to send a file: network engine, disk engine, `sendfile`, `directio`, `aio_sendfile`,
//! at file sizes around every boundary, complete and in ranges.
//!
//! One server process has a location for each combination. The normal run requests a set in which every pair of
//! settings occurs; all combinations are tested by `cargo test -p ringroad --test serve bytes:: -- --ignored`. Files up
//! to 64 KiB are requested on 200 connections, longer ones on at most 4, and 100 MiB once per combination. The access
//! log (`$body_engine`) shows how each response was sent, so a combination that silently fell back to another engine
//! does not count. `try_cached` is off, as cached files would not reach the engines.

use crate::common;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::Duration;

use crate::common::ours_only;
use testkit::client::request_bytes;
use testkit::engines::{DISKS, NETS};
use testkit::server::ListenAddr;
use testkit::{Client, Content, Deadline, Response, Server, TempDir, report_ran, report_skipped};

/// Connections for files of at most [`SMALL_MAX`] bytes.
const CONNECTIONS_SMALL: usize = 200;
/// Connections for longer files.
const CONNECTIONS_LARGE: usize = 4;
const SMALL_MAX: u64 = 64 * 1024;
const SIZES: [u64; 10] = [0, 1, 511, 512, 513, 4095, 4096, 4097, SMALL_MAX, (1 << 20) + 1];
/// Sizes of files that are also requested in several ranges per request.
const PARTS_OF: [u64; 2] = [SMALL_MAX, (1 << 20) + 1];
/// Size of the file that is requested once per combination.
const HUGE: u64 = 100 << 20;

/// Value for a directive that is not configured: a file's length decides if no other setting is configured either.
const UNWRITTEN: &str = "unwritten";
const SENDFILE: [&str; 3] = ["off", "on", UNWRITTEN];
const DIRECTIO: [&str; 3] = ["off", "4k", "1"];
const AIO_SENDFILE: [&str; 3] = ["off", "512k", "1m"];

/// Settings by which a location sends its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Way {
    disk: &'static str,
    sendfile: &'static str,
    directio: &'static str,
    aio_sendfile: &'static str,
}

impl Way {
    /// Returns every combination.
    fn all() -> Vec<Way> {
        let mut ways = Vec::new();
        for disk in DISKS {
            for sendfile in SENDFILE {
                for directio in DIRECTIO {
                    for aio_sendfile in AIO_SENDFILE {
                        ways.push(Way { disk, sendfile, directio, aio_sendfile });
                    }
                }
            }
        }
        ways
    }

    fn settings(self) -> [(usize, &'static str); 4] {
        [(0, self.disk), (1, self.sendfile), (2, self.directio), (3, self.aio_sendfile)]
    }

    fn pairs(self) -> Vec<[(usize, &'static str); 2]> {
        let settings = self.settings();
        let both = |(at, &first): (usize, &(usize, &'static str))| {
            settings[at + 1..].iter().map(move |&second| [first, second]).collect::<Vec<_>>()
        };
        settings.iter().enumerate().flat_map(both).collect()
    }

    /// Returns combinations in which every pair of settings occurs: the next combination is always the one with the
    /// most new pairs, so the set is small and the same in each run.
    fn pairwise() -> Vec<Way> {
        let all = Way::all();
        let mut missing: Vec<_> = all.iter().flat_map(|way| way.pairs()).collect();
        let mut chosen = Vec::new();
        while !missing.is_empty() {
            let brings = |way: &Way| missing.iter().filter(|pair| way.pairs().contains(pair)).count();
            let best = *all.iter().max_by_key(|way| brings(way)).expect("there are combinations");
            missing.retain(|pair| !best.pairs().contains(pair));
            chosen.push(best);
        }
        chosen
    }

    /// Returns the name of its location.
    fn name(self) -> String {
        format!("{}-{}-{}-{}", self.disk, self.sendfile, self.directio, self.aio_sendfile)
    }

    fn location(self) -> String {
        let directive = |name: &str, value: &str| match value {
            UNWRITTEN => String::new(),
            value => format!("{name} {value}; "),
        };
        let aio = if self.disk == "sync" { "off" } else { self.disk };
        format!(
            "location /{}/ {{ alias html/; {}{}{}{}}}\n",
            self.name(),
            directive("aio", aio),
            directive("sendfile", self.sendfile),
            directive("directio", self.directio),
            directive("aio_sendfile", self.aio_sendfile)
        )
    }
}

/// Returns the files for all tests in this binary, created once.
fn files() -> &'static TempDir {
    static FILES: OnceLock<TempDir> = OnceLock::new();
    FILES.get_or_init(|| {
        let dir = TempDir::new("bytes");
        for size in SIZES.into_iter().chain([HUGE]) {
            content(size).write_to(&dir.path().join(format!("{size}.bin")));
        }
        dir
    })
}

fn content(size: u64) -> Content {
    Content::new(size ^ 0x5eed, size)
}

/// Returns a file's bytes, stored in memory so that hundreds of bodies are compared quickly.
fn expected(size: u64) -> &'static [u8] {
    static BYTES: OnceLock<BTreeMap<u64, Vec<u8>>> = OnceLock::new();
    let all = BYTES.get_or_init(|| SIZES.map(|size| (size, content(size).bytes(0..size))).into());
    &all[&size]
}

/// Starts a server with a location for every combination of these disk engines.
fn start(net: &str, disks: &[&str]) -> Result<Server, String> {
    let mut text = format!("worker_processes 1;\nevents {{ use {net}; try_cached off; }}\nhttp {{\n");
    text.push_str("log_format moved '$uri $status $body_bytes_sent $body_engine';\n");
    text.push_str("server { listen 127.0.0.1:0; access_log logs/access.log moved buffer=64k flush=10ms;\n");
    for way in Way::all().into_iter().filter(|way| disks.contains(&way.disk)) {
        text.push_str(&way.location());
    }
    text.push_str("} }\n");
    let builder = Server::builder(common::BINARY).conf(&text);
    let html = builder.dir().join("html");
    std::os::unix::fs::symlink(files().path(), html).expect("a fresh directory");
    builder.try_start()
}

/// Starts a server with the disk engines that are available with this network engine, and reports the others as
/// skipped.
fn start_with_available_engines(net: &'static str) -> Option<(Server, Vec<&'static str>)> {
    let reason = match start(net, &DISKS) {
        Ok(server) => return Some((server, DISKS.to_vec())),
        Err(reason) => reason,
    };
    let outcome = |disk: &&'static str| start(net, &[*disk]).map_err(|reason| emerg_line(&reason)).err();
    let failed: Vec<(&'static str, String)> =
        DISKS.iter().filter_map(|disk| Some((*disk, outcome(disk)?))).collect();
    assert!(!failed.is_empty(), "each disk engine starts alone with {net}, but not all together: {reason}");
    for (disk, reason) in &failed {
        report_skipped(net, disk, reason);
    }
    let left: Vec<&'static str> =
        DISKS.into_iter().filter(|disk| failed.iter().all(|(other, _)| other != disk)).collect();
    if left.is_empty() {
        return None;
    }
    let server = start(net, &left).unwrap_or_else(|reason| panic!("{left:?} beside {net}: {reason}"));
    Some((server, left))
}

/// Returns the `[emerg]` line of a failed start.
fn emerg_line(evidence: &str) -> String {
    evidence.lines().find(|line| line.contains("[emerg]")).unwrap_or(evidence).to_owned()
}

/// A request and the expected bytes.
#[derive(Clone, Debug)]
struct Wanted {
    size: u64,
    range: Option<Range<u64>>,
}

impl Wanted {
    /// Returns requests for the complete file, for ranges at its ends and across the boundaries inside it.
    fn of(size: u64) -> Vec<Wanted> {
        let ends = [(0, 1), (1, size), (size / 2, size), (size.saturating_sub(1), size)];
        let inner = [(510, 513), (511, 512), (4094, 4099), (4096, 4097), (32_767, 32_770), (65_530, 65_540)];
        let last = [(512 * 1024 - 1, 512 * 1024 + 1), ((1 << 20) - 3, (1 << 20) + 1)];
        let fits = |&(start, end): &(u64, u64)| start < end && end <= size;
        let ranges = ends.into_iter().chain(inner).chain(last).filter(fits).map(|(start, end)| start..end);
        let mut wanted: Vec<Wanted> = ranges.map(|range| Wanted { size, range: Some(range) }).collect();
        wanted.insert(0, Wanted { size, range: None });
        wanted
    }

    fn request(&self, way: Way) -> Vec<u8> {
        let target = format!("/{}/{}.bin", way.name(), self.size);
        match &self.range {
            None => request_bytes("GET", &target, &[]),
            Some(range) => {
                let value = format!("bytes={}-{}", range.start, range.end - 1);
                request_bytes("GET", &target, &[("Range", &value)])
            }
        }
    }

    #[track_caller]
    fn check(&self, way: Way, response: &Response) {
        let range = self.range.clone().unwrap_or(0..self.size);
        let status = if self.range.is_some() { 206 } else { 200 };
        assert_eq!(response.status, status, "{way:?} {self:?}");
        let bytes = &expected(self.size)[range.start as usize..range.end as usize];
        if response.body != bytes {
            // Slow, but reports the position.
            eprintln!("{way:?} {self:?}");
            content(self.size).assert_range(range, &response.body);
        }
    }
}

/// Sends the requests on these connections, one at a time per connection, and compares every response.
fn ask(clients: &mut [Client], way: Way, wanted: &[Wanted]) {
    let width = clients.len();
    for round in 0..wanted.len().div_ceil(width) {
        let pick = |index: usize| &wanted[(round * width + index) % wanted.len()];
        for (index, client) in clients.iter_mut().enumerate() {
            client.deadline(Duration::from_secs(180)).send(pick(index).request(way));
        }
        for (index, client) in clients.iter_mut().enumerate() {
            pick(index).check(way, &client.response());
        }
    }
}

/// Requests several ranges in one response: part headers lie between the file's bytes.
fn request_ranges(client: &mut Client, way: Way, size: u64) {
    let ranges = [0..1, 511..513, 4095..4097, size - 600..size];
    let list: Vec<String> = ranges.iter().map(|range| format!("{}-{}", range.start, range.end - 1)).collect();
    let target = format!("/{}/{size}.bin", way.name());
    let value = format!("bytes={}", list.join(","));
    let response = client.request("GET", &target, &[("Range", &value)]);
    assert_eq!(response.status, 206, "{way:?}");
    let kind = response.field("content-type").unwrap_or("");
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").expect("parts").to_owned();
    let mut body = Vec::<u8>::new();
    for range in ranges {
        let mut head = format!("\r\n--{boundary}\r\nContent-Type: text/plain\r\n");
        write!(head, "Content-Range: bytes {}-{}/{size}\r\n\r\n", range.start, range.end - 1)
            .expect("a string takes everything");
        body.extend(head.as_bytes());
        body.extend(&expected(size)[range.start as usize..range.end as usize]);
    }
    body.extend(format!("\r\n--{boundary}--\r\n").as_bytes());
    assert!(response.body == body, "{way:?}: parts differ");
}

/// Requests 100 MiB, compared while they are received.
fn request_huge(server: &Server, way: Way) {
    let mut client = Client::connect(server.addr(0));
    client.deadline(Duration::from_secs(180));
    client.send(request_bytes("GET", &format!("/{}/{HUGE}.bin", way.name()), &[]));
    let head = client.head();
    assert_eq!(head.status, 200, "{way:?}");
    let file = File::open(files().path().join(format!("{HUGE}.bin"))).expect("it was made at the start");
    let mut body = client.body(&head);
    let (mut found, mut wanted) = (vec![0; 256 * 1024], vec![0; 256 * 1024]);
    let mut offset = 0;
    loop {
        let count = body.read(&mut found).unwrap_or_else(|error| panic!("{way:?} at {offset}: {error}"));
        if count == 0 {
            break;
        }
        file.read_exact_at(&mut wanted[..count], offset).expect("not more than the file has");
        assert!(found[..count] == wanted[..count], "{way:?}: wrong bytes after offset {offset}");
        offset += count as u64;
    }
    assert_eq!(offset, HUGE, "{way:?}");
}

/// Returns the engines used by each location, from the access log; a location may have used several.
fn moved(server: &Server, lines: usize) -> BTreeMap<String, Vec<String>> {
    let log = server.wait_for_access_log(lines, Deadline::after(Duration::from_secs(180)));
    let mut by_location: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in log.lines() {
        let mut words = line.splitn(4, ' ');
        let location = words.next().and_then(|uri| uri.split('/').nth(1)).unwrap_or("").to_owned();
        let engine = words.nth(2).unwrap_or("").to_owned();
        let engines = by_location.entry(location).or_default();
        if !engines.contains(&engine) {
            engines.push(engine);
        }
    }
    by_location
}

/// Runs the combinations on one network engine, and reports the pairs of engines that were used.
fn run(net: &'static str, ways: &[Way], huge_for_each: bool) {
    let Some((server, disks)) = start_with_available_engines(net) else { return };
    let small: Vec<Wanted> =
        SIZES.into_iter().filter(|&size| size <= SMALL_MAX).flat_map(Wanted::of).collect();
    let large: Vec<Wanted> =
        SIZES.into_iter().filter(|&size| size > SMALL_MAX).flat_map(Wanted::of).collect();
    let mut clients: Vec<Client> = (0..CONNECTIONS_SMALL).map(|_| Client::connect(server.addr(0))).collect();
    let ways: Vec<Way> = ways.iter().copied().filter(|way| disks.contains(&way.disk)).collect();
    for &way in &ways {
        ask(&mut clients, way, &small);
        ask(&mut clients[..CONNECTIONS_LARGE], way, &large);
        for size in PARTS_OF {
            request_ranges(&mut clients[0], way, size);
        }
    }
    let asked_over = |wanted: &[Wanted], width: usize| wanted.len().div_ceil(width) * width;
    let each = asked_over(&small, CONNECTIONS_SMALL) + asked_over(&large, CONNECTIONS_LARGE) + PARTS_OF.len();
    let asked = ways.len() * each;
    let by_location = moved(&server, asked);
    let mut seen: Vec<&String> = Vec::new();
    for &way in &ways {
        let engines = &by_location[&way.name()];
        let new = engines.iter().any(|engine| !seen.contains(&engine));
        if huge_for_each || new {
            request_huge(&server, way);
        }
        seen.extend(engines);
    }
    for disk in disks {
        let took = |way: &&Way| by_location[&way.name()].iter().any(|engine| engine.contains(disk));
        let mut of_disk = ways.iter().filter(|way| way.disk == disk);
        assert!(of_disk.any(|way| took(&way)), "{net}+{disk}: no body went this way: {by_location:?}");
        report_ran(net, disk);
    }
    let log = server.error_log();
    assert!(!log.contains("[crit]") && !log.contains("[alert]") && !log.contains("[emerg]"), "{log}");
    drop(clients);
    assert!(server.quit_and_wait().success());
}

#[test]
fn every_pair_of_settings_is_tested() {
    let chosen = Way::pairwise();
    for pair in Way::all().into_iter().flat_map(Way::pairs) {
        assert!(chosen.iter().any(|way| way.pairs().contains(&pair)), "{pair:?}");
    }
    assert!(chosen.len() < 20, "{} combinations are too many", chosen.len());
}

#[test]
fn all_settings_serve_the_same_bytes_on_io_uring() {
    if ours_only("engines are chosen by directives of this project") {
        run(NETS[0], &Way::pairwise(), false);
    }
}

#[test]
fn all_settings_serve_the_same_bytes_on_epoll() {
    if ours_only("engines are chosen by directives of this project") {
        run(NETS[1], &Way::pairwise(), false);
    }
}

#[test]
#[ignore = "heavy: the full product of engines and settings, 100 MiB each"]
fn all_combinations_serve_the_same_bytes_on_io_uring() {
    run(NETS[0], &Way::all(), true);
}

#[test]
#[ignore = "heavy: the full product of engines and settings, 100 MiB each"]
fn all_combinations_serve_the_same_bytes_on_epoll() {
    run(NETS[1], &Way::all(), true);
}

/// With the default settings, files are read from the disk: completely, with a part in memory, and once more from
/// memory.
#[test]
fn long_files_are_served_unchanged_from_disk_and_page_cache() {
    for net in NETS {
        let text = format!(
            "worker_processes 1;\nevents {{ use {net}; }}\nhttp {{ log_format moved '$body_engine';\n\
             server {{ listen 127.0.0.1:0; access_log logs/access.log moved; }} }}\n"
        );
        let builder = Server::builder(common::BINARY).conf(&text);
        let html = builder.dir().join("html");
        std::os::unix::fs::symlink(files().path(), html).expect("a fresh directory");
        let server = match builder.try_start() {
            Ok(server) => server,
            Err(reason) => {
                report_skipped(net, "sendfile", &emerg_line(&reason));
                continue;
            }
        };
        let path = files().path().join(format!("{HUGE}.bin"));
        let file = File::open(&path).expect("it was made at the start");
        let mut client = Client::connect(server.addr(0));
        client.deadline(Duration::from_secs(180));
        let range = (3 << 20) - 7..HUGE / 8 + 5;
        let value = format!("bytes={}-{}", range.start, range.end - 1);
        for in_memory in [0..0, 0..1, (4 << 20)..(5 << 20), 0..HUGE] {
            file.sync_all().expect("it can be written");
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("a hint");
            let mut bytes = vec![0; 64 * 1024];
            for at in in_memory.clone().step_by(bytes.len()) {
                file.read_at(&mut bytes, at).expect("it is long enough");
            }
            let target = format!("/{HUGE}.bin");
            let response = client.request("GET", &target, &[("Range", &value)]);
            assert_eq!(response.status, 206, "{net} {in_memory:?}");
            content(HUGE).assert_range(range.clone(), &response.body);
        }
        let log = server.wait_for_access_log(4, Deadline::after(Duration::from_secs(180)));
        assert!(log.lines().all(|line| line.starts_with("sendfile or ")), "{log}");
        assert!(server.quit_and_wait().success());
    }
}

/// If files have been evicted from the page cache each time they are requested, most are read with direct I/O; once
/// they stay cached, all use the page cache again. The bytes are the same.
#[test]
fn evicted_files_are_read_with_direct_io() {
    if !ours_only("nginx does not probe the page cache") {
        return;
    }
    for (size, user, more) in [
        // For short files their cached pages are counted, which requires a worker that has write access.
        (20_001, "user root;", ""),
        (20_001, "user root;", "open_file_cache max=64;"),
        ((100 << 10) + 1, "", ""),
        ((1 << 20) + 1, "", ""),
        ((1 << 20) + 1, "", "open_file_cache max=64;"),
    ] {
        if !are_read_past_memory(size, user, more) {
            return testkit::skip("the page cache cannot be inspected, dropped or bypassed here");
        }
    }
}

/// Tests files of this size, with this `user` and this further configuration; returns `false` if the page cache cannot
/// be inspected.
fn are_read_past_memory(size: u64, user: &str, more: &str) -> bool {
    const FILES: u64 = 16;
    let mut builder = Server::builder(common::BINARY).conf(&format!(
        "{user} worker_processes 1; events {{ }}\nhttp {{ keepalive_requests 1000000; {more} \
         server {{ listen 127.0.0.1:0; location / {{ root html; }} }} }}",
    ));
    for number in 0..FILES {
        builder = builder.file(&format!("html/{number}"), Content::new(number, size));
    }
    let files: Vec<File> = (0..FILES)
        .map(|number| File::open(builder.dir().join(format!("html/{number}"))).expect("it was made"))
        .collect();
    files.iter().for_each(|file| file.sync_all().expect("a disk that works"));
    let cached = |file: &File| io::sys::cached_pages(file, 0, 0).unwrap_or(u64::MAX);
    // The bytes after the last complete block are always read through the page cache, with some before them.
    let half = size / 2 / rustix::param::page_size() as u64;
    let forget = || {
        for file in &files {
            rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).expect("a regular file");
        }
    };
    forget();
    let is_direct = rustix::fs::open(
        builder.dir().join("html/0"),
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    if files.iter().any(|file| cached(file) != 0) || is_direct.is_err() {
        return false;
    }
    let server = builder.start();
    let mut client = Client::connect(server.addr(0));
    let mut ask = |number: u64| {
        let response = client.get(&format!("/{number}"));
        assert!(response.status == 200 && response.body == Content::new(number, size).bytes(0..size));
    };
    let passed = |ask: &mut dyn FnMut(u64)| {
        forget();
        (0..FILES).for_each(ask);
        files.iter().filter(|file| cached(file) < half).count() as u64
    };
    testkit::wait::until("most files to be read bypassing the page cache", Deadline::default(), || {
        (passed(&mut ask) >= FILES / 2).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}"));
    // Requests read the files into the page cache, where they now stay.
    testkit::wait::until("files to be read through the page cache again", Deadline::default(), || {
        (0..FILES).for_each(&mut ask);
        files.iter().all(|file| cached(file) >= half).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}"));
    true
}

/// A shared-memory chunk cannot be taken from a connection, so all bodies together may use a quarter of `buffer_pool` for such
/// chunks. Clients that do not read use at most half of this quarter, and other clients continue.
#[test]
fn shared_memory_is_bounded_with_clients_that_do_not_read() {
    const SIZE: u64 = 4 << 20;
    let conf = "worker_processes 1; events { worker_connections 256; buffer_pool 16m; ring_recv_buffers 64 4k; }\n\
                http { server { listen 127.0.0.1:0 sndbuf=64k; location / { root html; aio_sendfile 512k; } } }";
    let content = Content::new(11, SIZE);
    let server = Server::builder(common::BINARY).conf(conf).file("html/a", content).start();
    let worker = server.worker();
    let ListenAddr::Tcp(address) = *server.addr(0) else { panic!("it listens on an address") };
    let mut most = 0;
    let mut slow: Vec<Client> = (0..64).map(|_| Client::connect_narrow(address, 16 << 10)).collect();
    for client in &mut slow {
        client.deadline(Duration::from_secs(180)).send(request_bytes("GET", "/a", &[]));
    }
    for client in &mut slow {
        assert_eq!(client.head().status, 200);
        most = most.max(testkit::process::shared_bytes(worker));
    }
    let response = Client::connect(server.addr(0)).get("/a");
    assert!(response.body == content.bytes(0..SIZE), "a client that reads");
    for client in &mut slow {
        assert!(client.read_exact(SIZE as usize) == content.bytes(0..SIZE), "a client that reads later");
        most = most.max(testkit::process::shared_bytes(worker));
    }
    assert!(most > 0 && most <= 5 << 20, "{most} bytes of shared memory");
}
