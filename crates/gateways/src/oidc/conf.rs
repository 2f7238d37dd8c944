//! The directives of `oidc`: the block `oidc_provider` with its rows, and `auth_oidc`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use conf::{Args, Contexts, Error, Object, Span, Spec, value};

use super::documents::Documents;
use super::pending::EndedLogins;
use super::url::ProviderUrl;
use crate::Directive;
use crate::passing::verifying_client;
use exchange::tls_arguments::{File, read_file};
use peers::address::HostKind;
use site::config::{Cx, Http, Requirements, Scope, Settings};
use site::declaration::LEVELS;
use site::shared_zone::pairs::{Matching, Pairs};
use site::shared_zone::{AnyZone, ZoneKind, table};
use site::template::Template;
use upstream::SecureSettings;

/// nginx's name of the module.
const NAME: &str = "http_oidc";

pub(super) const DIRECTIVES: &[Directive] = &[
    Directive::http(
        Spec::new(
            NAME,
            "oidc_provider",
            Contexts::HTTP,
            Args::Exactly(1),
            "An OpenID provider, where clients log in: `issuer`, `client_id`, `client_secret`, `config_url`, `cookie_name`, \
             `extra_auth_args`, `frontchannel_logout_uri`, `logout_token_hint`, `logout_uri`, `pkce`, `post_logout_uri`, \
             `redirect_uri`, `scope`, `session_store`, `session_timeout`, `ssl_crl`, `ssl_trusted_certificate`, `userinfo`.",
        )
        .raw()
        .many(),
        add_provider,
    ),
    Directive::scope(
        Spec::new(
            NAME,
            "auth_oidc",
            LEVELS,
            Args::Exactly(1),
            "The provider where clients log in before they have access, or `off`; the name may have variables.",
        )
        .default("off"),
        |scope, cx| {
            let name = Some(cx.arg(0)).filter(|name| *name != "off");
            let template = name.map(|name| cx.template(name)).transpose()?;
            let conf = scope.make_mut::<AuthConf>();
            conf.provider = template.map(Arc::new);
            conf.position = Some(cx.statement.span().clone());
            Ok(())
        },
    ),
];

/// The setting of a block.
#[derive(Clone, Debug, Default)]
pub(super) struct AuthConf {
    /// The name of the provider; `None` for `off`.
    pub(super) provider: Option<Arc<Template>>,
    /// The position of the directive, for an error about an unknown name.
    position: Option<Span>,
}

impl Settings for AuthConf {}

/// The providers of `http`.
#[derive(Debug, Default)]
pub(super) struct ProvidersConf {
    /// The providers by their names.
    providers: BTreeMap<String, Arc<OidcProvider>>,
    /// The URIs that the module itself serves, by the index of the server.
    served: Vec<Vec<ServedUri>>,
}

/// A URI that the module serves in a server.
#[derive(Clone, Debug)]
pub(super) struct ServedUri {
    /// The decoded path.
    path: String,
    /// The purpose.
    pub(super) kind: ServedKind,
    /// The provider that the URI belongs to.
    pub(super) provider: Arc<OidcProvider>,
}

/// The purpose of a URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServedKind {
    /// `redirect_uri`
    Callback,
    /// `logout_uri`
    Logout,
    /// `frontchannel_logout_uri`
    FrontChannelLogout,
}

impl ProvidersConf {
    /// Returns the provider of this name.
    pub(super) fn named(&self, name: &str) -> Option<&Arc<OidcProvider>> {
        self.providers.get(name)
    }

    /// Whether there is any provider.
    pub(super) fn is_used(&self) -> bool {
        !self.providers.is_empty()
    }

    /// Returns the purposes of a path in a server. Several providers may share one.
    pub(super) fn served(&self, server: u32, path: &[u8]) -> impl Iterator<Item = &ServedUri> {
        let uris = self.served.get(server as usize).into_iter().flatten();
        uris.filter(move |uri| uri.path.as_bytes() == path)
    }
}

/// The client secret, which no message shows.
pub(super) struct ClientSecret(pub(super) String);

impl fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientSecret")
    }
}

