//! Tests filters: header fields, charsets, replaced and added text. The expectations are nginx's behaviour.

use crate::support::Site;
use testkit::Response;

/// Returns the response to a request with these fields.
fn send_request(site: &Site, method: &str, target: &str, fields: &[(&str, &str)]) -> Response {
    let fields: Vec<_> = [("Host", "a")].iter().chain(fields).copied().collect();
    site.client().request(method, target, &fields)
}

/// Returns all bytes received on a connection that ends with the response.
fn raw(site: &Site, request_line: &str) -> String {
    let request = format!("{request_line}\r\nHost: a\r\nConnection: close\r\n\r\n");
    let bytes = site.client().send(request).read_to_end();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the values of a field, in order.
fn all(response: &Response, name: &str) -> Vec<String> {
    response.head.all(name).map(str::to_owned).collect()
}

#[test]
fn fields_are_added_to_successful_responses() {
    let site = Site::start(
        "headers",
        "access_log off; root .; add_header X-All 1 always; add_header X-Fine \"$uri|$status\"; add_header X-Empty $arg_none;
         server { listen 127.0.0.1:PORT; location = /text { return 200 text; } location = /moved { return 302 /there; }
           location = /none { return 204; } location = /own { add_header X-Own 2; return 200 own; }
           location = /refused { return 403; } error_page 403 /page; location = /page { return 200 page; }
           location = /if { add_header X-If no; if ($arg_x) { add_header X-If yes; expires max; charset utf-8; return 200 yes; } return 200 no; }
           location = /merged { add_header X-Own 2; add_header_inherit merge; return 200; }
           location = /inject { add_header X-Text \"a$uri\"; return 200; } location ~ ^/inject. { add_header X-Text $uri; return 200; }
           location = /lists { add_header Cache-Control public; add_header Cache-Control no-transform; add_header Link a;
             add_header Link b; return 200 \"$sent_http_cache_control|$sent_http_link\"; }
           location = /tags { add_header ETag $arg_tag; add_header Last-Modified $arg_date; try_files /file =404; } }",
    );
    site.folder.write("file", "content");
    let response = site.get("/text");
    assert_eq!((response.field("X-All"), response.field("X-Fine")), (Some("1"), Some("/text|200")));
    assert_eq!((response.field("X-Empty"), response.text().as_str()), (None, "text"));
    for (target, status, all, fine) in [
        ("/moved", 302, Some("1"), Some("/moved|302")),
        ("/none", 204, Some("1"), Some("/none|204")),
        ("/missing", 404, Some("1"), None),
        // The status of the error page is not the original status.
        ("/refused", 403, Some("1"), None),
        ("/own", 200, None, None),
    ] {
        let response = site.get(target);
        let found = (response.status, response.field("X-All"), response.field("X-Fine"));
        assert_eq!(found, (status, all, fine), "{target}");
    }
    assert_eq!(site.get("/own").field("X-Own"), Some("2"));
    let response = site.get("/if?x=1");
    assert_eq!((response.field("X-If"), response.field("Expires").is_some()), (Some("yes"), true));
    assert_eq!(response.field("Content-Type"), Some("text/plain; charset=utf-8"));
    let response = site.get("/if");
    assert_eq!(
        (response.field("X-If"), response.field("Expires"), response.text().as_str()),
        (Some("no"), None, "no")
    );
    let response = site.get("/merged");
    assert_eq!((response.field("X-Own"), response.field("X-All")), (Some("2"), Some("1")));
    let response = send_request(&site, "HEAD", "/text", &[]);
    assert_eq!((response.field("X-All"), response.field("Content-Length")), (Some("1"), Some("4")));
    // A decoded line end is replaced and stays in the value.
    assert_eq!(site.get("/inject%0d%0aX-Evil:%201").field("X-Text"), Some("/inject  X-Evil: 1"));
    assert_eq!(site.get("/inject%0d%0aX-Evil:%201").field("X-Evil"), None);
    let response = site.get("/lists");
    assert_eq!(all(&response, "Cache-Control"), ["public", "no-transform"]);
    assert_eq!(all(&response, "Link"), ["a", "b"]);
    // The body is rendered before the fields are added.
    assert_eq!(response.text(), "|");
    let broken = site.client().send("GET / HTTP/1.1\r\n\r\n").response();
    assert_eq!((broken.status, broken.field("X-All"), broken.field("X-Fine")), (400, Some("1"), None));
}

#[test]
fn fields_are_added_to_refused_requests() {
    let site = Site::start(
        "refused",
        "access_log off; charset utf-8; gzip on; gzip_min_length 1; ssi on; sub_filter nginx x; sub_filter_types *; expires max; error_page 400 /page;
         add_header X-All \"$request_method|$http_x|$http_host|$uri|$arg_a|$cookie_a|$host\" always; add_trailer X-End 1 always;
         server { listen 127.0.0.1:PORT; location = /page { add_header X-Page $uri always; add_header_inherit merge; return 200 page; } }",
    );
    for request in [
        "GET /?a=1 HTTP/1.1\r\nX: 1\r\nAccept-Encoding: gzip\r\n\r\n",
        "GET / HTTP/1.1\r\nAccept-Encoding: gzip\r\nHost: a\r\nX: a\0b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\nRange: bytes=0-1\r\nHost: b\r\n\r\n",
        "GET /%zz HTTP/1.1\r\nHost: a\r\nAccept-Encoding: gzip\r\n\r\n",
        "BROKEN\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\nContent-Length: x\r\n\r\n",
        "\x16\x03\x01\x02\r\n\r\n",
    ] {
        let mut client = site.client();
        let response = client.send(request).response();
        assert_eq!(response.status, 400, "{request}");
        assert!(response.field("X-All").is_some(), "{request}");
        assert_eq!(response.field("X-Page"), Some("/page"), "{request}");
        assert_eq!(response.field("Expires"), None, "{request}");
        client.expect_end();
    }
}

#[test]
fn added_fields_replace_validators_of_the_same_name() {
    let site = Site::start(
        "validators",
        "access_log off; root .;
         server { listen 127.0.0.1:PORT; add_header ETag $arg_tag; add_header Last-Modified $arg_date; }",
    );
    site.folder.write("file", "content");
    let response = site.get("/file");
    assert_eq!((response.field("ETag"), response.field("Last-Modified")), (None, None));
    let target = "/file?tag=\"own\"&date=x";
    let response = site.get(target);
    assert_eq!((response.field("ETag"), response.field("Last-Modified")), (Some("\"own\""), Some("x")));
    // `If-Range` compares with this entity tag.
    let range = [("Range", "bytes=0-1"), ("If-Range", "\"own\"")];
    assert_eq!(send_request(&site, "GET", target, &range).text(), "co");
    let range = [("Range", "bytes=0-1"), ("If-Range", "\"other\"")];
    assert_eq!(send_request(&site, "GET", target, &range).text(), "content");
    let response = send_request(&site, "GET", target, &[("Range", "bytes=0-1,3-4")]);
    assert_eq!((response.status, response.field("ETag")), (206, Some("\"own\"")));
}

#[test]
fn expires_sets_the_lifetime_of_a_response() {
    let site = Site::start(
        "expires",
        "access_log off; root .;
         server { listen 127.0.0.1:PORT; expires $arg_e; location = /epoch { expires epoch; return 200; }
           location = /max { expires max; return 200; } location = /zero { expires 0; return 200; }
           location = /hour { expires 1h; return 200; } location = /past { expires -1; return 200; }
           location = /off { expires off; return 200; } location = /daily { expires @24h; return 200; }
           location /modified/ { expires modified +10y; } location /changed/ { expires modified $arg_e; }
           location = /late { expires modified 1h; return 200; } location = /error { expires max; return 404; }
           location = /too { expires 1h; add_header Cache-Control public; return 200; } location = /variable { return 200; } }",
    );
    site.folder.write("modified/file", "content");
    site.folder.write("changed/file", "content");
    let of = |target: &str| {
        let response = site.get(target);
        let text = |name: &str| response.field(name).map(str::to_owned);
        (text("Expires"), text("Cache-Control"), text("Date"))
    };
    let pair = |target: &str| {
        let (expires, control, _) = of(target);
        (expires.unwrap_or_default(), control.unwrap_or_default())
    };
    let texts = |expires: &str, control: &str| (expires.to_owned(), control.to_owned());
    assert_eq!(pair("/epoch"), texts("Thu, 01 Jan 1970 00:00:01 GMT", "no-cache"));
    assert_eq!(pair("/max"), texts("Thu, 31 Dec 2037 23:55:55 GMT", "max-age=315360000"));
    for target in ["/off", "/error", "/variable", "/variable?e=x", "/variable?e=off"] {
        assert_eq!(pair(target), texts("", ""), "{target}");
    }
    assert_eq!(pair("/variable?e=epoch").1, "no-cache");
    let seconds = |text: Option<String>| {
        http::date::parse_http(text.expect("the field is there").as_bytes()).expect("a date")
    };
    for (target, age, control) in [
        ("/zero", 0, "max-age=0"),
        ("/hour", 3600, "max-age=3600"),
        ("/late", 3600, "max-age=3600"),
        ("/past", -1, "no-cache"),
        ("/variable?e=2m", 120, "max-age=120"),
        ("/variable?e=-2m", -120, "no-cache"),
    ] {
        let (expires, found, date) = of(target);
        assert_eq!(seconds(expires) - seconds(date), age, "{target}");
        assert_eq!(found.as_deref(), Some(control), "{target}");
    }
    for (target, span) in [("/modified/file", 315_360_000), ("/changed/file?e=1d", 86_400)] {
        let response = site.get(target);
        let text = |name: &str| response.field(name).map(str::to_owned);
        assert_eq!(seconds(text("Expires")) - seconds(text("Last-Modified")), span);
        assert!(text("Cache-Control").is_some_and(|text| text.starts_with("max-age=")), "{target}");
    }
    assert_eq!(pair("/changed/file?e=-1h").1, "no-cache");
    let (expires, control, date) = of("/daily");
    let age = seconds(expires) - seconds(date);
    assert!((1..=86_400 + 7200).contains(&age), "{age}");
    assert_eq!(control, Some(format!("max-age={age}")));
    let response = site.get("/too");
    assert_eq!(all(&response, "Cache-Control"), ["max-age=3600", "public"]);
}

#[test]
fn trailers_follow_the_body() {
    let site = Site::start(
        "trailers",
        "log_format own '$uri $sent_trailer_x_sum $sent_http_content_length $sent_http_transfer_encoding $bytes_sent';
         access_log own.log own; root .; add_trailer X-Sum \"$status|$uri\"; add_trailer X-Empty $arg_none;
         server { listen 127.0.0.1:PORT; location = /text { return 200 text; } location = /none { return 204; }
           location = /error { return 404; } location = /always { add_trailer X-Sum all always; return 404; }
           location = /off { add_trailer_inherit off; return 200 text; } }",
    );
    site.folder.write("file", "content of a file");
    let text = raw(&site, "GET /text HTTP/1.1");
    assert!(
        text.contains("\r\nTransfer-Encoding: chunked\r\n") && !text.contains("Content-Length"),
        "{text}"
    );
    assert!(text.ends_with("\r\n\r\n4\r\ntext\r\n0\r\nX-Sum: 200|/text\r\n\r\n"), "{text}");
    let text = raw(&site, "GET /file HTTP/1.1");
    assert!(text.ends_with("\r\n11\r\ncontent of a file\r\n0\r\nX-Sum: 200|/file\r\n\r\n"), "{text}");
    // If no trailers can follow the body, the length is retained.
    for line in ["HEAD /text HTTP/1.1", "GET /text HTTP/1.0", "GET /off HTTP/1.1"] {
        let text = raw(&site, line);
        assert!(text.contains("\r\nContent-Length: 4\r\n") && !text.contains("X-Sum"), "{text}");
    }
    let text = raw(&site, "GET /error HTTP/1.1");
    assert!(text.contains("\r\nContent-Length: ") && !text.contains("X-Sum"), "{text}");
    let text = raw(&site, "GET /always HTTP/1.1");
    assert!(text.ends_with("\r\n0\r\nX-Sum: all\r\n\r\n"), "{text}");
    let text = raw(&site, "GET /none HTTP/1.1");
    assert!(text.ends_with("\r\nConnection: close\r\n\r\n") && !text.contains("chunked"), "{text}");
    let lines = site.lines("own.log", 8);
    assert!(lines[0].starts_with("/text 200|/text - chunked "), "{lines:?}");
    assert!(lines[2].starts_with("/text - 4 - "), "{lines:?}");
    // The connection continues after the trailers.
    let mut client = site.client();
    assert_eq!(
        (client.get("/text").text(), client.get("/file").text()),
        ("text".into(), "content of a file".into())
    );
}

#[test]
fn variables_show_sent_fields() {
    let site = Site::start(
        "sent",
        "log_format own escape=none '$sent_http_content_type|$sent_http_content_length|$sent_http_last_modified|$sent_http_location|$sent_http_connection|$sent_http_keep_alive|$sent_http_transfer_encoding|$sent_http_cache_control|$sent_http_link|$sent_http_x_a|$sent_http_accept_ranges|$sent_http_etag';
         access_log own.log own; root .; charset utf-8; keepalive_timeout 75s 20s; default_type text/plain;
         server { listen 127.0.0.1:PORT; add_header X-A $sent_http_content_type; add_header X-A b; add_header Link c; add_header Link d; add_header Cache-Control no-store;
           location = /text { return 200 text; } location = /moved { return 301 /there; } }",
    );
    site.folder.write("file", "content");
    let mut client = site.client();
    client.get("/text");
    let moved = client.get("/moved");
    let (location, length) = (moved.field("Location").expect("a redirect"), moved.body.len());
    client.request("GET", "/text", &[("Host", "a"), ("Connection", "close")]);
    let response = site.get("/file");
    let (tag, date) =
        (response.field("ETag").expect("a tag"), response.field("Last-Modified").expect("a date"));
    assert_eq!(
        site.lines("own.log", 4),
        [
            "text/plain; charset=utf-8|4|||keep-alive|timeout=20||no-store|c, d|text/plain, b||".to_owned(),
            format!("text/html|{length}||{location}|keep-alive|timeout=20||no-store|c, d|text/html, b||"),
            "text/plain; charset=utf-8|4|||close|||no-store|c, d|text/plain, b||".to_owned(),
            format!(
                "text/plain; charset=utf-8|7|{date}||keep-alive|timeout=20||no-store|c, d|text/plain, b|bytes|{tag}"
            ),
        ]
    );
}

#[test]
fn charsets_are_appended_to_the_content_type() {
    let site = Site::start(
        "charset",
        "access_log off; root .; types { text/html html; image/png png; text/css css; }
         server { listen 127.0.0.1:PORT; charset utf-8; location = /moved { return 301 /there; } location = /see { return 303 /there; }
           location /css/ { charset_types text/css; } location /all/ { charset_types *; } location /off/ { charset off; }
           location /variable/ { charset $arg_charset; } location = /none { return 204; }
           location = /text { default_type text/plain; return 200 text; } }",
    );
    for name in [
        "a.html",
        "a.png",
        "a.css",
        "css/a.css",
        "css/a.html",
        "css/a.txt",
        "all/a.png",
        "off/a.html",
        "variable/a.html",
    ] {
        site.folder.write(name, "content");
    }
    for (target, expected) in [
        ("/a.html", Some("text/html; charset=utf-8")),
        ("/text", Some("text/plain; charset=utf-8")),
        ("/a.png", Some("image/png")),
        ("/a.css", Some("text/css")),
        ("/css/a.css", Some("text/css; charset=utf-8")),
        ("/css/a.html", Some("text/html; charset=utf-8")),
        // Of the default list, which includes plain text, only HTML is retained.
        ("/css/a.txt", Some("text/plain")),
        ("/all/a.png", Some("image/png; charset=utf-8")),
        ("/off/a.html", Some("text/html")),
        ("/variable/a.html?charset=koi8-r", Some("text/html; charset=koi8-r")),
        ("/variable/a.html?charset=", Some("text/html")),
        ("/variable/a.html", Some("text/html")),
        ("/missing", Some("text/html; charset=utf-8")),
        ("/moved", Some("text/html")),
        ("/see", Some("text/html; charset=utf-8")),
        ("/none", None),
    ] {
        assert_eq!(site.get(target).field("Content-Type"), expected, "{target}");
        assert_eq!(send_request(&site, "HEAD", target, &[]).field("Content-Type"), expected, "HEAD {target}");
    }
    let date = site.get("/a.html").field("Last-Modified").map(str::to_owned).expect("a date");
    let response = send_request(&site, "GET", "/a.html", &[("If-Modified-Since", &date)]);
    assert_eq!((response.status, response.field("Content-Type")), (304, None));
    let response = send_request(&site, "GET", "/a.html", &[("Range", "bytes=0-1,3-4")]);
    assert!(response.field("Content-Type").is_some_and(|text| !text.contains("charset")));
    assert_eq!(response.text().matches("\r\nContent-Type: text/html; charset=utf-8\r\n").count(), 2);
    for target in ["/a.html", "/a.png"] {
        let response = send_request(&site, "GET", target, &[("Range", "bytes=100-")]);
        let found = (response.status, response.field("Content-Type"));
        assert_eq!(found, (416, Some("text/html; charset=utf-8")), "{target}");
    }
}

#[test]
fn texts_are_recoded() {
    let site = Site::start(
        "recode",
        "access_log off; root .; default_type text/plain;
         charset_map koi8-r utf-8 { C1 D0B0; C2 D0B1; } charset_map koi8-r windows-1251 { C1 E0; C2 E1; }
         server { listen 127.0.0.1:PORT; source_charset koi8-r; location /utf/ { charset utf-8; } location /win/ { charset windows-1251; }
           location /same/ { charset koi8-r; } location /back/ { source_charset utf-8; charset koi8-r; }
           location = /return { source_charset utf-8; charset koi8-r; return 200 \"\u{430}\u{44f}!\"; }
           location = /empty { charset utf-8; return 200; } location /image/ { charset utf-8; types { } default_type image/png; }
           location /nobody/ { charset $arg_to; } location /named/ { source_charset koi8-r; charset koi8-r; autoindex on; autoindex_format xml;
             location /named/anew/ { override_charset on; } location /named/same/ { override_charset on; charset UTF-8; } }
           error_page 404 /utf/page; }",
    );
    let koi = b"a\xc1\xc2b".repeat(1 << 18);
    let utf = "a\u{430}\u{431}b".repeat(1 << 18).into_bytes();
    for name in ["utf/big", "win/big", "same/big", "image/big", "nobody/big"] {
        site.folder.write(name, &koi);
    }
    site.folder.write("back/big", &utf);
    site.folder.write("utf/page", b"\xc1");
    let mut client = site.client();
    let response = client.get("/utf/big");
    assert_eq!(response.field("Content-Type"), Some("text/plain; charset=utf-8"));
    assert_eq!((response.field("Content-Length"), response.field("Accept-Ranges")), (None, None));
    assert!(response.field("ETag").is_some() && response.body == utf);
    // The connection continues, because the end of the body is known.
    assert!(client.get("/back/big").body == koi);
    let response = client.get("/win/big");
    assert!(response.body == b"a\xe0\xe1b".repeat(1 << 18));
    assert_eq!(response.field("Content-Length"), Some("1048576"));
    let response = client.request("GET", "/win/big", &[("Host", "a"), ("Range", "bytes=1-2")]);
    assert_eq!((response.status, response.body.as_slice()), (206, &b"\xe0\xe1"[..]));
    assert_eq!(response.field("Content-Range"), Some("bytes 1-2/1048576"));
    let response = client.request("GET", "/utf/big", &[("Host", "a"), ("Range", "bytes=1-2")]);
    assert_eq!((response.status, response.body.len()), (200, utf.len()));
    assert!(client.get("/same/big").body == koi && client.get("/image/big").body == koi);
    assert_eq!(client.get("/return").body, b"\xc1&#1103;!");
    assert_eq!(client.get("/empty").body, b"");
    let response = client.get("/missing");
    assert_eq!((response.status, response.text().as_str()), (404, "\u{430}"));
    let response = send_request(&site, "HEAD", "/utf/big", &[]);
    assert_eq!((response.field("Content-Length"), response.field("Transfer-Encoding")), (None, None));
    let text = raw(&site, "GET /utf/page HTTP/1.0");
    assert!(text.ends_with("\r\n\r\n\u{430}") && text.contains("\r\nConnection: close\r\n"), "{text}");
    // The charset of a response takes precedence over the configuration, unless `override_charset` is on.
    for name in ["named/\u{430}", "named/anew/\u{430}", "named/same/\u{430}"] {
        site.folder.write(name, "");
    }
    let has = |response: &Response, name: &[u8]| response.body.windows(name.len()).any(|bytes| bytes == name);
    let response = client.get("/named/");
    assert_eq!(response.field("Content-Type"), Some("text/xml; charset=utf-8"));
    assert!(has(&response, ">\u{430}<".as_bytes()));
    let response = client.get("/named/anew/");
    assert_eq!(response.field("Content-Type"), Some("text/xml; charset=koi8-r"));
    assert!(has(&response, b">\xc1<"));
    let response = client.get("/named/same/");
    // The first spelling in the configuration is sent.
    assert_eq!(response.field("Content-Type"), Some("text/xml; charset=utf-8"));
    assert!(has(&response, ">\u{430}<".as_bytes()));
    // Without a map the text is unchanged, and the log reports that.
    let response = client.get("/nobody/big?to=ibm866");
    assert_eq!(response.field("Content-Type"), Some("text/plain"));
    assert!(response.body == koi);
    let lines = site.lines("error.log", 2);
    let expected = "no \"charset_map\" between the charsets \"koi8-r\" and \"ibm866\"";
    assert!(lines.iter().any(|line| line.contains(expected)), "{lines:?}");
}

#[test]
fn texts_are_replaced() {
    let site = Site::start(
        "sub",
        "access_log off; root .; sub_filter '</BODY>' '<p>$uri$arg_x</p></body>'; sub_filter one 1;
         server { listen 127.0.0.1:PORT; location /all/ { sub_filter_once off; sub_filter_last_modified on; }
           location /css/ { sub_filter_types text/css; types { text/css css; } } location /variable/ { sub_filter $arg_from '[$arg_to]'; sub_filter_once off; }
           location = /return { default_type text/html; return 200 '<body>one one</body>'; } location = /empty { default_type text/html; return 200; }
           location = /text { default_type text/plain; return 200 'one'; } error_page 404 /page.html; }",
    );
    let page = "<body>one ONE one</body></body>";
    for name in ["a.html", "all/a.html", "css/a.css", "variable/a.html", "page.html"] {
        site.folder.write(name, page);
    }
    site.folder.write("empty.html", "");
    // The text crosses the boundaries of the pieces in which the body is read.
    let big = format!("{}one</BODY>", "x".repeat(1000)).repeat(1048);
    site.folder.write("all/big.html", &big);
    let mut client = site.client();
    let response = client.get("/a.html?x=y");
    assert_eq!(response.text(), "<body>1 ONE one<p>/a.htmly</p></body></body>");
    for name in ["Content-Length", "Last-Modified", "ETag", "Accept-Ranges"] {
        assert_eq!(response.field(name), None, "{name}");
    }
    let response = client.get("/all/a.html");
    assert_eq!(response.text(), "<body>1 1 1<p>/all/a.html</p></body><p>/all/a.html</p></body>");
    assert!(response.field("ETag").is_some_and(|tag| tag.starts_with("W/\"")));
    let date = response.field("Last-Modified").map(str::to_owned).expect("a date");
    let response = client.request("GET", "/all/a.html", &[("Host", "a"), ("If-Modified-Since", &date)]);
    assert_eq!((response.status, response.body.len()), (304, 0));
    let response = client.request("GET", "/all/a.html", &[("Host", "a"), ("Range", "bytes=0-1")]);
    assert_eq!((response.status, response.field("Content-Range")), (200, None));
    let expected = format!("{}1<p>/all/big.html</p></body>", "x".repeat(1000)).repeat(1048);
    assert!(client.get("/all/big.html").text() == expected);
    assert_eq!(client.get("/css/a.css").text(), "<body>1 ONE one<p>/css/a.css</p></body></body>");
    assert_eq!(client.get("/variable/a.html?from=OnE&to=2").text(), "<body>[2] [2] [2]</body></body>");
    assert_eq!(client.get("/variable/a.html").text(), page);
    assert_eq!(client.get("/return").text(), "<body>1 one<p>/return</p></body>");
    let response = client.get("/empty");
    assert_eq!((response.text().as_str(), response.field("Content-Length")), ("", Some("0")));
    assert_eq!(client.get("/empty.html").field("Content-Length"), Some("0"));
    let response = client.get("/text");
    assert_eq!((response.text().as_str(), response.field("Content-Length")), ("one", Some("3")));
    let response = client.get("/missing.html");
    assert_eq!((response.status, response.text().contains("<p>/page.html</p>")), (404, true));
    let text = raw(&site, "HEAD /a.html HTTP/1.1");
    assert!(!text.contains("Content-Length") && text.ends_with("\r\n\r\n"), "{text}");
    let text = raw(&site, "GET /a.html HTTP/1.0");
    assert!(!text.contains("chunked") && text.ends_with("<p>/a.html</p></body></body>"), "{text}");
}

#[test]
fn addition_puts_subrequest_responses_around_a_body() {
    let site = Site::start(
        "addition",
        "access_log off; root .; charset_map koi8-r utf-8 { C1 D0B0; }
         server { listen 127.0.0.1:PORT; add_before_body /before.html; add_after_body /after; add_header X-A $uri;
           location = /after { add_before_body /never; default_type text/html; return 200 '>$uri'; }
           location /one/ { add_after_body ''; } location /none/ { add_before_body ''; add_after_body ''; }
           location /text/ { addition_types text/plain; types { } } location /lost/ { add_before_body /missing; add_after_body /file/; }
           location = /return { default_type text/html; return 200 body; } location = /empty { default_type text/html; return 200; }
           location = /refused { return 403; } location = /page { default_type text/plain; return 200 page; }
           location /chars/ { source_charset koi8-r; charset utf-8; add_before_body /chars/part; add_after_body /after; }
           location /subs/ { sub_filter_once off; sub_filter ab 1; add_before_body ''; add_after_body /after; } }",
    );
    for name in ["a.html", "one/a.html", "none/a.html", "text/a", "text/a.html", "lost/a.html"] {
        site.folder.write(name, "body");
    }
    site.folder.write("before.html", "<");
    site.folder.write("chars/a.html", b"\xc1");
    site.folder.write("chars/part", b"\xc1:");
    site.folder.write("subs/a.html", "abab-a");
    let big = "body ".repeat(1 << 18);
    site.folder.write("big.html", &big);
    let mut client = site.client();
    let response = client.get("/a.html");
    assert_eq!((response.text().as_str(), response.field("X-A")), ("<body>/after", Some("/a.html")));
    assert_eq!(all(&response, "X-A").len(), 1);
    for name in ["Content-Length", "Accept-Ranges"] {
        assert_eq!(response.field(name), None, "{name}");
    }
    let tag = response.field("ETag").map(str::to_owned).expect("a tag");
    assert!(tag.starts_with("W/") && response.field("Last-Modified").is_some());
    let response = client.request("GET", "/a.html", &[("Host", "a"), ("If-None-Match", &tag)]);
    assert_eq!((response.status, response.body.len()), (304, 0));
    // The added parts are complete, whatever range or condition the client requests.
    let fields =
        [("Host", "a"), ("Range", "bytes=0-0"), ("If-Modified-Since", "Fri, 31 Dec 1999 23:59:59 GMT")];
    let response = client.request("GET", "/a.html", &fields);
    assert_eq!((response.status, response.text().as_str()), (200, "<body>/after"));
    for (target, expected) in [
        ("/one/a.html", "<body"),
        ("/none/a.html", "body"),
        ("/text/a", "<body>/after"),
        ("/return", "<body>/after"),
        ("/empty", "<>/after"),
        ("/page", "page"),
        ("/chars/a.html", "\u{430}:\u{430}>/after"),
        ("/subs/a.html", "11-a>/after"),
    ] {
        assert_eq!(client.get(target).text(), expected, "{target}");
    }
    assert!(client.get("/big.html").text() == format!("<{big}>/after"));
    let response = client.get("/refused");
    assert_eq!((response.status, response.text().contains(">/after")), (403, false));
    // As in nginx error pages are added too.
    let text = client.get("/lost/a.html").text();
    assert!(text.contains("404 Not Found") && text.contains("\nbody<html>"), "{text}");
    let text = raw(&site, "HEAD /a.html HTTP/1.1");
    assert!(!text.contains("Content-Length") && text.ends_with("\r\n\r\n"), "{text}");
    let text = raw(&site, "GET /a.html HTTP/1.0");
    assert!(!text.contains("chunked") && text.ends_with("\r\n\r\n<body>/after"), "{text}");
}

/// RFC 9110 section 15.4.5: a 304 has the fields that the 200 would have had, as far as they help a cache.
#[test]
fn a_304_has_the_validators_and_vary_of_its_200_whatever_filters_do() {
    let names =
        ["gzip", "brotli", "zstd", "sub", "sub_date", "ssi", "charset", "addition", "expires", "plain"];
    let of = |name: &str| match name {
        "gzip" | "brotli" | "zstd" => format!("{name} on;"),
        "sub" => "sub_filter a b;".to_owned(),
        "sub_date" => "sub_filter a b; sub_filter_last_modified on;".to_owned(),
        "ssi" => "ssi on;".to_owned(),
        "charset" => "charset utf-8; source_charset koi8-r;".to_owned(),
        "addition" => "add_after_body /plain/b.html;".to_owned(),
        "expires" => "expires $lifetime; add_header X-Type $sent_http_content_type;".to_owned(),
        _ => String::new(),
    };
    let locations: String =
        names.iter().map(|name| format!("location /{name}/ {{ alias ./; {} }}", of(name))).collect();
    let site = Site::start(
        "304s",
        &format!(
            "access_log off; types {{ text/html html; }} gzip_vary on; charset_map koi8-r utf-8 {{ C0 D18E; }}
             map $sent_http_content_type $lifetime {{ default off; text/html 1h; }}
             server {{ listen 127.0.0.1:PORT; {locations} }}"
        ),
    );
    site.folder.write("a.html", "a page that is long enough");
    site.folder.write("b.html", "another page");
    let date = site.get("/plain/a.html").field("Last-Modified").map(str::to_owned).expect("a date");
    for name in names {
        let target = format!("/{name}/a.html");
        let accepted = if name == "brotli" { "br" } else { name };
        let ask = |condition: (&str, &str)| {
            send_request(&site, "GET", &target, &[("Accept-Encoding", accepted), condition])
        };
        let (whole, same) = (ask(("X-None", "")), ask(("If-Modified-Since", &date)));
        assert_eq!((whole.status, same.status, same.body.len()), (200, 304, 0), "{name}");
        for field in ["ETag", "Vary", "Last-Modified", "Cache-Control", "X-Type"] {
            assert_eq!(same.field(field), whole.field(field), "{field} with {name}");
        }
        for field in ["Content-Type", "Content-Encoding", "Content-Length", "Transfer-Encoding"] {
            assert_eq!(same.field(field), None, "{field} with {name}");
        }
        let is_coded = whole.field("Content-Encoding").is_some();
        assert_eq!(
            (is_coded, whole.field("Vary").is_some()),
            (accepted != name || name.contains("z"), is_coded)
        );
        // With the tag of its copy the client gets a 304 too.
        if let Some(tag) = whole.field("ETag").map(str::to_owned) {
            let same = ask(("If-None-Match", &tag));
            assert_eq!((same.status, same.field("ETag")), (304, Some(&tag[..])), "{name}");
        }
    }
}
