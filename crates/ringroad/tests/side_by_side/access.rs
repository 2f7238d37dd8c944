//! The same requests to Debian's nginx and to this server ([`common::beside`]): addresses behind proxies, passwords,
//! symbolic links, referrers, cookies and browsers.

use crate::common::beside::{self, Case, ask, get, raw};
use testkit::TempDir;

const CONF: &str = r#"
worker_processes 1;
events {}
http {
    server_tokens off;
    default_type text/plain;
    server {
        listen 127.0.0.1:0;
        server_name own.example;
        root ROOT;
        auth_basic_user_file ROOT/users;
        set_real_ip_from 127.0.0.0/8;
        set_real_ip_from 10.0.0.0/8;
        set_real_ip_from fd00::/8;
        location /ip { return 200 "$remote_addr|$realip_remote_addr|$binary_remote_addr\n"; }
        location /list { real_ip_header X-Forwarded-For; try_files /none @ip; }
        location /deep { real_ip_header X-Forwarded-For; real_ip_recursive on; try_files /none @ip; }
        location /own { real_ip_header X-Own; try_files /none @ip; }
        location /distrust { set_real_ip_from 192.0.2.1; real_ip_header X-Own; try_files /none @ip; }
        location /allowed { real_ip_header X-Own; allow 192.0.2.0/24; deny all; try_files /none @ip; }
        # The port of the connection itself is another one each time.
        location @ip {
            set $port $remote_port;
            if ($remote_addr = 127.0.0.1) { set $port any; }
            return 200 "$remote_addr|$realip_remote_addr|$port\n";
        }
        location /basic { auth_basic "a \"realm\""; try_files /none @user; }
        location /any { satisfy any; auth_basic r; deny all; try_files /none @user; }
        location /any-open { satisfy any; auth_basic r; allow all; try_files /none @user; }
        location /all { auth_basic r; deny all; try_files /none @user; }
        location /nofile { auth_basic r; auth_basic_user_file ROOT/none; try_files /none @user; }
        location /folder { auth_basic r; auth_basic_user_file ROOT; try_files /none @user; }
        location /page { auth_basic r; error_page 401 @asks; try_files /none @user; }
        location /twice { auth_basic r; error_page 401 /twice/page; try_files /none @user; }
        location /away { auth_basic r; error_page 401 http://there/; try_files /none @user; }
        location /limited { limit_except GET { auth_basic r; } try_files /none @user; }
        location /header { auth_basic r; add_header X-Always yes always; add_header X-Ok yes; try_files /none @user; }
        location /var { auth_basic $arg_realm; try_files /none @user; }
        location /in-realm/ { auth_basic $uri; }
        location /early { secure_link x,$arg_end; return 200 "[$secure_link_expires]\n"; }
        location @user { return 200 "for $remote_user\n"; }
        location @asks { return 200 "who are you\n"; }
        location /remote-user { return 200 "<$remote_user>\n"; }
        location /ref {
            valid_referers none blocked server_names *.ex.com ex.* www.org.org/gal/ ~\.goo\.;
            return 200 "[$invalid_referer]\n";
        }
        location /ref-strict { valid_referers *.ex.com; return 200 "[$invalid_referer]\n"; }
        location /ref-unset { return 200 "[$invalid_referer]\n"; }
        location /p { secure_link_secret word; return 200 "[$secure_link]\n"; }
        location /s {
            secure_link $arg_md5,$arg_expires;
            secure_link_md5 "$secure_link_expires$uri secret";
            return 200 "[$secure_link|$secure_link_expires]\n";
        }
        location /w { secure_link $arg_md5; secure_link_md5 "/w secret"; return 200 "[$secure_link]\n"; }
        location /b {
            modern_browser unlisted;
            modern_browser gecko 1.5;
            modern_browser msie 6.0;
            modern_browser_value m;
            ancient_browser Lynx netscape4;
            return 200 "[$modern_browser|$ancient_browser|$msie]\n";
        }
        location /b-opera { modern_browser opera 9.0; return 200 "[$modern_browser|$ancient_browser|$msie]\n"; }
        location /b-none { return 200 "[$modern_browser|$ancient_browser|$msie]\n"; }
        location /set {
            valid_referers *.ex.com;
            modern_browser unlisted;
            set $before "$invalid_referer|$modern_browser|$ancient_browser|$msie";
            set $invalid_referer r;
            set $modern_browser m;
            set $ancient_browser "";
            set $msie 2;
            set $msie 3;
            return 200 "$before [$invalid_referer|$modern_browser|$ancient_browser|$msie]\n";
        }
        location /moved { msie_refresh on; return 301 http://x/?a&b"c; }
        location /kept { msie_refresh on; return 307 /x; }
        location /sent { msie_refresh on; error_page 404 =303 http://there/; return 404; }
        location /dir { msie_refresh on; }
        location /uid { userid on; return 200 "[$uid_got|$uid_set|$uid_reset]\n"; }
        location /uid-mark {
            userid v1;
            userid_mark z;
            userid_domain example.com;
            userid_path /p;
            userid_expires max;
            userid_flags secure httponly samesite=lax;
            userid_p3p "policyref=\"x\"";
            return 200 "[$uid_got|$uid_set]\n";
        }
        location /uid-log { userid log; userid_name other; return 200 "[$uid_got|$uid_set]\n"; }
    }
}
"#;

/// The password is always "secret", in the formats of password files of the last thirty years.
const USERS: &str = "# comment: {PLAIN}secret\n\nplain:{PLAIN}secret:with a comment\n\
    sha:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\nssha:{SSHA}ntpfa+AC6ZFQ6U0oVgNCIJSlrR5ncmFpbg==\n\
    apr:$apr1$saltsalt$LrttParrLPdxvgutaSXWJ0\nmd5:$1$saltsalt$9xy1btjgzLYfb7hivXtC//\r\n\
    bcrypt:$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a\n\
    sha256:$5$rounds=1000$saltsalt$eKLZU9t9OoPWrqOQsoTIKG0aYkZ5rGOoOQhiIvoSWX2\n\
    sha512:$6$saltsalt$TVLlQcbpFVof5W3Yz4DTP6gRstiNuHwwTt6GLc1E5n0U0aDehy0S5knV8wiOQSpT0Y77vwPZN.Pq.H91p5hVO1\n\
    yes:$y$j75$abcdefghijklmnop$vZlXu1XtxOBWRxjOpQqONp1WYfMO0dN.H4xeSMU2ZvC\n\
    bad:$nothing\nempty:\nshort:{PLAIN}\nhalf\ndes:abNANd1rDfiNc";

fn site() -> TempDir {
    let dir = TempDir::new("access");
    dir.write("users", USERS);
    dir.write("dir/index.html", "index");
    dir
}

fn compare(cases: Vec<Case>) {
    beside::compare(CONF, &site(), cases);
}

#[test]
fn realip_matches_nginx() {
    let mut cases = Vec::new();
    for value in [
        "192.0.2.7",
        "192.0.2.7:99",
        "192.0.2.7:0",
        "192.0.2.7:x",
        "2001:db8::1",
        "[2001:db8::1]:99",
        "[2001:db8::1]",
        "::ffff:192.0.2.7",
        "unix:",
        "unknown",
        "192.0.2.7, 10.0.0.2",
        "192.0.2.7 10.0.0.2",
        "192.0.2.7,,10.0.0.2, ",
        "1.1.1.1, 192.0.2.7, fd00::1, 10.0.0.2",
        "x, 10.0.0.2",
        "10.0.0.3, 10.0.0.2",
        "192.0.2.7/32",
        "0x7f000001",
        "192.0.2",
        "300.0.2.7",
        "::192.0.2.7",
        "192.0.2.07",
        "...",
        "fe80::1:",
        ",192.0.2.7",
    ] {
        let special = match value {
            "::192.0.2.7" => Some("A8"),
            "192.0.2.07" | "..." | "fe80::1:" => Some("A9"),
            ",192.0.2.7" => Some("A10"),
            "[2001:db8::1]" => Some("A11"),
            _ => None,
        };
        if let Some(row) = special {
            cases.push(ask("GET", "/ip", &[("X-Real-IP", value)]).differs(row));
            continue;
        }
        cases.push(ask("GET", "/ip", &[("X-Real-IP", value)]));
        for target in ["/list", "/deep"] {
            cases.push(ask("GET", target, &[("X-Forwarded-For", value)]));
        }
        for target in ["/own", "/distrust", "/allowed"] {
            cases.push(ask("GET", target, &[("x-own", value), ("X-Own", "1.1.1.1")]));
        }
    }
    let two = [("X-Forwarded-For", "1.1.1.1, 192.0.2.9"), ("X-Forwarded-For", "10.0.0.2")];
    cases.push(ask("GET", "/deep", &two));
    cases.push(ask("GET", "/list", &two));
    compare(cases);
}

#[test]
fn basic_authentication_matches_nginx() {
    let mut cases =
        vec![get("/basic"), ask("HEAD", "/basic", &[]), ask("POST", "/basic", &[("Content-Length", "0")])];
    let users = [
        "plain",
        "sha",
        "ssha",
        "apr",
        "md5",
        "bcrypt",
        "sha256",
        "sha512",
        "yes",
        "bad",
        "empty",
        "short",
        "half",
        "des",
        "nobody",
        "# comment",
    ];
    for user in users {
        for password in ["secret", "Secret", "", "secret:"] {
            cases.push(with_password("/basic", &format!("{user}:{password}")));
        }
    }
    for value in [
        "Basic",
        "Basic ",
        "basic cGxhaW46c2VjcmV0",
        "BASIC   cGxhaW46c2VjcmV0",
        "Basic cGxhaW46c2VjcmV0=x",
        "Basic cGxhaW4=",
        "Basic OnNlY3JldA==",
        "Basic !",
        "Bearer cGxhaW46c2VjcmV0",
        "Basic cGxhaW46c2VjcmV0a",
        "",
    ] {
        cases.push(ask("GET", "/basic", &[("Authorization", value)]));
        cases.push(ask("GET", "/remote-user", &[("Authorization", value)]));
    }
    for target in [
        "/any",
        "/any-open",
        "/all",
        "/nofile",
        "/folder",
        "/page",
        "/twice",
        "/away",
        "/limited",
        "/header",
        "/var?realm=x",
        "/var?realm=off",
        "/var",
    ] {
        let twice = |case: Case| if target == "/twice" { case.differs("A1") } else { case };
        cases.push(twice(get(target)));
        cases.push(twice(with_password(target, "plain:wrong")));
        cases.push(with_password(target, "plain:secret"));
    }
    cases.push(get("/in-realm/a%20b"));
    cases.push(get("/in-realm/a%0d%0aX-Own:%20x").differs("A3"));
    cases.push(ask("POST", "/limited", &[("Content-Length", "0")]));
    compare(cases);
}

/// Returns a GET with a user name and a password.
fn with_password(target: &str, user_and_password: &str) -> Case {
    ask("GET", target, &[("Authorization", &testkit::client::basic(user_and_password))])
}

#[test]
fn referers_and_secure_links_match_nginx() {
    let mut cases = vec![get("/ref"), get("/ref-strict"), get("/ref-unset")];
    for referer in [
        "x",
        "http://",
        "http://a.b",
        "http://ab.cd",
        "ftp://ex.de/aaaaaaa",
        "HTTP://www.EX.com/",
        "http://ex.com",
        "https://ex.com",
        "https://ex.net:80/x",
        "http://com.net:80/x",
        "http://www.org.org/gal/x",
        "http://www.org.org:8080/gal/",
        "http://www.org.org/GAL/",
        "http://www.org.org/other",
        "http://www.org.org",
        "http://x.goo.com/",
        "http://z.com/.GOO.",
        "http://own.example/",
        "http://OWN.example:1/",
    ] {
        cases.extend(
            ["/ref", "/ref-strict", "/ref-unset"].map(|target| ask("GET", target, &[("Referer", referer)])),
        );
    }
    for target in [
        "/p/29245bdc2d04a9e0e729927ed0f84e26/link",
        "/p/29245BDC2D04A9E0E729927ED0F84E26/link",
        "/p/fdbef4c35cd44df62d1dbcd91f5b91b7/link?x=1",
        "/p/29245bdc2d04a9e0e729927ed0f84e26/link?x=1",
        "/p/29245bdc2d04a9e0e729927ed0f84e26/",
        "/p/29245bdc2d04a9e0e729927ed0f84e2/link",
        "/p/29245bdc2d04a9e0e729927ed0f84e2x/link",
        "/p/x/29245bdc2d04a9e0e729927ed0f84e26/link",
        "/p",
        "/s?md5=CD10rU3DBUHNWImnonZ0OQ&expires=4102444800",
        "/s?md5=CD10rU3DBUHNWImnonZ0OQ==&expires=4102444800",
        "/s?md5=TGOa88yizzdo5hKBXkO3Rw&expires=1000",
        "/s?md5=TGOa88yizzdo5hKBXkO3Rw&expires=1001",
        "/s?md5=tMH-LZV8C4n3wFIz2ybEMg&expires=0",
        "/s?md5=tMH-LZV8C4n3wFIz2ybEMg&expires=x",
        "/s?md5=&expires=4102444800",
        "/s",
        "/w?md5=x",
        "/w?md5=x,1",
    ] {
        cases.push(get(target));
    }
    cases.push(get("/early?end=7").differs("A5"));
    cases.push(get("/early"));
    compare(cases);
}

#[test]
fn browser_and_userid_match_nginx() {
    let mut cases = Vec::new();
    for agent in [
        "Mozilla/5.0 (X11; U; Linux; rv:1.5) Gecko",
        "Mozilla/5.0 (X11; U; Linux; rv:1.4.9) Gecko",
        "Mozilla/5.0 (X11; U; Linux; rv:1.5.0.1) Gecko",
        "Mozilla/5.0 (X11; U; Linux; rv:2) Gecko",
        "Mozilla/4.0 (compatible; MSIE 6.0; X)",
        "Mozilla/4.0 (compatible; MSIE 5.5; X)",
        "Mozilla/4.0 (compatible; MSIE 5.5; X) Opera 9.1",
        "Lynx",
        "Opera",
        "Opera/9.01 (X)",
        "Opera/9",
        "Opera/8.99 (X)",
        "curl",
        "Mozilla/4.7 [en] (X11)",
        "Mozilla/5.7 [en] (X11)",
        "Mozilla/4.7",
        "",
    ] {
        for target in ["/b", "/b-opera", "/b-none", "/moved", "/kept", "/sent", "/dir"] {
            cases.push(ask("GET", target, &[("User-Agent", agent)]));
        }
    }
    for target in ["/b", "/b-opera", "/b-none", "/set"] {
        cases.push(get(target));
    }
    for cookie in [
        "uid=AAAAAAECAwQFBgcICQoLDA==",
        "uid=AAAAAAECAwQFBgcICQoLDAz=",
        "uid=AAAAAAECAwQFBgcICQoLDz",
        "a=b; UID=AAAAAAECAwQFBgcICQoLDA==; c=d",
        "other=AAAAAAECAwQFBgcICQoLDA==",
    ] {
        // A client without a cookie gets one, and all are different.
        if !cookie.starts_with("other") {
            cases.push(ask("GET", "/uid", &[("Cookie", cookie)]));
            cases.push(ask("GET", "/uid-mark", &[("Cookie", cookie)]));
        }
        cases.push(ask("GET", "/uid-log", &[("Cookie", cookie)]));
    }
    compare(cases);
}

/// PROXY protocol headers, in one write: nginx does not accept them in pieces.
#[test]
fn proxy_protocol_headers_match_nginx() {
    const BEHIND: &str = r#"
worker_processes 1;
events {}
http {
    server_tokens off;
    default_type text/plain;
    server {
        listen 127.0.0.1:0 proxy_protocol;
        set_real_ip_from 127.0.0.1;
        real_ip_header proxy_protocol;
        location / { return 200 "$proxy_protocol_addr|$proxy_protocol_port|$proxy_protocol_server_addr|$proxy_protocol_server_port|$remote_addr\n"; }
    }
}
"#;
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let mut cases = Vec::new();
    for line in [
        "PROXY TCP4 192.0.2.1 198.51.100.2 1234 80\r\n",
        "PROXY TCP6 2001:db8::1 2001:db8::2 1234 80\r\n",
        "PROXY TCP6 2001:DB8::0001 2001:db8::2 0 0\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.2 65535 65535\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.2 65536 80\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.2 1 80 \r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.2 1\r\n",
        "PROXY TCP4 x 198.51.100.2 1 2\r\n",
        "PROXY TCP4 beef cafe 1 2\r\n",
        "PROXY TCP5 192.0.2.1 198.51.100.2 1 2\r\n",
        "PROXY UNKNOWN\r\n",
        "PROXY UNKNOWN what ever\r\n",
        "PROXY\r\n",
        "proxy TCP4 192.0.2.1 198.51.100.2 1234 80\r\n",
        "PROXY TCP4 192.0.2.1 198.51.100.2 1234 80\n",
        "",
    ] {
        cases.push([line.as_bytes(), REQUEST].concat());
    }
    let v2 = |command: u8, family: u8, body: &[u8]| {
        let mut header = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
        header.extend([command, family, 0, body.len() as u8]);
        [&header, body, REQUEST].concat()
    };
    let v4 = [192, 0, 2, 1, 198, 51, 100, 2, 4, 210, 0, 80];
    let mut v6 = [0; 36];
    (v6[0], v6[15], v6[16], v6[33], v6[35]) = (0x20, 1, 0x20, 7, 8);
    for (command, family, body) in [
        (0x21, 0x11, &v4[..]),
        (0x21, 0x21, &v6),
        (0x20, 0x11, &v4),
        (0x20, 0x00, b""),
        (0x21, 0x12, &v4),
        (0x21, 0x31, &v6),
        (0x21, 0x00, b""),
        (0x31, 0x11, &v4),
        (0x21, 0x11, &v4[..11]),
        (0x21, 0x21, &v6[..35]),
        (0x21, 0x11, &[&v4[..], b"\x01\0\x02h2"].concat()),
    ] {
        cases.push(v2(command, family, body));
    }
    beside::compare(BEHIND, &site(), cases.into_iter().map(raw).collect());
}