/// `oidc_provider`
#[derive(Debug)]
pub(super) struct OidcProvider {
    /// The name in the configuration.
    pub(super) name: String,
    /// `issuer`, which metadata and ID tokens must have exactly.
    pub(super) issuer: String,
    /// `client_id`: the audience of ID tokens.
    pub(super) client_id: String,
    /// `client_secret`; `None` for a public client.
    pub(super) client_secret: Option<ClientSecret>,
    /// `config_url`: the URL of the metadata.
    pub(super) config_url: ProviderUrl,
    /// Whether all URLs of the provider must have the scheme `https`: unless the operator has written another one.
    pub(super) needs_tls: bool,
    /// `cookie_name`: the cookie with the identifier of a session.
    pub(super) cookie_name: String,
    /// `extra_auth_args`, percent-encoded.
    pub(super) extra_auth_args: String,
    /// `redirect_uri`
    pub(super) redirect: RedirectUri,
    /// `logout_uri`: a path.
    pub(super) logout_uri: Option<String>,
    /// `post_logout_uri`: a path or a URL.
    pub(super) post_logout_uri: Option<String>,
    /// `frontchannel_logout_uri`: a path.
    pub(super) front_channel_uri: Option<String>,
    /// `logout_token_hint`
    pub(super) adds_token_hint: bool,
    /// `None`: as the provider's metadata says.
    pub(super) pkce: Option<bool>,
    /// `scope`: names that are separated by blanks, with `openid`.
    pub(super) scope: String,
    /// `session_timeout`, which begins with the login and with each refresh.
    pub(super) session_timeout: Duration,
    /// `userinfo`
    pub(super) has_userinfo: bool,
    /// TLS to the provider; `None` if no URL in the configuration needs it.
    pub(super) secure: Option<Arc<SecureSettings>>,
    /// The name of the zone with the sessions.
    store: StoreName,
    /// This zone, when the complete configuration was read.
    zone: OnceLock<Arc<dyn AnyZone>>,
    /// Metadata and keys, which all threads share.
    pub(super) documents: Arc<Documents>,
    /// The logins that have ended, at all threads.
    pub(super) ended: EndedLogins,
    /// The position of the block.
    span: Span,
}

impl OidcProvider {
    /// Returns the zone of the sessions.
    pub(super) fn zone(&self) -> &Arc<dyn AnyZone> {
        self.zone.get().expect("a configuration without the zone is refused")
    }

    /// Returns the sessions.
    pub(super) fn sessions(&self) -> &Pairs {
        self.zone().pairs().expect("zones begin before the threads do, and the kind of the zone was checked")
    }

    /// Returns the text that ties sessions and logins to the provider: another provider accepts none of them.
    pub(super) fn context(&self) -> Vec<u8> {
        [self.name.as_str(), self.issuer.as_str(), self.client_id.as_str()].join("\0").into_bytes()
    }
}

/// `redirect_uri`
#[derive(Debug)]
pub(super) struct RedirectUri {
    /// The complete URI, if the directive has one.
    pub(super) absolute: Option<String>,
    /// Scheme and host of the complete URI.
    pub(super) base: Option<String>,
    /// The path that the provider returns clients to.
    pub(super) path: String,
}

/// The zone of sessions.
#[derive(Debug)]
struct StoreName {
    /// The name, written or the default.
    name: String,
    /// The position of `session_store`.
    position: Option<Span>,
}

/// The kind of default zones of sessions.
#[derive(Debug)]
pub(super) struct SessionZone;

/// The size of default zones, as in nginx.
const DEFAULT_ZONE_BYTES: u64 = 8 << 20;

impl ZoneKind for SessionZone {
    type Content = Pairs;

    fn empty(&self, bytes: u64) -> Pairs {
        Pairs::new(table::usable_bytes(bytes), Matching::Exact, None)
    }

    fn shares_pairs(&self) -> bool {
        true
    }

    fn pairs(pairs: &Pairs) -> Option<&Pairs> {
        Some(pairs)
    }

    fn used(pairs: &Pairs) -> Option<u64> {
        Some(pairs.used())
    }

    fn continues(&self, _: &SessionZone) -> bool {
        true
    }
}

