//! Bodies that are changed between any engine and the client, and effects of disk and client failures on them.

use crate::common;
use std::fs::OpenOptions;

use crate::common::{assert_no_errors, ours_only};
use testkit::client::request_bytes;
use testkit::response::{BodyLength, Fault};
use testkit::{Client, Deadline, Server};

const NETS: [&str; 2] = ["io_uring", "epoll"];

/// Directives for each way to read a file, for one location each.
const WAYS: [(&str, &str); 7] = [
    ("ring", "aio io_uring;"),
    ("direct", "aio io_uring; directio 1;"),
    ("libaio", "aio libaio; directio 1;"),
    ("threads", "aio threads;"),
    ("sync", "aio off;"),
    ("sendfile", "sendfile on;"),
    ("shm", "aio io_uring; aio_sendfile 512k;"),
];

/// A line of the file: the replaced text crosses every boundary at which a body is split.
const LINE: &str = "a line of text with a Needle in it, which is one of many\n";

/// Returns a text slightly longer than a megabyte.
fn text() -> String {
    LINE.repeat((1 << 20) / LINE.len() + 7)
}

/// Returns the text after the filters, with the added parts before and after it.
fn changed() -> String {
    format!("first {}last", LINE.replace("Needle", "pin").repeat((1 << 20) / LINE.len() + 7))
}

/// Starts a server with a location for each way, and these faults, which may contain the prefix as `DIR`.
fn start(net: &str, faults: &[&str]) -> Server {
    let builder = Server::builder(common::BINARY).text("html/a.html", &text()).text("html/ok.txt", "ok");
    let mut conf = format!("worker_processes 1;\nevents {{ use {net};\n");
    for fault in faults {
        let fault = fault.replace("DIR", &builder.dir().display().to_string());
        conf.push_str(&format!("engine_fault {fault};\n"));
    }
    conf.push_str(
        "}\nhttp { types { text/html html; } server { listen 127.0.0.1:0; root html; add_trailer X-End $uri;\n
         sub_filter needle pin; sub_filter_once off; add_before_body /first; add_after_body /last;\n
         location = /first { return 200 'first '; } location = /last { return 200 last; }\n
         location = /ok.txt { add_trailer_inherit off; }\n",
    );
    for (name, directives) in WAYS {
        conf.push_str(&format!("location /{name}/ {{ alias html/; {directives} }}\n"));
    }
    conf.push_str("} }\n");
    builder.conf(&conf).start()
}

fn client(server: &Server) -> Client {
    Client::connect(server.addr(0))
}

/// One connection requests the body in every way, so each response must end at the correct byte.
fn check_all_responses(server: &Server) {
    let (mut client, expected) = (client(server), changed());
    for (way, _) in WAYS {
        let response = client.get(&format!("/{way}/a.html"));
        assert!(matches!(response.length, BodyLength::Chunked), "{way}");
        assert!(response.text() == expected, "{way}: {} bytes", response.body.len());
        assert_eq!(client.get("/ok.txt").text(), "ok", "{way}");
    }
    assert_no_errors(server);
}

#[test]
fn bodies_are_filtered_with_every_read_method() {
    if !ours_only("the ways to move a file are chosen by directives of this project") {
        return;
    }
    for net in NETS {
        let server = start(net, &[]);
        check_all_responses(&server);
        assert!(server.quit_and_wait().success());
    }
}

#[test]
fn filtered_bodies_are_correct_after_partial_reads_and_sends() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for net in NETS {
        check_all_responses(&start(net, &["read short every=2", "send short every=3"]));
        check_all_responses(&start(net, &["read error=EAGAIN every=3", "send error=EINTR every=3"]));
    }
}

#[test]
fn a_disk_error_truncates_a_filtered_body() {
    if !ours_only("faults come from the fault engine") {
        return;
    }
    for net in NETS {
        for (way, _) in WAYS {
            let server = start(net, &["read error=EIO every=5 path=DIR/html/a.html"]);
            let mut struck = client(&server);
            struck.send(request_bytes("GET", &format!("/{way}/a.html"), &[]));
            // The last chunk distinguishes a complete body from a truncated one.
            match struck.try_response() {
                Err(Fault::Ended { .. } | Fault::Io(_)) => {}
                other => panic!("{net} {way}: {other:?}"),
            }
            let line = server.wait_for_log("(5: Input/output error)", Deadline::default());
            assert!(line.contains("[crit]") && line.contains("html/a.html"), "{net} {way}: {line}");
            assert_eq!(client(&server).get("/ok.txt").text(), "ok", "{net} {way}");
        }
    }
}

#[test]
fn a_shrinking_file_truncates_a_filtered_body() {
    if !ours_only("the ways to move a file are chosen by directives of this project") {
        return;
    }
    // More than all socket buffers between both ends can buffer.
    const FROM: u64 = 48 << 20;
    for net in NETS {
        let server = start(net, &[]);
        let path = server.path("html/long.html");
        testkit::write(&path, "").expect("a fresh file");
        let file = OpenOptions::new().write(true).open(path).expect("it has just been made");
        for (way, _) in WAYS {
            file.set_len(FROM).expect("the file is the test's own");
            let mut reader = Client::connect_narrow(server.addr(0).tcp(), 64 * 1024);
            reader.send(request_bytes("GET", &format!("/{way}/long.html"), &[]));
            assert_eq!(reader.head().field("transfer-encoding"), Some("chunked"));
            reader.read_exact(100_000);
            file.set_len(1 << 20).expect("the file is the test's own");
            let rest = reader.read_to_end();
            assert!((rest.len() as u64) < FROM - 100_000, "{net} {way}: bytes beyond the file's end");
            assert!(!rest.ends_with(b"\r\n\r\n"), "{net} {way}: a last chunk came");
            assert_eq!(client(&server).get("/ok.txt").text(), "ok", "{net} {way}");
        }
    }
}

#[test]
fn clients_that_are_slow_or_disconnect_delay_no_other_client() {
    if !ours_only("the ways to move a file are chosen by directives of this project") {
        return;
    }
    for net in NETS {
        let server = start(net, &[]);
        let mut slow: Vec<Client> =
            (0..20).map(|_| Client::connect_narrow(server.addr(0).tcp(), 4096)).collect();
        for (index, client) in slow.iter_mut().enumerate() {
            let way = WAYS[index % WAYS.len()].0;
            client.send(request_bytes("GET", &format!("/{way}/a.html"), &[]));
        }
        check_all_responses(&server);
        // Half of the clients disconnect in the middle, and the others get the complete body.
        for client in slow.drain(..10) {
            client.reset();
        }
        for client in &mut slow {
            assert!(client.response().text() == changed());
        }
        check_all_responses(&server);
        assert!(server.quit_and_wait().success());
    }
}
