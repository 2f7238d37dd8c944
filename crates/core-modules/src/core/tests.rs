//! Tests the effects and errors of the directives of `main` and `events`.

use std::path::PathBuf;
use std::time::Duration;

use crate::testing::{error, load, warnings, without_remedy};
use site::config::{Config, Pools};
use site::settings::events::{EventsConf, Method};
use site::settings::main::{Affinity, MainConf, ThreadPoolSpec, Workers};
use telemetry::{Form, Level};

fn config(text: &str) -> std::sync::Arc<Config> {
    load(text).unwrap_or_else(|error| panic!("{text}: {error}")).config
}

fn main_of(text: &str) -> MainConf {
    config(text).main().clone()
}

/// Returns the settings of an `events` block; [`load`] would add an empty block, so this loads the text itself.
fn events_of(text: &str) -> Result<EventsConf, String> {
    let loader: conf::MapLoader =
        [("/conf/nginx.conf", format!("events {{\n{text} }}"))].into_iter().collect();
    let source = conf::Source::new("/conf/nginx.conf");
    let loaded =
        site::config::load(crate::all().declarations(), &source, std::path::Path::new("/prefix"), &loader);
    loaded.map(|loaded| loaded.config.events().clone()).map_err(|error| error.to_string())
}

#[test]
fn an_empty_configuration_has_the_defaults_of_nginx() {
    let main = main_of("");
    assert_eq!((main.workers, main.affinity), (Workers::Count(1), Affinity::Free));
    assert!(main.daemon && main.master_process && !main.pcre_jit && main.user.is_none());
    assert_eq!(main.pid, PathBuf::from("/prefix/logs/nginx.pid"));
    assert!(config("").log_files().is_empty());
    assert_eq!(config("").listens().count(), 0);
    assert_eq!(events_of(""), Ok(EventsConf::default()));
    assert_eq!(EventsConf::default().worker_connections, 512);
}

#[test]
fn main_directives_set_their_values() {
    let main = main_of(
        "worker_processes 4; worker_rlimit_nofile 1024; worker_rlimit_core 1g; worker_priority -5;
         worker_shutdown_timeout 500ms; working_directory /tmp; daemon off; master_process off;
         pid /run/x.pid; env A; env B=c=d; pcre_jit on; timer_resolution 100ms; lock_file x; debug_points abort;",
    );
    assert_eq!(main.workers, Workers::Count(4));
    assert_eq!((main.worker_rlimit_nofile, main.worker_rlimit_core), (Some(1024), Some(1 << 30)));
    assert_eq!((main.worker_priority, main.worker_shutdown_timeout), (-5, Some(Duration::from_millis(500))));
    assert_eq!(main.working_directory, Some("/tmp".into()));
    assert!(!main.daemon && !main.master_process && main.pcre_jit);
    assert_eq!(main.pid, PathBuf::from("/run/x.pid"));
    assert_eq!(main_of("pid '';").pid, PathBuf::from("/prefix/logs/nginx.pid"));
    assert_eq!(main.env, [("A".to_owned(), None), ("B".to_owned(), Some("c=d".to_owned()))]);
    assert_eq!(main_of("worker_processes auto;").workers, Workers::Auto);
    let user = main_of("user www;").user.expect("it was set");
    assert_eq!((user.user.as_str(), user.group), ("www", None));
    let user = main_of("user www data;").user.expect("it was set");
    assert_eq!(user.group.as_deref(), Some("data"));
}

#[test]
fn cpu_masks_are_parsed() {
    let affinity = |text: &str| main_of(&format!("worker_processes 2; worker_cpu_affinity {text};")).affinity;
    assert_eq!(affinity("0101 1000"), Affinity::Sets(vec![vec![0, 2], vec![3]]));
    assert_eq!(affinity("auto"), Affinity::Auto(None));
    assert_eq!(affinity("auto 110"), Affinity::Auto(Some(vec![1, 2])));
    let found = warnings("worker_processes 3; worker_cpu_affinity 01 10;");
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("the number of \"worker_processes\" is not equal"), "{found:?}");
}

