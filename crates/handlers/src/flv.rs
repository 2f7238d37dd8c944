//! nginx's flv module: serves a Flash video from the byte offset `start` in the query. The response begins with a file
//! header, so that players accept it.

use std::sync::Arc;

use conf::{Args, Contexts, Spec};

use crate::static_file;
use crate::{Declaration, Directive, Module};
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use site::config::{Inner, Settings, SettingsType};

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().0 {
            plan.later(Phase::Content, Arc::new(()), |(), request| Box::pin(run(request)));
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_flv")
    })
};

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_flv",
        "flv",
        Contexts::LOCATION,
        Args::None,
        "Sends Flash videos from the byte offset `start` in the query.",
    ),
    |scope, _| {
        scope.make_mut::<Conf>().0 = true;
        Ok(())
    },
)];

/// Whether the block has the directive. As in nginx nested locations do not inherit it.
#[derive(Clone, Copy, Debug, Default)]
struct Conf(bool);

impl Settings for Conf {
    fn inherit(&self, inner: Inner) -> Option<Conf> {
        (inner == Inner::Block).then_some(Conf(false))
    }
}

/// Signature, version 1, audio and video, the length of the header, and the size 0 of the tag before the first one.
const HEADER: &[u8] = b"FLV\x01\x05\0\0\0\x09\0\0\0\0";

/// Opens the file, and adds the header if it is not sent from its beginning.
async fn run(request: &mut Request) -> Step {
    let (opened, _) = match static_file::open(request).await {
        Ok(found) => found,
        Err(step) => return step,
    };
    let size = opened.stat.size;
    static_file::respond(request, opened);
    // As in nginx a start that is no number, or beyond the end, is ignored.
    let start = http::uri::arg(&request.args, b"start").and_then(http::parse_decimal);
    let Some(start) = start.filter(|start| (1..size).contains(start)) else { return Step::Done };
    static_file::compose(request, HEADER.to_vec(), start..size);
    Step::Done
}
