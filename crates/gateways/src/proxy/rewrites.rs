//! Rewriting of URIs and cookies in response fields: `proxy_redirect`, `proxy_cookie_domain`, `proxy_cookie_path`,
//! `proxy_cookie_flags`.
//!
//! | directive | applies to | a plain text is compared with | and replaces |
//! |---|---|---|---|
//! | `proxy_redirect` | `Location`, and the URI in `Refresh` | the prefix | the prefix |
//! | `proxy_cookie_path` | `path` of cookies | the prefix | the prefix |
//! | `proxy_cookie_domain` | `domain` of cookies | the value without a leading dot, ignoring case | the compared text |
//! | `proxy_cookie_flags` | the name of cookies | the complete name, ignoring case | the flags |
//!
//! A regular expression is searched for, and the complete value is replaced. Only the first match of several directives applies.
//!
//! This file has the directives and the rules for changing a value. `reply` selects the fields; `http::set_cookie` parses cookies.

use std::borrow::Cow;
use std::sync::Arc;

use conf::{Args, Error};
use http::set_cookie::{self, Attribute, Flags, SetCookie};

use crate::Directive;
use crate::passing::Passing;
use crate::passing::pass::Pass;
use crate::passing::spec::row;
use crate::proxy::conf::{Http, http};
use exchange::request::Request;
use site::config::{Cx, Layered, Scope};
use site::pattern::Pattern;
use site::template::Template;

pub(super) const DIRECTIVES: &[Directive] = &[
    // The upstream's own address is useless to clients: by default the address of `proxy_pass` is replaced by the location.
    Directive::scope(
        row("_redirect", Args::Between(1, 2), "Changes the beginning of `Location` and `Refresh`.")
            .default("default")
            .many(),
        add_redirect,
    ),
    // A browser discards cookies for a domain that it did not send the request to.
    Directive::scope(
        row("_cookie_domain", Args::Between(1, 2), "Changes the `domain` of cookies.").default("off").many(),
        add_cookie_domain,
    ),
    // A browser does not send cookies for another path; the upstream's paths often differ from those of this server.
    Directive::scope(
        row("_cookie_path", Args::Between(1, 2), "Changes the beginning of the `path` of cookies.")
            .default("off")
            .many(),
        add_cookie_path,
    ),
    // For applications that cannot detect that their clients use TLS.
    Directive::scope(
        row("_cookie_flags", Args::Between(1, 4), "Adds flags to cookies, or removes them.")
            .default("off")
            .many(),
        add_cookie_flags,
    ),
];

/// A pattern and its replacement.
#[derive(Clone, Debug)]
pub(super) struct Rewrite {
    find: Find,
    replacement: Arc<Template>,
}

/// Pattern for a value.
#[derive(Clone, Debug)]
enum Find {
    /// A prefix, which is replaced.
    Prefix(Arc<Template>),
    /// The complete value without a leading dot, ignoring case.
    Domain(Arc<Template>),
    /// A regular expression; the complete value is replaced.
    Pattern(Arc<Pattern>),
}

impl Rewrite {
    /// Returns the rewritten value; `None` if the value does not match.
    fn apply(&self, request: &Request, value: &[u8]) -> Option<Vec<u8>> {
        match &self.find {
            Find::Prefix(prefix) => {
                let rest = value.strip_prefix(prefix.rendered(request).as_slice())?;
                let mut changed = self.replacement.rendered(request);
                changed.extend_from_slice(rest);
                Some(changed)
            }
            Find::Domain(domain) => {
                let (domain, replacement) = (domain.rendered(request), self.replacement.rendered(request));
                set_cookie::replaced_domain(value, &domain, &replacement)
            }
            Find::Pattern(pattern) => {
                let found = pattern.find(value).inspect_err(|gave_up| gave_up.log(value, request));
                found.ok().flatten()?.store(value, request);
                Some(self.replacement.rendered(request))
            }
        }
    }
}

/// Returns the result of the first rewrite that matches.
fn first(list: &[Rewrite], request: &Request, value: &[u8]) -> Option<Vec<u8>> {
    list.iter().find_map(|rewrite| rewrite.apply(request, value))
}

/// `proxy_redirect`: a list that can be turned off completely.
#[derive(Clone, Debug, Default)]
pub(super) struct Redirects {
    list: Layered<Rewrite>,
    /// Number of the block with `off`, and whether `off` applies.
    off_block: u32,
    is_off: bool,
    /// The default without a directive, derived from `proxy_pass`.
    by_default: Option<Rewrite>,
}

