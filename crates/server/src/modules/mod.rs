//! nginx's modules: each owns its directives, its settings and their inheritance, its variables, and its
//! part in the phases. A new one is a file here, a line in [`MODULES`] and, when it has settings, a field
//! in [`crate::config::Scope`].

pub mod access;
pub mod addition;
pub mod auth_basic;
pub mod auth_request;
pub mod autoindex;
pub mod brotli;
pub mod brotli_static;
pub mod browser;
pub mod cache_counters;
pub mod charset;
pub mod core;
pub mod empty_gif;
pub mod geo;
pub mod gunzip;
pub mod gzip;
pub mod gzip_static;
pub mod headers;
pub mod http_core;
pub mod index;
pub mod limit_conn;
pub mod limit_req;
pub mod log;
pub mod map;
pub mod mirror;
pub mod not_modified;
pub mod proxy;
pub mod random_index;
pub mod range;
pub mod realip;
pub mod referer;
pub mod rewrite;
pub mod secure_link;
pub mod slice;
pub mod split_clients;
pub mod ssi;
pub mod ssl;
pub mod static_file;
pub mod stub_status;
pub mod sub;
pub mod try_files;
pub mod upstream;
pub mod upstream_block;
pub mod upstream_hash;
pub mod upstream_ip_hash;
pub mod upstream_keepalive;
pub mod upstream_least_conn;
pub mod upstream_least_time;
pub mod upstream_random;
pub mod upstream_sticky;
pub mod upstream_zone;
pub mod userid;
pub mod zstd;
pub mod zstd_static;

use conf::{Error, Spec, State};

use crate::config::{Cx, Scope};
use crate::modules::core::{EventsConf, MainConf};
use crate::modules::http_core::ServerDraft;
use crate::phases::{Filter, Handler};
use crate::upstream::peers::lines::Draft;
use crate::variables::{Prefixed, Variable};

/// All modules, in the order of the handlers inside a phase and then of the filters, both as in nginx: a
/// filter sees what those before it made of the answer.
pub static MODULES: &[&Module] = &[
    &core::MODULE,
    &http_core::MODULE,
    &ssl::MODULE,
    &upstream::MODULE,
    &upstream_block::MODULE,
    &upstream_hash::MODULE,
    &upstream_ip_hash::MODULE,
    &upstream_least_conn::MODULE,
    &upstream_least_time::MODULE,
    &upstream_random::MODULE,
    &upstream_sticky::MODULE,
    &upstream_keepalive::MODULE,
    &upstream_zone::MODULE,
    &log::MODULE,
    &map::MODULE,
    &geo::MODULE,
    &split_clients::MODULE,
    &rewrite::MODULE,
    &browser::MODULE,
    &referer::MODULE,
    &secure_link::MODULE,
    // Before the access modules, and what limits clients: both judge the address that this one finds.
    &realip::MODULE,
    &limit_req::MODULE,
    &limit_conn::MODULE,
    &access::MODULE,
    &auth_basic::MODULE,
    &auth_request::MODULE,
    &try_files::MODULE,
    &mirror::MODULE,
    // What passes requests on does so for a whole location, and for an `if` in one that another module answers for.
    &proxy::MODULE,
    &stub_status::MODULE,
    &cache_counters::MODULE,
    // What answers for a whole location goes before what looks for files in it.
    &empty_gif::MODULE,
    &random_index::MODULE,
    &index::MODULE,
    // The best coding first, as nginx has it with these modules, and the originals last.
    &zstd_static::MODULE,
    &brotli_static::MODULE,
    &gzip_static::MODULE,
    &autoindex::MODULE,
    &static_file::MODULE,
    // What a slice was made the whole of is compared with what the client has.
    &slice::MODULE,
    &not_modified::MODULE,
    &headers::MODULE,
    &userid::MODULE,
    &gunzip::MODULE,
    &addition::MODULE,
    &sub::MODULE,
    &charset::MODULE,
    &ssi::MODULE,
    // The first that the client takes compresses, in the same order; behind all that changes texts.
    &zstd::MODULE,
    &brotli::MODULE,
    &gzip::MODULE,
    &range::MODULE,
];

