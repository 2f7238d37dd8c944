//! `auth_request`: a subrequest decides on access.
//!
//! Only the status of its response decides. `auth_request_set` stores values of the response in variables.

use std::sync::Arc;

use conf::{Args, Error, Spec};

use crate::{Declaration, Directive, Module};
use exchange::credentials;
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use exchange::subrequest::{self, Subrequest};
use site::config::{Cx, Layered, Scope, Settings, SettingsType};
use site::declaration::LEVELS;
use site::template::Template;
use site::var_ref::VarRef;
use telemetry::Level;

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().uri.is_some() {
            plan.later(Phase::Access, scope.shared::<Conf>(), |conf, request| Box::pin(run(conf, request)));
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_auth_request")
    })
};

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        Spec::new(
            "http_auth_request",
            "auth_request",
            LEVELS,
            Args::Exactly(1),
            "The URI of a subrequest that decides on access by its status, or `off`.",
        )
        .default("off"),
        |scope, cx| {
            scope.make_mut::<Conf>().uri = Some(cx.arg(0)).filter(|uri| *uri != "off").map(Arc::from);
            Ok(())
        },
    ),
    Directive::scope(
        Spec::new(
            "http_auth_request",
            "auth_request_set",
            LEVELS,
            Args::Exactly(2),
            "Sets a variable after the subrequest, from the variables of its response.",
        )
        .many(),
        add_variable,
    ),
];

/// The URI of the subrequest, and the variables set from its response.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf {
    uri: Option<Arc<str>>,
    variables: Layered<(VarRef, Template)>,
}

impl Settings for Conf {}

impl Conf {
    /// Whether a subrequest is made.
    pub(crate) fn is_active(&self) -> bool {
        self.uri.is_some()
    }
}

/// Adds a variable. As in nginx, a name without a dollar sign is an error, because it is probably a typo.
fn add_variable(scope: &mut Scope, cx: &mut Cx<'_>) -> Result<(), Error> {
    let text = cx.arg(0);
    let name = text.strip_prefix('$').filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| cx.error(format_args!("invalid variable name \"{text}\"")))?;
    let variable = cx.http.registry.define(name, cx.statement)?;
    let value = cx.template(cx.arg(1))?;
    cx.http.registry.add_values(&variable, [value.clone()]);
    scope.make_mut::<Conf>().variables.make_mut(cx.block).push((variable, value));
    Ok(())
}

/// Runs the subrequest, sets the variables, and decides.
async fn run(conf: &Conf, request: &mut Request) -> Step {
    let Some(uri) = &conf.uri else { return Step::Next };
    // As in nginx, the subrequest does not have the client's query; `$request_uri` still contains it.
    let wanted = Subrequest { uri: uri.as_bytes().to_vec(), ..Subrequest::default() };
    let Some(mut child) = subrequest::fetch(request, &wanted).await else { return Step::Status(500) };
    let mut values = Vec::new();
    for (variable, value) in conf.variables.items() {
        let value = value.rendered(&*child);
        // Assigned in the subrequest too, because later values of `auth_request_set` may use this variable.
        variable.assign(&mut *child, &value);
        values.push((variable, value));
    }
    let status = child.response.status;
    let questions = std::mem::take(&mut child.response.challenges.values);
    subrequest::finish(child);
    // Both requests share variables that the configuration defines, but not values such as `$limit_rate`.
    for (variable, value) in values {
        variable.assign(request, &value);
    }
    match status {
        200..300 => Step::Allow,
        401 | 407 => {
            // The client receives the challenge of the subrequest. A client of a forward proxy does not expect a 401.
            request.response.challenges.values.extend(questions);
            request.response.challenges.is_for_proxy = credentials::are_for_proxy(request);
            Step::Status(credentials::status_without(request))
        }
        403 => Step::Status(403),
        _ => {
            request.log(Level::Error, format_args!("auth request unexpected status: {status}"));
            Step::Status(500)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Conf;
    use crate::testing::{error, loaded};
    use exchange::phases::Phase;

    #[test]
    fn the_uri_is_inherited_and_can_be_turned_off() {
        let config = loaded(
            "auth_request /a; auth_request_set $x $status; server { location /1 { } location /2 { auth_request off; }
             location /3 { auth_request /b; auth_request_set $y 1; } }",
        );
        let conf = |name: &str| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            let location = location.expect("it is there");
            let conf = location.scope.of::<Conf>();
            let handlers = crate::all().plan(&config.http, &location.scope).count(Phase::Access);
            (conf.uri.clone(), conf.variables.items().len(), handlers)
        };
        assert_eq!(conf("/1"), (Some("/a".into()), 1, 1));
        assert_eq!(conf("/2"), (None, 1, 0));
        assert_eq!(conf("/3"), (Some("/b".into()), 1, 1));
    }

    #[test]
    fn wrong_statements_are_refused() {
        for (text, expected) in [
            ("auth_request_set x 1;", "invalid variable name \"x\""),
            ("auth_request_set $uri 1;", "the duplicate \"uri\" variable"),
            ("auth_request_set $x $nonexist;", "unknown \"nonexist\" variable"),
            ("auth_request /a; auth_request /b;", "\"auth_request\" directive is duplicate"),
            ("auth_request;", "invalid number of arguments in \"auth_request\" directive"),
        ] {
            let found = error(&format!("http {{ server {{\n{text} }} }}"));
            assert!(
                found.starts_with(expected) && found.contains("in /conf/nginx.conf:2"),
                "{text}: {found}"
            );
        }
    }
}
