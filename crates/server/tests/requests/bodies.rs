//! Tests request bodies over a socket. `mirror` requests the bodies here, and the requested files do not exist.

use crate::support::Site;

/// Starts a server whose location `/` reads bodies and logs them.
fn site(label: &str, more: &str) -> Site {
    let http = format!(
        "log_format plain '$uri|$status|$request_body|$request_body_file'; log_subrequest on; access_log off;
         client_body_temp_path temp 1 2; root .;
         server {{ listen 127.0.0.1:PORT; error_log error.log info; location / {{ mirror /copy; access_log main.log plain; {more} }}
           location /copy {{ access_log copy.log plain; try_files /none =204; }}
           location /bare {{ mirror /copy; mirror_request_body off; access_log main.log plain; }}
           location /plain {{ return 200 ok; }} }}"
    );
    Site::start(label, &http)
}

#[test]
fn bodies_are_read_and_the_connection_continues() {
    let site = site("bodies-read", "");
    let mut client = site.client();
    client.send(
        "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    assert_eq!((client.response().head.status, client.response().head.status), (404, 404));
    client.send_in_pieces(
        "POST /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        7,
    );
    assert_eq!(client.response().head.status, 404);
    client.send("POST /bare HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!(client.response().head.status, 404);
    assert_eq!(client.get("/plain").text(), "ok");
    assert_eq!(
        site.lines("main.log", 4),
        ["/a|404|hello|-", "/b|404|-|-", "/c|404|abcde|-", "/bare|404|-|-"]
    );
    assert_eq!(
        site.lines("copy.log", 4),
        ["/copy|204|hello|-", "/copy|204|-|-", "/copy|204|abcde|-", "/copy|204|-|-"]
    );
}

#[test]
fn large_bodies_are_written_to_an_unnamed_file() {
    let site = site("bodies-large", "client_body_buffer_size 1k;");
    let mut client = site.client();
    let body = "x".repeat(300_000);
    client.send(format!("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    assert_eq!(client.response().head.status, 404);
    client.send("POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 1024\r\n\r\n").send(&body[..1024]);
    assert_eq!((client.response().head.status, client.get("/plain").text().as_str()), (404, "ok"));
    let lines = site.lines("main.log", 2);
    let path = lines[0].strip_prefix("/a|404|-|").expect("it is in a file");
    assert!(path.contains("/temp/") && !std::path::Path::new(path).exists(), "{path}");
    assert_eq!(lines[1], format!("/b|404|{}|-", &body[..1024]));
    let log = site.lines("error.log", 1).join("\n");
    assert!(
        log.contains("[warn]") && log.contains("a client request body is buffered to a temporary file /"),
        "{log}"
    );
}

#[test]
fn body_files_are_retained_or_removed_as_configured() {
    for (setting, stays) in [("on", true), ("clean", false)] {
        let site = site(&format!("bodies-{setting}"), &format!("client_body_in_file_only {setting};"));
        let mut client = site.client();
        client.send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
        assert_eq!((client.response().head.status, client.get("/plain").text().as_str()), (404, "ok"));
        let line = site.lines("main.log", 1).remove(0);
        let path = line.strip_prefix("/a|404|-|").expect("it is in a file");
        assert_eq!(std::path::Path::new(path).exists(), stays, "{line}");
        if stays {
            assert_eq!(site.lines(path, 1), ["hello"]);
        }
    }
}

#[test]
fn invalid_bodies_are_refused() {
    let site = site("bodies-wrong", "client_max_body_size 10; location /slow { client_body_timeout 100ms; }");
    let ask = |text: &str| site.client().send(text).response().head.status;
    assert_eq!(ask("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n"), 413);
    assert_eq!(ask("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n"), 413);
    assert_eq!(
        ask("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n"),
        413
    );
    assert_eq!(ask("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n"), 400);
    // As in nginx no response: the client does not expect one in the middle of its body.
    let mut slow = site.client();
    slow.send("POST /slow HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe").expect_end();
    let mut gone = site.client();
    gone.send("POST /gone HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhe").half_close();
    gone.expect_end();
    let lines = site.lines("main.log", 6);
    assert!(
        lines.contains(&"/slow|408|-|-".to_owned()) && lines.contains(&"/gone|400|-|-".to_owned()),
        "{lines:?}"
    );
    let log = site.lines("error.log", 5).join("\n");
    for line in [
        "client intended to send too large chunked body: 0+11 bytes",
        "client intended to send too large chunked body: 5+6 bytes",
        "client sent invalid chunked body",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
}

#[test]
fn clients_that_expect_100_continue_get_it() {
    let site = site("bodies-expect", "");
    let mut client = site.client();
    client.send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.head().status, 100);
    client.send("hello");
    assert_eq!(client.response().head.status, 404);
    assert_eq!(client.get("/plain").text(), "ok");
    assert_eq!(site.lines("main.log", 1), ["/a|404|hello|-"]);
}

#[test]
fn a_location_can_depend_on_the_body() {
    let site = Site::start(
        "bodies-early",
        "access_log off; map $request_body $wanted { default other; ~secret special; }
         server { listen 127.0.0.1:PORT; client_body_early_read $http_early 0; client_max_body_size 20;
           if ($wanted = special) { return 201 special; } location / { return 200 $wanted; } }",
    );
    let ask = |early: &str, body: &str| {
        let length = body.len();
        let text = format!("POST / HTTP/1.1\r\nHost: a\r\n{early}Content-Length: {length}\r\n\r\n{body}");
        let response = site.client().send(text).response();
        (response.head.status, response.text())
    };
    assert_eq!(ask("Early: 1\r\n", "a secret"), (201, "special".to_owned()));
    assert_eq!(ask("Early: 1\r\n", "nothing"), (200, "other".to_owned()));
    assert_eq!(ask("Early: 0\r\n", "a secret"), (200, "other".to_owned()));
    assert_eq!(ask("", "a secret"), (200, "other".to_owned()));
    assert_eq!(ask("Early: 1\r\n", &"x".repeat(21)).0, 413);
}

/// The limit of every location that is found applies, after rewrites and internal redirects too.
#[test]
fn a_body_that_is_too_large_is_refused_in_every_location_found() {
    let site = Site::start(
        "bodies-redirected",
        "access_log off; root .;
         server { listen 127.0.0.1:PORT; rewrite ^/server$ /small last; client_max_body_size 1k;
           location = /small { client_max_body_size 10; return 200 small; }
           location = /copy { return 204; }
           location = /location { rewrite ^ /small last; }
           location = /break { rewrite ^ /none break; }
           location = /files { try_files none /small; }
           location = /error { error_page 404 /small; return 404; }
           location = /named { try_files none @small; }
           location @small { client_max_body_size 10; mirror /copy; }
           location = /later { try_files none @later; }
           location @later { client_max_body_size 10; rewrite ^ /small last; }
           location = /page { client_max_body_size 10; error_page 413 =202 /read; }
           location = /read { client_max_body_size 10; mirror /copy; }
           location = /action { client_max_body_size 0; post_action /after; return 200 action; }
           location = /after { mirror /copy; }
           location /slash/ { client_max_body_size 10; proxy_pass http://127.0.0.1:1; } }",
    );
    let ask = |target: &str, length: u64| {
        let text = format!("POST {target} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
        let body = "x".repeat(if length > 1000 { 0 } else { length as usize });
        site.client().send(text + &body).response().head.status
    };
    for target in ["/server", "/location", "/files", "/error", "/later"] {
        assert_eq!(ask(target, 50_000_000_000), 413, "{target}");
        assert_eq!(ask(target, 11), 413, "{target}");
        let expected = if target == "/error" { 404 } else { 200 };
        assert_eq!(ask(target, 10), expected, "{target}");
    }
    assert_eq!((ask("/break", 1001), ask("/break", 20)), (404, 404), "the limit of its own location");
    assert_eq!((ask("/named", 1025), ask("/named", 20)), (413, 404), "a named location is not searched");
    assert_eq!((ask("/page", 50_000_000_000), ask("/page", 5)), (404, 404), "the page does not read it");
    assert_eq!(ask("/action", 20), 200);
    assert_eq!((ask("/slash", 11), ask("/slash", 10)), (413, 301), "it is compared before the redirect");
}

#[test]
fn an_unread_body_is_not_parsed_as_the_next_request() {
    let site = Site::start(
        "bodies-late",
        "access_log off; root .;
         server { listen 127.0.0.1:PORT; post_action /after; location / { return 200 first; }
           location /next { post_action /none; return 200 next; } location /copy { return 204; }
           location /after { mirror /copy; } }",
    );
    let mut client = site.client();
    let inner = "GET /next HTTP/1.1\r\nHost: a\r\n\r\n";
    client.send(format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{inner}", inner.len()));
    assert_eq!(client.response().text(), "first");
    client.send(inner.replace("/next", "/"));
    assert_eq!(client.response().text(), "first");
}
