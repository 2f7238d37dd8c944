//! Names of upstream servers: resolved by the system, or by `resolver`.
//!
//! A test cannot replace the system's name servers. DNS responses to the system are tested in crate `server` with a replaceable
//! resolver; here the system resolves only names that every machine can resolve.

use crate::common;
use rustix::process::Signal;
use testkit::dns::{Answer, Kind, Record};
use testkit::program::signal_process;
use testkit::server::StrictLimit;
use testkit::{Client, Deadline, DnsServer, Gate, ListenAddr, Origin, Reply, Server, Setup};

use crate::common::BINARY;

const PLAIN: &str = "worker_processes 2;
events { }
http {
    server {
        listen 127.0.0.1:0;
        @EXTRA@
    }
    @GROUPS@
}
";

/// Returns a name with a label that is too long for DNS, so that no name server is queried.
fn no_name() -> String {
    format!("{}.example", "a".repeat(64))
}

fn setup(extra: &str, groups: &str) -> Setup {
    Setup::new(PLAIN).value("EXTRA", extra).value("GROUPS", groups)
}

/// Returns a name with an IPv4 loopback address in this machine's hosts file.
fn hosts_name() -> String {
    let text = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let names = text.lines().filter_map(|line| line.strip_prefix("127.0.0.1"));
    let mut names = names.flat_map(str::split_whitespace).map(str::to_owned);
    names.next_back().unwrap_or_else(|| "localhost".to_owned())
}

