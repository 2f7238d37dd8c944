//! Upstream groups as clients see them: sessions, limits across threads, active requests, and reloads.
//! `side_by_side/upstreams.rs` compares the order of servers, and failures, with nginx.

use crate::common::{BINARY, ours_only, serve};
use testkit::origin::{Origin, OriginRequest, Reply};
use testkit::{Client, Deadline, Gate, Server};

/// Starts origins that respond with their numbers, each with a unique session cookie.
fn origins<const N: usize>() -> [Origin; N] {
    std::array::from_fn(|number| Origin::start(move |_| answer(number)))
}

fn answer(number: usize) -> Reply {
    Reply::ok().header("Set-Cookie", format!("sid=of-{number}")).body(format!("{number}"))
}

/// Returns the configuration of a server with a group of this text; `@0` and so on are the origins.
fn conf(origins: &[Origin], main: &str, group: &str, location: &str) -> String {
    let mut group = group.to_owned();
    for (number, origin) in origins.iter().enumerate() {
        group = group.replace(&format!("@{number}"), &origin.addr().to_string());
    }
    format!(
        "{main} events {{ }} http {{ access_log off; upstream group {{ {group} }}
         server {{ listen 127.0.0.1:0; location / {{ proxy_pass http://group; {location} }} }} }}"
    )
}

fn send_request(server: &Server, fields: &[(&str, &str)]) -> testkit::Response {
    Client::connect(server.addr(0)).request("GET", "/", fields)
}

fn names(server: &Server, count: usize, fields: &[(&str, &str)]) -> String {
    (0..count).map(|_| send_request(server, fields).text()).collect()
}

#[test]
fn a_sticky_cookie_selects_the_same_server() {
    if !ours_only("Debian's nginx does not support sticky") {
        return;
    }
    let origins = origins::<3>();
    let group = "server @0; server @1 route=one; server @2 max_fails=1; \
                 sticky cookie srv expires=1h domain=.$host path=/p httponly secure samesite=Lax;";
    let server = serve(&conf(&origins, "worker_processes 2;", group, ""));
    let first = send_request(&server, &[]);
    let cookies: Vec<&str> = first.head.all("Set-Cookie").collect();
    let [ours, theirs] = cookies.as_slice() else { panic!("{cookies:?}") };
    // The server's own cookie precedes the upstream's, which is retained.
    assert!(theirs.starts_with("sid=of-"), "{cookies:?}");
    let (value, attributes) =
        ours.strip_prefix("srv=").and_then(|text| text.split_once("; ")).expect("a cookie");
    assert!(value == "one" || value.len() == 32, "{ours}");
    let (expires, rest) = attributes.split_once(" GMT; ").expect("a date");
    assert!(expires.starts_with("expires="), "{ours}");
    assert_eq!(rest, "max-age=3600; domain=.localhost; httponly; secure; samesite=Lax; path=/p");
    // Clients with the cookie stay on their server; others get the servers by turns.
    let home = first.text();
    let cookie = format!("a=b; srv={value}");
    assert_eq!(names(&server, 6, &[("Cookie", &cookie)]), home.repeat(6));
    let mut turns: Vec<char> = names(&server, 6, &[]).chars().collect();
    turns.sort_unstable();
    turns.dedup();
    assert_eq!(turns, ['0', '1', '2']);
    assert_eq!(names(&server, 3, &[("Cookie", "srv=one")]), "111");
    // If its server fails, the client gets another one, and a new cookie with that server.
    origins[1].refuse();
    origins[1].end_connections();
    let moved = send_request(&server, &[("Cookie", "srv=one")]);
    assert_eq!(moved.status, 200);
    let new = moved.head.all("Set-Cookie").next().expect("a cookie").to_owned();
    assert!(new.starts_with("srv=") && !new.starts_with("srv=one"), "{new}");
    assert_eq!(moved.head.all("Set-Cookie").count(), 2, "one cookie of this server");
}

/// Only the client whose request is sent to a server gets the cookie, and the cookie is not stored.
#[test]
fn a_sticky_cookie_is_set_in_a_location_with_a_cache() {
    if !ours_only("Debian's nginx does not support sticky") {
        return;
    }
    let origins = [Origin::start(|_| Reply::text("0"))];
    let cache = "proxy_cache c; proxy_cache_valid 1h; add_header X-Cache $upstream_cache_status;";
    let conf = conf(&origins, "", "server @0; sticky cookie srv;", cache);
    let server = serve(&conf.replace("http {", "http { proxy_cache_path cache keys_zone=c:1m;"));
    for (status, cookies) in [("MISS", 1), ("HIT", 0)] {
        let response = send_request(&server, &[]);
        assert_eq!(response.field("X-Cache"), Some(status));
        let ours = response.head.all("Set-Cookie").filter(|cookie| cookie.starts_with("srv="));
        assert_eq!(ours.count(), cookies, "{status}");
    }
}

#[test]
fn a_route_or_a_session_selects_the_server() {
    if !ours_only("Debian's nginx does not support sticky") {
        return;
    }
    let origins = origins::<3>();
    let group =
        "server @0 route=a; server @1 route=b; server @2 drain route=c; sticky route $cookie_r $arg_r;";
    let server = serve(&conf(&origins, "", group, ""));
    assert_eq!(names(&server, 4, &[("Cookie", "r=b")]), "1111");
    assert_eq!(names(&server, 2, &[("Cookie", "r=c")]), "22", "existing clients stay");
    assert!(!names(&server, 6, &[]).contains('2'), "no new clients");
    assert_eq!(send_request(&server, &[]).head.all("Set-Cookie").count(), 1, "no cookie of this server");
    for header in ["", "header"] {
        let group = format!(
            "server @0; server @1; server @2;
             sticky learn create=$upstream_cookie_sid lookup=$cookie_sid zone=sessions:1m {header};"
        );
        let server = serve(&conf(&origins, "worker_processes 2;", &group, ""));
        assert_eq!(names(&server, 3, &[("Cookie", "sid=of-9")]).len(), 3);
        // Each has issued its session now, and gets the clients with that session.
        for number in 0..3 {
            let cookie = format!("sid=of-{number}");
            assert_eq!(names(&server, 4, &[("Cookie", &cookie)]), number.to_string().repeat(4), "{header}");
        }
    }
}

/// Returns clients whose requests are active at an origin.
fn hold_requests(server: &Server, count: usize) -> Vec<Client> {
    let mut clients: Vec<Client> = (0..count).map(|_| Client::connect(server.addr(0))).collect();
    for client in &mut clients {
        client.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    clients
}

/// Starts origins that respond to `/held` when the gate is opened.
fn gated<const N: usize>(gate: &Gate) -> [Origin; N] {
    std::array::from_fn(|number| {
        let gate = gate.clone();
        Origin::start(move |request: &OriginRequest| {
            let reply = answer(number);
            if request.path() == "/held" { reply.wait_first(&gate) } else { reply }
        })
    })
}

#[test]
fn no_server_gets_more_requests_than_max_conns() {
    let gate = Gate::new();
    let origins = gated::<2>(&gate);
    // In nginx a zone makes the workers share their counters.
    let group = "zone one 64k; server @0 max_conns=2; server @1 max_conns=1;";
    let server = serve(&conf(&origins, "worker_processes 2;", group, ""));
    let mut held = hold_requests(&server, 3);
    gate.wait_reached_by(3);
    assert_eq!(origins.each_ref().map(|origin| origin.stats().in_flight), [2, 1]);
    assert_eq!(send_request(&server, &[]).status, 502);
    server.wait_for_log("no live upstreams while connecting to upstream", Deadline::default());
    gate.open();
    assert!(held.iter_mut().all(|client| client.response().status == 200));
    assert_eq!(send_request(&server, &[]).status, 200);
}

#[test]
fn the_server_with_the_fewest_connections_is_next() {
    let gate = Gate::new();
    let origins = gated::<3>(&gate);
    let group = "zone one 64k; least_conn; server @0; server @1; server @2 weight=2;";
    let server = serve(&conf(&origins, "worker_processes 2;", group, ""));
    let mut held = hold_requests(&server, 8);
    gate.wait_reached_by(8);
    assert_eq!(origins.each_ref().map(|origin| origin.stats().in_flight), [2, 2, 4]);
    gate.open();
    assert!(held.iter_mut().all(|client| client.response().status == 200));
}

#[test]
fn threads_share_the_round_robin_state() {
    if !ours_only("nginx's workers count separately") {
        return;
    }
    let origins = origins::<2>();
    let server = serve(&conf(&origins, "worker_processes 4;", "server @0; server @1;", ""));
    // Whichever thread has a connection, it uses the shared round-robin position.
    assert_eq!(names(&server, 10, &[]), "0101010101");
}

#[test]
fn a_reload_in_place_retains_the_state_of_a_zone() {
    if !ours_only("nginx starts with empty zones") {
        return;
    }
    let origins = origins::<2>();
    origins[0].refuse();
    for (zone, is_kept) in [("zone one 64k;", true), ("", false)] {
        let group = format!("{zone} server @0 fail_timeout=1h; server @1;");
        let text = |stamp: &str| {
            let location = format!("add_header X-Stamp {stamp}; add_header X-Peers $upstream_addr;");
            conf(&origins, "", &group, &location)
        };
        let mut server = Server::start(BINARY, &text("before"));
        assert_eq!(names(&server, 3, &[]), "111");
        let worker = server.workers();
        server.rewrite_conf(&text("after"));
        server.reload();
        // The first response of the new configuration shows whether it was sent to the failed server.
        let first = testkit::wait::until("the new configuration", Deadline::default(), || {
            let response = send_request(&server, &[]);
            (response.field("x-stamp") == Some("after")).then_some(response)
        });
        let first = first.unwrap_or_else(|late| panic!("{late}\n{}", server.error_log()));
        assert_eq!(server.workers(), worker, "in place");
        let peers = first.field("x-peers").expect("the response has this field").to_owned();
        assert_eq!(peers.contains(", "), !is_kept, "{zone}: {peers}");
    }
}