/// One module.
pub struct Module {
    /// nginx's name of it, without `ngx_` and `_module`.
    pub name: &'static str,
    /// Its directives, in tables.
    pub directives: &'static [&'static [Directive]],
    /// Its variables.
    pub variables: &'static [Variable],
    /// Its families of variables, such as `http_`.
    pub prefixed: &'static [Prefixed],
    /// Its handlers.
    pub handlers: &'static [Handler],
    /// What it does to an answer before it is sent.
    pub filter: Option<Filter>,
}

impl Module {
    /// A module with this name and nothing else, to be completed by struct update.
    pub const fn named(name: &'static str) -> Module {
        Module { name, directives: &[], variables: &[], prefixed: &[], handlers: &[], filter: None }
    }

    /// Its directives.
    pub fn directives(&self) -> impl Iterator<Item = &'static Directive> {
        self.directives.iter().copied().flatten()
    }
}

/// A directive: what is said about it, and what it does.
pub struct Directive {
    /// Name, contexts, arguments, default, help.
    pub spec: Spec,
    /// What happens with a statement of it.
    pub set: Set,
}

impl Directive {
    /// Changes process-wide settings.
    pub const fn main(spec: Spec, set: fn(&mut MainConf, &mut Cx<'_>) -> Result<(), Error>) -> Directive {
        Directive { spec, set: Set::Main(set) }
    }

    /// Changes the event loop.
    pub const fn events(spec: Spec, set: fn(&mut EventsConf, &mut Cx<'_>) -> Result<(), Error>) -> Directive {
        Directive { spec, set: Set::Events(set) }
    }

    /// Changes settings that blocks inherit.
    pub const fn scope(spec: Spec, set: fn(&mut Scope, &mut Cx<'_>) -> Result<(), Error>) -> Directive {
        Directive { spec, set: Set::Scope(set) }
    }

    /// Changes a server.
    pub const fn server(
        spec: Spec,
        set: fn(&mut ServerDraft, &mut Cx<'_>) -> Result<(), Error>,
    ) -> Directive {
        Directive { spec, set: Set::Server(set) }
    }

    /// Changes an upstream block.
    pub(crate) const fn upstream(
        spec: Spec,
        set: fn(&mut Draft, &mut Cx<'_>) -> Result<(), Error>,
    ) -> Directive {
        Directive { spec, set: Set::Upstream(UpstreamSetter(set)) }
    }

    /// Changes the whole of `http`.
    pub const fn http(spec: Spec, set: fn(&mut Cx<'_>) -> Result<(), Error>) -> Directive {
        Directive { spec, set: Set::Http(set) }
    }

    /// Is accepted and does nothing, for this reason.
    pub const fn nothing(spec: Spec, why: &'static str) -> Directive {
        Directive { spec: spec.state(State::Accepted(why)), set: Set::Nothing }
    }

    /// Holds directives.
    pub const fn walk(spec: Spec, walk: Walk) -> Directive {
        Directive { spec, set: Set::Walk(walk) }
    }
}

/// What a directive changes.
pub enum Set {
    /// Process-wide settings.
    Main(fn(&mut MainConf, &mut Cx<'_>) -> Result<(), Error>),
    /// Settings of the event loop.
    Events(fn(&mut EventsConf, &mut Cx<'_>) -> Result<(), Error>),
    /// Settings that blocks inherit.
    Scope(fn(&mut Scope, &mut Cx<'_>) -> Result<(), Error>),
    /// What belongs to a server alone.
    Server(fn(&mut ServerDraft, &mut Cx<'_>) -> Result<(), Error>),
    /// What belongs to an upstream block alone.
    Upstream(UpstreamSetter),
    /// What belongs to the whole of `http`, reached through the context.
    Http(fn(&mut Cx<'_>) -> Result<(), Error>),
    /// Nothing: the directive tunes what this server does not have. Its help says so.
    Nothing,
    /// A block with directives, which the resolver walks into.
    Walk(Walk),
}

/// The setter of a directive in an upstream block.
#[derive(Clone, Copy)]
pub struct UpstreamSetter(pub(crate) fn(&mut Draft, &mut Cx<'_>) -> Result<(), Error>);

/// The blocks that hold directives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// `events`
    Events,
    /// `http`
    Http,
    /// `server`
    Server,
    /// `location`
    Location,
    /// `limit_except`
    LimitExcept,
    /// `if`
    If,
    /// `upstream`
    Upstream,
}

#[cfg(test)]
mod tests;