impl Redirects {
    /// Determines the default at the end of a block.
    pub(super) fn finish(&mut self, pass: Option<&Pass>) {
        self.by_default = pass.and_then(default_of);
    }

    /// Returns the rewritten value of `Location` or of the URI in `Refresh`; `None` if no rewrite matches.
    pub(super) fn apply(&self, request: &Request, value: &[u8]) -> Option<Vec<u8>> {
        if self.is_off {
            return None;
        }
        match self.list.items() {
            [] => self.by_default.as_ref()?.apply(request, value),
            list => first(list, request, value),
        }
    }
}

/// Returns the default rewrite: the address of `proxy_pass` is replaced by the location. An address with variables, or a location
/// without a path, has no default.
fn default_of(pass: &Pass) -> Option<Rewrite> {
    let (url, place) = pass.written()?;
    let (from, to) = match place.uri.is_empty() {
        true => (format!("{url}/"), "/"),
        false => (url.to_owned(), pass.location()),
    };
    let find = Find::Prefix(Arc::new(Template::text(&from)));
    Some(Rewrite { find, replacement: Arc::new(Template::text(to)) })
}

fn add_redirect(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let block = cx.block;
    let redirects = &mut http(scope).redirects;
    let has_own = redirects.list.is_of(block) && !redirects.list.items().is_empty();
    if redirects.off_block == block {
        return Err(duplicate(cx));
    }
    let rewrite = match (cx.arg(0), cx.statement.args.get(1)) {
        ("off", None) if has_own => return Err(duplicate(cx)),
        ("off", None) => {
            (redirects.off_block, redirects.is_off) = (block, true);
            return Ok(());
        }
        ("default", None) => written_default(scope, cx)?,
        (text, None) => return Err(cx.error(format_args!("invalid parameter \"{text}\""))),
        (text, Some(_)) => read(text, cx)?,
    };
    let redirects = &mut http(scope).redirects;
    redirects.is_off = false;
    redirects.list.make_mut(block).push(rewrite);
    Ok(())
}

/// Returns the rewrite of an explicit `default`. `proxy_pass` must precede it: as in nginx the configuration is read in one pass.
fn written_default(scope: &Scope, cx: &Cx<'_>) -> Result<Rewrite, Error> {
    let conf = &scope.of::<Passing<Http>>().conf;
    let own = conf.pass.as_deref().filter(|_| conf.pass_block == cx.block);
    let Some(pass) = own else {
        return Err(
            cx.error("\"proxy_redirect default\" should be placed after the \"proxy_pass\" directive")
        );
    };
    default_of(pass).ok_or_else(|| {
        cx.error("\"proxy_redirect default\" cannot be used with \"proxy_pass\" directive with variables")
    })
}

fn duplicate(cx: &Cx<'_>) -> Error {
    let name = &cx.statement.name.text;
    cx.error(format_args!("\"{name}\" directive is duplicate"))
}

/// Parses a pair: a regular expression after `~`, or after `~*` ignoring case, or a prefix; and the replacement.
fn read(text: &str, cx: &mut Cx<'_>) -> Result<Rewrite, Error> {
    let find = match text.strip_prefix('~') {
        Some(pattern) => {
            let caseless = pattern.strip_prefix('*');
            Find::Pattern(Arc::new(cx.pattern(caseless.unwrap_or(pattern), caseless.is_some())?))
        }
        None => Find::Prefix(Arc::new(cx.template(text)?)),
    };
    let replacement = Arc::new(cx.template(cx.arg(1))?);
    Ok(Rewrite { find, replacement })
}

/// Adds to a list that `off` can replace; `off` is stored as an empty list of the block.
fn add_to<T: Clone>(list: &mut Layered<T>, item: Option<T>, cx: &Cx<'_>) -> Result<(), Error> {
    let has_own = list.is_of(cx.block);
    let is_off = has_own && list.items().is_empty();
    match item {
        _ if is_off => Err(duplicate(cx)),
        None if has_own => Err(duplicate(cx)),
        None => {
            list.make_mut(cx.block);
            Ok(())
        }
        Some(item) => {
            list.make_mut(cx.block).push(item);
            Ok(())
        }
    }
}

/// Whether the argument is `off`, which must be the only one; other single arguments are errors.
fn is_off(cx: &Cx<'_>) -> Result<bool, Error> {
    match (cx.arg(0), cx.statement.args.len()) {
        ("off", 1) => Ok(true),
        (text, 1) => Err(cx.error(format_args!("invalid parameter \"{text}\""))),
        _ => Ok(false),
    }
}

