//! `valid_referers` and `$invalid_referer`: whether a request was linked from a page of one of these sites.
//!
//! The client can forge the field, so it proves nothing; the check only keeps other sites from embedding this site's
//! files.

use std::sync::Arc;

use conf::{Args, Contexts, Error, Spec};
use http::fields::HeaderId;

use crate::{Declaration, Directive, Module};
use exchange::module::Variable;
use exchange::request::Request;
use site::config::{BlockEnd, BlockKind, Cx, Http, Scope, Settings, SettingsType};
use site::declaration::BlockHooks;
use site::pattern::{Pattern, SearchAborted};
use site::settings::names::ServerName;
use site::variables::Assign;
use site::wildcard::{HostTable, Refusal};

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: VARIABLES,
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        blocks: BlockHooks { end, ..BlockHooks::NONE },
        ..Declaration::named("http_referer")
    })
};

const CONTEXTS: Contexts = Contexts::SERVER.or(Contexts::LOCATION);

const DIRECTIVES: &[Directive] = &[
    // Without it every site is valid. Names may have a wildcard, and be followed by a path.
    Directive::scope(
        Spec::new(
            "http_referer",
            "valid_referers",
            CONTEXTS,
            Args::AtLeast(1),
            "Valid referring sites; `none` and `blocked` accept requests that name no site.",
        )
        .many(),
        read,
    ),
    hash("referer_hash_max_size", "2048"),
    hash("referer_hash_bucket_size", "64"),
];

/// Returns a directive for nginx's hash table sizes.
const fn hash(name: &'static str, default: &'static str) -> Directive {
    let spec =
        Spec::new("http_referer", name, CONTEXTS, Args::Exactly(1), "Size of a table of referring sites.");
    let spec = spec.default(default).state(conf::Support::Accepted("tables grow by themselves"));
    Directive::scope(spec, |_, cx| cx.number(&mut 0))
}

const VARIABLES: &[Variable] = &[Variable {
    name: "invalid_referer",
    get: |request, out| {
        if !is_valid(request) {
            out.push(b'1');
        }
        true
    },
    set: Some(Assign::Replace),
    help: "`1` if `valid_referers` does not list the referring site, else empty.",
}];

/// The list of valid sites.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf {
    list: Option<Arc<List>>,
    /// The block that contains the list.
    block: u32,
    /// Names of the enclosing server, once they are known.
    server_names: Option<Arc<[ServerName]>>,
}

/// The sites of one block.
#[derive(Clone, Debug, Default)]
struct List {
    /// Whether requests without the field are valid.
    none: bool,
    /// Whether requests with a masked field are valid. A proxy, for instance, may mask it.
    blocked: bool,
    /// Hosts; the value is an index in `paths`.
    hosts: HostTable<Option<u32>>,
    /// The prefix of the path, for hosts with one.
    paths: Vec<Box<[u8]>>,
    /// Regular expressions from the server's names, matched with the host.
    names: Vec<Arc<Pattern>>,
    /// Regular expressions matched with everything after the scheme.
    patterns: Vec<Arc<Pattern>>,
    /// Whether `patterns` are inherited, which applies to a block without its own.
    inherits_patterns: bool,
    /// Whether any host was listed.
    has_hosts: bool,
    /// Whether the names of the server are still to be added.
    awaits_names: bool,
}

/// Parses the directive. The first one in a block replaces the inherited list, further ones add to it.
fn read(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let conf = scope.make_mut::<Conf>();
    let mut list = conf.list.take().map(Arc::unwrap_or_clone).unwrap_or_default();
    if conf.block != cx.block {
        // nginx stores hosts and regular expressions separately, so a block without regular expressions inherits them.
        list = List { patterns: list.patterns, inherits_patterns: true, ..List::default() };
    }
    for text in cx.statement.texts() {
        match text {
            "" => return Err(cx.error("invalid referer \"\"")),
            "none" => list.none = true,
            "blocked" => list.blocked = true,
            "server_names" => match &conf.server_names {
                Some(names) => list.add_names(names, |message| cx.error(message))?,
                // In the server itself the names are not complete yet.
                None => list.awaits_names = true,
            },
            "~" => return Err(cx.error("empty regex in \"~\"")),
            _ => match text.strip_prefix('~') {
                Some(pattern) => {
                    if std::mem::take(&mut list.inherits_patterns) {
                        list.patterns.clear();
                    }
                    list.patterns.push(Arc::new(cx.pattern(pattern, true)?));
                }
                None => list.add(text, |message| cx.error(message))?,
            },
        }
    }
    (conf.list, conf.block) = (Some(Arc::new(list)), cx.block);
    Ok(())
}

