//! Lookups with a test DNS server, and names of a configuration with a simulated system resolver.

use std::cell::RefCell;
use std::net::IpAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use io::engine::{EngineConfig, NetKind};
use rt::Runtime;
use testkit::dns::{Answer, Kind, Record};
use testkit::{DnsServer, Gate, TempDir};

use super::Unresolved;
use super::refresher::{Reporter, SystemName, User};
use super::resolver::Resolver;
use super::settings::Settings;
use super::system::System;
use super::ttl::TimeSource;
use crate::Group;
use crate::address::Url;
use crate::lines::{Draft, Line};

/// Long enough for a machine that is busy with tests of the complete workspace.
const PATIENCE: Duration = testkit::wait::DEFAULT_LIMIT;

fn run<T>(test: impl Future<Output = T>) -> T {
    let engine = io::build(EngineConfig { net: NetKind::Epoll, ..EngineConfig::default() });
    Runtime::new(engine.expect("epoll is everywhere")).block_on(test)
}

fn resolver(words: &str) -> Arc<Resolver> {
    Resolver::new(Settings::parse(words.split_whitespace()).expect("a resolver"))
}

fn of(dns: &DnsServer, more: &str) -> Arc<Resolver> {
    resolver(&format!("{} {more}", dns.addr()))
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().expect("an address")).collect()
}

async fn find(resolver: &Arc<Resolver>, name: &str) -> Result<Vec<IpAddr>, Unresolved> {
    resolver.find(name.as_bytes(), PATIENCE, None).await.map(|(found, _)| found.to_vec())
}

#[test]
fn both_address_families_are_found_with_ipv4_first() {
    let dns = DnsServer::start();
    dns.set_addresses("a", &["2001:db8::1", "10.0.0.1"], 60).set_addresses("four", &["10.0.0.4"], 60);
    dns.set("half", Kind::A, Answer::addresses(&["10.0.0.2"], 60)).set("half", Kind::Aaaa, Answer::ServFail);
    run(async {
        assert_eq!(find(&of(&dns, ""), "a").await, Ok(addresses(&["10.0.0.1", "2001:db8::1"])));
        assert_eq!(find(&of(&dns, "ipv4=off"), "a").await, Ok(addresses(&["2001:db8::1"])));
        assert_eq!(find(&of(&dns, ""), "four").await, Ok(addresses(&["10.0.0.4"])));
        assert_eq!(find(&of(&dns, ""), "half").await, Ok(addresses(&["10.0.0.2"])), "the other one failed");
        assert_eq!(find(&of(&dns, "ipv4=off"), "half").await, Err(Unresolved::Code(2)));
    });
}

#[test]
fn a_missing_response_for_one_family_hardly_delays_the_other() {
    let dns = DnsServer::start();
    dns.set("a", Kind::A, Answer::addresses(&["10.0.0.1"], 60)).set("a", Kind::Aaaa, Answer::Lost);
    run(async { assert_eq!(find(&of(&dns, ""), "a").await, Ok(addresses(&["10.0.0.1"]))) });
}

#[test]
fn another_name_server_is_tried_after_a_failure_or_timeout() {
    let (bad, good) = (DnsServer::start(), DnsServer::start());
    bad.set("a", Kind::A, Answer::Refused);
    good.set_addresses("a", &["10.0.0.1"], 0);
    // No DNS server listens on the first port.
    let three = resolver(&format!("127.0.0.1:1 {} {} ipv6=off", bad.addr(), good.addr()));
    let none = resolver("127.0.0.1:1");
    run(async {
        for _ in 0..6 {
            assert_eq!(find(&three, "a").await, Ok(addresses(&["10.0.0.1"])));
        }
        assert_eq!(none.find(b"a", Duration::from_millis(10), None).await.err(), Some(Unresolved::TimedOut));
    });
    assert!(bad.count("a", Kind::A) > 0, "each one has its turn");
}

