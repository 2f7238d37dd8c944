//! Tests the settings of the core's directives, their inheritance by blocks, and the errors.

use std::path::Path;
use std::time::Duration;

use http::conditional::IfModifiedSince;

use crate::http_core::tests::server;
use crate::testing::{error, load_with, loaded, warnings};
use site::config::{Config, ServerId};
use site::settings::core::Core;
use site::settings::core::Subrequests;
use site::settings::files::Root;
use site::settings::keepalive::LingeringClose;
use site::settings::responding::ServerTokens;
use transfer::body::rules::Aio;
use transfer::received::BodyInFile;

fn core_of(config: &Config) -> &Core {
    let root = config.server(ServerId(0)).root;
    &config.location(root).scope.core
}

fn core(text: &str) -> Core {
    core_of(&server(text)).clone()
}

#[test]
fn settings_of_files_are_parsed() {
    let conf = core(
        "root /data/; root_beneath on; default_type a/b; sendfile on; sendfile_max_chunk 1m; aio_write on;
         aio_sendfile 512k; directio 4m; directio_alignment 4k; output_buffers 2 64k; read_ahead 1k; tcp_nopush on;
         tcp_nodelay off; send_timeout 5s; postpone_output 0; limit_rate 1k; limit_rate_after $arg_x;",
    );
    assert_eq!(conf.files.root.template().constant(), Some("/data"));
    assert!(
        conf.files.opening.beneath
            && conf.sending.sendfile == Some(true)
            && conf.sending.tcp_nopush
            && !conf.sending.tcp_nodelay
    );
    assert_eq!((&*conf.files.default_type, conf.sending.sendfile_max_chunk), ("a/b", 1 << 20));
    assert_eq!((conf.sending.aio_sendfile, conf.sending.directio), (Some(512 << 10), Some(4 << 20)));
    assert_eq!((conf.sending.output_buffers, conf.sending.read_ahead), (Some((2, 64 << 10)), 1024));
    assert_eq!(conf.sending.send_timeout, Duration::from_secs(5));
    assert_eq!(conf.limit_rate.expect("it was set").constant(), Some("1k"));
    assert_eq!(conf.limit_rate_after.expect("it was set").constant(), None);
    let conf = core("aio_sendfile off; directio off;");
    assert_eq!((conf.sending.aio_sendfile, conf.sending.directio), (None, None));
    for (text, expected) in [("html", "/prefix/html"), ("/", "/"), ("$arg_x/", "$")] {
        let root = core(&format!("root {text};")).files.root;
        assert_eq!(root.template().constant().unwrap_or("$"), expected);
    }
    assert_eq!(core("").files.root.template().constant(), Some("/prefix/html"));
}

#[test]
fn aio_selects_an_engine() {
    for (text, expected) in [
        ("aio on;", Aio::On),
        ("aio off;", Aio::Off),
        ("aio threads;", Aio::Threads(0)),
        ("aio threads=default;", Aio::Threads(0)),
        ("aio libaio;", Aio::Libaio),
        ("aio io_uring;", Aio::Uring),
        ("", Aio::Unset),
    ] {
        assert_eq!(core(text).sending.aio, expected, "{text}");
    }
    let text = "thread_pool a threads=1; http { server { aio threads=a; } }";
    let loaded = crate::testing::load(text).expect("it is right");
    assert_eq!(core_of(&loaded.config).sending.aio, Aio::Threads(1));
    assert_eq!(loaded.config.http.pools.names().collect::<Vec<_>>(), ["default", "a"]);
    let found = error("http { server {\naio threads=nope; } }");
    assert_eq!(found, "unknown thread pool \"nope\" in /conf/nginx.conf:2");
}