#[test]
fn error_logs_and_thread_pools_are_parsed() {
    let main = main_of(
        "error_log stderr warn; error_log a; error_log /b debug_http debug_core format=json; error_log a info;
         error_log syslog:server=127.0.0.1:5514,tag=x crit format=text; error_log '' alert;",
    );
    let targets: Vec<_> = main
        .error_log
        .targets
        .items()
        .iter()
        .map(|to| (to.target.to_string(), to.id.index(), to.level, to.form))
        .collect();
    let shown = |target: &str, place, level, form| (target.to_owned(), place, level, form);
    assert_eq!(
        targets,
        [
            shown("stderr", 0, Level::Warn, Form::Text),
            shown("/prefix/a", 1, Level::Error, Form::Text),
            shown("/b", 2, Level::Debug, Form::Json),
            shown("/prefix/a", 1, Level::Info, Form::Text),
            shown("syslog:127.0.0.1:5514", 3, Level::Crit, Form::Text),
            shown("stderr", 0, Level::Alert, Form::Text),
        ]
    );
    let main = main_of("thread_pool a threads=2; thread_pool default threads=3 max_queue=0;");
    let found = warnings("thread_pool a threads=2 foo=1;");
    assert_eq!(found, ["invalid parameter \"foo=1\", ignored in /conf/nginx.conf:1"]);
    let pool = |name: &str, threads, max_queue| ThreadPoolSpec { name: name.to_owned(), threads, max_queue };
    assert_eq!(main.thread_pools, [pool("a", 2, 65536), pool(Pools::DEFAULT, 3, 0)]);
}

#[test]
fn wrong_values_are_refused_as_in_nginx() {
    for (text, expected) in [
        ("worker_processes x;", "\"worker_processes\" directive invalid value"),
        ("worker_processes 0;", "\"worker_processes\" directive invalid value"),
        ("worker_cpu_affinity 0102;", "invalid character \"2\" in \"worker_cpu_affinity\""),
        (
            "worker_cpu_affinity auto 01 10;",
            "invalid number of arguments in \"worker_cpu_affinity\" directive",
        ),
        ("worker_priority x;", "\"worker_priority\" directive invalid number"),
        ("worker_rlimit_nofile x;", "\"worker_rlimit_nofile\" directive invalid number"),
        ("worker_rlimit_core x;", "\"worker_rlimit_core\" directive invalid value"),
        ("worker_shutdown_timeout x;", "\"worker_shutdown_timeout\" directive invalid value"),
        ("timer_resolution x;", "\"timer_resolution\" directive invalid value"),
        ("daemon x;", "invalid value \"x\" in \"daemon\" directive, it must be \"on\" or \"off\""),
        ("error_log a foo;", "invalid log level \"foo\""),
        ("error_log a error warn;", "duplicate log level \"warn\""),
        ("error_log a debug_http warn;", "duplicate log level \"warn\""),
        ("error_log a warn debug_http;", "invalid log level \"debug_http\""),
        ("error_log a format=xml;", "invalid error log format \"xml\""),
        ("error_log a format=json format=text;", "duplicate error log format"),
        ("error_log memory:32m debug;", "nginx was built without debug support"),
        ("error_log syslog:facility=user;", "no syslog server specified"),
        (
            "error_log syslog:server=127.0.0.1,tag=a-b;",
            "syslog \"tag\" only allows alphanumeric characters and underscore",
        ),
        ("thread_pool a max_queue=3;", "\"thread_pool\" must have \"threads\" parameter"),
        ("thread_pool a threads=0;", "invalid threads value \"threads=0\""),
        ("thread_pool a threads=2 max_queue=x;", "invalid max_queue value \"max_queue=x\""),
        ("thread_pool a threads=2; thread_pool a threads=3;", "duplicate thread pool \"a\""),
        ("daemon on; daemon off;", "\"daemon\" directive is duplicate"),
    ] {
        let found = error(&format!("\n{text}"));
        assert_eq!(without_remedy(&found), format!("{expected} in /conf/nginx.conf:2"), "{text}");
    }
    let found = error("debug_points x;");
    assert!(found.starts_with("invalid value \"x\" in /conf/nginx.conf:1"), "{found}");
}