#[test]
fn localhost_and_hosts_file_names_are_resolved_without_a_network() {
    let origin = Origin::start(|request| Reply::text(request.header("host").unwrap_or_default()));
    let (port, name) = (origin.port(), hosts_name());
    let server = setup(
        &format!(
            "location /written {{ proxy_pass http://localhost:{port}; }}
             location /group {{ proxy_pass http://group; }}"
        ),
        &format!("upstream group {{ server {name}:{port}; }}"),
    );
    let server = server.start(BINARY);
    let mut client = common::client(&server);
    for (target, host) in [("/written", format!("localhost:{port}")), ("/group", "group".to_owned())] {
        let response = client.get(target);
        assert_eq!((response.status, response.text()), (200, host), "{target}");
    }
}

#[test]
fn an_unresolvable_name_does_not_prevent_the_start() {
    let origin = Origin::start(|_| Reply::text("here"));
    let (addr, no_name) = (origin.addr(), no_name());
    let setup = setup(
        &format!(
            "location /lost {{ proxy_pass http://{no_name}:8080; }}
             location /half {{ proxy_pass http://half; }}
             location / {{ return 200 up; }}"
        ),
        &format!("upstream half {{ server {no_name}; server {addr}; }}"),
    );
    let server = setup.start(BINARY);
    let mut client = common::client(&server);
    assert_eq!(client.get("/").text(), "up");
    assert_eq!(client.get("/lost").status, 502);
    assert_eq!(client.get("/lost").status, 502);
    assert_eq!(client.get("/half").text(), "here");
    let log = server.wait_for_log("host not found in upstream", Deadline::default());
    assert!(log.contains("[error]") && log.contains("nginx.conf:"), "{log}");
    assert_eq!(log.matches("host not found in upstream").count(), 1, "one line for all users: {log}");
}

#[test]
fn a_configuration_test_warns_of_unresolvable_names() {
    let no_name = no_name();
    let extra = format!(
        "location / {{ proxy_pass http://{no_name}/; }} location /l {{ proxy_pass http://localhost; }}"
    );
    let (status, text) = setup(&extra, "").builder(BINARY).arg("-t").run_to_end();
    assert!(status.success(), "{text}");
    let warned: Vec<&str> = text.lines().filter(|line| line.contains("host not found")).collect();
    let [line] = warned[..] else { panic!("{text}") };
    assert!(line.contains("[warn]") && line.contains(&no_name) && line.contains("nginx.conf:"), "{line}");
    assert!(text.contains("test is successful"), "{text}");
}

/// Starts a server that forwards requests to the name in the argument `to`, using a resolver.
fn by_variable(dns: &DnsServer, more: &str) -> Server {
    let location = format!(
        "resolver {} {more}; location / {{ proxy_pass http://$arg_to; add_header Asked $upstream_addr always; }}",
        dns.addr()
    );
    setup(&location, "").builder(BINARY).not_strict(StrictLimit::PortOfRequest).start()
}

/// Starts an origin that responds with its name.
fn origin(name: &'static str) -> Origin {
    Origin::start(move |_| Reply::text(name))
}

#[track_caller]
fn status_of(client: &mut Client, target: &str) -> u16 {
    client.get(target).status
}

#[test]
fn names_from_variables_use_the_resolver() {
    let (dns, origin) = (DnsServer::start(), origin("here"));
    let port = origin.port();
    dns.set_addresses("one.example", &["127.0.0.1"], 60);
    dns.set("alias.example", Kind::A, Answer::Records(vec![Record::cname("one.example", 60)]));
    dns.set("cut.example", Kind::A, Answer::Truncated(Box::new(Answer::addresses(&["127.0.0.1"], 60))));
    dns.set("down.example", Kind::A, Answer::ServFail);
    let forged = Answer::WrongId(Box::new(Answer::addresses(&["127.0.0.9"], 60)));
    let right = Answer::addresses(&["127.0.0.1"], 60);
    dns.set("forged.example", Kind::A, Answer::Both(Box::new(forged), Box::new(right)));
    let server = by_variable(&dns, "ipv6=off");
    let mut client = common::client(&server);
    for name in ["one.example", "ONE.example.", "alias.example", "cut.example", "forged.example", "127.0.0.1"]
    {
        let response = client.get(&format!("/?to={name}:{port}"));
        assert_eq!((response.status, response.text().as_str()), (200, "here"), "{name}");
        assert_eq!(response.field("asked"), Some(format!("127.0.0.1:{port}").as_str()), "{name}");
    }
    assert_eq!(dns.count("one.example", Kind::A), 2, "once by its name, and once by its alias");
    assert!(dns.asked().iter().any(|asked| asked.over_tcp && asked.question.name == "cut.example"));
    assert_eq!(dns.count("one.example", Kind::Aaaa), 0);
    for (name, reason) in [
        ("lost.example", "lost.example could not be resolved (3: Host not found)"),
        ("down.example", "down.example could not be resolved (2: Server failure)"),
        ("a..b", "a..b could not be resolved (3: Host not found)"),
    ] {
        assert_eq!(status_of(&mut client, &format!("/?to={name}:{port}")), 502, "{name}");
        server.wait_for_log(reason, Deadline::default());
    }
}

/// A name server's IPv6 address in brackets, with its port, over UDP and over TCP.
#[test]
fn name_servers_may_have_ipv6_addresses() {
    let (dns, origin) = (DnsServer::start_at(std::net::Ipv6Addr::LOCALHOST.into()), origin("here"));
    let port = origin.port();
    dns.set_addresses("one.example", &["127.0.0.1"], 60);
    dns.set("cut.example", Kind::A, Answer::Truncated(Box::new(Answer::addresses(&["127.0.0.1"], 60))));
    dns.set_addresses("six.example", &["::1"], 60);
    assert!(dns.addr().is_ipv6());
    let server = by_variable(&dns, "");
    let mut client = common::client(&server);
    for name in ["one.example", "cut.example"] {
        assert_eq!(client.get(&format!("/?to={name}:{port}")).text(), "here", "{name}");
    }
    assert!(dns.asked().iter().any(|asked| asked.over_tcp && asked.question.name == "cut.example"));
    // The request is sent to the resolved address, whatever the name server's address family.
    assert_eq!(
        client.get(&format!("/?to=six.example:{port}")).field("asked"),
        Some(&*format!("[::1]:{port}"))
    );
    // If a name server does not answer, the next one is queried.
    let gone = std::net::UdpSocket::bind("[::1]:0").and_then(|socket| socket.local_addr());
    let gone = gone.expect("there is IPv6 on the loopback device");
    let text = format!("resolver {gone} {}; location / {{ proxy_pass http://$arg_to; }}", dns.addr());
    let server = setup(&text, "").builder(BINARY).not_strict(StrictLimit::PortOfRequest).start();
    assert_eq!(common::client(&server).get(&format!("/?to=one.example:{port}")).text(), "here");
}

#[test]
fn a_name_from_a_variable_causes_a_502_without_a_resolver() {
    let server = setup("location / { proxy_pass http://$arg_to; }", "").start(BINARY);
    let mut client = common::client(&server);
    assert_eq!(status_of(&mut client, "/?to=localhost:1"), 502);
    server.wait_for_log("no resolver defined to resolve localhost", Deadline::default());
}

#[test]
fn lookups_of_a_name_are_shared_and_time_out_separately() {
    let (dns, origin, gate) = (DnsServer::start(), origin("here"), Gate::new());
    let late = Answer::Late(gate.clone(), Box::new(Answer::addresses(&["127.0.0.1"], 60)));
    dns.set("late.example", Kind::A, late);
    dns.set("never.example", Kind::A, Answer::Lost);
    let server = by_variable(&dns, "ipv6=off; resolver_timeout 30s");
    let target = format!("/?to=late.example:{}", origin.port());
    let mut clients: Vec<Client> = (0..8).map(|_| common::client(&server)).collect();
    for client in &mut clients {
        client.send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"));
    }
    dns.wait_for_count("late.example", Kind::A, 1);
    gate.open();
    for client in &mut clients {
        assert_eq!(client.response().text(), "here");
    }
    assert_eq!(dns.count("late.example", Kind::A), 1);
    drop(server);
    let server = by_variable(&dns, "ipv6=off; resolver_timeout 100ms");
    let mut client = common::client(&server);
    assert_eq!(status_of(&mut client, "/?to=never.example:1"), 502);
    server
        .wait_for_log("never.example could not be resolved (110: Operation timed out)", Deadline::default());
}

#[test]
fn a_lost_dns_packet_is_sent_again() {
    let (dns, origin) = (DnsServer::start(), origin("here"));
    let answer = Box::new(Answer::addresses(&["127.0.0.1"], 60));
    dns.set("once.example", Kind::A, Answer::Times(1, Box::new(Answer::Lost), answer));
    let server = by_variable(&dns, "ipv6=off");
    let mut client = common::client(&server);
    assert_eq!(client.get(&format!("/?to=once.example:{}", origin.port())).text(), "here");
    assert_eq!(dns.count("once.example", Kind::A), 2);
}

#[test]
fn a_late_response_to_an_earlier_dns_query_is_accepted() {
    let (late, origin, gate) = (DnsServer::start(), origin("here"), Gate::new());
    let answer = Answer::Late(gate.clone(), Box::new(Answer::addresses(&["127.0.0.1"], 60)));
    // Only the first query gets an answer, and it arrives after two retries.
    late.set("slow.example", Kind::A, Answer::Times(1, Box::new(answer), Box::new(Answer::Lost)));
    let server = by_variable(&late, "ipv6=off");
    let mut client = common::client(&server);
    client.send(format!("GET /?to=slow.example:{} HTTP/1.1\r\nHost: a\r\n\r\n", origin.port()));
    late.wait_for_count("slow.example", Kind::A, 3);
    gate.open();
    assert_eq!(client.response().text(), "here");
    let ports: std::collections::BTreeSet<_> = late.asked().iter().map(|asked| asked.from).collect();
    assert_eq!(ports.len(), 1, "one port for each server and query: {ports:?}");
}

#[test]
fn an_earlier_name_server_may_still_respond_after_a_retry() {
    let (late, silent, origin, gate) = (DnsServer::start(), DnsServer::start(), origin("here"), Gate::new());
    let answer = Answer::Late(gate.clone(), Box::new(Answer::addresses(&["127.0.0.1"], 60)));
    late.set("slow.example", Kind::A, Answer::Times(1, Box::new(answer), Box::new(Answer::Lost)));
    silent.set("slow.example", Kind::A, Answer::Lost);
    let server = by_variable(&late, &format!("{} ipv6=off", silent.addr()));
    let mut client = common::client(&server);
    client.send(format!("GET /?to=slow.example:{} HTTP/1.1\r\nHost: a\r\n\r\n", origin.port()));
    late.wait_for_count("slow.example", Kind::A, 1);
    silent.wait_for_count("slow.example", Kind::A, 1);
    gate.open();
    assert_eq!(client.response().text(), "here");
}

/// Repeats a request until the response is `wanted`: the server notices a change of addresses slightly later.
#[track_caller]
fn request_until(server: &Server, target: &str, wanted: (u16, &str)) {
    let mut last = (0, String::new());
    let reached = testkit::wait::until("the answer", Deadline::default(), || {
        let response = common::client(server).get(target);
        last = (response.status, response.text());
        (last.0 == wanted.0 && last.1 == wanted.1).then_some(())
    });
    assert!(reached.is_ok(), "{last:?} and not {wanted:?}");
}

#[test]
fn servers_with_resolve_follow_dns_changes() {
    let dns = DnsServer::start();
    let first = origin("first");
    let port = first.port();
    let beside = ListenAddr::Tcp(([127, 0, 0, 2], port).into());
    let _second = Origin::start_on(beside, |_| Reply::text("second"));
    let groups = format!(
        "upstream moving {{ zone moving 64k; resolver {} ipv6=off; server name.example:{port} resolve; }}",
        dns.addr()
    );
    let server = setup("location / { proxy_pass http://moving; }", &groups).start(BINARY);
    let mut client = common::client(&server);
    // The name resolves only later. The request waits for the first DNS response.
    assert_eq!(client.get("/").status, 502);
    server.wait_for_log("name.example could not be resolved (3: Host not found)", Deadline::default());
    dns.set_addresses("name.example", &["127.0.0.1"], 1);
    server.wait_for_log("name.example is resolved again", Deadline::default());
    assert_eq!(client.get("/").text(), "first");
    dns.set_addresses("name.example", &["127.0.0.2"], 1);
    request_until(&server, "/", (200, "second"));
    // If name servers fail, the known addresses stay in use.
    dns.set("name.example", Kind::A, Answer::ServFail);
    server.wait_for_log("name.example could not be resolved (2: Server failure)", Deadline::default());
    assert_eq!(client.get("/").text(), "second");
}

#[test]
fn a_changed_server_retains_its_addresses_while_dns_fails() {
    let (dns, first, second) = (DnsServer::start(), origin("first"), origin("second"));
    for zone in ["", "zone moving 64k;"] {
        let with_port = |port: u16| {
            let resolver = format!("resolver {} ipv6=off;", dns.addr());
            let group = format!("upstream moving {{ {zone} server name.example:{port} resolve; }}");
            setup("location / { proxy_pass http://moving; }", &format!("{resolver} {group}"))
        };
        dns.set_addresses("name.example", &["127.0.0.1"], 60);
        let mut server = with_port(first.port()).start(BINARY);
        assert_eq!(common::client(&server).get("/").text(), "first", "{zone}");
        dns.set("name.example", Kind::A, Answer::ServFail);
        server.rewrite_conf(&with_port(second.port()).text());
        server.reload();
        server.wait_for_log("name.example could not be resolved (2: Server failure)", Deadline::default());
        // The line is logged before the new configuration is active.
        let is_new = || {
            let text = common::client(&server).get("/").text();
            assert!(text == "first" || text == "second", "{zone}: {text}");
            (text == "second").then_some(())
        };
        testkit::wait::until("the new configuration", Deadline::default(), is_new).expect("a reload");
    }
}

/// Applies to every next process: after a reload that needs a new process, and after a crash.
#[test]
fn a_new_worker_has_the_resolved_addresses_while_dns_fails() {
    let (dns, origin) = (DnsServer::start(), origin("here"));
    dns.set_addresses("name.example", &["127.0.0.1"], 60);
    let groups = format!(
        "resolver {} ipv6=off; upstream moving {{ server name.example:{} resolve; }}",
        dns.addr(),
        origin.port()
    );
    let mut server = setup("location / { proxy_pass http://moving; }", &groups).start(BINARY);
    assert_eq!(common::client(&server).get("/").text(), "here");
    dns.set("name.example", Kind::A, Answer::ServFail);
    // The worker reports its results before it handles later commands. The master logs two lines, the worker the third.
    server.signal(Signal::USR1);
    server.wait_for_log_count("reopening logs", 3, Deadline::default());
    let first = server.workers();
    server.rewrite_conf(&server.conf().replace("worker_processes 2", "worker_processes 1"));
    server.reload();
    let replaced = || (!server.workers().contains(&first[0])).then_some(());
    testkit::wait::until("the old worker's end", Deadline::default(), replaced).expect("no request remains");
    assert_eq!(common::client(&server).get("/").text(), "here");
    let second = server.workers();
    signal_process(second[0], Signal::KILL).expect("it is ours");
    server.wait_for_log("exited on signal 9", Deadline::default());
    assert_eq!(common::client(&server).get("/").text(), "here");
}

#[test]
fn addresses_of_a_variable_survive_a_reload_while_dns_fails() {
    let (dns, origin) = (DnsServer::start(), origin("here"));
    dns.set_addresses("name.example", &["127.0.0.1"], 60);
    let mut server = by_variable(&dns, "ipv6=off");
    let target = format!("/?to=name.example:{}", origin.port());
    assert_eq!(common::client(&server).get(&target).text(), "here");
    dns.set("name.example", Kind::A, Answer::ServFail);
    server.rewrite_conf(&server.conf().replace("location / {", "location /new { return 204; } location / {"));
    server.reload();
    server.wait_for_log("was replaced by 2 in place", Deadline::default());
    let asked = dns.count("name.example", Kind::A);
    assert_eq!(common::client(&server).get(&target).text(), "here");
    assert!(dns.count("name.example", Kind::A) > asked, "a reload sends a new query");
}

#[test]
fn servers_of_a_service_are_found_in_srv_records() {
    let dns = DnsServer::start();
    let (main, spare) = (origin("main"), origin("spare"));
    let records = vec![
        Record::srv(1, 5, main.port(), "main.example", 60),
        Record::srv(2, 5, spare.port(), "spare.example", 60),
        Record::srv(1, 5, 1, "lost.example", 60),
    ];
    dns.set("_http._tcp.name.example", Kind::Srv, Answer::Records(records));
    dns.set_addresses("main.example", &["127.0.0.1"], 60);
    dns.set_addresses("spare.example", &["127.0.0.1"], 60);
    let groups = "upstream service { zone service 64k; server name.example service=http resolve; }";
    let location =
        "location / { proxy_pass http://service; add_header Server-Name $upstream_last_server_name; }";
    // Permits the ports of the records in a strict sandbox.
    let [first, second] = [main.port(), spare.port()];
    let ports = format!("upstream ports {{ server 127.0.0.1:{first}; server 127.0.0.1:{second}; }}");
    let server =
        setup(location, &format!("resolver {} ipv6=off; {groups} {ports}", dns.addr())).start(BINARY);
    let mut client = common::client(&server);
    for _ in 0..4 {
        let response = client.get("/");
        assert_eq!((response.text().as_str(), response.field("server-name")), ("main", Some("main.example")));
    }
    let lost =
        "lost.example could not be resolved (3: Host not found) while resolving service http of name.example";
    server.wait_for_log(lost, Deadline::default());
    main.refuse();
    main.end_connections();
    assert_eq!(client.get("/").text(), "spare", "records with a higher number are backups");
}