#[test]
fn settings_of_connections_and_requests_are_parsed() {
    let conf = core(
        "keepalive_timeout 10 20; keepalive_min_timeout 1s; keepalive_requests 7; keepalive_time 2m;
         keepalive_disable none; lingering_close always; lingering_time 1s; lingering_timeout 2s;
         reset_timedout_connection on; client_header_timeout 3s; client_header_buffer_size 2k;
         large_client_header_buffers 2 4k; max_headers 9; ignore_invalid_headers off; underscores_in_headers on;
         http_strict on; merge_slashes off; client_max_body_size 1g; client_body_buffer_size 1k;
         client_body_timeout 4s; client_body_in_file_only clean; client_body_in_single_buffer on;
         client_body_temp_path /t 1 2;",
    );
    let seconds = Duration::from_secs;
    assert_eq!((conf.keepalive.keepalive_timeout, conf.keepalive.keepalive_header), (seconds(10), Some(20)));
    assert_eq!(
        (conf.keepalive.keepalive_min_timeout, conf.keepalive.keepalive_time),
        (seconds(1), seconds(120))
    );
    assert_eq!((conf.keepalive.keepalive_requests, conf.reading.max_headers), (7, 9));
    let disable = conf.keepalive.keepalive_disable;
    assert_eq!((disable.msie6, disable.safari), (false, false));
    assert_eq!(conf.keepalive.lingering_close, LingeringClose::Always);
    assert_eq!((conf.keepalive.lingering_time, conf.keepalive.lingering_timeout), (seconds(1), seconds(2)));
    assert_eq!(
        (conf.reading.client_header_timeout, conf.reading.client_body_timeout),
        (seconds(3), seconds(4))
    );
    assert_eq!(
        (conf.reading.client_header_buffer_size, conf.reading.large_client_header_buffers),
        (2048, (2, 4096))
    );
    assert!(
        conf.keepalive.reset_timedout_connection
            && !conf.reading.ignore_invalid_headers
            && conf.reading.underscores_in_headers
    );
    assert!(conf.reading.http_strict && !conf.reading.merge_slashes);
    assert_eq!((conf.reading.client_max_body_size, conf.reading.client_body_buffer_size), (1 << 30, 1024));
    assert_eq!(conf.body_files.in_file_only, BodyInFile::Clean);
    let temp_path = &conf.body_files.temp_path;
    assert_eq!((temp_path.path(), temp_path.levels()), (Path::new("/t"), [1, 2].as_slice()));
}

#[test]
fn settings_of_responses_are_parsed() {
    let conf = core(
        "error_page 404 500 =200 /e.html; error_page 497 @x; error_page 403 = /f; recursive_error_pages on;
         server_tokens off; etag off; if_modified_since before; max_ranges 0; chunked_transfer_encoding off;
         absolute_redirect off; server_name_in_redirect on; port_in_redirect off; msie_padding off;
         log_not_found off; log_subrequest on; satisfy any;",
    );
    let pages: Vec<_> =
        conf.responding.error_pages.items().iter().map(|page| (page.status, page.overwrite)).collect();
    assert_eq!(pages, [(404, Some(200)), (500, Some(200)), (497, Some(400)), (403, Some(0))]);
    assert!(
        conf.responding.recursive_error_pages
            && conf.responding.server_name_in_redirect
            && conf.subrequests.log
            && conf.satisfy.any
    );
    assert!(
        !conf.responding.etag
            && !conf.responding.chunked_transfer_encoding
            && !conf.responding.absolute_redirect
            && !conf.responding.port_in_redirect
    );
    assert!(!conf.responding.msie.padding && !conf.responding.log_not_found);
    assert_eq!(
        (conf.responding.if_modified_since, conf.responding.max_ranges),
        (Some(IfModifiedSince::Before), Some(0))
    );
    assert!(matches!(conf.responding.server_tokens, ServerTokens::Off));
    assert!(matches!(core("server_tokens build;").responding.server_tokens, ServerTokens::Build));
    assert!(matches!(core("server_tokens 'My own';").responding.server_tokens, ServerTokens::Text(_)));
}

#[test]
fn blocks_inherit_values_that_they_do_not_set() {
    let config = loaded(
        "etag off; keepalive_timeout 10 20; error_page 404 /a; auth_delay 3s; satisfy any; msie_refresh on;
         server { keepalive_timeout 30; location /x { internal; error_page 500 /b; location /x/y { etag on; } } }",
    );
    let core = |name: &str| {
        let found = config.http.locations.iter().find(|location| location.name == name);
        &found.expect("it is there").scope.core
    };
    assert_eq!(
        core("server").keepalive.keepalive_header,
        Some(20),
        "the second argument is inherited by itself"
    );
    assert_eq!(core("server").keepalive.keepalive_timeout, Duration::from_secs(30));
    assert!(!core("/x").responding.etag && core("/x/y").responding.etag);
    let satisfy = core("/x/y").satisfy;
    assert_eq!((satisfy.any, satisfy.auth_delay), (true, Duration::from_secs(3)));
    assert!(core("/x/y").responding.msie.refresh && core("/x/y").responding.msie.padding);
    assert!(core("/x").internal && core("/x/y").internal && !core("server").internal);
    let pages = |name: &str| {
        core(name).responding.error_pages.items().iter().map(|page| page.status).collect::<Vec<_>>()
    };
    assert_eq!((pages("server"), pages("/x"), pages("/x/y")), (vec![404], vec![500], vec![500]));
}