#[test]
fn expired_addresses_are_used_while_name_servers_fail() {
    let dns = DnsServer::start();
    dns.set_addresses("a", &["10.0.0.1"], 0);
    let resolver = of(&dns, "ipv6=off");
    run(async {
        assert_eq!(find(&resolver, "a").await, Ok(addresses(&["10.0.0.1"])));
        dns.set_addresses("a", &["10.0.0.2"], 0);
        assert_eq!(find(&resolver, "a").await, Ok(addresses(&["10.0.0.2"])), "its time was over at once");
        dns.set("a", Kind::A, Answer::ServFail);
        assert_eq!(find(&resolver, "a").await, Ok(addresses(&["10.0.0.2"])));
        let asked = dns.count("a", Kind::A);
        assert_eq!(find(&resolver, "a").await, Ok(addresses(&["10.0.0.2"])));
        assert_eq!(dns.count("a", Kind::A), asked, "not asked for with each request");
        // NXDOMAIN is a response.
        dns.set_addresses("b", &["10.0.0.3"], 0);
        assert_eq!(find(&resolver, "b").await, Ok(addresses(&["10.0.0.3"])));
        dns.remove("b");
        assert_eq!(find(&resolver, "b").await, Err(Unresolved::Code(3)));
        dns.set("b", Kind::A, Answer::ServFail);
        assert_eq!(find(&resolver, "b").await, Err(Unresolved::Code(2)));
    });
}

#[test]
fn a_response_is_valid_for_its_ttl_or_the_configured_time() {
    let dns = DnsServer::start();
    dns.set_addresses("a", &["10.0.0.1"], 60).set_addresses("b", &["10.0.0.1"], 0);
    run(async {
        for (more, name, questions) in
            [("", "a", 1), ("", "b", 3), ("valid=60s", "b", 4), ("valid=0", "a", 4)]
        {
            let resolver = of(&dns, &format!("ipv6=off {more}"));
            for _ in 0..3 {
                find(&resolver, name).await.expect("an address");
            }
            assert_eq!(dns.count(name, Kind::A), questions, "{more} {name}");
        }
    });
}

/// The first request leads the lookup with its short timeout, and the second one joins it.
#[test]
fn a_short_timeout_does_not_fail_another_request() {
    let (dns, gate) = (DnsServer::start(), Gate::new());
    let late = Box::new(Answer::addresses(&["10.0.0.1"], 60));
    dns.set("a", Kind::A, Answer::Late(gate.clone(), late));
    let resolver = of(&dns, "ipv6=off");
    run(async {
        let short = async {
            let found = resolver.find(b"a", Duration::from_millis(10), None).await;
            gate.open();
            found.err()
        };
        let (short, long) = rt::join(short, find(&resolver, "a")).await;
        assert_eq!((short, long), (Some(Unresolved::TimedOut), Ok(addresses(&["10.0.0.1"]))));
    });
}

/// A request that waits when a lookup ends begins the next lookup, which has a complete timeout too.
#[test]
fn silent_name_servers_are_queried_once_per_timeout() {
    const TIMEOUT: Duration = Duration::from_millis(100);
    let dns = DnsServer::start();
    dns.set("a", Kind::A, Answer::Lost);
    let resolver = of(&dns, "ipv6=off");
    let elapsed = run(async {
        let start = rt::now();
        let requests = (0..60u32).map(|number| {
            let resolver = &resolver;
            async move {
                rt::sleep_until(start + number * Duration::from_millis(5)).await;
                resolver.find(b"a", TIMEOUT, None).await.err()
            }
        });
        assert_eq!(rt::join_all(requests).await, [Some(Unresolved::TimedOut); 60]);
        rt::now() - start
    });
    // The time between two lookups is at least the timeout, also on a slow machine.
    let lookups_max = elapsed.as_millis() / TIMEOUT.as_millis() + 1;
    assert!(dns.count("a", Kind::A) as u128 <= lookups_max, "{} > {lookups_max}", dns.count("a", Kind::A));
}