/// The rows of `oidc_provider`.
#[derive(Default)]
struct ProviderRows {
    /// The rows of [`TEXT_ROWS`], and `scope`.
    texts: BTreeMap<&'static str, String>,
    /// The rows of [`FLAG_ROWS`].
    flags: BTreeMap<&'static str, bool>,
    /// `session_timeout`
    session_timeout: Option<Duration>,
    /// The position of `session_store`.
    store_position: Option<Span>,
    /// `ssl_trusted_certificate`
    trusted: Option<File>,
    /// `ssl_crl`
    crl: Option<File>,
}

/// Rows with one text.
const TEXT_ROWS: [&str; 11] = [
    "issuer",
    "client_id",
    "client_secret",
    "config_url",
    "cookie_name",
    "extra_auth_args",
    "frontchannel_logout_uri",
    "logout_uri",
    "post_logout_uri",
    "redirect_uri",
    "session_store",
];

/// Rows that are `on` or `off`.
const FLAG_ROWS: [&str; 3] = ["logout_token_hint", "pkce", "userinfo"];

/// nginx's default of `session_timeout`.
const SESSION_TIME: Duration = Duration::from_secs(8 * 60 * 60);

/// The longest `session_timeout`, so that a typing error does not create sessions without an end.
const SESSION_TIME_MAX: u64 = 366 * 24 * 60 * 60;

/// Implements the setter of `oidc_provider`. Without `session_store` the provider gets a zone of its own.
fn add_provider(cx: &mut Cx<'_>) -> Result<(), Error> {
    let block = cx.statement;
    let name = cx.arg(0).to_owned();
    if cx.http.of::<ProvidersConf>().providers.contains_key(&name) {
        return Err(cx.error(format_args!("duplicate OIDC provider \"{name}\"")));
    }
    let mut rows = ProviderRows::default();
    for row in block.rows() {
        read_row(&mut rows, &mut cx.at(row?))?;
    }
    let provider = Arc::new(provider(&name, rows, cx)?);
    if provider.store.position.is_none() {
        let zone = (provider.store.name.as_str(), DEFAULT_ZONE_BYTES);
        cx.http.zones.declare(zone, SessionZone, |_| "oidc_provider", block)?;
    }
    cx.http.make_mut::<ProvidersConf>().providers.insert(name, provider);
    Ok(())
}

/// Reads a row.
fn read_row(rows: &mut ProviderRows, cx: &mut Cx<'_>) -> Result<(), Error> {
    let row = cx.statement;
    let name = row.name.text.as_str();
    let is_scope = name == "scope";
    let known = TEXT_ROWS.iter().chain(&FLAG_ROWS).find(|known| **known == name).copied();
    if known.is_none()
        && !is_scope
        && !matches!(name, "session_timeout" | "ssl_crl" | "ssl_trusted_certificate")
    {
        return Err(cx.error(format_args!("unknown directive \"{name}\" in \"oidc_provider\"")));
    }
    if row.args.is_empty() || row.args.len() > 1 && !is_scope {
        return Err(cx.error(format_args!("invalid number of arguments in \"{name}\" directive")));
    }
    let once = |is_set: bool| match is_set {
        true => Err(cx.error(format_args!("\"{name}\" directive is duplicate"))),
        false => Ok(()),
    };
    let text = cx.arg(0);
    match known {
        Some(name) if FLAG_ROWS.contains(&name) => {
            let mut flag = false;
            cx.flag(&mut flag)?;
            once(rows.flags.insert(name, flag).is_some())?;
        }
        Some(name) => {
            once(rows.texts.insert(name, text.to_owned()).is_some())?;
            if name == "session_store" {
                rows.store_position = Some(row.span().clone());
            }
        }
        None if is_scope => {
            once(rows.texts.contains_key("scope"))?;
            let scopes: Vec<&str> = row.texts().collect();
            // RFC 6749 section 3.3
            let is_scope_byte = |byte: u8| byte.is_ascii_graphic() && !b"\"\\".contains(&byte);
            if let Some(wrong) =
                scopes.iter().find(|scope| scope.is_empty() || !scope.bytes().all(is_scope_byte))
            {
                return Err(cx.error(format_args!("invalid scope \"{wrong}\"")));
            }
            rows.texts.insert("scope", scopes.join(" "));
        }
        None if name == "session_timeout" => {
            once(rows.session_timeout.is_some())?;
            let seconds = value::seconds(text).ok().filter(|time| (1..=SESSION_TIME_MAX).contains(time));
            let seconds = seconds.ok_or_else(|| cx.error("\"session_timeout\" directive invalid value"))?;
            rows.session_timeout = Some(Duration::from_secs(seconds));
        }
        None if name == "ssl_crl" => {
            once(rows.crl.is_some())?;
            rows.crl = Some(read_file(cx, "revocation list")?);
        }
        None => {
            once(rows.trusted.is_some())?;
            rows.trusted = Some(read_file(cx, "certificate")?);
        }
    }
    Ok(())
}