#[test]
fn settings_of_subrequests_are_inherited_separately() {
    let config = loaded(
        "log_subrequest on; subrequest_output_buffer_size 8k; server { post_action /a;
           location /x { post_action /b; } location /y { log_subrequest off; subrequest_output_buffer_size 1; } }",
    );
    let core = |name: &str| {
        let found = config.http.locations.iter().find(|location| location.name == name);
        let core = &found.expect("it is there").scope.core;
        let Subrequests { log, output_buffer_size, post_action } = &core.subrequests;
        (*log, *output_buffer_size, post_action.as_deref())
    };
    assert_eq!(core("server"), (true, 8 << 10, Some("/a")));
    assert_eq!(core("/x"), (true, 8 << 10, Some("/b")));
    assert_eq!(core("/y"), (false, 1, Some("/a")));
    let found = error("http { server {\npostpone_output x; } }");
    assert_eq!(found, "\"postpone_output\" directive invalid value in /conf/nginx.conf:2");
}

#[test]
fn directives_apply_to_preceding_nested_blocks() {
    let config = loaded("server { location / { } root /late; } sendfile on;");
    let location = &config.http.locations[1].scope.core;
    assert!(
        location.sending.sendfile == Some(true)
            && matches!(&location.files.root, Root::Root(root) if root.constant() == Some("/late"))
    );
}

#[test]
fn types_replace_inherited_types() {
    let config = loaded("types { a/a a; } types { b/b b B2; } server { } server { types { c/c c; } }");
    let types = |server: u32| &config.location(config.server(ServerId(server)).root).scope.core.files.types;
    assert_eq!((types(0).find(b"/x.a"), types(0).find(b"/x.B")), (Some("a/a"), Some("b/b")));
    assert_eq!((types(0).find(b"/x.b2"), types(0).find(b"/x.html")), (Some("b/b"), None));
    assert_eq!((types(1).find(b"/x.c"), types(1).find(b"/x.a")), (Some("c/c"), None));
    let built_in = core("").files.types;
    assert_eq!(
        (built_in.find(b"/x.HTML"), built_in.find(b"/x.jpg")),
        (Some("text/html"), Some("image/jpeg"))
    );
    assert_eq!(built_in.find(b"/x.gif"), Some("image/gif"));
    assert_eq!((built_in.find(b"/html"), built_in.find(b"/.html")), (None, None));
    let mime = [("/conf/mime.types", "types { text/css css; }")];
    let loaded = load_with("http { include mime.types; server {} }", &mime).expect("it is right");
    assert_eq!(core_of(&loaded.config).files.types.find(b"a.css"), Some("text/css"));
    let found = warnings("http { types { a b;\nc b; } }");
    assert_eq!(
        found,
        [
            "duplicate extension \"b\", content type: \"c\", previous content type: \"a\" in /conf/nginx.conf:2"
        ]
    );
}