#[test]
fn targets_of_a_service_are_resolved_concurrently() {
    let (dns, gate) = (DnsServer::start(), Gate::new());
    let records = ["slow", "fast", "lost"].map(|name| Record::srv(1, 1, 80, name, 60));
    dns.set("_http._tcp.a", Kind::Srv, Answer::Records(records.into()));
    let slow = Box::new(Answer::addresses(&["10.0.0.1"], 60));
    dns.set("slow", Kind::A, Answer::Late(gate.clone(), slow)).set_addresses("fast", &["10.0.0.2"], 60);
    let resolver = of(&dns, "ipv6=off");
    // The slow target responds only after the other one was queried.
    let queried = std::thread::spawn(move || {
        dns.wait_for_count("fast", Kind::A, 1);
        gate.open();
        dns
    });
    run(async {
        let (found, _) = resolver.look_up_service("_http._tcp.a", PATIENCE).await.expect("servers");
        let found: Vec<_> = found.into_iter().map(|(_, found)| found).collect();
        let lost = Err(Unresolved::Code(3));
        assert_eq!(found, [Ok(addresses(&["10.0.0.1"])), Ok(addresses(&["10.0.0.2"])), lost]);
    });
    drop(queried.join().expect("the other target was queried"));
}

#[test]
fn a_cycle_of_aliases_ends() {
    let dns = DnsServer::start();
    dns.set("a", Kind::A, Answer::Records(vec![Record::cname("b", 60)]));
    dns.set("b", Kind::A, Answer::Records(vec![Record::cname("a", 60)]));
    run(async { assert_eq!(find(&of(&dns, "ipv6=off"), "a").await, Err(Unresolved::Code(3))) });
    assert!(dns.asked().len() < 20, "{:?}", dns.asked().len());
}

/// A simulated system lookup whose result the test changes.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Option<Vec<IpAddr>>>>);

impl Answers {
    fn set(&self, texts: Option<&[&str]>) {
        *self.0.lock().expect("no panic") = texts.map(addresses);
    }

    fn system(&self, folder: &Path) -> System {
        let answers = self.clone();
        System::for_tests(folder, move |_| {
            answers.0.lock().expect("no panic").clone().ok_or_else(|| "as the test wants".to_owned())
        })
    }
}

/// A group with one name, which the task of a [`SystemName`] resolves.
struct Kept {
    group: Arc<Group>,
    answers: Answers,
    folder: TempDir,
    told: Rc<RefCell<Vec<String>>>,
}

impl Kept {
    fn start(times: TimeSource, hosts: &str) -> Kept {
        let line = |text: &str| Line::new(text, &Url::parse(text, 80).expect("a name"));
        let mut draft = Draft::new("u");
        draft.lines = vec![line("name.example"), Line { backup: true, ..line("name.example:81") }];
        let group = Arc::new(Group::of_block(draft));
        let (answers, folder) = (Answers::default(), TempDir::new("resolve-keep"));
        std::fs::write(folder.path().join("hosts"), hosts).expect("written");
        let kept = Kept { group, answers, folder, told: Rc::default() };
        let told = Rc::clone(&kept.told);
        let say = move |_, message: std::fmt::Arguments<'_>| told.borrow_mut().push(message.to_string());
        let reporter = Reporter { log: Rc::new(say), changed: Rc::new(|| ()) };
        let (group, system) = (kept.group(), kept.answers.system(kept.folder.path()));
        let user = |named: &_| User { group: Arc::clone(&group), named: Clone::clone(named), position: None };
        let users = group.names().map(user).collect();
        let host = "name.example".to_owned();
        let hosts_every = Duration::from_millis(5);
        rt::spawn(SystemName { host, users, system, times, reporter, hosts_every }.refresh());
        kept
    }

    fn group(&self) -> Arc<Group> {
        Arc::clone(&self.group)
    }

    /// Waits until the group has these addresses.
    async fn until(&self, wanted: &[&str]) {
        self.until_so(|group, _| group.addresses() == wanted).await;
    }