/// Creates the provider of a block with these rows.
fn provider(name: &str, mut rows: ProviderRows, cx: &mut Cx<'_>) -> Result<OidcProvider, Error> {
    let mut required = |row: &str| {
        let text = rows.texts.remove(row).filter(|text| !text.is_empty());
        text.ok_or_else(|| cx.error(format_args!("no \"{row}\" in the provider \"{name}\"")))
    };
    let (issuer, client_id) = (required("issuer")?, required("client_id")?);
    let mut text = |row: &str| rows.texts.remove(row);
    let issuer_url = read_issuer(&issuer, cx)?;
    let config_url = match text("config_url") {
        Some(url) => url,
        // OpenID Connect Discovery 1.0 section 4
        None => format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/')),
    };
    let config_url = read_url("config_url", &config_url, cx)?;
    warn_of_clear_text(&issuer_url, &config_url, cx);
    let cookie_name = text("cookie_name").unwrap_or_else(|| "NGX_OIDC_SESSION".to_owned());
    if !is_cookie_name(&cookie_name) {
        return Err(cx.error(format_args!("invalid cookie name \"{cookie_name}\"")));
    }
    let extra_auth_args = text("extra_auth_args").unwrap_or_default();
    if let Some(fault) = fault_of_extra(&extra_auth_args) {
        return Err(cx.error(format_args!("invalid \"extra_auth_args\": {fault}")));
    }
    let redirect = read_redirect(text("redirect_uri").as_deref().unwrap_or("/oidc_callback"), cx)?;
    let mut path = |row: &str| text(row).map(|uri| read_path(row, uri, cx)).transpose();
    let (logout_uri, front_channel_uri) = (path("logout_uri")?, path("frontchannel_logout_uri")?);
    let post_logout_uri = match text("post_logout_uri") {
        Some(uri) if uri.starts_with('/') => Some(read_path("post_logout_uri", uri, cx)?),
        Some(uri) => read_url("post_logout_uri", &uri, cx).map(|_| Some(uri))?,
        None => None,
    };
    let scope = text("scope").unwrap_or_else(|| "openid".to_owned());
    let has_openid = scope.split(' ').any(|scope| scope == "openid");
    let store = StoreName {
        name: text("session_store").unwrap_or_else(|| format!("oidc_default_store_{name}")),
        position: rows.store_position,
    };
    let client_secret = text("client_secret").filter(|secret| !secret.is_empty()).map(ClientSecret);
    let flag = |row: &str| rows.flags.get(row).copied();
    let secure = match issuer_url.is_secure || config_url.is_secure {
        true => Some(secure(rows.trusted, rows.crl, cx)?),
        false => None,
    };
    Ok(OidcProvider {
        name: name.to_owned(),
        client_id,
        client_secret,
        needs_tls: issuer_url.is_secure,
        issuer,
        config_url,
        cookie_name,
        extra_auth_args,
        redirect,
        logout_uri,
        post_logout_uri,
        front_channel_uri,
        adds_token_hint: flag("logout_token_hint").unwrap_or(false),
        pkce: flag("pkce"),
        scope: if has_openid { scope } else { format!("openid {scope}") },
        session_timeout: rows.session_timeout.unwrap_or(SESSION_TIME),
        has_userinfo: flag("userinfo").unwrap_or(false),
        secure,
        store,
        zone: OnceLock::new(),
        documents: Arc::default(),
        ended: EndedLogins::default(),
        span: cx.statement.span().clone(),
    })
}

