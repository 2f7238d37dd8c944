//! Who may have what: addresses behind proxies, passwords, links, referrers, cookies and browsers, asked over a
//! socket. What the directives set, and the errors of wrong ones, are tested beside each module.

mod support;

use support::Site;

#[test]
fn realip_takes_the_address_of_a_trusted_proxy() {
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
    assert_eq!(ask("/", &[("X-Real-IP", "::1")]), "::1|0|127.0.0.1");
    // What was found right after the head stays; a location that asks another field finds what that says.
    let list = [("X-Forwarded-For", "1.1.1.1, 192.0.2.9"), ("X-Forwarded-For", "10.0.0.2")];
    assert_eq!(ask("/list", &list), "10.0.0.2|0|127.0.0.1");
    assert_eq!(ask("/deep", &list), "192.0.2.9|0|127.0.0.1");
    assert_eq!(ask("/list", &[("X-Real-IP", "2.2.2.2"), list[1]]), "2.2.2.2|0|127.0.0.1");
    let peer = ask("/own", &[]);
    assert!(peer.starts_with("127.0.0.1|") && peer.ends_with("|127.0.0.1"), "{peer}");
    assert_eq!(ask("/own", &[("X-OWN", "192.0.2.8")]), "192.0.2.8|0|127.0.0.1");
    let response = site.client().request("GET", "/own", &[("Host", "a"), ("X-Own", "192.0.2.7")]);
    assert_eq!(response.head.status, 403);
    assert!(site.lines("error.log", 1)[0].contains("access forbidden by rule, client: 192.0.2.7, server"));
    let response = site.client().request("GET", "/", &[("Host", "other"), ("X-Own", "192.0.2.6")]);
    assert_eq!(response.text(), "192.0.2.6");
    // The next request of a connection starts with the peer again.
    let mut client = site.client();
    assert_eq!(client.request("GET", "/", &[("Host", "other"), ("X-Own", "192.0.2.5")]).text(), "192.0.2.5");
    assert_eq!(client.request("GET", "/", &[("Host", "other")]).text(), "127.0.0.1");
    let lines = site.lines("own.log", 11);
    assert_eq!(lines[9..], ["192.0.2.5", "127.0.0.1"]);
}

/// A server that shows what a proxy said, and believes it.
const BEHIND_PROXY: &str = "access_log off;
    server { listen 127.0.0.1:PORT proxy_protocol; error_log info.log info; set_real_ip_from 127.0.0.1; real_ip_header proxy_protocol;
      client_header_timeout 300ms;
      location / { return 200 \"$proxy_protocol_addr|$proxy_protocol_port|$proxy_protocol_server_addr|$proxy_protocol_server_port|$remote_addr|$remote_port|$pipe\"; }
      location /tlv { return 200 \"$proxy_protocol_tlv_alpn|$proxy_protocol_tlv_0xea|$proxy_protocol_tlv_ssl_cn|$proxy_protocol_tlv_wrong\"; } }";

const REQUEST: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn proxy_protocol_1_comes_whole_or_in_pieces() {
    let site = Site::start("proxy1", BEHIND_PROXY);
    let header = "PROXY TCP4 192.0.2.1 198.51.100.2 1234 8080\r\n";
    let shown = "192.0.2.1|1234|198.51.100.2|8080|192.0.2.1|1234|.";
    for piece in [1, 7, 1000] {
        let mut client = site.client();
        client.send_in_pieces(format!("{header}{REQUEST}"), piece);
        assert_eq!(client.response().text(), shown, "in pieces of {piece}");
        // All requests of the connection come from there.
        assert_eq!(client.send(REQUEST).response().text(), shown);
    }
    let unknown = site.client().send(format!("PROXY UNKNOWN\r\n{REQUEST}")).response().text();
    assert!(unknown.starts_with("||||127.0.0.1|"), "{unknown}");
    let named = site.client().send(format!("PROXY TCP4 a b 0 1\r\n{REQUEST}")).response().text();
    assert!(named.starts_with("a||b|1|127.0.0.1|"), "{named}");
}

#[test]
fn proxy_protocol_2_carries_values() {
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
    // The proxy's own question whether anybody is there.
    let own = [&b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"[..], REQUEST.as_bytes()].concat();
    assert!(site.client().send(own).response().text().starts_with("||||127.0.0.1|"));
}

#[test]
fn connections_without_a_proxy_header_end() {
    let site = Site::start("proxy3", BEHIND_PROXY);
    let about = format!(" while reading PROXY protocol, client: 127.0.0.1, server: {}", site.address);
    site.client().send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect_end();
    site.client().send(b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\0").expect_end();
    site.client().send(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff").expect_end();
    site.client().send("PROXY TCP4 1.2").half_close().expect_end();
    site.client().half_close().expect_end();
    // Only a part of it, and then nothing: the time is up.
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

/// Bytes that a generator makes, some of them after a start that looks right.
#[test]
fn no_start_of_a_connection_hurts() {
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
        // It may be closed before all of it is written.
        let _ = client.try_send(&[starts[round % 4], &tail].concat());
        drop(client);
    }
    let answer = site.client().send(format!("PROXY TCP4 1.1.1.1 2.2.2.2 3 4\r\n{REQUEST}")).response();
    assert_eq!(answer.head.status, 200);
}
