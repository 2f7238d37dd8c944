//! `empty_gif`: serves an image of one transparent pixel, from memory.

use conf::{Args, Contexts, Spec};
use http::fields::Method;
use io::segments::Source;

use crate::{Declaration, Directive, Module};
use exchange::phases::{Phase, Step};
use exchange::request::Request;
use exchange::response::ContentType;
use site::config::{Inner, Settings, SettingsType};

/// The module.
pub(crate) static MODULE: Module = Module {
    add_to_plan: |_, scope, plan| {
        if scope.of::<Conf>().0 {
            plan.now(Phase::Content, scope.shared::<Conf>(), respond);
        }
    },
    ..Module::of(Declaration {
        directives: &[DIRECTIVES],
        settings: &[SettingsType::of::<Conf>()],
        ..Declaration::named("http_empty_gif")
    })
};

const DIRECTIVES: &[Directive] = &[Directive::scope(
    Spec::new(
        "http_empty_gif",
        "empty_gif",
        Contexts::LOCATION,
        Args::None,
        "Returns an image of one transparent pixel.",
    ),
    |scope, _| {
        *scope.make_mut() = Conf(true);
        Ok(())
    },
)];

/// Whether the location serves the image. Of inner blocks only an `if` inherits it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conf(bool);

impl Settings for Conf {
    fn inherit(&self, inner: Inner) -> Option<Conf> {
        (inner != Inner::If).then_some(Conf(false))
    }
}

/// An image of 1 by 1 pixels with the colours black and white, of which white is transparent.
const PICTURE: &[u8] = b"GIF89a\x01\0\x01\0\x80\x01\0\0\0\0\xff\xff\xff!\xf9\x04\x01\0\0\x01\0,\0\0\0\0\x01\0\x01\0\0\x02\x02L\x01\0;";

/// The image's modification time. Any constant is suitable, so that browsers request it only once; this is nginx's, 28
/// September 1970.
const MODIFIED: i64 = 23_349_600;

/// Responds with the image. It is no file, so it needs neither ranges nor an entity tag.
fn respond(_: &Conf, request: &mut Request) -> Step {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Step::Status(405);
    }
    let response = &mut request.response;
    response.status = 200;
    response.content_type = ContentType::Text("image/gif".into());
    response.last_modified = Some(MODIFIED);
    response.set_bytes(Source::Static(PICTURE));
    Step::Done
}

#[cfg(test)]
mod tests {
    use super::PICTURE;
    use crate::testing::{error, loaded};

    #[test]
    fn applies_only_to_its_own_location() {
        let config = loaded("server { location / { empty_gif; location /in {} } }");
        let set: Vec<bool> =
            config.http.locations.iter().map(|location| location.scope.of::<super::Conf>().0).collect();
        assert_eq!(set, [false, true, false]);
        assert_eq!(PICTURE.len(), 43);
    }

    #[test]
    fn refuses_arguments_and_the_server_context() {
        let found = error("http { server { location / {\nempty_gif on; } } }");
        assert_eq!(
            found,
            "invalid number of arguments in \"empty_gif\" directive in /conf/nginx.conf:2; it takes no arguments, not 1"
        );
        let found = error("http { server {\nempty_gif; } }");
        assert_eq!(
            found,
            "\"empty_gif\" directive is not allowed here in /conf/nginx.conf:2; it is allowed in location"
        );
    }
}