fn add_cookie_domain(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let item = match is_off(cx)? {
        true => None,
        false => Some(read_domain(cx)?),
    };
    add_to(&mut http(scope).cookie_domains, item, cx)
}

/// Parses a domain and its replacement. Domains are compared without case, and a leading dot is ignored.
fn read_domain(cx: &mut Cx<'_>) -> Result<Rewrite, Error> {
    let (text, replacement) = (cx.arg(0), cx.arg(1));
    let (find, replacement) = match text.strip_prefix('~') {
        Some(pattern) => (Find::Pattern(Arc::new(cx.pattern(pattern, true)?)), replacement),
        None => {
            let domain = cx.template(text.strip_prefix('.').unwrap_or(text))?;
            (Find::Domain(Arc::new(domain)), replacement.strip_prefix('.').unwrap_or(replacement))
        }
    };
    Ok(Rewrite { find, replacement: Arc::new(cx.template(replacement)?) })
}

fn add_cookie_path(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let item = match is_off(cx)? {
        true => None,
        false => Some(read(cx.arg(0), cx)?),
    };
    add_to(&mut http(scope).cookie_paths, item, cx)
}

/// `proxy_cookie_flags`: changes to the flags of some cookies.
#[derive(Clone, Debug)]
pub(super) struct CookieFlags {
    cookie: CookieName,
    /// Evaluated for each cookie: an unknown or empty flag has no effect.
    flags: Arc<[Template]>,
}

/// The cookies that a rule applies to.
#[derive(Clone, Debug)]
enum CookieName {
    /// Cookies with this name, ignoring case.
    Text(Arc<Template>),
    /// Cookies whose name matches, ignoring case.
    Pattern(Arc<Pattern>),
}

fn add_cookie_flags(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let item = match is_off(cx)? {
        true => None,
        false => Some(read_flags(cx)?),
    };
    add_to(&mut http(scope).cookie_flags, item, cx)
}

fn read_flags(cx: &mut Cx<'_>) -> Result<CookieFlags, Error> {
    let text = cx.arg(0);
    let cookie = match text.strip_prefix('~') {
        Some(pattern) => CookieName::Pattern(Arc::new(cx.pattern(pattern, true)?)),
        None => CookieName::Text(Arc::new(cx.template(text)?)),
    };
    let texts: Vec<&str> = cx.statement.texts().skip(1).collect();
    let flags = texts.into_iter().map(|text| cx.template(text)).collect::<Result<_, _>>()?;
    Ok(CookieFlags { cookie, flags })
}

impl CookieFlags {
    /// Returns the changes to the flags of the cookie with this name; `None` if the rule does not apply to it.
    fn edits(&self, request: &Request, name: &[u8]) -> Option<Flags> {
        let is_meant = match &self.cookie {
            CookieName::Text(text) => text.rendered(request).eq_ignore_ascii_case(name),
            CookieName::Pattern(pattern) => {
                let found = pattern.find(name).inspect_err(|gave_up| gave_up.log(name, request));
                found.ok().flatten().inspect(|found| found.store(name, request)).is_some()
            }
        };
        is_meant.then(|| {
            let mut flags = Flags::default();
            for word in self.flags.iter() {
                // As in nginx an unknown flag has no effect.
                let _ = flags.add(&word.rendered(request));
            }
            flags
        })
    }
}

/// Returns the value of `Set-Cookie` after all configured rewrites.
pub(super) fn cookie<'v>(http: &Http, request: &Request, value: &'v [u8]) -> Cow<'v, [u8]> {
    let (domains, paths, flags) =
        (http.cookie_domains.items(), http.cookie_paths.items(), http.cookie_flags.items());
    if domains.is_empty() && paths.is_empty() && flags.is_empty() {
        return Cow::Borrowed(value);
    }
    let Some(mut cookie) = SetCookie::parse(value) else { return Cow::Borrowed(value) };
    cookie.rewrite(Attribute::Domain, |domain| first(domains, request, domain));
    cookie.rewrite(Attribute::Path, |path| first(paths, request, path));
    if let Some(flags) = flags.iter().find_map(|flags| flags.edits(request, cookie.name())) {
        cookie.edit_flags(flags);
    }
    if !cookie.is_changed() {
        return Cow::Borrowed(value);
    }
    let mut text = Vec::new();
    cookie.push(&mut text);
    Cow::Owned(text)
}