impl List {
    /// Adds a host with an optional path, which is case-sensitive.
    fn add(&mut self, text: &str, fault: impl Fn(String) -> Error) -> Result<(), Error> {
        let (host, path) = text.split_at(text.find('/').unwrap_or(text.len()));
        let index = (!path.is_empty()).then_some(self.paths.len() as u32);
        self.add_host(&host.to_ascii_lowercase(), index, fault)?;
        if index.is_some() {
            self.paths.push(path.as_bytes().into());
        }
        Ok(())
    }

    /// Adds a host in lower case.
    fn add_host(
        &mut self,
        host: &str,
        index: Option<u32>,
        fault: impl Fn(String) -> Error,
    ) -> Result<(), Error> {
        self.has_hosts = true;
        self.hosts.add(host, index).map_err(|refusal| match refusal {
            Refusal::Taken => fault(format!("conflicting parameter \"{host}\"")),
            Refusal::Invalid => fault(format!("invalid hostname or wildcard \"{host}\"")),
        })
    }

    /// Adds the names of a server, including regular expressions.
    fn add_names(&mut self, names: &[ServerName], fault: impl Fn(String) -> Error) -> Result<(), Error> {
        self.has_hosts = true;
        for name in names {
            match name.pattern() {
                Some(pattern) => self.names.push(Arc::clone(pattern)),
                None => self.add_host(name.text(), None, &fault)?,
            }
        }
        Ok(())
    }

    /// Whether the list has no entry that a site can match.
    fn is_empty(&self) -> bool {
        !self.has_hosts && self.names.is_empty() && self.patterns.is_empty()
    }

