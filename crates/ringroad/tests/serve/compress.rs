//! Compressed responses of the complete program: the worker gets its resources from the master, and any engine reads
//! the bodies before they are compressed.

use crate::common::{BINARY, client, one_server};
use testkit::{Client, Server};

/// Returns lines that repeat words, but are all different.
fn page(lines: usize) -> String {
    (0..lines)
        .map(|line| format!("<p class=\"line\">{} is line {line}</p>\n", line * 7919 % 10_007))
        .collect()
}

fn compressed(client: &mut Client, target: &str, coding: &str) -> Vec<u8> {
    let response = client.request("GET", target, &[("Accept-Encoding", coding)]);
    assert_eq!((response.status, response.field("Content-Encoding")), (200, Some(coding)), "{target}");
    response.body
}

#[test]
fn a_dictionary_is_available_to_the_worker() {
    let page = page(40);
    let conf = one_server("zstd on; types { text/html html; } zstd_dict_file words;", "root html;");
    let server =
        Server::builder(BINARY).conf(&conf).text("conf/words", &page).text("html/a.html", &page).start();
    let with = compressed(&mut client(&server), "/a.html", "zstd");
    assert!(with.len() < 100, "{} bytes where all is in the dictionary", with.len());
    let plain = Server::builder(BINARY)
        .conf(&conf.replace("zstd_dict_file words;", ""))
        .text("html/a.html", &page)
        .start();
    let without = compressed(&mut client(&plain), "/a.html", "zstd");
    assert!(with.len() * 2 < without.len(), "{} bytes without one", without.len());
}

#[test]
fn a_missing_dictionary_is_an_error_with_its_line() {
    let conf = one_server("zstd on;\nzstd_dict_file words;", "root html;");
    let (status, said) = Server::builder(BINARY).conf(&conf).arg("-t").run_to_end();
    assert!(!status.success());
    assert!(said.contains("conf/words\" failed (2: No such file or directory) in "), "{said}");
}

#[test]
fn files_are_compressed_on_every_engine() {
    let page = page(20_000);
    for engine in ["aio off;", "aio threads;", "aio on;", "aio off; sendfile on;", "directio 1k;"] {
        let conf = one_server(
            "gzip on; brotli on; zstd on; brotli_comp_level 1; types { text/html html; }",
            &format!("root html; {engine}"),
        );
        let server = Server::builder(BINARY).conf(&conf).text("html/a.html", &page).start();
        let mut client = client(&server);
        let mut decoder = flate2::read::GzDecoder::new(std::io::Cursor::new(Vec::new()));
        for coding in ["gzip", "br", "zstd"] {
            let body = compressed(&mut client, "/a.html", coding);
            assert!(body.len() * 2 < page.len(), "{engine} {coding}: {} of {}", body.len(), page.len());
            if coding == "gzip" {
                decoder = flate2::read::GzDecoder::new(std::io::Cursor::new(body));
            }
        }
        let text = std::io::read_to_string(&mut decoder).expect("it is gzip");
        assert!(text == page, "{engine}");
        assert!(client.get("/a.html").text() == page, "{engine}");
    }
}
