//! A second protocol, defined here, to test the features of the family and the settings of a protocol.

use std::path::Path;

use conf::{Args, Contexts, Error, MapLoader, Source, Spec};
use http::fields::Version;
use http::gateway::{Encoder, http1};

use crate::passing::conf::Conf;
use crate::passing::pass::{self, Destination, Scheme};
use crate::passing::request::Fill;
use crate::passing::{Family, Passing, Protocol, Rows, module};
use crate::{Directive, MODULES, Module};
use exchange::module::ModuleTable;
use exchange::request::Request;
use site::config::Loaded;
use upstream::{Outgoing, OutgoingBody};

/// Settings of the protocol: none.
#[derive(Clone, Debug, Default)]
struct Echo;

impl Family for Echo {
    const PREFIX: &'static str = "echo";
    const SCHEMES: &'static [Scheme] = &[Scheme { text: "echo://", port: 7, is_secure: false }];
    const HAS_URI: bool = true;
}

impl Protocol for Echo {
    fn build(&self, _: &Conf, _: &mut Request, _: &Destination, _: Option<&Fill>) -> Result<Outgoing, u16> {
        Ok(Outgoing {
            encoded: Encoder::Http1(http1::Encoder::new(Version::Http11)).end(),
            scheme: "echo://",
            secure: None,
            body: OutgoingBody::None,
            method: http::fields::Method::Get,
            is_idempotent: true,
            keepalive: true,
            upgrade: false,
            caught: Vec::new(),
            interim: None,
            deadline: None,
        })
    }
}

const PASS: &[Directive] = &[Directive::scope(
    Spec::new("", "_pass", Contexts::LOCATION, Args::Exactly(1), "Passes requests on."),
    pass::set::<Echo>,
)];

static ECHO: Module = module::<Echo>(
    "http_echo",
    &[PASS, Rows::<Echo>::CONNECTION, Rows::<Echo>::BODIES, Rows::<Echo>::STORE, Rows::<Echo>::CACHE],
);

/// Loads a configuration with this `http` block, with a server that has the protocol.
fn load(http: &str) -> Result<Loaded, Error> {
    let table = Box::leak(Box::new(ModuleTable::new(&[core_modules::MODULES, MODULES, &[&ECHO]])));
    let text = format!("http {{ {http} }}\nevents {{}}");
    let loader: MapLoader = [("/conf/nginx.conf", text)].into_iter().collect();
    site::config::load(table.declarations(), &Source::new("/conf/nginx.conf"), Path::new("/prefix"), &loader)
}

#[test]
fn each_protocol_has_the_directives_under_its_own_prefix() {
    let loaded = load(
        "echo_cache_path /c keys_zone=one:1m; echo_buffers 4 8k; proxy_buffers 5 8k;
         server { location / { echo_pass echo://127.0.0.1; } }",
    );
    let config = loaded.expect("it is right").config;
    let scope = &config.http.locations.last().expect("there is a server").scope;
    let (echo, proxy) = (&scope.of::<Passing<Echo>>().conf, &scope.of::<Passing<crate::proxy::Http>>().conf);
    assert_eq!((echo.upstream.buffers, proxy.upstream.buffers), ((4, 8192), (5, 8192)));
    assert_eq!((echo.pass.is_some(), proxy.pass.is_some()), (true, false));
    assert_eq!(echo.upstream.temp_path.path().to_str(), Some("/prefix/echo_temp"));
}

#[test]
fn messages_have_the_prefix_of_their_protocol() {
    for (text, expected) in [
        ("\necho_buffers 1 4k;", "there must be at least 2 \"echo_buffers\""),
        ("echo_cache_key a;\necho_cache none;", "\"echo_cache\" zone \"none\" is unknown"),
        ("\necho_cache_path /c levels=1;", "\"echo_cache_path\" must have \"keys_zone\" parameter"),
        (
            "echo_cache_path /c keys_zone=one:1m; echo_cache one;\necho_store on;",
            "\"echo_store\" directive is incompatible with \"echo_cache\"",
        ),
        ("server { location ~ a {\necho_pass echo://127.0.0.1/; } }", "\"echo_pass\" cannot have URI part"),
        ("server { location / {\necho_pass http://127.0.0.1; } }", "invalid URL prefix"),
        // A directive table that the protocol does not have.
        ("\necho_ssl_verify on;", "unknown directive \"echo_ssl_verify\""),
    ] {
        let found = load(text).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(found.starts_with(expected) && found.contains("nginx.conf:2"), "{text}: {found}");
    }
}
