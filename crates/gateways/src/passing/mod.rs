//! Passing requests to other servers and returning their responses: the common part of `proxy_` and of the protocols whose
//! directives differ only in the prefix.
//!
//! | file | content |
//! |---|---|
//! | [`directives`], [`conf`] | upstream settings, and values derived at the end of a block |
//! | [`pass`] | destination of a request |
//! | `send` | one request to the upstream |
//! | [`request`] | the body for the upstream, and the cache's changes to a request |
//! | [`params`] | parameters of FastCGI, SCGI and uwsgi |
//! | [`reply`] | the response for the client |
//! | `store` | copies of responses as files |
//! | `ssl` | TLS to upstreams |
//! | `cache_conf`, `cache_path` | cache directives; `caching` implements them |
//! | `cached`, `invalidate` | lookup and invalidation of cache entries for a request |
//! | [`early_hints`] | interim responses |
//!
//! A protocol is a type with its own settings that implements [`Family`] and [`Protocol`]. Its module lists its tables of [`Rows`]
//! and its own rows; [`module`] provides the other parts. `upstream` implements connections, tries and buffers, and
//! `peers` the servers of a group.

mod cache_conf;
mod cache_path;
mod cached;
pub(crate) mod conf;
mod directives;
pub(crate) mod early_hints;
mod invalidate;
pub(crate) mod params;
pub(crate) mod pass;
mod reply;
pub(crate) mod request;
mod send;
pub(crate) mod spec;
mod ssl;
mod store;

use std::any::Any;
use std::borrow::Cow;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use ::conf::Error;
use http::fields::{BodyLength, HeaderId, Method};

use crate::passing::conf::Conf;
use crate::passing::pass::{Destination, Scheme};
use crate::passing::request::Fill;
use crate::{Declaration, Directive, Module};
use caching::settings::Caches;
use exchange::module::ThreadHooks;
use exchange::request::Request;
use exchange::request_body;
use site::config::{HttpType, Inner, Scope, Settings, SettingsType, Start};
use site::declaration::BlockHooks;
use site::phases::{Phase, Step};
use site::template::Template;
use upstream::{Failure, Outgoing};

/// The shared module: the caches, and `early_hints`, which has no prefix.
pub(crate) static MODULE: Module = Module {
    thread: ThreadHooks {
        make: |locals| locals.insert(caching::tally::ThreadTallies::default()),
        configured: caching::tasks::tend,
        drain: |thread| caching::tasks::stop(&thread.generation()),
        ..ThreadHooks::NONE
    },
    ..Module::of(Declaration {
        directives: &[early_hints::DIRECTIVES],
        settings: &[SettingsType::of::<early_hints::EarlyHints>()],
        http: &[HttpType::of::<Caches>()],
        blocks: BlockHooks {
            needs: |http, _, needs| {
                let caches = &http.of::<Caches>().zones;
                needs.temp_directories.extend(caches.iter().map(|zone| zone.kind().path.clone()));
            },
            ..BlockHooks::NONE
        },
        check: |http, _| cache_conf::check(http),
        ..Declaration::named("passing")
    })
};

/// Creates the requests of a protocol and converts its responses.
pub(crate) trait Protocol: Send + Sync {
    /// Creates the request for the upstream. `fill` is given if the response is for a cache.
    ///
    /// # Errors
    /// The status for the client; the reason is logged.
    fn build(
        &self,
        conf: &Conf,
        request: &mut Request,
        destination: &Destination,
        fill: Option<&Fill>,
    ) -> Result<Outgoing, u16>;

    /// Returns the default cache key. Most protocols have no cache, or no default key.
    fn default_key(&self, _: &Conf, _: &Request, _: &Destination) -> Vec<u8> {
        Vec::new()
    }

    /// Returns the body to send instead of the client's.
    fn body(&self) -> Option<&Template> {
        None
    }

    /// Whether requests with this method are passed on; others get 405.
    fn admits(&self, _: Method) -> bool {
        true
    }

    /// Whether the connection reads and discards the client's body, because the protocol's requests have none.
    fn drops_body(&self) -> bool {
        false
    }

    /// Whether a body of this length can be passed on while it arrives.
    fn can_frame(&self, _: BodyLength) -> bool {
        true
    }

    /// Returns the rewritten value of `Location`, or the URI in `Refresh`; `None` if it is unchanged.
    fn location(&self, _: &Request, _: &[u8]) -> Option<Vec<u8>> {
        None
    }

