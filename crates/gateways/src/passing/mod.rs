//! Passing requests to other servers and returning their responses: the common part of `proxy_` and of the protocols whose
//! directives differ only in the prefix.
//!
//! | file | content |
//! |---|---|
//! | [`protocol`] | what a protocol implements, and its settings of a block |
//! | [`directives`], [`conf`] | upstream settings, and values derived at the end of a block |
//! | [`pass`] | destination of a request |
//! | `send` | one request to the upstream |
//! | [`request`] | the body for the upstream, and the cache's changes to a request |
//! | [`params`] | parameters of FastCGI, SCGI and uwsgi |
//! | [`reply`], `converted` | the response for the client; header sections of cache entries, converted for a location |
//! | `store` | copies of responses as files |
//! | `ssl` | TLS to upstreams |
//! | `cache_conf`, `cache_path` | cache directives; `caching` implements them |
//! | `cached`, `invalidate` | lookup and invalidation of cache entries for a request |
//! | `needs` | ports, sockets and directories that a block needs |
//! | [`early_hints`] | interim responses |
//!
//! A protocol is a type with its own settings that implements [`Family`] and [`Protocol`]. Its module lists its tables of [`Rows`]
//! and its own rows; [`module`] provides the other parts. `upstream` implements connections, tries and buffers, and
//! `peers` the servers of a group.

mod cache_conf;
mod cache_path;
mod cached;
pub(crate) mod conf;
mod converted;
mod directives;
pub(crate) mod early_hints;
mod invalidate;
mod needs;
pub(crate) mod params;
pub(crate) mod pass;
mod protocol;
mod reply;
pub(crate) mod request;
mod send;
pub(crate) mod spec;
mod ssl;
mod store;

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

pub(crate) use crate::passing::needs::add_ports_of_group;
pub(crate) use crate::passing::protocol::{Family, Passing, Protocol, Rows, Via};
pub(crate) use crate::passing::ssl::verifying_client;
use crate::{Declaration, Directive, Module};
use ::conf::Error;
use caching::settings::Caches;
use exchange::module::ThreadHooks;
use exchange::phases::{Phase, Step};
use exchange::rehearsal::Event;
use exchange::request::Request;
use exchange::request_body;
use http::fields::Method;
use site::config::{HttpType, Scope, SettingsType};
use site::declaration::BlockHooks;
use upstream::Failure;

/// The shared module: the caches, and `early_hints`, which has no prefix.
pub(crate) static MODULE: Module = Module {
    thread: ThreadHooks {
        make: |locals| {
            locals.insert(caching::tally::ThreadTallies::default());
            locals.insert(converted::ConvertedHeads::default());
        },
        configured: caching::tasks::tend,
        drain: |thread| caching::tasks::stop(&thread.thread_config()),
        ..ThreadHooks::NONE
    },
    ..Module::of(Declaration {
        directives: &[early_hints::DIRECTIVES],
        settings: &[SettingsType::of::<early_hints::EarlyHints>()],
        http: &[HttpType::of::<Caches>()],
        blocks: BlockHooks {
            requires: |http, _, requirements| {
                let caches = &http.of::<Caches>().zones;
                requirements.temp_directories.extend(caches.iter().map(|zone| zone.kind().path.clone()));
            },
            ..BlockHooks::NONE
        },
        check: |http, _| cache_conf::check(http),
        ..Declaration::named("passing")
    })
};

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
                    |passing, request| without_wait(passing.via(), Passing::<F>::ORIGIN, request),
                    |passing, request| match passing.conf.cache.zone.is_on() {
                        true => Box::pin(run_with_cache(passing.via(), Passing::<F>::ORIGIN, request)),
                        false => Box::pin(run(passing.via(), request)),
                    },
                );
            }
        },
        rehearse: |request| Some(rehearse::<F>(request)),
        ..Module::of(Declaration {
            prefix: F::PREFIX,
            directives,
            settings: Passing::<F>::SETTINGS,
            blocks: BlockHooks {
                end: |_, scope, end| {
                    // The block has the settings of the outer block.
                    if scope.of::<Passing<F>>().is_finished() {
                        scope.core.redirects_to_slash |= scope.of::<Passing<F>>().conf.redirects_to_slash();
                        return Ok(());
                    }
                    let Passing { conf, protocol, .. } = scope.make_mut::<Passing<F>>().finish();
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
                requires: |http, scope, requirements| {
                    let conf = &scope.of::<Passing<F>>().conf;
                    if is_active::<F>(scope) {
                        conf.add_uses::<F>(http, scope, &mut requirements.uses);
                    }
                    if is_active::<F>(scope) && F::HAS_BUFFERS {
                        requirements.temp_directories.insert(conf.upstream.temp_path.path().to_owned());
                    }
                    requirements.transparent_bind |=
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

/// Notes in a rehearsal where the request would be passed on to.
fn rehearse<F: Family>(request: &mut Request) -> Step {
    let thread_config = Rc::clone(&request.thread_config);
    let via = thread_config.config.location(request.location).scope.of::<Passing<F>>().via();
    if !via.protocol.admits(request.method) {
        return Step::Status(405);
    }
    match cached::rehearse(request, via, F::PREFIX) {
        Ok(passed) => {
            request.note(|| Event::Passed(passed));
            // The upstream decides; access checks by a subrequest pass with this status.
            request.response.status = 200;
            Step::Done
        }
        Err(status) => Step::Status(status),
    }
}

/// Whether requests of this block are passed on with this protocol. An `if` inherits the `*_pass` of its location, unless the
/// `if` has its own, of any protocol.
fn is_active<F: Family>(scope: &Scope) -> bool {
    scope.core.pass == F::PREFIX && scope.of::<Passing<F>>().conf.pass.is_some()
}

/// Takes the steps that need no wait: requests the client's body, or serves the request from memory.
fn without_wait(
    via: Via<'_>,
    origin: &'static caching::ModuleFunctions,
    request: &mut Request,
) -> Option<Step> {
    begin(via, request).or_else(|| hit_at_hand(via, origin, request))
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

/// Serves a request from memory or an open file of its cache. `None` if it has no such cache, or if [`run_with_cache`] has to decide.
fn hit_at_hand(
    via: Via<'_>,
    origin: &'static caching::ModuleFunctions,
    request: &mut Request,
) -> Option<Step> {
    let conf = &via.conf.cache;
    let is_plain = conf.zone.is_on()
        && conf.purge.items().is_empty()
        && conf.purge_all.items().is_empty()
        && matches!(request.method, Method::Get | Method::Head)
        && !invalidate::is_invalidation(request);
    if !is_plain {
        return None;
    }
    let (cache, text) = match cached::lookup(request, via) {
        Ok(keyed) => keyed?,
        Err(status) => return Some(Step::Status(status)),
    };
    let reply = caching::serve_at_hand(request, origin, &cache, text)?;
    let step = reply::apply(request, via, reply);
    caching::record::publish(request, conf.status_name.as_deref());
    Some(step)
}

/// Works like [`run`], with a cache.
async fn run_with_cache(
    via: Via<'_>,
    origin: &'static caching::ModuleFunctions,
    request: &mut Request,
) -> Step {
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
    caching::record::publish(request, via.conf.cache.status_name.as_deref());
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
