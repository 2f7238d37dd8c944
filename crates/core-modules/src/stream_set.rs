//! `stream_set`: assigns values to variables of a session.
//!
//! All assignments run once, in the order of the configuration, before the access checks. So they cannot use the facts of a TLS handshake.
//! A `map` computes its value at its first use instead.

use std::sync::Arc;

use conf::{Args, Contexts, Spec};

use crate::{Declaration, Directive, Module};
use exchange::module::SessionHooks;
use exchange::session::{SessionPhase, SessionStep};
use site::config::{Section, Settings, SettingsType};
use site::template::Template;
use site::var_ref::VarRef;

/// The module.
pub(crate) static MODULE: Module = Module {
    session: SessionHooks {
        add_to_plan: |_, scope, plan| {
            if !scope.of::<Conf>().assignments.is_empty() {
                plan.now(SessionPhase::Preaccess, scope.shared::<Conf>(), |conf, session| {
                    for (variable, value) in conf.assignments.iter() {
                        let value = value.rendered(session);
                        variable.assign(session, &value);
                    }
                    SessionStep::Next
                });
            }
        },
        ..SessionHooks::NONE
    },
    ..Module::of(Declaration {
        directives: &[&[Directive::scope(
            Spec::new(
                "stream_set",
                "set",
                Contexts::STREAM_SERVER,
                Args::Exactly(2),
                "Assigns a value to a variable, before the access checks.",
            )
            .many(),
            |scope, cx| {
                let variable = cx.http.registry.define(cx.variable_name(cx.arg(0))?, cx.statement)?;
                let value = cx.template(cx.arg(1))?;
                cx.http.registry.add_values(&variable, [value.clone()]);
                Arc::make_mut(&mut scope.make_mut::<Conf>().assignments).push((variable, value));
                Ok(())
            },
        )]],
        settings: &[SettingsType::of::<Conf>()],
        section: Section::Stream,
        ..Declaration::named("stream_set")
    })
};

/// The assignments of a server, in order.
#[derive(Clone, Debug, Default)]
struct Conf {
    assignments: Arc<Vec<(VarRef, Template)>>,
}

impl Settings for Conf {}
