//! Tests modules over a socket, with one server on worker threads. The settings of the directives, and the errors of
//! invalid ones, are tested in each module.

use crate::support::Site;

#[test]
fn variables_have_the_values_of_nginx() {
    let site = Site::start(
        "variables",
        "server { listen 127.0.0.1:PORT; server_name first second; root /data; access_log off;
           location / { set $mine \"$arg_q-$scheme\"; set $mine \"<$mine>\"; return 200 $mine; }
           location /a { return 200 \"$uri|$document_uri|$args|$is_args|$query_string|$request_uri|$request_method\"; }
           location /b { return 200 \"$host|$server_name|$http_x_one|$http_none|$cookie_b|$remote_user|$content_length\"; }
           location /c { return 200 \"$remote_addr|$server_addr|$server_port|$server_protocol|$request_port|$is_request_port\"; }
           location /d { return 200 \"$request_filename|$document_root|$request|$status|$https|$pipe|$nginx_version\"; }
           location /e { return 200 \"$request_id|$connection|$connection_requests|$msec|$time_iso8601|$time_local|$hostname|$pid\"; }
           location /f { set $args x=1; set $limit_rate 8k; return 200 \"$args|$arg_x|$limit_rate\"; }
           location ~ ^/g/(?<named>[a-z]+)/(\\d+) { return 200 \"$named|$1|$2|$3\"; } }",
    );
    assert_eq!(site.text("/?q=1"), "<1-http>");
    assert_eq!(site.text("/a/./b%20c?x=1&y"), "/a/b c|/a/b c|x=1&y|?|x=1&y|/a/./b%20c?x=1&y|GET");
    assert_eq!(site.text("/a"), "/a|/a||||/a|GET");
    let fields = [
        ("Host", "SECOND:99"),
        ("X-One", "1"),
        ("x-one", "2"),
        ("Cookie", "a=1; B=2"),
        ("Authorization", "Basic dXNlcjpwYXNz"),
    ];
    assert_eq!(site.client().request("GET", "/b", &fields).text(), "second|first|1, 2||2|user|");
    let port = site.address.port();
    assert_eq!(
        site.client().request("GET", "/c", &[("Host", "x:99")]).text(),
        format!("127.0.0.1|127.0.0.1|{port}|HTTP/1.1|99|:")
    );
    assert_eq!(site.text("/d/x"), "/data/d/x|/data|GET /d/x HTTP/1.1|200||.|1.31.5");
    let text = site.text("/e");
    let parts: Vec<&str> = text.split('|').collect();
    assert_eq!((parts[0].len(), parts[2], parts[4].len()), (32, "1", 25), "{text}");
    assert!(parts[0].bytes().all(|byte| byte.is_ascii_hexdigit()) && parts[3].len() >= 14, "{text}");
    assert_eq!(parts[7], std::process::id().to_string());
    assert_ne!(site.text("/e")[..32], text[..32]);
    assert_eq!(site.text("/f?y"), "x=1|1|8192");
    assert_eq!(site.text("/g/abc/42"), "abc|abc|42|");
}

#[test]
fn return_sends_text_redirects_and_closes() {
    let site = Site::start(
        "return",
        "access_log off; default_type text/x;
         server { listen 127.0.0.1:PORT; location = /text.html { return 200 a; } location = /text { return 201 b; }
           location = /empty { return 204; } location = /moved { return 301 /to?$args; }
           location = /found { return http://there/; } location = /error { return 403; }
           location = /own { return 404 \"not $uri\"; } location = /drop { return 444; }
           error_page 403 /page; location = /page { return 200 paged; } }
         server { listen 127.0.0.1:PORT; server_name other ~^(?<sub>.+)\\.wild$; return 200 \"other $sub\"; location / { return 500; } }",
    );
    let response = site.get("/text.html");
    assert_eq!((response.text().as_str(), response.field("Content-Type")), ("a", Some("text/html")));
    let response = site.get("/text");
    assert_eq!((response.head.status, response.field("Content-Type")), (201, Some("text/x")));
    assert_eq!(site.status("/empty"), 204);
    let response = site.client().request("GET", "/moved?x", &[("Host", "h:1")]);
    let location = format!("http://h:{}/to?x", site.address.port());
    assert_eq!((response.head.status, response.field("Location")), (301, Some(location.as_str())));
    let response = site.get("/found");
    assert_eq!((response.head.status, response.field("Location")), (302, Some("http://there/")));
    let response = site.get("/error");
    assert_eq!((response.head.status, response.text().as_str()), (403, "paged"));
    let response = site.get("/own");
    assert_eq!((response.head.status, response.text().as_str()), (404, "not /own"));
    site.client().send("GET /drop HTTP/1.1\r\nHost: a\r\n\r\n").expect_end();
    let to = |host: &str| site.client().request("GET", "/", &[("Host", host)]).text();
    assert_eq!((to("other"), to("a.wild")), ("other ".to_owned(), "other a".to_owned()));
}

#[test]
fn access_logs_follow_formats_and_conditions() {
    let site = Site::start(
        "logs",
        "log_format own '$request_method $uri' ' $status \"$http_x\" $http_none $body_bytes_sent';
         log_format json escape=json '{\"x\":\"$http_x\",\"none\":\"$http_none\"}';
         log_format raw escape=none $http_x;
         access_log own.log own; access_log json.log json; access_log raw.log raw if=$arg_log;
         server { listen 127.0.0.1:PORT; location / { return 200 hello; } location /off { access_log off; return 200; }
           location /combined { access_log combined.log; return 200 hello; } }",
    );
    let mut client = site.client();
    let fields = [("Host", "a"), ("X", "q\"b\\c\u{e9}")];
    client.request("GET", "/a", &fields);
    client.request("GET", "/off?log=1", &fields);
    client.request("GET", "/b?log=0", &fields);
    client.request("GET", "/c?log=1", &[("Host", "a"), ("X", "last")]);
    client.request("GET", "/combined", &[("Host", "a"), ("User-Agent", "me")]);
    assert_eq!(
        site.lines("own.log", 3),
        [
            "GET /a 200 \"q\\x22b\\x5Cc\\xC3\\xA9\" - 5",
            "GET /b 200 \"q\\x22b\\x5Cc\\xC3\\xA9\" - 5",
            "GET /c 200 \"last\" - 5"
        ]
    );
    assert_eq!(site.lines("json.log", 3)[0], "{\"x\":\"q\\\"b\\\\c\u{e9}\",\"none\":\"\"}");
    assert_eq!(site.lines("raw.log", 1), ["last"]);
    let line = site.lines("combined.log", 1).remove(0);
    assert!(
        line.starts_with("127.0.0.1 - - [")
            && line.ends_with("] \"GET /combined HTTP/1.1\" 200 5 \"-\" \"me\""),
        "{line}"
    );
}

#[test]
fn index_finds_the_file_of_a_directory() {
    let site = Site::start(
        "index",
        "access_log off; root .; index $arg_i.html index.html;
         server { listen 127.0.0.1:PORT; location /to/ { index none /absolute; } location = /absolute { return 200 absolute; }
           location /sub/ { } location ~ \\.txt$ { return 200 \"text $uri\"; } location /text/ { index a.txt; } }",
    );
    site.folder.write("index.html", "top");
    site.folder.write("sub/index.html", "sub");
    site.folder.write("sub/b.html", "b");
    site.folder.write("text/a.txt", "never sent");
    site.folder.dir("empty");
    site.folder.dir("to");
    assert_eq!((site.text("/"), site.text("/sub/")), ("top".to_owned(), "sub".to_owned()));
    assert_eq!(site.text("/sub/?i=b"), "b");
    assert_eq!(site.text("/to/"), "absolute");
    assert_eq!(site.text("/text/"), "text /text/a.txt");
    assert_eq!((site.status("/empty/"), site.status("/none/")), (403, 404));
    assert_eq!(site.client().request("PUT", "/sub/", &[("Host", "a")]).head.status, 405);
}

#[test]
fn try_files_serves_the_first_existing_file() {
    let site = Site::start(
        "try",
        "access_log off; root .;
         server { listen 127.0.0.1:PORT; location / { try_files $uri $uri/ /fallback.html?from=$uri; }
           location = /fallback.html { return 200 \"fallback $arg_from\"; }
           location /code { try_files $uri =410; } location /named { try_files $uri @name; }
           location @name { return 200 \"named $uri\"; } location /lost { try_files $uri @nobody; }
           location /alias/ { alias real/; try_files $uri nothing other =404; }
           location /mixed { try_files /a.html $uri/ =404; } }",
    );
    site.folder.write("a.html", "file a");
    site.folder.write("dir/index.html", "index of dir");
    site.folder.write("real/b", "aliased");
    site.folder.write("real/other", "other");
    assert_eq!((site.text("/a.html"), site.text("/dir/")), ("file a".to_owned(), "index of dir".to_owned()));
    assert_eq!(site.status("/dir"), 301);
    assert_eq!(site.text("/none"), "fallback /none");
    assert_eq!((site.status("/code"), site.text("/named/x")), (410, "named /named/x".to_owned()));
    assert_eq!(site.status("/lost"), 500);
    assert_eq!((site.text("/alias/b"), site.text("/alias/c")), ("aliased".to_owned(), "other".to_owned()));
    assert_eq!(site.text("/mixed"), "file a");
}

#[test]
fn access_depends_on_address_method_and_origin() {
    let site = Site::start(
        "access",
        "access_log off; root .;
         server { listen 127.0.0.1:PORT; location /denied { deny 127.0.0.0/8; }
           location /allowed { allow 127.0.0.1; deny all; try_files /file =404; }
           location /limited { limit_except GET { deny all; } try_files /file =404; }
           location /internal { internal; try_files /file =404; location /internal/x { } }
           location = /through { try_files /none /internal; }
           location /hidden/ { internal; proxy_pass http://127.0.0.1:1; } }",
    );
    site.folder.write("file", "content");
    assert_eq!(site.status("/denied"), 403);
    assert!(site.lines("error.log", 1)[0].contains("access forbidden by rule, client: 127.0.0.1"));
    assert_eq!(site.text("/allowed"), "content");
    assert_eq!(site.text("/limited"), "content");
    assert_eq!(
        site.client().request("POST", "/limited", &[("Host", "a"), ("Content-Length", "0")]).head.status,
        403
    );
    assert_eq!((site.status("/internal"), site.status("/internal/x")), (404, 404));
    assert_eq!(site.status("/hidden"), 404, "no redirect to the slash");
    assert_eq!(site.text("/through"), "content");
}

/// Tests both methods to set a rate per request.
#[test]
fn a_rate_may_be_set_by_variables() {
    let site = Site::start(
        "rate",
        "access_log off; root .; map $arg_slow $rate { 1 50k; default 0; }
         server { listen 127.0.0.1:PORT; limit_rate $rate; location / { } location /set/ { set $limit_rate 50k; alias ./; }
           location /after/ { set $limit_rate 1; limit_rate_after $arg_free; alias ./; } }",
    );
    site.folder.write("file", vec![b'x'; 70_000]);
    for target in ["/file?slow=1", "/set/file"] {
        let start = std::time::Instant::now();
        assert_eq!(site.text(target).len(), 70_000);
        // The bytes of the first second are not delayed. There is no upper bound, because a busy machine would exceed it.
        assert!(start.elapsed() >= std::time::Duration::from_millis(250), "{target}: {:?}", start.elapsed());
    }
    // These responses would take hours at the rate.
    assert_eq!((site.text("/file").len(), site.text("/after/file?free=1m").len()), (70_000, 70_000));
}