    /// Returns the rewritten value of `Set-Cookie`.
    fn cookie<'v>(&self, _: &Request, value: &'v [u8]) -> Cow<'v, [u8]> {
        Cow::Borrowed(value)
    }
}

/// A protocol whose directives have the names of this family with another prefix. The type contains its own settings.
pub(crate) trait Family: Protocol + Any + Clone + Debug + Default {
    /// Prefix of its directives.
    const PREFIX: &'static str;
    /// The schemes of an address. Most protocols have none, and no default port.
    const SCHEMES: &'static [Scheme] = &[Scheme::NONE];
    /// Whether an address may have a URI.
    const HAS_URI: bool = false;
    /// Whether the protocol has the directives for body buffers, whose sizes must match, and for temporary files.
    const HAS_BUFFERS: bool = true;
    /// The parameters of `proxy_next_upstream`, with their bits.
    const NEXT_UPSTREAM: &'static [(&'static str, u64)] = conf::NEXT_UPSTREAM;
    /// Default of the cache key, as written in a configuration.
    const KEY_DEFAULT: Option<&'static str> = None;
    /// Default of the name to verify in an upstream's certificate, as written in a configuration.
    const TLS_NAME_DEFAULT: Option<&'static str> = None;

    /// Whether a response field is hidden, in addition to the fields for this server.
    fn hides(_: HeaderId, _: &[u8]) -> bool {
        false
    }

    /// Derives the values that depend on other settings, at the end of a block.
    fn finish(&mut self, _: &mut Conf) {}
}

/// Directives of the family, in tables. Each protocol has the same directives as in nginx.
pub(crate) struct Rows<F>(PhantomData<F>);

/// The settings of a block for one protocol.
#[derive(Clone, Debug, Default)]
pub(crate) struct Passing<F> {
    /// Settings of the family.
    pub(crate) conf: Conf,
    /// Settings of the protocol.
    pub(crate) protocol: F,
    finished: Finished,
}

/// Whether the derived values were computed at the end of a block. A copy is to be changed, so it is not finished.
#[derive(Debug, Default)]
struct Finished(bool);

impl Clone for Finished {
    fn clone(&self) -> Finished {
        Finished(false)
    }
}

impl<F: Family> Settings for Passing<F> {
    fn start(start: &mut Start<'_>) -> Passing<F> {
        Passing { conf: Conf::start::<F>(start), protocol: F::default(), finished: Finished(false) }
    }

    fn inherit(&self, inner: Inner) -> Option<Passing<F>> {
        // Each location must set its target itself. Without a target the settings are shared, because most locations have none.
        (inner == Inner::Block && self.conf.pass.is_some()).then(|| {
            let mut passing = self.clone();
            passing.conf.pass = None;
            passing
        })
    }
}

/// The settings of the location that passes a request on, for any protocol.
#[derive(Clone, Copy)]
pub(crate) struct Via<'a> {
    pub(crate) conf: &'a Conf,
    pub(crate) protocol: &'a dyn Protocol,
}

impl<F: Family> Passing<F> {
    const SETTINGS: &'static [SettingsType] = &[SettingsType::of::<Passing<F>>()];

    fn via(&self) -> Via<'_> {
        Via { conf: &self.conf, protocol: &self.protocol }
    }
}