#[test]
fn required_blocks_must_appear_once() {
    let load = |text: &str| {
        let loader: conf::MapLoader = [("/conf/nginx.conf", text)].into_iter().collect();
        site::config::load(
            crate::all().declarations(),
            &conf::Source::new("/conf/nginx.conf"),
            std::path::Path::new("/prefix"),
            &loader,
        )
    };
    let fault = |text: &str| load(text).map(|_| ()).map_err(|error| error.to_string());
    assert_eq!(
        fault("http { }"),
        Err("no \"events\" section in configuration; add \"events {}\" at the top of the file".to_owned())
    );
    assert_eq!(
        fault("events {} events {}"),
        Err("\"events\" directive is duplicate in /conf/nginx.conf:1".to_owned())
    );
    assert_eq!(
        fault("events {} http {} http {}"),
        Err("\"http\" directive is duplicate in /conf/nginx.conf:1".to_owned())
    );
    assert_eq!(fault("events {}"), Ok(()));
}

#[test]
fn events_directives_set_their_values() {
    let events = events_of(
        "use epoll; worker_connections 64; multi_accept on; worker_aio_requests 8; accept_mutex off;
         accept_mutex_delay 10ms; epoll_events 64;
         ring_entries 256; ring_recv_buffers 512 2k; ring_io_workers 4; device_share 2; buffer_pool 64m;
         zero_copy 32k; splice 1m; try_cached off; engine_fault read short every=3; engine_fault send error=EINTR;",
    )
    .expect("it is right");
    let expected = EventsConf {
        worker_connections: 64,
        method: Some(Method::Epoll),
        aio_requests: 8,
        ring_entries: 256,
        recv_buffers: (512, 2048),
        io_workers: 4,
        device_share: 2,
        buffer_pool: Some(64 << 20),
        zero_copy: Some(32 << 10),
        splice: Some(1 << 20),
        try_cached: false,
        faults: vec!["read short every=3".to_owned(), "send error=EINTR".to_owned()],
    };
    assert_eq!(events, expected);
    assert_eq!(events_of("use io_uring;").expect("it is right").method, Some(Method::Uring));
    assert_eq!(events_of("splice off;").expect("it is right").splice, None);
    assert_eq!(events_of("zero_copy off;").expect("it is right").zero_copy, None);
}

#[test]
fn wrong_events_are_refused() {
    for (text, expected) in [
        ("use kqueue;", "invalid event type \"kqueue\"; there are io_uring and epoll"),
        ("worker_connections x;", "invalid number \"x\""),
        ("worker_connections 0;", "invalid number \"0\""),
        ("worker_aio_requests x;", "\"worker_aio_requests\" directive invalid number"),
        ("ring_entries 100;", "\"100\" is not a power of two"),
        ("ring_entries 4;", "value must be between 8 and 32768"),
        ("ring_recv_buffers 3 4k;", "\"3\" is not a power of two"),
        ("ring_recv_buffers 65536 4k;", "\"ring_recv_buffers\" directive invalid value"),
        ("ring_recv_buffers 8 16;", "\"ring_recv_buffers\" directive invalid value"),
        ("ring_io_workers 0;", "value must be between 1 and 1024"),
        ("device_share 0;", "value must be between 1 and 1024"),
        ("engine_fault read quickly;", "\"engine_fault\" directive: unknown fault \"quickly\""),
        ("engine_fault reed short;", "\"engine_fault\" directive: unknown operation \"reed\""),
        ("buffer_pool 1m;", "value must be equal to or greater than 4194304"),
        ("zero_copy x;", "\"zero_copy\" directive invalid value"),
        ("splice x;", "\"splice\" directive invalid value"),
        (
            "multi_accept x;",
            "invalid value \"x\" in \"multi_accept\" directive, it must be \"on\" or \"off\"",
        ),
        ("accept_mutex_delay x;", "\"accept_mutex_delay\" directive invalid value"),
        ("epoll_events x;", "\"epoll_events\" directive invalid number"),
    ] {
        let found = events_of(text).map(|_| ()).expect_err(text);
        assert!(found.starts_with(&format!("{expected} in /conf/nginx.conf:2")), "{text}: {found}");
    }
}
