//! Tests subrequests over a socket: `auth_request`, `mirror` and `post_action`.

use crate::support::Site;
use testkit::Deadline;

#[test]
fn auth_request_decides_by_status() {
    let site = Site::start(
        "auth",
        "access_log off; root .;
         server { listen 127.0.0.1:PORT;
           location /ok { auth_request /auth/204; try_files /file =404; }
           location /file { auth_request /auth-file; }
           location /401 { auth_request /auth/401; }
           location /403 { auth_request /auth/403; error_page 403 /page; }
           location /404 { auth_request /auth/404; }
           location /302 { auth_request /auth/302; }
           location /any { satisfy any; deny all; auth_request /auth/204; try_files /file =404; }
           location /any-no { satisfy any; deny all; auth_request /auth/401; }
           location /all-no { deny all; auth_request /auth/204; }
           location /values { auth_request /auth-values; auth_request_set $mine $uri;
             auth_request_set $other \"$mine $sent_http_content_type $set\"; try_files /none /show; }
           location = /show { return 200 \"$mine|$other|$set|$status\"; }
           location = /page { return 200 page; }
           location /off { auth_request /auth/403; location /off/in { auth_request off; try_files /file =404; } }
           location /auth/204 { internal; return 204; } location /auth/401 { return 401; }
           location /auth/403 { return 403; } location /auth/302 { return 302 /x; }
           location = /auth-file { deny all; try_files /file =500; }
           location = /auth-values { set $set made; default_type x/y; return 200 $uri; } }",
    );
    site.folder.write("file", "content");
    assert_eq!(site.text("/ok"), "content");
    let conditional = [("Host", "a"), ("If-None-Match", "*"), ("Range", "bytes=0-1")];
    let response = site.client().request("GET", "/file", &conditional);
    assert_eq!(response.head.status, 304, "the condition is for the file and not for the subrequest");
    assert_eq!((site.status("/401"), site.status("/404"), site.status("/302")), (401, 500, 500));
    assert_eq!((site.status("/403"), site.text("/403").as_str()), (403, "page"));
    assert_eq!(
        (site.text("/any").as_str(), site.status("/any-no"), site.status("/all-no")),
        ("content", 401, 403)
    );
    assert_eq!(site.text("/values"), "/auth-values|/auth-values x/y made|made|200");
    assert_eq!((site.status("/off"), site.text("/off/in").as_str()), (403, "content"));
    let post = [("Host", "a"), ("Content-Length", "0")];
    assert_eq!(site.client().request("POST", "/ok", &post).head.status, 405, "it was allowed");
    assert_eq!(site.client().request("HEAD", "/ok", &[("Host", "a")]).head.status, 200);
    let told = "auth request unexpected status: 302, client:";
    let is_told = || site.lines("error.log", 1).iter().any(|line| line.contains(told)).then_some(());
    testkit::wait::until(told, Deadline::default(), is_told).expect("the status is in the log");
}

#[test]
fn mirror_sends_copies_in_the_background() {
    let site = Site::start(
        "mirror",
        "access_log off; log_subrequest on; log_format plain '$request_method $uri[$args] $status $depth'; root .;
         server { listen 127.0.0.1:PORT; set $depth main; mirror /copy-a; mirror /copy-b; mirror_request_body off;
           location / { return 200 early; } location /file { }
           location /off { mirror off; }
           location /copy { internal; mirror /copy-c; access_log copies.log plain; try_files /none =204; }
           location = /copy-c { access_log copies.log plain; } }",
    );
    site.folder.write("file", "content");
    site.folder.write("off", "content");
    let mut client = site.client();
    assert_eq!(client.get("/file?x=1").text(), "content");
    assert_eq!(client.get("/off").text(), "content");
    // `return` responds before the mirror subrequests would be made.
    assert_eq!(client.get("/").text(), "early");
    assert_eq!(client.request("PUT", "/file", &[("Host", "a"), ("Content-Length", "0")]).head.status, 405);
    assert_eq!(
        site.lines("copies.log", 4),
        [
            "GET /copy-a[x=1] 204 main",
            "GET /copy-b[x=1] 204 main",
            "PUT /copy-a[-] 204 main",
            "PUT /copy-b[-] 204 main"
        ]
    );
}

#[test]
fn post_action_follows_the_response() {
    let site = Site::start(
        "post",
        "log_format plain '$request $uri[$args] $status $body_bytes_sent $request_completion $was'; access_log main.log plain; root .;
         server { listen 127.0.0.1:PORT; set $was -; post_action /after; location / { }
           location = /named { post_action @after; return 403; } location = /lost { post_action @nobody; return 200 x; }
           location = /after { set $was $status; access_log after.log plain; return 200 nobody; }
           location @after { access_log after.log plain; try_files /file =404; }
           location = /drop { return 444; } }",
    );
    site.folder.write("file", "content");
    let mut client = site.client();
    assert_eq!(client.get("/file?x=1").text(), "content");
    assert_eq!((client.get("/none").head.status, client.get("/named").head.status), (404, 403));
    assert_eq!(client.get("/lost").text(), "x");
    site.client().send("GET /drop HTTP/1.1\r\nHost: a\r\n\r\n").expect_end();
    let after = site.lines("after.log", 3);
    assert_eq!(after[0], "GET /file?x=1 HTTP/1.1 /after[-] 200 7 OK 200");
    assert!(after[1].starts_with("GET /none HTTP/1.1 /after[-] 404 "), "{after:?}");
    assert!(after[2].starts_with("GET /named HTTP/1.1 /file[-] 403 "), "{after:?}");
    let main = site.lines("main.log", 2);
    assert!(main[0].starts_with("GET /lost ") && main[1].starts_with("GET /drop "), "{main:?}");
    assert!(
        site.lines("error.log", 2)
            .iter()
            .any(|line| line.contains("could not find named location \"@nobody\""))
    );
}
