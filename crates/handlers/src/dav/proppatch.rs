//! PROPPATCH (RFC 4918 section 9.2). No properties are stored. The properties that Windows sets for each copied file are
//! accepted, and `Win32LastModifiedTime` becomes the modification time; all other changes are refused by 403.

use http::date;
use http::webdav::body::{self, Change};
use http::webdav::xml::PropertyName;
use rustix::fs::OFlags;

use super::conditions;
use super::locks;
use super::properties;
use super::resource::{Resource, fault};
use super::{Conf, body_of, malformed, path_of};
use exchange::files;
use exchange::phases::Step;
use exchange::request::Request;

/// The namespace of the properties that Windows sets.
const WINDOWS: &str = "urn:schemas-microsoft-com:";

/// Handles PROPPATCH.
pub(super) async fn run(conf: &Conf, request: &mut Request) -> Result<Step, u16> {
    let body = body_of(request).await?;
    let changes = body::proppatch(&body).map_err(|error| malformed(request, error))?;
    let text = apply(conf, request, &changes).await?;
    properties::finish(request, text);
    Ok(Step::Done)
}

async fn apply(conf: &Conf, request: &Request, changes: &[Change]) -> Result<String, u16> {
    let resource = Resource::of(request, path_of(request, &request.uri)).await?;
    resource.stat().await.map_err(|trouble| trouble.log(request, 404))?;
    conditions::check(conf, request, &[(resource.full(), locks::Change::Content)]).await?;
    let (mut accepted, mut refused) = (Vec::new(), Vec::new());
    for change in changes {
        let list = if is_of_windows(&change.name) { &mut accepted } else { &mut refused };
        list.push(&change.name);
    }
    let mut text = properties::begin();
    text.push_str("<D:response>");
    properties::push_href(&request.uri, &mut text);
    // All changes are made or none.
    if refused.is_empty() {
        for change in changes {
            set_time(&resource, change).await.map_err(|status| status.log(request, 404))?;
        }
        properties::push_changed(&accepted, "200 OK", &mut text);
    } else {
        properties::push_changed(&refused, "403 Forbidden", &mut text);
        properties::push_changed(&accepted, "424 Failed Dependency", &mut text);
    }
    text.push_str("</D:response>\n");
    Ok(text)
}

fn is_of_windows(name: &PropertyName) -> bool {
    name.namespace == WINDOWS && name.local.starts_with("Win32")
}

/// Sets the modification time, if this is the change.
async fn set_time(resource: &Resource, change: &Change) -> super::resource::Done {
    if change.name.local != "Win32LastModifiedTime" {
        return Ok(());
    }
    let time = change.value.as_ref().and_then(|value| date::parse_http(value.trim().as_bytes()));
    let Some(time) = time else { return Ok(()) };
    let file = resource.path.open(OFlags::RDONLY).await.map_err(fault("open()", resource.full()))?;
    let set = files::dress(&file, None, Some((time, 0))).await;
    set.map_err(fault("futimens()", resource.full()))
}
