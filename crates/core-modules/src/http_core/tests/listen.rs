//! Tests `listen`: addresses, options, and servers that share a socket.

use std::net::SocketAddr;

use crate::http_core::tests::server;
use crate::testing::{error, loaded, warnings};
use exchange::request::Address;
use exchange::tls::server_of;
use site::config::{Config, ServerId};
use site::settings::listen::SoKeepalive;
use site::settings::main::started_as_root;

fn addresses(config: &Config) -> Vec<String> {
    config.listens().map(|spec| spec.addr.to_string()).collect()
}

fn at(addr: &str) -> Address {
    Address::Inet(addr.parse::<SocketAddr>().expect("an address"))
}

#[test]
fn addresses_of_every_form_are_parsed() {
    for (text, expected) in [
        ("8080", vec!["0.0.0.0:8080"]),
        ("*:8080", vec!["0.0.0.0:8080"]),
        ("127.0.0.1", vec!["127.0.0.1:80"]),
        ("127.0.0.1:0", vec!["127.0.0.1:0"]),
        ("127.0.0.1:8080", vec!["127.0.0.1:8080"]),
        ("[::1]:8080", vec!["[::1]:8080"]),
        ("[::]", vec!["[::]:80"]),
        ("unix:/run/x", vec!["unix:/run/x"]),
        ("UNIX:/run/X", vec!["unix:/run/X"]),
        ("8080-8082", vec!["0.0.0.0:8080", "0.0.0.0:8081", "0.0.0.0:8082"]),
        ("127.0.0.1:81-82", vec!["127.0.0.1:81", "127.0.0.1:82"]),
    ] {
        assert_eq!(addresses(&server(&format!("listen {text};"))), expected, "{text}");
    }
    let default = if started_as_root() { "0.0.0.0:80" } else { "0.0.0.0:8000" };
    assert_eq!(addresses(&server("")), [default]);
    let local = addresses(&server("listen localhost:8080;"));
    assert!(local.contains(&"127.0.0.1:8080".to_owned()), "{local:?}");
}

#[test]
fn socket_options_are_parsed() {
    let config = server(
        "listen 80 backlog=5 rcvbuf=8k sndbuf=16k fastopen=3 deferred reuseport so_keepalive=30m::10 ipv6only=off;",
    );
    let spec = config.listens().next().expect("there is one");
    assert_eq!(
        (spec.backlog, spec.rcvbuf, spec.sndbuf, spec.fastopen),
        (5, Some(8192), Some(16384), Some(3))
    );
    assert!(spec.deferred && spec.reuseport && !spec.ipv6only);
    let keepalive = SoKeepalive::On { idle: Some(1800), interval: None, count: Some(10) };
    assert_eq!(spec.so_keepalive, Some(keepalive));
    let config = server("listen 80;");
    let spec = config.listens().next().expect("there is one");
    assert_eq!((spec.backlog, spec.so_keepalive, spec.ipv6only, spec.text.as_str()), (511, None, true, "80"));
    for (text, expected) in [
        ("on", SoKeepalive::On { idle: None, interval: None, count: None }),
        ("off", SoKeepalive::Off),
        ("1:2", SoKeepalive::On { idle: Some(1), interval: Some(2), count: None }),
        (":2:", SoKeepalive::On { idle: None, interval: Some(2), count: None }),
    ] {
        let config = server(&format!("listen 80 so_keepalive={text};"));
        assert_eq!(config.listens().next().expect("there is one").so_keepalive, Some(expected), "{text}");
    }
}

#[test]
fn wrong_addresses_and_options_are_refused_as_in_nginx() {
    for (text, expected) in [
        ("a.invalid:80", "host not found in \"a.invalid:80\" of the \"listen\" directive"),
        ("127.0.0.1:70000", "invalid port in \"127.0.0.1:70000\" of the \"listen\" directive"),
        (":80", "no host in \":80\" of the \"listen\" directive"),
        ("127.0.0.1:", "invalid port in \"127.0.0.1:\" of the \"listen\" directive"),
        ("[::1", "invalid host in \"[::1\" of the \"listen\" directive"),
        ("[::g]:80", "invalid IPv6 address in \"[::g]:80\" of the \"listen\" directive"),
        ("unix:", "no path in the unix domain socket in \"unix:\" of the \"listen\" directive"),
        ("80-79", "invalid port range in \"80-79\" of the \"listen\" directive"),
        ("*:99x", "invalid port in \"*:99x\" of the \"listen\" directive"),
        ("99999", "invalid port in \"99999\" of the \"listen\" directive"),
        ("/foo", "invalid host in \"/foo\" of the \"listen\" directive"),
        ("80 backlog=0", "invalid backlog \"backlog=0\""),
        ("80 backlog=x", "invalid backlog \"backlog=x\""),
        ("80 rcvbuf=x", "invalid rcvbuf \"rcvbuf=x\""),
        ("80 sndbuf=x", "invalid sndbuf \"sndbuf=x\""),
        ("80 fastopen=x", "invalid fastopen \"fastopen=x\""),
        ("80 ipv6only=x", "invalid parameter \"ipv6only=x\""),
        ("80 so_keepalive=x", "invalid so_keepalive value: \"x\""),
        ("80 so_keepalive=::", "invalid so_keepalive value: \"::\""),
        ("80 so_keepalive=a:b:c", "invalid so_keepalive value: \"a:b:c\""),
        ("80 proxy_protocol=on", "invalid parameter \"proxy_protocol=on\""),
        ("80 foo", "invalid parameter \"foo\""),
        ("80 setfib=1", "invalid parameter \"setfib=1\""),
        ("80 multipath", "\"multipath\" in \"listen\" directive is not supported yet"),
        ("80 deferred; listen 80", "a duplicate listen 0.0.0.0:80"),
        ("80; listen *:80 default_server", "a duplicate listen 0.0.0.0:80"),
        ("8080-8082 default_server; listen 8081", "a duplicate listen 0.0.0.0:8081"),
    ] {
        let found = error(&format!("http {{ server {{\nlisten {text}; }} }}"));
        assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{text}");
    }
    let two = |first: &str, second: &str| {
        error(&format!("http {{ server {{ listen {first}; }} server {{\nlisten {second}; }} }}"))
    };
    assert_eq!(
        two("81 default_server", "81 default_server"),
        "a duplicate default server for 0.0.0.0:81 in /conf/nginx.conf:2"
    );
    assert_eq!(
        two("81 backlog=5", "81 backlog=6"),
        "duplicate listen options for 0.0.0.0:81 in /conf/nginx.conf:2"
    );
    assert_eq!(
        warnings("http { server {\nlisten 80 accept_filter=x; } }"),
        [
            "accept filters \"accept_filter=x\" are not supported on this platform, ignored in /conf/nginx.conf:2"
        ]
    );
}