#[test]
fn wrong_values_are_refused_as_in_nginx() {
    let found = error("http { server {\nsatisfy one; } }");
    assert_eq!(found, "invalid value \"one\" in /conf/nginx.conf:2; it must be one of all, any");
    for (text, expected) in [
        ("connection_pool_size 100;", "the pool size must be no less than 112"),
        ("connection_pool_size 257;", "the pool size must be a multiple of 16"),
        ("connection_pool_size x;", "\"connection_pool_size\" directive invalid value"),
        ("request_pool_size 113;", "the pool size must be a multiple of 16"),
        (
            "large_client_header_buffers 4 100;",
            "the \"large_client_header_buffers\" size must be equal to or greater than \"connection_pool_size\"",
        ),
        ("client_body_temp_path x x;", "\"client_body_temp_path\" directive invalid value"),
        (
            "location / { root b; alias c; }",
            "\"alias\" directive is duplicate, \"root\" directive was specified earlier",
        ),
        ("location / { root b; root c; }", "\"root\" directive is duplicate"),
        ("location @x { alias b; }", "the \"alias\" directive cannot be used inside the named location"),
        ("root $document_root/x;", "the $document_root variable cannot be used in the \"root\" directive"),
        (
            "location / { alias ${realpath_root}; }",
            "the $realpath_root variable cannot be used in the \"alias\" directive",
        ),
        ("error_page = /x;", "invalid value \"=\""),
        ("error_page 404 =x /x;", "invalid value \"=x\""),
        ("error_page 200 /x;", "value \"200\" must be between 300 and 599"),
        ("error_page 499 /x;", "invalid value \"499\""),
        ("error_page x /x;", "invalid value \"x\""),
        ("error_page 404 $;", "invalid variable name"),
        ("aio foo;", "\"aio\" directive invalid value"),
        ("aio threads=$x;", "\"threads=$x\" in \"aio\" directive is not supported yet"),
        ("aio_sendfile 100;", "value must be equal to or greater than 4096"),
        ("directio x;", "\"directio\" directive invalid value"),
        ("output_buffers 0 1k;", "\"output_buffers\" directive invalid value"),
        ("keepalive_timeout x;", "\"keepalive_timeout\" directive invalid value"),
        ("keepalive_requests x;", "\"keepalive_requests\" directive invalid number"),
        ("auth_delay x;", "\"auth_delay\" directive invalid value"),
        (
            "msie_refresh x;",
            "invalid value \"x\" in \"msie_refresh\" directive, it must be \"on\" or \"off\"",
        ),
        (
            "msie_padding x;",
            "invalid value \"x\" in \"msie_padding\" directive, it must be \"on\" or \"off\"",
        ),
        ("limit_rate x;", "\"limit_rate\" directive invalid value"),
        ("etag x;", "invalid value \"x\" in \"etag\" directive, it must be \"on\" or \"off\""),
        ("etag on; etag on;", "\"etag\" directive is duplicate"),
        ("subrequest_output_buffer_size x;", "\"subrequest_output_buffer_size\" directive invalid value"),
        ("client_body_early_read $nonexist;", "unknown \"nonexist\" variable"),
        ("post_action /a; post_action /b;", "\"post_action\" directive is duplicate"),
        ("types { a b { } }", "unexpected \"{\""),
    ] {
        let found = error(&format!("http {{ server {{\n{text} }} }}"));
        let found = crate::testing::without_remedy(&found);
        assert_eq!(found, format!("{expected} in /conf/nginx.conf:2"), "{text}");
    }
    for (text, value) in
        [("satisfy", "x"), ("keepalive_disable", "foo"), ("server_tokens", "x"), ("lingering_close", "x")]
    {
        let found = error(&format!("http {{ server {{\n{text} {value}; }} }}"));
        assert!(found.starts_with(&format!("invalid value \"{value}\" in /conf/nginx.conf:2")), "{found}");
    }
}

#[test]
fn browsers_of_several_directives_in_a_block_are_combined() {
    let disable = |text: &str| {
        let config = loaded(text);
        let disable = core_of(&config).keepalive.keepalive_disable;
        (disable.msie6, disable.safari)
    };
    assert_eq!(disable("server { keepalive_disable safari; keepalive_disable msie6; }"), (true, true));
    assert_eq!(disable("keepalive_disable msie6; server { keepalive_disable safari; }"), (false, true));
}

#[test]
fn warnings_match_nginx() {
    let at = |text: &str| warnings(&format!("http {{ server {{\n{text} }} }}"));
    assert_eq!(at("send_lowat 1;"), ["\"send_lowat\" is not supported, ignored in /conf/nginx.conf:2"]);
    assert_eq!(at("keepalive_disable msie6 msie6;"), ["duplicate value \"msie6\" in /conf/nginx.conf:2"]);
    assert_eq!(at("types_hash_max_size 4096; server_name a;"), Vec::<String>::new());
}

#[test]
fn an_error_in_an_inner_block_is_reported_before_one_at_the_end_of_its_block() {
    let block = "http { server {\nconnection_pool_size 512; large_client_header_buffers 4 128;\nlocation / {\nrot a;\n}\n} }";
    let found = error(block);
    assert!(found.starts_with("unknown directive \"rot\" in /conf/nginx.conf:4"), "{found}");
    let found = error(&block.replace("rot a", "root a"));
    assert!(found.starts_with("the \"large_client_header_buffers\" size must be"), "{found}");
}

#[test]
fn root_beneath_with_variables_in_the_root_is_a_warning() {
    let expected = "\"root_beneath\" refuses all files of a \"root\" with variables in /conf/nginx.conf:2";
    for block in
        ["root_beneath on; server {\nroot /a/$host; }", "server { root /a/$host;\nroot_beneath on; }"]
    {
        assert_eq!(warnings(&format!("http {{ {block} }}")), [expected], "{block}");
    }
}

#[test]
fn an_argument_that_is_the_next_directive_is_a_warning() {
    let found = warnings("http { server {\nserver_name a\nroot b;\nerror_page 404\n  405 /x; } }");
    let expected = "\"root\" is an argument of \"server_name\" directive in /conf/nginx.conf:3; a \";\" is probably \
                    missing before it";
    assert_eq!(found, [expected]);
}
