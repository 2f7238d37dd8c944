//! The directives of WebDAV: those of nginx's dav module, and those of dav-ext.

use std::sync::Arc;
use std::time::Duration;

use conf::{Args, Contexts, Error, Spec, value};
use http::fields::Method;

use super::locks::{Declared, Zone};
use crate::Directive;
use exchange::stored_file;
use site::config::{Cx, Keywords, Scope, Settings};
use site::declaration::LEVELS;
use site::shared_zone;

/// Directives of dav-ext.
const fn ext(name: &'static str, contexts: Contexts, args: Args, help: &'static str) -> Spec {
    Spec::new("http_dav_ext", name, contexts, args, help)
}

const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_dav", name, LEVELS, args, help)
}

pub(super) const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        spec("dav_methods", Args::AtLeast(1), "Methods that change files: PUT, DELETE, MKCOL, COPY, MOVE.")
            .default("off")
            .many(),
        |scope, cx| scope.make_mut::<Conf>().methods.add(METHODS, cx),
    ),
    Directive::scope(
        spec("create_full_put_path", Args::Flag, "Creates missing directories for PUT.").default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().creates_directories),
    ),
    // Prevents a short URI from removing a complete site.
    Directive::scope(
        spec("min_delete_depth", Args::Exactly(1), "Minimum number of path elements in a URI for DELETE.")
            .default("0"),
        |scope, cx| cx.number(&mut scope.make_mut::<Conf>().delete_depth_min),
    ),
    Directive::scope(
        spec(
            "dav_access",
            Args::Between(1, 3),
            "Permissions of new files and directories: `user:`, `group:`, `all:` with `r` or `rw`.",
        )
        .default("user:rw"),
        |scope, cx| {
            scope.make_mut::<Conf>().access = stored_file::access(cx)?;
            Ok(())
        },
    ),
    Directive::scope(
        ext(
            "dav_ext_methods",
            LEVELS,
            Args::AtLeast(1),
            "Further methods of WebDAV: OPTIONS, PROPFIND, PROPPATCH, LOCK, UNLOCK.",
        )
        .default("off")
        .many(),
        |scope, cx| scope.make_mut::<Conf>().ext_methods.add(EXT_METHODS, cx),
    ),
    Directive::http(
        ext(
            "dav_ext_lock_zone",
            Contexts::HTTP,
            Args::Between(1, 2),
            "Declares a shared zone for locks: `zone=NAME:SIZE`, and `timeout=TIME`, the longest validity of a lock.",
        )
        .many(),
        declare,
    ),
    Directive::scope(
        ext("dav_ext_lock", LEVELS, Args::Exactly(1), "The zone of the locks of a location: `zone=NAME`."),
        set_lock,
    ),
];

// Bits of `Conf::methods`.
const PUT: u64 = 1;
const DELETE: u64 = 1 << 1;
const MKCOL: u64 = 1 << 2;
const COPY: u64 = 1 << 3;
const MOVE: u64 = 1 << 4;
const ALL: u64 = PUT | DELETE | MKCOL | COPY | MOVE;

/// The methods of `dav_methods`. As in nginx, `off` does not disable methods in the same list.
const METHODS: &[(&str, u64)] =
    &[("off", 1 << 5), ("put", PUT), ("delete", DELETE), ("mkcol", MKCOL), ("copy", COPY), ("move", MOVE)];

// Bits of `Conf::ext_methods`.
const OPTIONS: u64 = 1;
const PROPFIND: u64 = 1 << 1;
const PROPPATCH: u64 = 1 << 2;
const LOCK: u64 = 1 << 3;
const UNLOCK: u64 = 1 << 4;
const EXT_ALL: u64 = OPTIONS | PROPFIND | PROPPATCH | LOCK | UNLOCK;

/// The methods of `dav_ext_methods`.
const EXT_METHODS: &[(&str, u64)] = &[
    ("off", 1 << 5),
    ("options", OPTIONS),
    ("propfind", PROPFIND),
    ("proppatch", PROPPATCH),
    ("lock", LOCK),
    ("unlock", UNLOCK),
];

