//! Changes to the URIs and cookies in response fields: `proxy_redirect`, `proxy_cookie_domain`, `proxy_cookie_path`,
//! `proxy_cookie_flags`.
//!
//! | directive | looks at | without a pattern it compares | and replaces |
//! |---|---|---|---|
//! | `proxy_redirect` | `Location`, and the address in `Refresh` | the beginning | that |
//! | `proxy_cookie_path` | `path` of cookies | the beginning | that |
//! | `proxy_cookie_domain` | `domain` of cookies | all but a dot in front, without case | that |
//! | `proxy_cookie_flags` | the name of cookies | all, without case | flags |
//!
//! A pattern is searched for, and the whole value is replaced. The first of several that fits is the only one.
//!
//! Their directives, and the rules by which a value is changed. Which fields they are for is said in `reply`; how a
//! cookie is taken apart in `http::set_cookie`.

use std::borrow::Cow;
use std::sync::Arc;

use conf::{Args, Error};
use http::set_cookie::{self, Attribute, Flags, SetCookie};

use crate::Directive;
use crate::passing::Passing;
use crate::passing::pass::Pass;
use crate::passing::spec::row;
use crate::proxy::conf::{Http, http};
use exchange::config::{Cx, Layered, Scope};
use exchange::pattern::Pattern;
use exchange::request::Request;
use exchange::template::Template;

pub(super) const DIRECTIVES: &[Directive] = &[
    // The client knows other names than the upstream: by default the address of `proxy_pass` becomes the location
    // again.
    Directive::scope(
        row("_redirect", Args::Between(1, 2), "Changes the beginning of `Location` and `Refresh`.")
            .default("default")
            .many(),
        add_redirect,
    ),
    // A browser throws cookies away that are for a domain which it did not ask.
    Directive::scope(
        row("_cookie_domain", Args::Between(1, 2), "Changes the `domain` of cookies.").default("off").many(),
        add_cookie_domain,
    ),
    // It keeps cookies for another path to itself; the path behind this server is often not the one in front of it.
    Directive::scope(
        row("_cookie_path", Args::Between(1, 2), "Changes the beginning of the `path` of cookies.")
            .default("off")
            .many(),
        add_cookie_path,
    ),
    // For applications that do not know that their clients come by TLS.
    Directive::scope(
        row("_cookie_flags", Args::Between(1, 4), "Adds flags to cookies, or takes them away.")
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

/// The pattern of a value.
#[derive(Clone, Debug)]
enum Find {
    /// Its beginning, which is replaced.
    Prefix(Arc<Template>),
    /// All of it but for a dot at its start, without case.
    Domain(Arc<Template>),
    /// A pattern, and all of the value is replaced.
    Pattern(Arc<Pattern>),
}

impl Rewrite {
    /// The value with the change; `None` if it is no searched one.
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
                let found = pattern.find(value).inspect_err(|gave_up| gave_up.tell(value, request));
                found.ok().flatten()?.store(value, request);
                Some(self.replacement.rendered(request))
            }
        }
    }
}

/// The first change that applies.
fn first(list: &[Rewrite], request: &Request, value: &[u8]) -> Option<Vec<u8>> {
    list.iter().find_map(|rewrite| rewrite.apply(request, value))
}

/// `proxy_redirect`: a list that may be off as a whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Redirects {
    list: Layered<Rewrite>,
    /// The block with `off`, and whether that applies.
    off_block: u32,
    is_off: bool,
    /// The default without a directive: it follows from `proxy_pass`.
    by_default: Option<Rewrite>,
}

impl Redirects {
    /// At the end of a block: finds the default.
    pub(super) fn finish(&mut self, pass: Option<&Pass>) {
        self.by_default = pass.and_then(default_of);
    }

    /// A value of `Location`, or the address in one of `Refresh`, with the change that applies.
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

/// The address that requests are passed to becomes the location that they came for. An address with variables, or
/// a location without a path, has none.
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
    redirects.list.own(block).push(rewrite);
    Ok(())
}

/// nginx reads once, so the address has to be known already.
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

/// A pair: a pattern behind `~`, or behind `~*` without case, or a beginning; and the replacement.
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

/// Adds to a list that `off` can take the place of; `off` is an own list without members.
fn add_to<T: Clone>(list: &mut Layered<T>, item: Option<T>, cx: &Cx<'_>) -> Result<(), Error> {
    let has_own = list.is_of(cx.block);
    let is_off = has_own && list.items().is_empty();
    match item {
        _ if is_off => Err(duplicate(cx)),
        None if has_own => Err(duplicate(cx)),
        None => {
            list.own(cx.block);
            Ok(())
        }
        Some(item) => {
            list.own(cx.block).push(item);
            Ok(())
        }
    }
}

/// `off`, which stands alone; other single words are wrong.
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

/// Domains have no case, and a dot in front of one means nothing.
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
    /// Rendered for each cookie: a word that is none, or is empty, does nothing.
    flags: Arc<[Template]>,
}

/// Which cookies.
#[derive(Clone, Debug)]
enum CookieName {
    /// Those of this name, without case.
    Text(Arc<Template>),
    /// Names that match, without case.
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
    /// The changes to the flags of the cookie of this name; `None` where this directive is not for it.
    fn edits(&self, request: &Request, name: &[u8]) -> Option<Flags> {
        let is_meant = match &self.cookie {
            CookieName::Text(text) => text.rendered(request).eq_ignore_ascii_case(name),
            CookieName::Pattern(pattern) => {
                let found = pattern.find(name).inspect_err(|gave_up| gave_up.tell(name, request));
                found.ok().flatten().inspect(|found| found.store(name, request)).is_some()
            }
        };
        is_meant.then(|| {
            let mut flags = Flags::default();
            for word in self.flags.iter() {
                // As in nginx a word that is none does nothing.
                let _ = flags.add(&word.rendered(request));
            }
            flags
        })
    }
}

/// A value of `Set-Cookie` with the changes that are configured.
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
