//! Bodies and `If` of WebDAV requests: [`http::webdav`] (RFC 4918 sections 10.4 and 14).

use http::webdav::xml::{self, DEPTH_MAX, ELEMENTS_MAX, Element};
use http::webdav::{body, condition::If};

use crate::Target;

/// See the module.
pub const TARGET: Target = Target {
    name: "webdav_body",
    run,
    tokens: &[
        "<?xml version=\"1.0\"?>",
        "<D:propfind xmlns:D=\"DAV:\">",
        "</D:propfind>",
        "<D:prop>",
        "</D:prop>",
        "<D:allprop/>",
        "<D:propertyupdate xmlns:D=\"DAV:\">",
        "<D:set>",
        "<D:lockinfo xmlns:D='DAV:'>",
        "<D:owner>",
        "<![CDATA[",
        "]]>",
        "<!--",
        "-->",
        "&lt;",
        "&#65;",
        "&#x",
        "<!DOCTYPE",
        "(<urn:uuid:a>)",
        "([\"e\"])",
        "(Not ",
    ],
};

/// Checks the limits of a parsed document, and that escaped text is parsed as the same text.
pub fn run(data: &[u8]) {
    if let Ok(root) = xml::parse(data) {
        let count = count(&root, 1);
        assert!(count <= ELEMENTS_MAX, "{count} elements");
    }
    let _ = body::propfind(data);
    let _ = body::proppatch(data);
    if let Ok(lock) = body::lock(data) {
        assert!(lock.owner.text.len() <= body::OWNER_MAX);
        let mut text = "<a>".to_owned();
        xml::escape(&lock.owner.text, &mut text);
        text.push_str("</a>");
        assert!(xml::parse(text.as_bytes()).is_ok(), "the owner of a lock is sent again");
    }
    if let Some(parsed) = If::parse(data) {
        assert!(parsed.lists.iter().all(|list| !list.conditions.is_empty()));
        assert!(parsed.tokens().count() <= data.len());
    }
}

/// Returns the number of elements of a tree, and checks its depth.
fn count(element: &Element, depth: usize) -> usize {
    assert!(depth <= DEPTH_MAX, "the depth is limited");
    1 + element.children.iter().map(|child| count(child, depth + 1)).sum::<usize>()
}
