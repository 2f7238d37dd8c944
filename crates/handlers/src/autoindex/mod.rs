//! `autoindex`: a listing of a directory.
//!
//! This file has the directives and the handler; [`listing`] reads a directory and sorts its entries, [`format`] writes
//! nginx's formats, and [`page`] Ringroad's HTML page.

mod format;
pub(crate) mod listing;
mod page;

use conf::{Args, Spec};
use http::fields::Method;
use io::segments::Source;

use crate::{Declaration, Directive, Module};
use exchange::charset;
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use exchange::response::ContentType;
use format::{Form, Writer};
use listing::{Listing, Merged};
use site::config::{Settings, SettingsType};
use site::declaration::LEVELS;
use telemetry::{ForLog, Level};

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().on {
            plan.now_or_later(Phase::Content, scope.shared::<Conf>(), skip, |conf, request| {
                Box::pin(run(conf, request))
            });
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_autoindex")
    })
};

const fn spec(name: &'static str, args: Args, help: &'static str) -> Spec {
    Spec::new("http_autoindex", name, LEVELS, args, help)
}

const DIRECTIVES: &[Directive] = &[
    // `autoindex` runs after `index`, so that a directory with an index file is never listed.
    Directive::scope(
        spec("autoindex", Args::Flag, "Lists the files of a directory without an index file.").default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().on),
    ),
    // For HTML only, because programs can round sizes themselves.
    Directive::scope(
        spec("autoindex_exact_size", Args::Flag, "Shows sizes in bytes; off: rounded, with K, M or G.")
            .default("on"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().exact_size),
    ),
    // JSONP without a function name is JSON, so that one location can serve both.
    Directive::scope(
        spec("autoindex_format", Args::Exactly(1), "Format of the listing: html, xml, json, jsonp, or page.")
            .default("html"),
        |scope, cx| cx.choice(&mut scope.make_mut::<Conf>().form, FORMS),
    ),
    // For HTML only, as in nginx, because programs read the other formats.
    Directive::scope(
        spec("autoindex_localtime", Args::Flag, "Shows local times instead of UTC.").default("off"),
        |scope, cx| cx.flag(&mut scope.make_mut::<Conf>().localtime),
    ),
];

const FORMS: &[(&str, Form)] = &[
    ("html", Form::Html),
    ("json", Form::Json),
    ("jsonp", Form::Jsonp),
    ("page", Form::Page),
    ("xml", Form::Xml),
];

/// The settings, which blocks inherit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conf {
    on: bool,
    exact_size: bool,
    form: Form,
    localtime: bool,
}

impl Settings for Conf {}

impl Default for Conf {
    fn default() -> Conf {
        Conf { on: false, exact_size: true, form: Form::Html, localtime: false }
    }
}

/// Skips requests other than GET and HEAD of directories.
fn skip(_: &Conf, request: &mut Request) -> Option<Step> {
    let is_wanted = request.uri.last() == Some(&b'/') && matches!(request.method, Method::Get | Method::Head);
    (!is_wanted).then_some(Step::Next)
}

/// Reads the directory, then writes the listing, and lets other requests run between the steps.
async fn run(conf: &Conf, request: &mut Request) -> Step {
    let (form, callback) = match conf.form {
        Form::Jsonp => match callback(request) {
            Err(step) => return step,
            Ok(None) => (Form::Json, Vec::new()),
            Ok(Some(callback)) => (Form::Jsonp, callback),
        },
        form => (form, Vec::new()),
    };
    let listing = match Listing::open(request).await {
        Ok(listing) => listing,
        Err(step) => return step,
    };
    let response = &mut request.response;
    response.status = 200;
    response.content_type = ContentType::Text(form.media_type().into());
    // The directory is not read for HEAD, and nginx does not send the length of the listing either.
    if request.method == Method::Head {
        return Step::Done;
    }
    let entries = match listing.entries(request).await {
        Ok(entries) => entries,
        Err(step) => return step,
    };
    // As in nginx, the current offset from UTC applies to all times, whether or not they had daylight saving time.
    let offset_s = if conf.localtime { request.conn.thread.clock.utc_offset_s() } else { 0 };
    if form == Form::Page {
        return write_page(entries, offset_s.into(), request).await;
    }
    let mut writer = Writer {
        form,
        exact_size: conf.exact_size,
        offset_s: offset_s.into(),
        utf8: charset::is_utf8(request),
        out: Vec::new(),
    };
    writer.begin(&request.uri, &callback);
    let mut count = 0;
    // Merging and writing take time proportional to the directory, so other tasks run regularly.
    for entry in entries {
        writer.entry(&entry);
        count += 1;
        if count % ENTRIES_AT_ONCE == 0 {
            rt::yield_now().await;
        }
        if writer.out.len() > LISTING_BYTES_MAX {
            return too_long(request);
        }
    }
    writer.end();
    request.response.set_bytes(Source::Vec(writer.out));
    Step::Done
}

