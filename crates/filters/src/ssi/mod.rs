//! `ssi` (Server Side Includes): executes commands in pages while they are sent.
//!
//! [`parser`] finds the commands, `filter` executes them with [`values`]; [`time`] formats dates.

mod filter;
mod parser;
mod time;
mod values;

use conf::{Args, Contexts, Spec, Support};

use crate::{Declaration, Directive, Module};
use exchange::module::Variable;
use exchange::request::Request;
use site::config::{Settings, SettingsType};
use site::declaration::{LEVELS, LEVELS_AND_IF};
use site::settings::media_types::MediaTypes;

/// The module.
pub(crate) static MODULE: Module = Module {
    variables: VARIABLES,
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().on {
            plan.filter(scope.shared::<Conf>(), filter);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_ssi")
    })
};

/// Returns a row of this module.
const fn ssi(name: &'static str, contexts: Contexts, args: Args, help: &'static str) -> Spec {
    Spec::new("http_ssi", name, contexts, args, help)
}

const DIRECTIVES: &[Directive] = &[
    Directive::scope(
        ssi("ssi", LEVELS_AND_IF, Args::Flag, "Executes the commands in pages. Includes without `wait=\"yes\"` run concurrently, up to 16 of a page.").default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().on),
    ),
    // A composed page has no modification time, unless this directive retains it.
    Directive::scope(
        ssi("ssi_last_modified", LEVELS, Args::Flag, "Retains `Last-Modified` of pages.").default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().last_modified),
    ),
    Directive::scope(
        ssi("ssi_silent_errors", LEVELS, Args::Flag, "Omits the error message of failed commands.").default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().silent_errors),
    ),
    // `text/html` is always included.
    Directive::scope(
        ssi("ssi_types", LEVELS, Args::AtLeast(1), "Media types of pages, in addition to HTML.")
            .many()
            .default("text/html"),
        |scope, cx| scope.make_mut::<Conf>().types.parse(cx),
    ),
    Directive::scope(
        ssi("ssi_value_length", LEVELS, Args::Exactly(1), "Maximum length of a parameter's value.")
            .default("255"),
        |scope, cx| cx.size(&mut scope.make_mut::<Conf>().value_length),
    ),
    Directive::scope(
        ssi(
            "ssi_min_file_chunk",
            LEVELS,
            Args::Exactly(1),
            "Minimum size of a range that nginx sends from the file.",
        )
        .default("1k")
        .state(Support::Accepted("pages always pass through memory; the size is only checked")),
        |_, cx| cx.size(&mut 0),
    ),
    Directive::scope(
        ssi("ssi_ignore_recycled_buffers", LEVELS, Args::Flag, "How nginx reuses buffers.")
            .default("off")
            .state(Support::Accepted("buffers are not held back; the flag is only checked")),
        |_, cx| cx.flag(&mut false),
    ),
];

const VARIABLES: &[Variable] = &[
    Variable {
        name: "date_local",
        get: |request, out| time::date(request, false, out),
        set: None,
        help: "Local time, in the format of the SSI command `config timefmt`.",
    },
    Variable {
        name: "date_gmt",
        get: |request, out| time::date(request, true, out),
        set: None,
        help: "GMT, in the format of the SSI command `config timefmt`.",
    },
];

/// The settings of a block.
#[derive(Clone, Debug)]
pub(crate) struct Conf {
    on: bool,
    last_modified: bool,
    silent_errors: bool,
    types: MediaTypes,
    value_length: u64,
}

impl Settings for Conf {}

impl Default for Conf {
    fn default() -> Conf {
        Conf {
            on: false,
            last_modified: false,
            silent_errors: false,
            types: MediaTypes::HTML,
            value_length: 255,
        }
    }
}

/// Adds the filter to non-empty pages of requests and subrequests.
fn filter(conf: &Conf, request: &mut Request) {
    if request.response.content_length == Some(0) || !request.has_type(&conf.types) {
        return;
    }
    // The header section of an included response is not sent.
    if request.depth == 0 {
        request.response.becomes_another(conf.last_modified);
    }
    request.response.filters.push(Box::new(filter::Page::new(conf)));
}

#[cfg(test)]
mod tests {
    use super::Conf;
    use crate::testing::{error, loaded, warnings};

    #[test]
    fn settings_are_inherited_separately() {
        let config = loaded(
            "ssi on; ssi_silent_errors on; ssi_value_length 1k; ssi_min_file_chunk 2k; ssi_ignore_recycled_buffers on;
             ssi_types text/x; server { location /1 { ssi_last_modified on; } location /2 { ssi off; ssi_value_length 9; } }",
        );
        let conf = |name: &str| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            let conf = location.expect("it is there").scope.of::<Conf>();
            (conf.on, conf.last_modified, conf.silent_errors, conf.value_length)
        };
        assert_eq!(conf("/1"), (true, true, true, 1024));
        assert_eq!(conf("/2"), (false, false, true, 9));
        let filters = |name: &str| {
            let location = config.http.locations.iter().find(|location| location.name == name);
            crate::all().plan(&config.http, &location.expect("it is there").scope).filters().len()
        };
        assert_eq!(filters("/1"), filters("/2") + 1);
        assert_eq!(
            warnings("http { ssi_types text/html text/x; }"),
            ["duplicate MIME type \"text/html\" in /conf/nginx.conf:1"]
        );
    }

    #[test]
    fn wrong_statements_are_refused() {
        let flag = |name: &str| {
            (
                format!("{name} x;"),
                format!("invalid value \"x\" in \"{name}\" directive, it must be \"on\" or \"off\""),
            )
        };
        let size = |name: &str| (format!("{name} x;"), format!("\"{name}\" directive invalid value"));
        let cases = [
            flag("ssi"),
            flag("ssi_last_modified"),
            flag("ssi_silent_errors"),
            flag("ssi_ignore_recycled_buffers"),
            size("ssi_value_length"),
            size("ssi_min_file_chunk"),
            ("ssi_types;".to_owned(), "invalid number of arguments in \"ssi_types\" directive".to_owned()),
            ("ssi on; ssi on;".to_owned(), "\"ssi\" directive is duplicate".to_owned()),
        ];
        for (text, expected) in cases {
            let found = error(&format!("http {{ server {{\n{text} }} }}"));
            assert!(
                found.starts_with(&expected) && found.contains("in /conf/nginx.conf:2"),
                "{text}: {found}"
            );
        }
    }
}