/// Prepares TLS: the certificate of the provider is always verified.
fn secure(trusted: Option<File>, crl: Option<File>, cx: &mut Cx<'_>) -> Result<Arc<SecureSettings>, Error> {
    let names = ("oidc_provider", "ssl_trusted_certificate");
    verifying_client(cx, names, trusted, crl, vec![b"http/1.1".to_vec()]).map(Arc::new)
}

/// Parses an issuer, which has no query (OpenID Connect Discovery 1.0 section 3).
fn read_issuer(text: &str, cx: &Cx<'_>) -> Result<ProviderUrl, Error> {
    let url = read_url("issuer", text, cx)?;
    match text.contains('?') {
        true => Err(cx.error(format_args!("the issuer \"{text}\" has a query"))),
        false => Ok(url),
    }
}

/// Parses the URL of a row.
fn read_url(row: &str, text: &str, cx: &Cx<'_>) -> Result<ProviderUrl, Error> {
    ProviderUrl::parse(text).map_err(|fault| cx.error(format_args!("{fault} in \"{row}\" \"{text}\"")))
}

/// Warns if tokens or the metadata are sent without TLS, except on the same machine.
fn warn_of_clear_text(issuer: &ProviderUrl, config_url: &ProviderUrl, cx: &mut Cx<'_>) {
    for (row, url) in [("issuer", issuer), ("config_url", config_url)] {
        let is_local = match &url.address.kind {
            HostKind::Address(io::op::PeerAddr::Inet(address)) => address.ip().is_loopback(),
            HostKind::Address(_) => true,
            HostKind::Name => url.address.host == "localhost",
        };
        if !url.is_secure && !is_local {
            cx.warn(format_args!(
                "\"{row}\" has no TLS: an attacker in the network can log in as any user; use \"https://\""
            ));
            return;
        }
    }
}

/// Whether a text may be the name of a cookie (RFC 6265 section 4.1.1).
fn is_cookie_name(text: &str) -> bool {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.len() <= 128 && text.bytes().all(is_token)
}

/// Arguments of the authentication request that the module sets itself.
const OWN_ARGS: [&str; 9] = [
    "client_id",
    "code_challenge",
    "code_challenge_method",
    "nonce",
    "redirect_uri",
    "response_mode",
    "response_type",
    "scope",
    "state",
];

/// Returns the reason why a text is not usable as further arguments of the authentication request.
fn fault_of_extra(text: &str) -> Option<String> {
    if !text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
        return Some("a character needs percent-encoding".to_owned());
    }
    let names = text.split('&').map(|arg| arg.split('=').next().unwrap_or_default());
    let own = names.into_iter().find(|name| OWN_ARGS.contains(name));
    own.map(|name| format!("this server sets the argument \"{name}\""))
}

/// Parses `redirect_uri`. A URL must have TLS: clients reach this server through a proxy that has the certificate.
fn read_redirect(text: &str, cx: &Cx<'_>) -> Result<RedirectUri, Error> {
    if text.starts_with('/') {
        let path = read_path("redirect_uri", text.to_owned(), cx)?;
        return Ok(RedirectUri { absolute: None, base: None, path });
    }
    let url = read_url("redirect_uri", text, cx)?;
    if !url.is_secure {
        return Err(
            cx.error(format_args!("\"redirect_uri\" \"{text}\" must be a path, or begin with \"https://\""))
        );
    }
    let path = url.target.split('?').next().unwrap_or_default().to_owned();
    let base = Some(format!("https://{}", url.authority));
    Ok(RedirectUri { absolute: Some(text.to_owned()), base, path })
}

/// Reads a path of this server. It is compared with the decoded paths of requests.
fn read_path(row: &str, text: String, cx: &Cx<'_>) -> Result<String, Error> {
    let is_path = text.starts_with('/')
        && !text.starts_with("//")
        && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#%\\".contains(&byte));
    match is_path {
        true => Ok(text),
        false => Err(cx.error(format_args!("invalid path \"{text}\" in \"{row}\""))),
    }
}