    /// Waits until a condition holds, checked after each result of name resolution.
    async fn until_so(&self, is_so: impl Fn(&Group, &[String]) -> bool) {
        let (group, timer) = (self.group(), rt::Timer::new());
        timer.set(rt::now() + PATIENCE);
        let updates = group.updates();
        let waiting = async {
            let mut seen = 0;
            while !is_so(&group, &self.told.borrow()) {
                seen = updates.above(seen).await.expect("the group is there");
            }
        };
        let state = || (group.addresses(), self.told.borrow().clone());
        timer.limit(waiting).await.unwrap_or_else(|_| panic!("{:?}", state()));
    }
}

#[test]
fn a_system_name_is_refreshed_and_retains_its_last_good_addresses() {
    let dns = DnsServer::start();
    dns.set_addresses("name.example", &["10.0.0.1"], 1);
    run(async {
        let kept = Kept::start(TimeSource::new(Some(of(&dns, ""))), "");
        // The first lookup fails, the second succeeds.
        kept.until_so(|group, told| !group.awaits_names() && !told.is_empty()).await;
        assert_eq!(kept.group().addresses(), [""; 0]);
        kept.answers.set(Some(&["10.0.0.1"]));
        kept.until(&["10.0.0.1:80", "10.0.0.1:81"]).await;
        assert!(kept.told.borrow().last().is_some_and(|told| told.contains("is found again")));
        // The name servers return this with a TTL of one second; afterwards they return the same as the system.
        kept.answers.set(Some(&["10.0.0.2", "10.0.0.3"]));
        dns.set_addresses("name.example", &["10.0.0.2", "10.0.0.3"], 1);
        kept.until(&["10.0.0.2:80", "10.0.0.3:80", "10.0.0.2:81", "10.0.0.3:81"]).await;
        kept.answers.set(None);
        kept.until_so(|_, told| told.len() == 3).await;
        assert_eq!(kept.group().addresses().len(), 4, "those are kept");
    });
}

#[test]
fn a_name_of_the_hosts_file_follows_the_file() {
    run(async {
        let kept = Kept::start(TimeSource::new(Some(resolver("127.0.0.1:1"))), "10.0.0.1 name.example\n");
        kept.answers.set(Some(&["10.0.0.1"]));
        kept.until(&["10.0.0.1:80", "10.0.0.1:81"]).await;
        kept.answers.set(Some(&["10.0.0.2"]));
        let hosts = "10.0.0.2 name.example # it has moved\n";
        std::fs::write(kept.folder.path().join("hosts"), hosts).expect("written");
        kept.until(&["10.0.0.2:80", "10.0.0.2:81"]).await;
    });
}

#[test]
fn equal_responses_of_name_servers_determine_the_ttl() {
    let dns = DnsServer::start();
    dns.set_addresses("a.example", &["10.0.0.1", "2001:db8::1"], 7).set_addresses(
        "long.example",
        &["10.0.0.1"],
        99_999,
    );
    dns.set_addresses("short.example", &["10.0.0.1"], 0);
    let time = |name: &'static str, words: &str, all: &[&str]| {
        let (times, all) = (TimeSource::new(Some(of(&dns, words))), addresses(all).into_iter().collect());
        run(async move { times.time(name, &all).await.as_secs() })
    };
    assert_eq!(time("a.example", "", &["2001:db8::1", "10.0.0.1"]), 7);
    assert_eq!(time("a.example", "ipv6=off", &["10.0.0.1", "2001:db8::1"]), 7);
    assert_eq!(time("long.example", "", &["10.0.0.1"]), 3600);
    assert_eq!(time("short.example", "", &["10.0.0.1"]), 1);
    // The name servers return other addresses, or none.
    assert_eq!(time("a.example", "", &["10.0.0.1"]), 7);
    assert_eq!(time("long.example", "", &["10.0.0.2"]), 60);
    assert_eq!(time("none.example", "", &["10.0.0.1"]), 60);
    let asked = dns.asked().len();
    assert_eq!((time("localhost", "", &["127.0.0.1"]), dns.asked().len()), (60, asked));
}