/// Creates the module of a protocol with these directives, to be completed with its variables.
pub(crate) const fn module<F: Family>(
    name: &'static str,
    directives: &'static [&'static [Directive]],
) -> Module {
    Module {
        add_to_plan: |_, scope, plan| {
            if is_active::<F>(scope) {
                let passing = scope.shared::<Passing<F>>();
                plan.log(Arc::clone(&passing), |_, request| upstream::state::log_body(request));
                plan.now_or_later(
                    Phase::Content,
                    passing,
                    |passing, request| begin(passing.via(), request),
                    |passing, request| match passing.conf.cache.zone.is_on() {
                        true => Box::pin(run_with_cache(passing.via(), Passing::<F>::ORIGIN, request)),
                        false => Box::pin(run(passing.via(), request)),
                    },
                );
            }
        },
        ..Module::of(Declaration {
            prefix: F::PREFIX,
            directives,
            settings: Passing::<F>::SETTINGS,
            blocks: BlockHooks {
                end: |_, scope, end| {
                    // The block has the settings of the outer block.
                    if scope.of::<Passing<F>>().finished.0 {
                        scope.core.redirects_to_slash |= scope.of::<Passing<F>>().conf.redirects_to_slash();
                        return Ok(());
                    }
                    let Passing { conf, protocol, finished } = scope.make_mut::<Passing<F>>();
                    finished.0 = true;
                    if F::HAS_BUFFERS {
                        conf.finish_sizes().map_err(|fault| Error::at(end.span.clone(), fault))?;
                    }
                    if F::KEY_DEFAULT.is_none() && conf.cache.zone.is_on() && conf.cache.key.is_none() {
                        let prefix = F::PREFIX;
                        let fault = format!("no \"{prefix}_cache_key\" for \"{prefix}_cache\"");
                        return Err(Error::at(end.span.clone(), fault));
                    }
                    protocol.finish(conf);
                    // After the protocol, which may never buffer.
                    conf.cache.is_buffered = conf.upstream.buffering;
                    conf.upstream.stores = conf.store.is_on();
                    ssl::finish(conf, end.span)?;
                    scope.core.redirects_to_slash |= scope.of::<Passing<F>>().conf.redirects_to_slash();
                    Ok(())
                },
                needs: |_, scope, needs| {
                    let conf = &scope.of::<Passing<F>>().conf;
                    if is_active::<F>(scope) && F::HAS_BUFFERS {
                        needs.temp_directories.insert(conf.upstream.temp_path.0.clone());
                    }
                    needs.transparent_bind |=
                        conf.upstream.bind.as_ref().is_some_and(|bind| bind.transparent);
                },
                ..BlockHooks::NONE
            },
            check: |http, warnings| {
                cache_conf::warn_of_credentials::<F>(http, warnings);
                Ok(())
            },
            ..Declaration::named(name)
        })
    }
}

/// Whether requests of this block are passed on with this protocol. An `if` inherits the `*_pass` of its location, unless the
/// `if` has its own, of any protocol.
fn is_active<F: Family>(scope: &Scope) -> bool {
    scope.core.pass == F::PREFIX && scope.of::<Passing<F>>().conf.pass.is_some()
}

/// Requests the client's body first: the complete body, or its pieces as they arrive.
fn begin(via: Via<'_>, request: &mut Request) -> Option<Step> {
    if !via.protocol.admits(request.method) {
        return Some(Step::Status(405));
    }
    if via.protocol.drops_body() {
        return None;
    }
    if request::streams_body(request, via) {
        return request.incoming.is_none().then_some(Step::StreamBody);
    }
    let must_be_read = match via.conf.upstream.request_buffering {
        true => request_body::must_be_read(request),
        false => request.head.body().has_body(),
    };
    let is_wanted = request.depth == 0 && request.body.is_none() && must_be_read;
    is_wanted.then_some(match request::can_stream_body(request, via) {
        true => Step::BufferBody,
        false => Step::ReadBody,
    })
}

/// Passes the request on and the response back.
async fn run(via: Via<'_>, request: &mut Request) -> Step {
    if invalidate::is_invalidation(request) {
        return Box::pin(invalidate::carry_out(request, via)).await;
    }
    // Pinned, because passing the future by value would copy its large state.
    let answered = pin!(send::send(request, via, None)).await;
    step(request, via, answered)
}

/// Works like [`run`], with a cache.
async fn run_with_cache(via: Via<'_>, origin: &'static caching::Origin, request: &mut Request) -> Step {
    if invalidate::is_invalidation(request) {
        return Box::pin(invalidate::carry_out(request, via)).await;
    }
    if let Some(status) = cached::purge(request, via).await {
        return match status {
            204 => {
                request.response.status = status;
                Step::Done
            }
            status => Step::Status(status),
        };
    }
    let answered = match cached::lookup(request, via) {
        Ok(Some((cache, text))) => caching::serve(request, origin, cache, text).await,
        // Boxed, since a hit does not need this state.
        Ok(None) => Box::pin(send::send(request, via, None)).await,
        Err(status) => return Step::Status(status),
    };
    if let Ok(reply) = &answered {
        let heading = Rc::clone(&reply.head);
        invalidate::after(request, via, &heading).await;
    }
    let step = step(request, via, answered);
    caching::record::publish(request, &via.conf.cache);
    step
}

/// Applies a response of the upstream or of the cache.
fn step(request: &mut Request, via: Via<'_>, answered: Result<upstream::Reply, Failure>) -> Step {
    match answered {
        Ok(reply) => reply::apply(request, via, reply),
        Err(Failure::Status(status)) => Step::Status(status),
        Err(Failure::ClientClosed) => Step::ClientClosed,
    }
}

#[cfg(test)]
mod tests;