    /// Whether a request with this field comes from a valid site. Fails if PCRE aborts the search.
    fn accepts<'l>(&'l self, referer: Option<&[u8]>) -> Result<bool, SearchAborted<'l>> {
        let Some(referer) = referer else { return Ok(self.none) };
        // nginx's minimum length of a URL: a scheme and a host of four bytes.
        const LEN_MIN: usize = "http://i.ru".len();
        let scheme_len = |scheme: &[u8]| {
            let begins = referer.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
            begins.then_some(scheme.len())
        };
        let scheme = scheme_len(b"http://").or_else(|| scheme_len(b"https://"));
        match scheme.filter(|_| referer.len() >= LEN_MIN) {
            Some(scheme) => self.accepts_address(&referer[scheme..]),
            None => Ok(self.blocked),
        }
    }

    /// Checks a URL without its scheme.
    fn accepts_address(&self, address: &[u8]) -> Result<bool, SearchAborted<'_>> {
        // nginx's limit; no host name is as long (RFC 1035 section 2.3.4).
        const HOST_LEN_MAX: usize = 256;
        let end = memchr::memchr2(b'/', b':', address).unwrap_or(address.len());
        if end > HOST_LEN_MAX {
            return Ok(false);
        }
        // Hosts are case-insensitive, paths are not.
        let host = address[..end].to_ascii_lowercase();
        match self.hosts.find(&host) {
            Some(None) => return Ok(true),
            Some(Some(index)) => {
                let path = memchr::memchr(b'/', address).map_or(&b""[..], |slash| &address[slash..]);
                debug_assert!((index as usize) < self.paths.len(), "the table has only indices of paths");
                return Ok(path.starts_with(&self.paths[index as usize]));
            }
            None => {}
        }
        let names = self.names.iter().map(|pattern| (pattern, &host[..]));
        for (pattern, text) in names.chain(self.patterns.iter().map(|pattern| (pattern, address))) {
            if pattern.find(text)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Adds the names of a server at its end, and checks each list at the end of its block.
fn end(_: &mut Http, scope: &mut Scope, end: &BlockEnd<'_>) -> Result<(), Error> {
    match end.kind {
        BlockKind::Server => scope.make_mut::<Conf>().add_server_names(end.names, end.span),
        BlockKind::Location => scope.of::<Conf>().check(end.span),
        BlockKind::Http | BlockKind::LimitExcept | BlockKind::If => Ok(()),
    }
}

impl Settings for Conf {}

impl Conf {
    /// Adds the names of the server; its locations are read after this.
    fn add_server_names(&mut self, names: &[ServerName], end: &conf::Span) -> Result<(), Error> {
        if let Some(list) = &mut self.list
            && list.awaits_names
        {
            Arc::make_mut(list).add_names(names, |message| Error::at(end, message))?;
        }
        self.server_names = Some(names.into());
        self.check(end)
    }

    /// Checks a complete block. As in nginx, `none` or `blocked` is an error without any host, even with a regular expression.
    fn check(&self, end: &conf::Span) -> Result<(), Error> {
        let is_wrong = |list: &Arc<List>| (list.none || list.blocked) && !list.has_hosts;
        match self.list.as_ref().is_some_and(is_wrong) {
            true => Err(Error::at(
                end,
                "the \"none\" or \"blocked\" referers are specified in the \"valid_referers\" directive without \
                 any valid referer",
            )),
            false => Ok(()),
        }
    }
}

/// Whether the request is valid; without a list all requests are.
fn is_valid(request: &Request) -> bool {
    match &request.scope().of::<Conf>().list {
        Some(list) if !list.is_empty() => {
            let referer = request.header(HeaderId::Referer);
            let tell = |gave_up: &SearchAborted<'_>| gave_up.log(referer.unwrap_or_default(), request);
            list.accepts(referer).inspect_err(tell).unwrap_or(false)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{error, loaded};

    #[test]
    fn referring_sites_are_distinguished() {
        let config = loaded(
            "server { server_name own.example ~^n\\d\\.; valid_referers none blocked server_names *.ex.com ex.* www.org.org/gal/ ~\\.goo\\.;
             location /strict { valid_referers *.ex.com; } location /only { valid_referers ~^[^/]+/a; } }",
        );
        let accepts = |name: &str, referer: Option<&str>| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            let list = location.expect("it is there").scope.of::<super::Conf>().list.clone();
            let list = list.expect("it has one");
            list.accepts(referer.map(str::as_bytes)).expect("no pattern takes long")
        };
        for (referer, expected) in [
            ("x", true),
            ("http://", true),
            ("ftp://ex.de/aaaaaaa", true),
            ("HTTP://www.EX.com/", true),
            ("http://ex.com", true),
            ("https://ex.com", true),
            ("http://ex.net:80/x", true),
            ("http://com.net:80/x", false),
            ("http://www.org.org/gal/x", true),
            ("http://www.org.org:8080/gal/", true),
            ("http://www.org.org/GAL/", false),
            ("http://www.org.org/other", false),
            ("http://www.org.org", false),
            ("http://x.goo.com/", true),
            ("http://z.com/.GOO.", true),
            ("http://own.example/", true),
            ("http://n1.here/", true),
            ("http://here.n1.here/", false),
        ] {
            assert_eq!(accepts("server", Some(referer)), expected, "{referer}");
        }
        assert!(accepts("server", None));
        assert!(!accepts("server", Some(&format!("http://{}.ex.com", "a".repeat(256)))));
        // A separate list, which inherits the regular expressions if it has none.
        assert!(!accepts("/strict", None) && !accepts("/strict", Some("blocked")));
        assert!(accepts("/strict", Some("http://a.ex.com")) && accepts("/strict", Some("http://x.goo.com/")));
        assert!(accepts("/only", Some("http://any.thing/a")) && !accepts("/only", Some("http://x.goo.com/")));
    }

    #[test]
    fn wrong_values_are_refused() {
        let nobody = "the \"none\" or \"blocked\" referers are specified in the \"valid_referers\" directive without any valid referer";
        for (text, expected) in [
            ("valid_referers none ~x;", nobody),
            ("location / { valid_referers none blocked; }", nobody),
            ("valid_referers ~;", "empty regex in \"~\""),
            ("valid_referers \"\";", "invalid referer \"\""),
            ("valid_referers a..b;", "invalid hostname or wildcard \"a..b\""),
            ("valid_referers *.a.*;", "invalid hostname or wildcard \"*.a.*\""),
            ("valid_referers a.b/x A.b/y;", "conflicting parameter \"a.b\""),
            ("valid_referers a.b; valid_referers a.b;", "conflicting parameter \"a.b\""),
            ("server_name a.b; valid_referers a.b server_names;", "conflicting parameter \"a.b\""),
            (
                "server_name a.b; location / { valid_referers server_names a.b; }",
                "conflicting parameter \"a.b\"",
            ),
            ("valid_referers ~(;", "pcre2_compile() failed: missing closing parenthesis in \"(\""),
            ("referer_hash_bucket_size -1;", "\"referer_hash_bucket_size\" directive invalid number"),
            ("referer_hash_max_size x;", "\"referer_hash_max_size\" directive invalid number"),
        ] {
            let found = error(&format!("http {{ server {{\n{text} }} }}"));
            assert!(found.starts_with(expected) && found.contains("/conf/nginx.conf:2"), "{found}");
        }
        loaded(
            "server { valid_referers none; valid_referers a.b; location / { valid_referers none server_names; } }",
        );
    }
}
