//! Finds the location of a request. The tables and their search are in [`site::find_location`].

use std::rc::Rc;

use crate::request::Request;
use site::find_location::Seeker;
use site::ids::LocationId;
use site::pattern::Match;
use site::template::Template;

/// A search that updates a request, because predicates in a nested location use the captures of the enclosing pattern.
struct Asking<'r> {
    request: &'r mut Request,
    uri: &'r [u8],
}

impl<'c> Seeker<'c> for Asking<'_> {
    fn enter(&mut self, location: LocationId, matched: Option<Match<'c>>) {
        self.request.location = location;
        if let Some(matched) = matched {
            matched.store(self.uri, self.request);
        }
    }

    fn holds(&mut self, predicate: &Template) -> bool {
        !matches!(predicate.rendered(self.request).as_slice(), b"" | b"0")
    }
}

/// Finds the location of the request's URI; returns `false` if a regular expression reached its limit.
pub(crate) fn search(request: &mut Request) -> bool {
    let thread_config = Rc::clone(&request.thread_config);
    let config = &thread_config.config;
    let server = config.server(request.server);
    if server.locations.has_predicates() {
        let uri = request.uri.clone();
        let asked = server.locations.search(&config.http.locations, &uri, &mut Asking { request, uri: &uri });
        return asked.inspect_err(|gave_up| gave_up.log(&request.uri, request)).is_ok();
    }
    let uri = std::mem::take(&mut request.uri);
    let found = server.locations.find(&config.http.locations, &uri);
    match &found {
        Ok(found) => {
            request.location = found.location.unwrap_or(request.location);
            if let Some(matched) = &found.matched {
                matched.store(&uri, request);
            }
        }
        Err(gave_up) => gave_up.log(&uri, request),
    }
    request.uri = uri;
    found.is_ok()
}