/// The settings, which blocks inherit.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    /// `dav_methods`
    pub(super) methods: Keywords,
    /// `create_full_put_path`
    pub(super) creates_directories: bool,
    /// `min_delete_depth`
    pub(super) delete_depth_min: u64,
    /// `dav_access`: permission bits of new files.
    pub(super) access: u32,
    /// `dav_ext_methods`
    ext_methods: Keywords,
    /// `dav_ext_lock`
    pub(super) lock: Option<Arc<Zone>>,
}

impl Settings for Conf {}

impl Default for Conf {
    fn default() -> Conf {
        Conf {
            methods: Keywords::default(),
            creates_directories: false,
            delete_depth_min: 0,
            access: 0o600,
            ext_methods: Keywords::default(),
            lock: None,
        }
    }
}

impl Conf {
    /// Whether a method that changes files is allowed. LOCK creates files and keeps others from changing them.
    pub(crate) fn allows_changes(&self) -> bool {
        self.methods.has(ALL) || self.ext_methods.has(PROPPATCH | LOCK)
    }

    /// Whether any method is enabled.
    pub(super) fn is_on(&self) -> bool {
        self.methods.has(ALL) || self.ext_methods.has(EXT_ALL)
    }

    /// Whether this method is enabled.
    pub(super) fn has(&self, method: Method) -> bool {
        match method {
            Method::Put => self.methods.has(PUT),
            Method::Delete => self.methods.has(DELETE),
            Method::Mkcol => self.methods.has(MKCOL),
            Method::Copy => self.methods.has(COPY),
            Method::Move => self.methods.has(MOVE),
            Method::Options => self.ext_methods.has(OPTIONS),
            Method::Propfind => self.ext_methods.has(PROPFIND),
            Method::Proppatch => self.ext_methods.has(PROPPATCH),
            Method::Lock => self.ext_methods.has(LOCK),
            Method::Unlock => self.ext_methods.has(UNLOCK),
            _ => false,
        }
    }

    /// Returns the enabled methods, for `Allow`.
    pub(super) fn allowed(&self) -> Vec<u8> {
        const NAMES: &[(Method, &str)] = &[
            (Method::Options, "OPTIONS"),
            (Method::Put, "PUT"),
            (Method::Delete, "DELETE"),
            (Method::Mkcol, "MKCOL"),
            (Method::Copy, "COPY"),
            (Method::Move, "MOVE"),
            (Method::Propfind, "PROPFIND"),
            (Method::Proppatch, "PROPPATCH"),
            (Method::Lock, "LOCK"),
            (Method::Unlock, "UNLOCK"),
        ];
        let mut allowed = b"GET, HEAD".to_vec();
        for (_, name) in NAMES.iter().filter(|(method, _)| self.has(*method)) {
            allowed.extend_from_slice(b", ");
            allowed.extend_from_slice(name.as_bytes());
        }
        allowed
    }
}

/// Default of `timeout` of `dav_ext_lock_zone`, as in dav-ext.
const LOCK_TIMEOUT_S: u64 = 60;

/// Implements the setter of `dav_ext_lock_zone`.
fn declare(cx: &mut Cx<'_>) -> Result<(), Error> {
    let (mut zone, mut timeout) = (None, Duration::from_secs(LOCK_TIMEOUT_S));
    let statement = cx.statement;
    for text in statement.texts() {
        if text.starts_with("zone=") {
            zone = Some(shared_zone::name_and_size(text).map_err(|fault| cx.error(fault))?);
        } else if let Some(time) = text.strip_prefix("timeout=") {
            let seconds = value::seconds(time).ok().filter(|&seconds| seconds > 0);
            let seconds = seconds.ok_or_else(|| cx.error(format_args!("invalid timeout \"{text}\"")))?;
            timeout = Duration::from_secs(seconds);
        } else {
            return Err(cx.error(format_args!("invalid parameter \"{text}\"")));
        }
    }
    let Some(zone) = zone.filter(|(name, _)| !name.is_empty()) else {
        return Err(cx.error("\"dav_ext_lock_zone\" must have \"zone\" parameter"));
    };
    cx.http.zones.declare(zone, Declared { timeout }, |_| "locks", statement)
}

/// Implements the setter of `dav_ext_lock`.
fn set_lock(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    let name = text.strip_prefix("zone=").filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| cx.error(format_args!("invalid parameter \"{text}\"")))?;
    let zone = cx.http.zones.named(name, cx.statement)?;
    scope.make_mut::<Conf>().lock = Some(zone);
    Ok(())
}
