//! Tests access control over a socket: addresses behind proxies, passwords, links, referrers, cookies and browsers. The
//! settings of the directives, and the errors of invalid ones, are tested in each module.

use crate::support::Site;
use testkit::client::basic;

#[test]
fn realip_uses_the_address_from_a_trusted_proxy() {
    let site = Site::start(
        "realip",
        "log_format own '$remote_addr'; access_log own.log own;
         server { listen 127.0.0.1:PORT; set_real_ip_from 127.0.0.0/8; set_real_ip_from 10.0.0.0/8;
           location / { return 200 \"$remote_addr|$remote_port|$realip_remote_addr\"; }
           location /strange { set_real_ip_from 192.0.2.1; try_files /none @show; }
           location /list { real_ip_header X-Forwarded-For; try_files /none @show; }
           location /deep { real_ip_header X-Forwarded-For; real_ip_recursive on; try_files /none @show; }
           location /own { real_ip_header X-Own; deny 192.0.2.7; try_files /none @show; }
           location @show { return 200 \"$remote_addr|$remote_port|$realip_remote_addr\"; } }
         server { listen 127.0.0.1:PORT; server_name other; set_real_ip_from 127.0.0.1; real_ip_header X-Own;
           location / { return 200 $remote_addr; } }",
    );
    let ask = |target: &str, fields: &[(&str, &str)]| {
        let fields = [&[("Host", "a")], fields].concat();
        site.client().request("GET", target, &fields).text()
    };
    assert_eq!(ask("/", &[("X-Real-IP", "192.0.2.7:99")]), "192.0.2.7|99|127.0.0.1");
    assert_eq!(ask("/", &[("X-Real-IP", "::1")]), "::1||127.0.0.1");
    // The address from the server level is retained; a location with another field uses that field.
    let list = [("X-Forwarded-For", "1.1.1.1, 192.0.2.9"), ("X-Forwarded-For", "10.0.0.2")];
    assert_eq!(ask("/list", &list), "10.0.0.2||127.0.0.1");
    assert_eq!(ask("/deep", &list), "192.0.2.9||127.0.0.1");
    assert_eq!(ask("/list", &[("X-Real-IP", "2.2.2.2"), list[1]]), "2.2.2.2||127.0.0.1");
    let peer = ask("/own", &[]);
    assert!(peer.starts_with("127.0.0.1|") && peer.ends_with("|127.0.0.1"), "{peer}");
    assert_eq!(ask("/own", &[("X-OWN", "192.0.2.8")]), "192.0.2.8||127.0.0.1");
    let response = site.client().request("GET", "/own", &[("Host", "a"), ("X-Own", "192.0.2.7")]);
    assert_eq!(response.head.status, 403);
    assert!(site.lines("error.log", 1)[0].contains("access forbidden by rule, client: 192.0.2.7, server"));
    let response = site.client().request("GET", "/", &[("Host", "other"), ("X-Own", "192.0.2.6")]);
    assert_eq!(response.text(), "192.0.2.6");
    // The next request on the connection starts with the peer address again.
    let mut client = site.client();
    assert_eq!(client.request("GET", "/", &[("Host", "other"), ("X-Own", "192.0.2.5")]).text(), "192.0.2.5");
    assert_eq!(client.request("GET", "/", &[("Host", "other")]).text(), "127.0.0.1");
    let lines = site.lines("own.log", 11);
    assert_eq!(lines[9..], ["192.0.2.5", "127.0.0.1"]);
}

/// A server that shows and trusts the data of the PROXY protocol.
const BEHIND_PROXY: &str = "access_log off;
    server { listen 127.0.0.1:PORT proxy_protocol; error_log info.log info; set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol;
      location / { return 200 \"$proxy_protocol_addr|$proxy_protocol_port|$proxy_protocol_server_addr|$proxy_protocol_server_port|$remote_addr|$remote_port|$pipe\"; }
      location /tlv { return 200 \"$proxy_protocol_tlv_alpn|$proxy_protocol_tlv_0xea|$proxy_protocol_tlv_ssl_cn|$proxy_protocol_tlv_wrong\"; } }";

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn proxy_protocol_1_is_read_complete_or_in_pieces() {
    let site = Site::start("proxy1", BEHIND_PROXY);
    let header = "PROXY TCP4 192.0.2.1 198.51.100.2 1234 8080\r\n";
    let shown = "192.0.2.1|1234|198.51.100.2|8080|192.0.2.1|1234|.";
    for piece in [1, 7, 1000] {
        let mut client = site.client();
        client.send_in_pieces(format!("{header}{REQUEST}"), piece);
        assert_eq!(client.response().text(), shown, "in pieces of {piece}");
        // All requests of the connection have that address.
        assert_eq!(client.send(REQUEST).response().text(), shown);
    }
    let unknown = site.client().send(format!("PROXY UNKNOWN\r\n{REQUEST}")).response().text();
    assert!(unknown.starts_with("||||127.0.0.1|"), "{unknown}");
    let named = site.client().send(format!("PROXY TCP4 a b 0 1\r\n{REQUEST}")).response().text();
    assert!(named.starts_with("a||b|1|127.0.0.1|"), "{named}");
}

#[test]
fn proxy_protocol_2_provides_tlv_values() {
    let site = Site::start("proxy2", BEHIND_PROXY);
    let ssl = b"\x01\0\0\0\0\x22\0\x02me";
    let tlvs = [&b"\x01\0\x02h2\xea\0\x03vpc\x20\0\x0a"[..], ssl].concat();
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0".to_vec();
    header.push(12 + tlvs.len() as u8);
    header.extend([192, 0, 2, 1, 198, 51, 100, 2, 4, 210, 31, 144]);
    header.extend(tlvs);
    let mut client = site.client();
    client.send_in_pieces([&header, REQUEST.as_bytes()].concat(), 3);
    assert_eq!(client.response().text(), "192.0.2.1|1234|198.51.100.2|8080|192.0.2.1|1234|.");
    assert_eq!(client.send(REQUEST.replace("GET /", "GET /tlv")).response().text(), "h2|vpc|me|");
    assert!(site.lines("info.log", 1)[0].contains("invalid PROXY protocol TLV \"wrong\""));
    // A health check of the proxy itself.
    let own = [&b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"[..], REQUEST.as_bytes()].concat();
    assert!(site.client().send(own).response().text().starts_with("||||127.0.0.1|"));
}

#[test]
fn connections_without_a_proxy_header_are_closed() {
    let hasty =
        BEHIND_PROXY.replace("PORT proxy_protocol;", "PORT proxy_protocol; client_header_timeout 2s;");
    let site = Site::start("proxy3", &hasty);
    let about = format!(" while reading PROXY protocol, client: 127.0.0.1, server: {}", site.address);
    site.client().send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect_end();
    site.client().send(b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0").expect_end();
    site.client().send(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff").expect_end();
    site.client().send("PROXY TCP4 1.2").half_close().expect_end();
    site.client().half_close().expect_end();
    // An incomplete header times out.
    site.client().send("PROXY TCP4 1.2.3.4").expect_end();
    let lines = site.lines("info.log", 6);
    for (line, (level, message)) in lines.iter().zip([
        ("error", "broken header: \"GET / HTTP/1.1\""),
        ("error", "unknown PROXY protocol version: 3"),
        ("error", "header is too large"),
        ("error", "broken header: \"PROXY TCP4 1.2\""),
        ("info", "client closed connection"),
        ("info", "client timed out (110: Connection timed out)"),
    ]) {
        assert!(
            line.contains(&format!("[{level}]")) && line.ends_with(&format!("{message}{about}")),
            "{line}"
        );
    }
}

/// Sends random bytes, some of them after the start of a valid header.
#[test]
fn arbitrary_first_bytes_of_a_connection_are_harmless() {
    let site = Site::start("proxy4", BEHIND_PROXY);
    let starts: [&[u8]; 4] = [b"", b"PROXY ", b"PROXY TCP4 1.1.1.1 ", b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0"];
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    for round in 0..200 {
        let tail: Vec<u8> = (0..next() % 64).map(|_| next()).collect();
        let mut client = site.client();
        // The connection may be closed before all bytes are written.
        let _ = client.try_send(&[starts[round % 4], &tail].concat());
        drop(client);
    }
    let answer = site.client().send(format!("PROXY TCP4 1.1.1.1 2.2.2.2 3 4\r\n{REQUEST}")).response();
    assert_eq!(answer.head.status, 200);
}

/// Sends a request with a user name and a password.
fn request_as(site: &Site, target: &str, user_and_password: &str) -> testkit::Response {
    site.client().request("GET", target, &[("Host", "a"), ("Authorization", &basic(user_and_password))])
}

/// The password "secret" in formats that are checked immediately and in formats that take time.
const USERS: &str = "plain:{PLAIN}secret:with a comment\nsha:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n\
    apr:$apr1$saltsalt$LrttParrLPdxvgutaSXWJ0\nmd5:$1$saltsalt$9xy1btjgzLYfb7hivXtC//\r\n\
    bcrypt:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n\
    sha256:$5$rounds=1000$saltsalt$eKLZU9t9OoPWrqOQsoTIKG0aYkZ5rGOoOQhiIvoSWX2\n\
    yes:$y$j75$abcdefghijklmnop$vZlXu1XtxOBWRxjOpQqONp1WYfMO0dN.H4xeSMU2ZvC\nbad:$nothing\ndes:abNANd1rDfiNc";

#[test]
fn passwords_give_access_to_their_locations() {
    let site = Site::start(
        "basic",
        "access_log own.log; auth_basic \"the $arg_r realm\"; auth_basic_user_file $document_root/users; root .;
         server { listen 127.0.0.1:PORT; location / { try_files /none @show; } location /off { auth_basic off; return 200 off; }
           location /none { auth_basic_user_file $document_root/none; try_files /none @show; }
           location /folder { auth_basic_user_file $document_root; try_files /none @show; }
           location /page { error_page 401 @asks; try_files /none @show; }
           location @asks { auth_basic off; return 200 \"who are you\"; }
           location /var { auth_basic $arg_realm; try_files /none @show; }
           location @show { auth_basic off; return 200 \"for $remote_user\"; } }",
    );
    site.folder.write("users", USERS);
    let response = site.get("/?r=dark");
    assert_eq!(response.head.status, 401);
    let names: Vec<&str> = response.head.fields.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["Server", "Date", "Content-Type", "Content-Length", "Connection", "WWW-Authenticate"]);
    assert_eq!(response.field("WWW-Authenticate"), Some("Basic realm=\"the dark realm\""));
    assert!(response.text().contains("<h1>401 Authorization Required</h1>"), "{}", response.text());
    let response = site.client().request("HEAD", "/", &[("Host", "a")]);
    assert_eq!(
        (response.head.status, response.field("WWW-Authenticate")),
        (401, Some("Basic realm=\"the  realm\""))
    );
    assert_eq!(site.text("/off"), "off");
    assert_eq!((site.text("/var?realm=off"), site.status("/var?realm=on")), ("for ".to_owned(), 401));
    for user in ["plain", "sha", "apr", "md5", "bcrypt", "sha256", "yes", "des"] {
        let response = request_as(&site, "/", &format!("{user}:secret"));
        assert_eq!((response.head.status, response.text()), (200, format!("for {user}")), "{user}");
        assert_eq!(request_as(&site, "/", &format!("{user}:secrets")).head.status, 401, "{user}");
    }
    let unknown = "m\u{fc}ller's \"a\\b\":secret";
    for wrong in ["bad:secret", "nobody:secret", "pla:secret", "plain", ":secret", "plain:", "", unknown] {
        let response = request_as(&site, "/", wrong);
        assert_eq!(
            (response.head.status, response.field("WWW-Authenticate").is_some()),
            (401, true),
            "{wrong}"
        );
    }
    for wrong in ["Bearer x", "Basic", "Basic !", "basic", "Basic  "] {
        let response = site.client().request("GET", "/", &[("Host", "a"), ("Authorization", wrong)]);
        assert_eq!(response.head.status, 401, "{wrong}");
    }
    // A custom page still has `WWW-Authenticate`.
    let response = site.get("/page");
    assert_eq!((response.head.status, response.text().as_str()), (401, "who are you"));
    assert_eq!(response.field("WWW-Authenticate"), Some("Basic realm=\"the  realm\""));
    assert_eq!(request_as(&site, "/none", "plain:secret").head.status, 403);
    assert_eq!(request_as(&site, "/folder", "plain:secret").head.status, 500);
    // A changed file applies to the next request.
    site.folder.write("users", "plain:{PLAIN}another");
    assert_eq!(request_as(&site, "/", "plain:secret").head.status, 401);
    assert_eq!(request_as(&site, "/", "plain:another").head.status, 200);
    let path = site.folder.path().display();
    let lines = site.lines("error.log", 16);
    for text in [
        // As in nginx.
        "user \"m\u{fc}ller's \"a\\b\"\" was not found".to_owned(),
        "user \"plain\": password mismatch, client: 127.0.0.1, server: ".to_owned(),
        format!("user \"nobody\" was not found in \"{path}/./users\", client"),
        format!("open() \"{path}/./none\" failed (2: No such file or directory), client"),
        format!("pread() \"{path}/.\" failed (21: Is a directory), client"),
    ] {
        assert!(lines.iter().any(|line| line.contains(&text)), "{text}: {lines:#?}");
    }
    assert!(site.lines("own.log", 1)[0].starts_with("127.0.0.1 - - ["), "no name was given");
}

#[test]
fn satisfy_requires_any_or_all_checks() {
    let site = Site::start(
        "satisfy",
        "access_log off; root .; auth_basic r; auth_basic_user_file $document_root/users; error_log info.log info;
         server { listen 127.0.0.1:PORT; satisfy any;
           location /any-open { allow all; try_files /none @show; }
           location /any-shut { deny all; try_files /none @show; }
           location /any-only-rules { deny all; auth_basic off; try_files /none @show; }
           location /all-open { satisfy all; allow all; try_files /none @show; }
           location /all-shut { satisfy all; deny all; try_files /none @show; }
           location /post { satisfy all; limit_except GET { auth_basic off; deny all; } try_files /none @show; }
           location /slow { satisfy all; auth_delay 50ms; try_files /none @show; }
           location /slow-any { auth_delay 50ms; deny all; try_files /none @show; }
           location @show { satisfy all; auth_basic off; allow all; return 200 shown; } }",
    );
    site.folder.write("users", USERS);
    let statuses = |target: &str| {
        let with = request_as(&site, target, "plain:secret");
        (site.status(target), request_as(&site, target, "plain:x").head.status, with.head.status)
    };
    assert_eq!(statuses("/any-open"), (200, 200, 200));
    assert_eq!(statuses("/any-shut"), (401, 401, 200));
    assert_eq!(statuses("/any-only-rules"), (403, 403, 403));
    assert_eq!(statuses("/all-open"), (401, 401, 200));
    assert_eq!(statuses("/all-shut"), (403, 403, 403));
    assert_eq!(request_as(&site, "/any-shut", "plain:secret").field("WWW-Authenticate"), None);
    assert_eq!(site.status("/post"), 401);
    let post = site.client().request("POST", "/post", &[("Host", "a"), ("Content-Length", "0")]);
    assert_eq!(post.head.status, 403);
    let before = std::time::Instant::now();
    assert_eq!(statuses("/slow"), (401, 401, 200));
    assert_eq!(statuses("/slow-any"), (401, 401, 200));
    assert!(before.elapsed() >= std::time::Duration::from_millis(200));
    // After a slow write, the server writes lines later than their responses.
    let written = || {
        let log = site.lines("info.log", 10).join("\n");
        (log.matches("delaying unauthorized request, client").count() >= 4).then_some(log)
    };
    let log = testkit::wait::until("all delays", testkit::Deadline::default(), written);
    let log = log.expect("they are written");
    assert_eq!(log.matches("delaying unauthorized request, client").count(), 4, "{log}");
    assert!(log.matches("access forbidden by rule, client").count() >= 6, "{log}");
}

/// A client that closes its connection during `auth_delay` ends the delay.
#[test]
fn a_client_that_disconnects_ends_its_auth_delay() {
    let site = Site::start(
        "delay",
        "access_log own.log; server { listen 127.0.0.1:PORT; auth_delay 1h; auth_basic r; auth_basic_user_file none;
           error_log info.log info; }",
    );
    let _ = site.client().send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").half_close();
    let lines = site.lines("info.log", 3);
    assert!(lines[2].contains("client prematurely closed connection"), "{lines:#?}");
    assert!(site.lines("own.log", 1)[0].contains("\" 499 "), "nginx's status for it");
}

/// Slow hashes run on another thread, so that another connection of the same thread is served during that time.
#[test]
fn a_slow_hash_delays_no_other_connection() {
    let site = Site::start(
        "slow-hash",
        "access_log off; root .;
         server { listen 127.0.0.1:PORT; location / { return 200 quick; }
           location /slow { auth_basic r; auth_basic_user_file $document_root/users; try_files /none @show; }
           location @show { return 200 shown; } }",
    );
    // Half a second on a fast machine; the password is wrong, so that no shortcut can be taken.
    site.folder.write("users", "a:$2b$13$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a");
    let password = basic("a:b");
    let fields = [("Host", "a"), ("Authorization", password.as_str())];
    let is_concurrent = || {
        let mut slow = site.client();
        slow.send(testkit::client::request_bytes("GET", "/slow", &fields));
        let mut quick = site.client();
        for _ in 0..20 {
            assert_eq!(quick.get("/").text(), "quick");
        }
        let before = std::time::Instant::now();
        assert_eq!(slow.response().head.status, 401);
        before.elapsed() > std::time::Duration::from_millis(1)
    };
    // On a busy machine, the hash may be complete before the quick responses. If the connections' thread computed it,
    // they would be later in every attempt.
    assert!((0..5).any(|_| is_concurrent()), "the quick responses arrive while the hash is computed");
}

#[test]
fn links_are_checked_against_their_hash() {
    let site = Site::start(
        "links",
        "access_log off; server { listen 127.0.0.1:PORT;
           location /p { secure_link_secret word; return 200 \"[$secure_link]\"; }
           location /s { secure_link $arg_md5,$arg_expires; secure_link_md5 \"$secure_link_expires$uri secret\";
             return 200 \"[$secure_link|$secure_link_expires]\"; }
           location /w { secure_link $arg_md5; secure_link_md5 \"$uri secret\"; return 200 \"[$secure_link|$secure_link_expires]\"; }
           location /loop { secure_link $secure_link; secure_link_md5 x; return 200 \"[$secure_link]\"; }
           location /off { return 200 \"[$secure_link|$secure_link_expires]\"; } }",
    );
    // The hashes follow nginx's documentation: openssl md5 -binary | base64 | tr +/ -_ | tr -d =
    for (target, expected) in [
        ("/p/29245bdc2d04a9e0e729927ed0f84e26/link", "[link]"),
        ("/p/fdbef4c35cd44df62d1dbcd91f5b91b7/link?x=1", "[link?x=1]"),
        ("/p/29245bdc2d04a9e0e729927ed0f84e26/other", "[]"),
        ("/s?md5=CD10rU3DBUHNWImnonZ0OQ&expires=4102444800", "[1|4102444800]"),
        ("/s?md5=CD10rU3DBUHNWImnonZ0OQ==&expires=4102444800", "[1|4102444800]"),
        ("/s?md5=TGOa88yizzdo5hKBXkO3Rw&expires=1000", "[0|1000]"),
        ("/s?md5=TGOa88yizzdo5hKBXkO3Rw&expires=4102444800", "[|4102444800]"),
        ("/s?md5=tMH-LZV8C4n3wFIz2ybEMg&expires=0", "[|]"),
        ("/s", "[|]"),
        ("/s?md5=!&expires=4102444800", "[|4102444800]"),
        ("/w?md5=CD10rU3DBUHNWImnonZ0OQ", "[|]"),
        ("/loop", "[]"),
        ("/off", "[|]"),
    ] {
        assert_eq!(site.text(target), expected, "{target}");
    }
}

#[test]
fn referring_sites_are_distinguished() {
    let site = Site::start(
        "referers",
        "access_log off; server { listen 127.0.0.1:PORT; server_name own.example; valid_referers blocked server_names *.ex.com;
           location / { if ($invalid_referer) { return 403; } return 200 welcome; }
           location /none { valid_referers none a.example; return 200 \"[$invalid_referer]\"; } }
         server { listen 127.0.0.1:PORT; server_name free; location / { return 200 \"[$invalid_referer]\"; } }",
    );
    let ask = |target: &str, referer: &str| {
        site.client().request("GET", target, &[("Host", "own.example"), ("Referer", referer)]).head.status
    };
    assert_eq!((ask("/", "https://www.ex.com/x"), ask("/", "http://own.example:80/")), (200, 200));
    assert_eq!((ask("/", "https://ex.com.evil/"), ask("/", "gone"), site.status("/")), (403, 200, 403));
    assert_eq!(site.text("/none"), "[]");
    let free = [("Host", "free"), ("Referer", "http://any.where/")];
    assert_eq!(site.client().request("GET", "/", &free).text(), "[]");
}

#[test]
fn browsers_get_variables_and_msie_workarounds() {
    let site = Site::start(
        "browsers",
        "access_log off; modern_browser unlisted; ancient_browser Lynx; modern_browser_value new; ancient_browser_value old;
         server { listen 127.0.0.1:PORT; location / { return 200 \"[$modern_browser|$ancient_browser|$msie]\"; }
           msie_refresh on; location /moved { return 301 http://x/?a&b\\\"c; } location /kept { return 307 /x; }
           location /page { error_page 404 http://there/; return 404; }
           location /plain { msie_refresh off; return 301 /x; } }",
    );
    const MSIE: &str = "Mozilla/4.0 (compatible; MSIE 6.0; X)";
    let ask = |target: &str, agent: &str| {
        site.client().request("GET", target, &[("Host", "a"), ("User-Agent", agent)])
    };
    assert_eq!(ask("/", "curl").text(), "[new||]");
    assert_eq!(ask("/", "Lynx/2").text(), "[|old|]");
    assert_eq!(ask("/", MSIE).text(), "[new||1]");
    let page = ask("/moved", MSIE);
    assert_eq!(
        (page.head.status, page.field("Location"), page.field("Content-Type")),
        (200, None, Some("text/html"))
    );
    assert_eq!(
        page.text(),
        "<html><head><meta http-equiv=\"Refresh\" content=\"0; URL=http://x/?a&b%22c\"></head><body></body></html>\r\n"
    );
    assert_eq!((ask("/kept", MSIE).head.status, ask("/moved", "curl").head.status), (307, 301));
    assert!(ask("/page", MSIE).text().contains("URL=http://there/\""));
    assert_eq!((ask("/page", "curl").head.status, ask("/plain", MSIE).head.status), (302, 301));
}

#[test]
fn clients_are_distinguished_by_cookies() {
    let site = Site::start(
        "userid",
        "log_format ids '$uri $uid_got $uid_set'; access_log ids.log ids; error_log info.log info;
         server { listen 127.0.0.1:PORT; userid on; userid_p3p 'policyref=\"x\"'; add_header X-First yes;
           location / { set $uid_reset $arg_reset; return 200 \"$uid_got|$uid_set|$uid_reset\"; }
           location /v1 { userid v1; userid_service 77; userid_mark z; userid_p3p none; return 200 x; }
           location /log { userid log; return 200 \"$uid_got|$uid_set\"; }
           location /off { userid off; return 200 \"$uid_got|$uid_set\"; }
           location /error { return 404; } }",
    );
    let ask = |target: &str, cookie: &str| {
        site.client().request("GET", target, &[("Host", "a"), ("Cookie", cookie)])
    };
    let response = site.get("/");
    let cookie = response.field("Set-Cookie").expect("a client without one gets a cookie").to_owned();
    assert!(cookie.starts_with("uid=fwAAA") && cookie.ends_with("==; path=/"), "{cookie}");
    assert_eq!(response.field("P3P"), Some("policyref=\"x\""));
    let names: Vec<&str> = response.head.fields.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names[names.len() - 3..], ["X-First", "Set-Cookie", "P3P"]);
    let id = response.text();
    assert!(id.starts_with("|uid=0100007F") && id.len() == "|uid=|".len() + 32, "{id}");
    // The same client sends another request.
    let value = cookie.split(';').next().expect("it has a value");
    let again = ask("/", value);
    assert_eq!(
        (again.field("Set-Cookie"), again.text()),
        (None, format!("{}||", id[1..].trim_end_matches('|')))
    );
    let another = site.get("/").text();
    assert_ne!(another, id);
    let known = "uid=AAAAAAECAwQFBgcICQoLDA==";
    let shown = "uid=0000000004030201080706050C0B0A09";
    for (reset, is_new) in [("", false), ("0", false), ("1", true), ("log", true)] {
        let response = ask(&format!("/?reset={reset}"), known);
        assert_eq!(response.field("Set-Cookie").is_some(), is_new, "{reset}");
        assert!(response.text().starts_with(&format!("{shown}|")), "{}", response.text());
    }
    // An unmarked identifier gets the mark and is otherwise unchanged.
    assert_eq!(ask("/v1", known).field("Set-Cookie"), Some("uid=AAAAAAECAwQFBgcICQoLDAz=; path=/"));
    assert_eq!(ask("/v1", "uid=AAAAAAECAwQFBgcICQoLDAz=").field("Set-Cookie"), None);
    let first = ask("/v1", "other=1").field("Set-Cookie").expect("a new one").to_owned();
    assert!(first.starts_with("uid=TQAAA") && first.ends_with("z=; path=/"), "{first}");
    assert_eq!((ask("/log", known).text(), ask("/log", "a=b").text()), (format!("{shown}|"), "|".to_owned()));
    assert_eq!(
        (ask("/off", known).text(), site.get("/error").field("Set-Cookie").is_some()),
        ("|".to_owned(), true)
    );
    for wrong in ["uid=AA", "uid=AAAAAAECAwQFBgcICQo!DA=="] {
        assert!(ask("/", wrong).field("Set-Cookie").is_some(), "{wrong}");
    }
    let log = site.lines("info.log", 3).join("\n");
    for text in [
        &format!("userid cookie \"{shown}\" was reset, client"),
        "client sent too short userid cookie \"uid=AA\", client",
        "client sent invalid userid cookie \"uid=AAAAAAECAwQFBgcICQo!DA==\", client",
    ] {
        assert!(log.contains(text), "{text}: {log}");
    }
    // The log has the identifier that was sent.
    let line = site.lines("ids.log", 1).remove(0);
    assert_eq!(line, format!("/ - {}", id[1..].trim_end_matches('|')));
}

/// Each attribute of the cookie is inherited from the level that sets it.
#[test]
fn cookie_attributes_are_inherited_separately() {
    let site = Site::start(
        "userid-settings",
        "access_log off; userid on; userid_name id; userid_domain example.com; userid_service 1; userid_expires max;
         server { listen 127.0.0.1:PORT; userid_path /sub; userid_flags secure httponly samesite=strict;
           location / { return 200 x; }
           location /own { userid_name own; userid_expires off; userid_flags off; userid_domain none; return 200 x; }
           location /day { userid_expires 1d; return 200 x; } }",
    );
    let attributes = |target: &str| {
        let response = site.get(target);
        let cookie = response.field("Set-Cookie").expect("a client without one gets a cookie").to_owned();
        let (value, rest) = cookie.split_once("; ").expect("it has a path at least");
        assert!(value.contains("=AAAAA"), "the number of the service comes first: {value}");
        (value[..value.find('=').expect("it has a name")].to_owned(), rest.to_owned())
    };
    let all = "expires=Thu, 31-Dec-37 23:55:55 GMT; domain=example.com; path=/sub; secure; httponly; samesite=strict";
    assert_eq!(attributes("/"), ("id".to_owned(), all.to_owned()));
    assert_eq!(attributes("/own"), ("own".to_owned(), "path=/sub".to_owned()));
    let day = attributes("/day").1;
    assert!(day.starts_with("expires=") && !day.contains("31-Dec-37"), "{day}");
}

/// The log line about an invalid identifier shows only that cookie, because others of the request may be secrets.
#[test]
fn only_the_invalid_cookie_is_logged() {
    let site = Site::start(
        "userid-log",
        "access_log off; server { listen 127.0.0.1:PORT; userid on; location / { return 200 x; } }",
    );
    for wrong in ["AA", "AAAAAAECAwQFBgcICQo!DA=="] {
        let cookie = format!("session=secret; uid={wrong}; token=hidden");
        site.client().request("GET", "/", &[("Host", "a"), ("Cookie", &cookie)]);
    }
    let log = site.lines("error.log", 2).join("\n");
    assert!(log.contains("client sent too short userid cookie \"uid=AA\", client"), "{log}");
    assert!(
        log.contains("client sent invalid userid cookie \"uid=AAAAAAECAwQFBgcICQo!DA==\", client"),
        "{log}"
    );
    assert!(!log.contains("secret") && !log.contains("hidden"), "{log}");
}

/// After an internal redirect, the cookie is searched under the name that the next location sets.
#[test]
fn a_redirect_uses_the_cookie_name_of_the_new_location() {
    let site = Site::start(
        "userid-redirect",
        "access_log off; server { listen 127.0.0.1:PORT; userid on;
           location /a { userid_name a; set $seen $uid_got; try_files /none /b; }
           location /b { userid_name b; return 200 $uid_got; } }",
    );
    let cookies = [("Host", "x"), ("Cookie", "a=AAAAAAECAwQFBgcICQoLDA==; b=AQAAAAECAwQFBgcICQoLDA==")];
    let response = site.client().request("GET", "/a", &cookies);
    assert_eq!(response.text(), "b=0000000104030201080706050C0B0A09");
}

#[test]
fn short_error_pages_are_padded_for_old_browsers() {
    let site = Site::start(
        "padding",
        "access_log off; server { listen 127.0.0.1:PORT; location / { return 404; }
           location /off { msie_padding off; return 404; location /off/in { msie_padding on; return 404; } } }",
    );
    let length = |target: &str, agent: &str| {
        site.client().request("GET", target, &[("Host", "a"), ("User-Agent", agent)]).text().len()
    };
    const MSIE: &str = "Mozilla/4.0 (compatible; MSIE 6.0; X)";
    let plain = length("/", "curl");
    assert!(plain < 512 && length("/", MSIE) > 512, "{plain}");
    assert_eq!((length("/off", MSIE), length("/off/in", MSIE)), (plain, length("/", MSIE)));
}