/// Finds the zones of sessions, and the URIs that the module serves, after all blocks were read.
pub(super) fn complete(http: &mut Http) -> Result<(), Error> {
    let conf = http.of::<ProvidersConf>();
    for provider in conf.providers.values() {
        let StoreName { name, position } = &provider.store;
        let at = position.as_ref().unwrap_or(&provider.span);
        let entry = http.zones.0.iter().find(|entry| entry.name() == name && entry.section() == http.section);
        let entry = entry.ok_or_else(|| Error::undefined(at, Object::Zone, name))?;
        // A zone without a declaration is an error anyway.
        if entry.zone.bytes().is_some() && !entry.zone.shares_pairs() {
            let what =
                format_args!("the zone \"{name}\" is no zone of \"keyval_zone\" with the type \"string\"");
            return Err(Error::at(at, what));
        }
        // A configuration is completed once.
        let _ = provider.zone.set(Arc::clone(&entry.zone));
    }
    let mut served = vec![Vec::new(); http.servers.len()];
    for location in &http.locations {
        let AuthConf { provider: Some(template), position } = location.scope.of::<AuthConf>() else {
            continue;
        };
        let used: Vec<&Arc<OidcProvider>> = match template.constant() {
            Some(name) => vec![conf.named(name).ok_or_else(|| {
                let what = format_args!("unknown OIDC provider \"{name}\"");
                let error = match position {
                    Some(span) => Error::at(span, what),
                    None => Error::without_location(what),
                };
                error.advise(format_args!("define it with \"oidc_provider {name} {{ }}\""))
            })?],
            None => conf.providers.values().collect(),
        };
        let of_server = &mut served[location.server.0 as usize];
        used.into_iter().for_each(|provider| add_served(of_server, provider));
    }
    http.make_mut::<ProvidersConf>().served = served;
    Ok(())
}

/// Adds the URIs of a provider, unless they are there.
fn add_served(served: &mut Vec<ServedUri>, provider: &Arc<OidcProvider>) {
    if served.iter().any(|uri| Arc::ptr_eq(&uri.provider, provider)) {
        return;
    }
    let mut add = |path: &str, kind| {
        served.push(ServedUri { path: path.to_owned(), kind, provider: Arc::clone(provider) });
    };
    add(&provider.redirect.path, ServedKind::Callback);
    if let Some(path) = &provider.logout_uri {
        add(path, ServedKind::Logout);
    }
    if let Some(path) = &provider.front_channel_uri {
        add(path, ServedKind::FrontChannelLogout);
    }
}

/// Warns of providers in one server that clients cannot use together.
pub(super) fn check(http: &Http, warnings: &mut Vec<Error>) -> Result<(), Error> {
    for (index, served) in http.of::<ProvidersConf>().served.iter().enumerate() {
        if http.servers[index].position.is_none() {
            continue;
        }
        let callbacks: Vec<_> = served.iter().filter(|uri| uri.kind == ServedKind::Callback).collect();
        for (number, uri) in callbacks.iter().enumerate() {
            let (one, others) = (&uri.provider, &callbacks[..number]);
            let mut warn = |what: &str, other: &str| {
                let what = format_args!(
                    "the OIDC providers \"{other}\" and \"{}\" of a server have the same {what}",
                    one.name
                );
                warnings.push(Error::at(&one.span, what).with_level(conf::Level::Warn));
            };
            if let Some(other) = others.iter().find(|other| other.provider.cookie_name == one.cookie_name) {
                warn(
                    "\"cookie_name\": a login at one of them ends the session of the other",
                    &other.provider.name,
                );
            }
            if let Some(other) = others.iter().find(|other| other.provider.store.name == one.store.name) {
                warn("\"session_store\"", &other.provider.name);
            }
        }
    }
    Ok(())
}

/// The port of name servers.
const NAME_SERVER_PORT: u16 = 53;

/// Adds the ports of the providers. Metadata with other ports than these is not usable in a sandbox.
pub(super) fn requires(http: &Http, _: &Scope, requirements: &mut Requirements) {
    for provider in http.of::<ProvidersConf>().providers.values() {
        let uses = &mut requirements.uses;
        uses.connects(NAME_SERVER_PORT);
        if let Ok(issuer) = ProviderUrl::parse(&provider.issuer) {
            uses.connects(issuer.address.port);
        }
        uses.connects(provider.config_url.address.port);
        if provider.needs_tls {
            uses.connects(443);
        }
    }
}