/// Writes the HTML page. It is sorted as the query requests, unless the directory is very large.
async fn write_page(entries: Merged, offset_s: i64, request: &mut Request) -> Step {
    let order = page::Order::of(&request.args);
    let (mut first, mut entries) = (Vec::new(), entries);
    first.extend(entries.by_ref().take(page::SORTED_MAX + 1));
    let is_sorted = first.len() <= page::SORTED_MAX;
    if is_sorted {
        order.sort(&mut first);
    }
    let order = if is_sorted { order } else { page::Order::of(b"") };
    let (mut page, mut out, mut count) = (page::Page::new(order, is_sorted, offset_s), Vec::new(), 0);
    page.begin(&request.uri, &mut out);
    for entry in first.into_iter().chain(entries) {
        page.entry(&entry, &mut out);
        count += 1;
        if count % ENTRIES_AT_ONCE == 0 {
            rt::yield_now().await;
        }
        if out.len() > LISTING_BYTES_MAX {
            return too_long(request);
        }
    }
    page.end(&mut out);
    request.response.set_bytes(Source::Vec(out));
    Step::Done
}

fn too_long(request: &Request) -> Step {
    let uri = request.uri.for_log();
    request.log(Level::Crit, format_args!("the listing of \"{uri}\" is too long"));
    Step::Status(500)
}

/// Number of entries written before other tasks run: some hundred microseconds of the thread.
const ENTRIES_AT_ONCE: usize = 500;

/// Maximum size of a listing in bytes: it is in memory until it is sent, and has room for about seven million names.
const LISTING_BYTES_MAX: usize = 1 << 30;

/// Maximum length of a function name in bytes.
const CALLBACK_BYTES_MAX: usize = 128;

/// Returns the function that `callback` in the query names, if any. It becomes code in a page of another site, so only
/// valid names are accepted.
fn callback(request: &Request) -> Result<Option<Vec<u8>>, Step> {
    let name = http::uri::arg(&request.args, b"callback").unwrap_or_default();
    let refused = |what: &str| {
        let name = name.for_log();
        request.log(Level::Info, format_args!("client sent {what} callback name: \"{name}\""));
        Err(Step::Status(400))
    };
    if name.len() > CALLBACK_BYTES_MAX {
        return refused("too long");
    }
    if !name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.')) {
        return refused("invalid");
    }
    Ok((!name.is_empty()).then(|| name.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{error, loaded};

    #[test]
    fn settings_are_inherited_separately() {
        let config = loaded(
            "autoindex on; autoindex_exact_size off; autoindex_format json; autoindex_localtime on;
             server { location /a { autoindex off; autoindex_localtime off; }
               location /b { autoindex_exact_size on; autoindex_format xml; } }",
        );
        let conf = |place: usize| config.http.locations[place].scope.of::<Conf>();
        let outer = Conf { on: true, exact_size: false, form: Form::Json, localtime: true };
        assert_eq!(*conf(0), outer);
        assert_eq!(*conf(1), Conf { on: false, localtime: false, ..outer });
        assert_eq!(*conf(2), Conf { exact_size: true, form: Form::Xml, ..outer });
        assert_eq!(*loaded("server {}").http.locations[0].scope.of::<Conf>(), Conf::default());
    }

    #[test]
    fn wrong_values_are_refused() {
        for name in ["autoindex", "autoindex_exact_size", "autoindex_localtime"] {
            let found = error(&format!("http {{ server {{\n{name} yes; }} }}"));
            let message =
                format!("invalid value \"yes\" in \"{name}\" directive, it must be \"on\" or \"off\"");
            assert_eq!(found, format!("{message} in /conf/nginx.conf:2"));
        }
        let found = error("http { server {\nautoindex_format text; } }");
        assert_eq!(
            found,
            "invalid value \"text\" in /conf/nginx.conf:2; it must be one of html, json, jsonp, page, xml"
        );
    }
}