#[test]
fn servers_share_an_address() {
    let config = loaded(
        "server { listen 81; server_name a; }
         server { listen 81 default_server backlog=7; server_name b; }
         server { listen 82; }",
    );
    assert_eq!(addresses(&config), ["0.0.0.0:81", "0.0.0.0:82"]);
    let listen = &config.http.listens[0];
    assert_eq!(listen.spec.backlog, 7);
    let (default, names) = listen.lookup(&at("127.0.0.1:81"));
    assert_eq!(default, ServerId(1));
    let server =
        |host: &str| names.find(host.as_bytes()).expect("no pattern takes long").map(|named| named.server);
    assert_eq!((server("a"), server("b"), server("c")), (Some(ServerId(0)), Some(ServerId(1)), None));
    assert_eq!(config.http.listens[1].lookup(&at("127.0.0.1:82")).0, ServerId(2));
}

#[test]
fn a_wildcard_includes_the_addresses_on_its_port() {
    let config = loaded(
        "server { listen 127.0.0.1:81; } server { listen 81; } server { listen 127.0.0.2:81 backlog=3; }
         server { listen [::1]:81; } server { listen 127.0.0.1:82; }",
    );
    assert_eq!(addresses(&config), ["0.0.0.0:81", "127.0.0.2:81", "[::1]:81", "127.0.0.1:82"]);
    let wildcard = &config.http.listens[0];
    assert_eq!(wildcard.lookup(&at("127.0.0.1:81")).0, ServerId(0));
    assert_eq!(wildcard.lookup(&at("127.0.0.9:81")).0, ServerId(1));
    assert_eq!(wildcard.lookup(&Address::Unix(Vec::new())).0, ServerId(1));
    assert_eq!(config.http.listens[1].lookup(&at("127.0.0.2:81")).0, ServerId(2));
}

#[test]
fn proxy_protocol_applies_to_an_address() {
    let config = loaded(
        "server { listen 127.0.0.1:81 proxy_protocol; listen 82; }
         server { listen 127.0.0.1:81; listen 127.0.0.1:82 proxy_protocol; }",
    );
    let behind = |index: usize, local: [u8; 4]| {
        let listen = &config.http.listens[index];
        listen.expects_proxy_protocol(&Address::Inet((local, 82).into()))
    };
    assert_eq!(
        (behind(0, [127, 0, 0, 1]), behind(1, [127, 0, 0, 1]), behind(1, [127, 0, 0, 2])),
        (true, true, false)
    );
    for (first, second, warned) in [
        ("81 proxy_protocol", "81", false),
        ("81", "81 proxy_protocol", false),
        ("81 backlog=9", "81 proxy_protocol", true),
        ("81 proxy_protocol", "81 backlog=9", true),
        ("81 proxy_protocol backlog=9", "81", false),
    ] {
        let text =
            format!("http {{ server {{ listen {first}; }} server {{ server_name x;\nlisten {second}; }} }}");
        let expected: &[&str] =
            if warned { &["protocol options redefined for 0.0.0.0:81 in /conf/nginx.conf:2"] } else { &[] };
        assert_eq!(warnings(&text), expected, "{first}, {second}");
    }
}

/// The names of clients over TLS have the client's spelling (`$ssl_server_name`).
#[test]
fn a_name_selects_its_server_in_any_spelling() {
    let config =
        loaded("server { listen 81; server_name a.test; } server { listen 81; server_name *.B.test; }");
    let select = |name| server_of(name, &config.http.listens[0], &at("127.0.0.1:81"));
    for (name, expected) in [
        (None, (ServerId(0), false)),
        (Some(""), (ServerId(0), false)),
        (Some("c.test"), (ServerId(0), false)),
        (Some("A.Test"), (ServerId(0), true)),
        (Some("x.b.test"), (ServerId(1), true)),
        (Some("X.B.TEST"), (ServerId(1), true)),
    ] {
        assert_eq!(select(name), expected, "{name:?}");
    }
}
