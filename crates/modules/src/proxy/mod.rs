//! nginx's proxy module: requests are passed on to other servers, and their answers to the clients.
//!
//! | part | holds |
//! |---|---|
//! | `directives`, `conf` | how upstreams are talked to, and what follows where a block ends |
//! | [`pass`] | `proxy_pass`: where a request goes |
//! | `ask` | one question to the upstream |
//! | [`request`] | the request as the upstream gets it |
//! | [`reply`], `rewrites` | the answer as the client gets it |
//! | `store` | `proxy_store` |
//! | [`cache_conf`] | what is said of caches; `caching` carries it out |
//! | `cached`, `invalidate` | what a request has of a cache, and what it takes away |
//! | `early_hints` | interim answers |
//!
//! Connections, tries and buffers are `upstream`'s; whom a group's name stands for is `upstream::peers`'.

mod ask;
pub(crate) mod cache_conf;
mod cache_path;
mod cached;
mod conf;
mod directives;
mod early_hints;
mod invalidate;
pub(crate) mod pass;
pub(crate) mod reply;
pub(crate) mod request;
mod rewrites;
mod spec;
mod ssl;
mod store;
mod variables;

use std::rc::Rc;
use std::sync::Arc;

pub(crate) use conf::Conf;

use crate::Module;
use exchange::config::{HttpType, SettingsType};
use exchange::module::{BlockHooks, ThreadHooks};
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use upstream::caching;
use upstream::caching::settings::Caches;
use upstream::{self, Failure};

/// The module.
pub(crate) static MODULE: Module = Module {
    directives: &[
        directives::REQUEST,
        directives::CONNECTION,
        directives::BUFFERS,
        directives::REPLY,
        rewrites::DIRECTIVES,
        store::DIRECTIVES,
        cache_conf::DIRECTIVES,
        early_hints::DIRECTIVES,
        ssl::DIRECTIVES,
    ],
    variables: variables::VARIABLES,
    settings: &[SettingsType::of::<Conf>()],
    http: &[HttpType::of::<Caches>()],
    take_part: |_, scope, plan| {
        if scope.of::<Conf>().is_active() {
            let conf = scope.shared::<Conf>();
            plan.log(Arc::clone(&conf), |_, request| upstream::state::log_body(request));
            plan.now_or_later(Phase::Content, conf, begin, |conf, request| Box::pin(run(conf, request)));
        }
    },
    blocks: BlockHooks {
        end: |_, scope, end| {
            scope.own::<Conf>().finish(end.span)?;
            ssl::finish(scope.own::<Conf>(), end.span)?;
            scope.core.redirects_to_slash |= scope.of::<Conf>().redirects_to_slash();
            Ok(())
        },
        needs: |http, scope, needs| {
            let caches = &http.of::<Caches>().zones;
            needs.temp_folders.extend(caches.iter().map(|zone| zone.kind().path.clone()));
            if scope.of::<Conf>().is_active() {
                needs.temp_folders.insert(scope.of::<Conf>().upstream.temp_path.0.clone());
            }
            needs.transparent_bind |=
                scope.of::<Conf>().upstream.bind.as_ref().is_some_and(|bind| bind.transparent);
        },
        ..BlockHooks::NONE
    },
    check: |http, warnings| {
        cache_conf::check(http)?;
        cache_conf::warn_of_credentials(http, warnings);
        Ok(())
    },
    thread: ThreadHooks {
        make: |locals| locals.insert(caching::tally::Own::default()),
        configured: caching::tasks::tend,
        drain: |thread| caching::tasks::stop(&thread.generation()),
        ..ThreadHooks::NONE
    },
    ..Module::named("http_proxy")
};

/// Asks for the body first: for all of it, or for its pieces while they come.
fn begin(conf: &Conf, request: &mut Request) -> Option<Step> {
    if request::streams_body(request, conf) {
        return request.incoming.is_none().then_some(Step::StreamBody);
    }
    let is_wanted = request.depth == 0 && request.body.is_none() && request.head.body().has_body();
    is_wanted.then_some(match request::can_stream_body(request, conf) {
        true => Step::BufferBody,
        false => Step::ReadBody,
    })
}

/// Passes the request on and the answer back.
async fn run(conf: &Conf, request: &mut Request) -> Step {
    if invalidate::is_errand(request) {
        return Box::pin(invalidate::carry_out(request, conf)).await;
    }
    if let Some(status) = cached::purge(request, conf).await {
        return match status {
            204 => {
                request.response.status = status;
                Step::Done
            }
            status => Step::Status(status),
        };
    }
    let answered = match cached::lookup(request, conf) {
        Ok(Some((cache, text))) => caching::serve(request, &cached::ORIGIN, cache, text).await,
        // Boxed, since a hit has no use for its room.
        Ok(None) => Box::pin(ask::ask(request, conf, None)).await,
        Err(status) => return Step::Status(status),
    };
    if let Ok(reply) = &answered {
        let heading = Rc::clone(&reply.head);
        invalidate::after(request, conf, &heading).await;
    }
    let step = match answered {
        Ok(reply) => reply::apply(request, conf, reply),
        Err(Failure::Status(status)) => Step::Status(status),
        Err(Failure::Gone) => Step::Gone,
    };
    caching::record::publish(request, &conf.cache);
    step
}

#[cfg(test)]
mod tests;
