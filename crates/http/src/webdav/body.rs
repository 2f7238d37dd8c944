//! Bodies of PROPFIND, PROPPATCH and LOCK (RFC 4918 sections 9.1, 9.2, 9.10, 14).

use super::xml::{self, PropertyName, XmlError};

/// Maximum size in bytes of a body.
pub const BODY_MAX: u64 = 64 << 10;

/// Maximum length in bytes of the `owner` of a lock, which is stored with the lock.
pub const OWNER_MAX: usize = 1024;

/// The properties that PROPFIND requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Propfind {
    /// `allprop`, or no body.
    All,
    /// `propname`: only the names.
    Names,
    /// `prop`: these properties.
    These(Vec<PropertyName>),
}

/// Parses the body of a PROPFIND.
///
/// # Errors
/// The body is not well-formed, or is another document.
pub fn propfind(body: &[u8]) -> Result<Propfind, XmlError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Propfind::All);
    }
    let root = xml::parse(body)?;
    if !root.name.is_dav("propfind") {
        return Err(XmlError::Malformed);
    }
    if let Some(prop) = root.child("prop") {
        return Ok(Propfind::These(prop.children.iter().map(|child| child.name.clone()).collect()));
    }
    match (root.child("propname"), root.child("allprop")) {
        (Some(_), None) => Ok(Propfind::Names),
        (None, Some(_)) => Ok(Propfind::All),
        _ => Err(XmlError::Malformed),
    }
}

/// A property that PROPPATCH sets, or removes if the value is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The property.
    pub name: PropertyName,
    /// The text of its new value.
    pub value: Option<String>,
}

/// Parses the body of a PROPPATCH: the changes in their order.
///
/// # Errors
/// The body is not well-formed, or is another document.
pub fn proppatch(body: &[u8]) -> Result<Vec<Change>, XmlError> {
    let root = xml::parse(body)?;
    if !root.name.is_dav("propertyupdate") {
        return Err(XmlError::Malformed);
    }
    let mut changes = Vec::new();
    for action in &root.children {
        let sets = match () {
            () if action.name.is_dav("set") => true,
            () if action.name.is_dav("remove") => false,
            () => continue,
        };
        let prop = action.child("prop").ok_or(XmlError::Malformed)?;
        changes.extend(prop.children.iter().map(|property| Change {
            name: property.name.clone(),
            value: sets.then(|| property.text.clone()),
        }));
    }
    if changes.is_empty() { Err(XmlError::Malformed) } else { Ok(changes) }
}

/// The owner of a lock as its client has sent it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Its text.
    pub text: String,
    /// Whether the text is in an element `href`.
    pub is_href: bool,
}

/// The body of a LOCK.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockInfo {
    /// Whether the lock is exclusive.
    pub is_exclusive: bool,
    /// The owner.
    pub owner: Owner,
}

/// Parses the body of a LOCK that requests a new lock.
///
/// # Errors
/// The body is not well-formed, or is another document, or the owner is too long.
pub fn lock(body: &[u8]) -> Result<LockInfo, XmlError> {
    let root = xml::parse(body)?;
    let scope = root.child("lockscope").filter(|_| root.name.is_dav("lockinfo"));
    let scope = scope.ok_or(XmlError::Malformed)?;
    let is_write = root.child("locktype").is_some_and(|kind| kind.child("write").is_some());
    let (exclusive, shared) = (scope.child("exclusive").is_some(), scope.child("shared").is_some());
    if !is_write || exclusive == shared {
        return Err(XmlError::Malformed);
    }
    let owner = root.child("owner").map_or_else(Owner::default, |owner| match owner.child("href") {
        Some(href) => Owner { text: href.text.trim().to_owned(), is_href: true },
        None => Owner { text: owner.text.trim().to_owned(), is_href: false },
    });
    if owner.text.len() > OWNER_MAX {
        return Err(XmlError::TooLarge);
    }
    Ok(LockInfo { is_exclusive: exclusive, owner })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_known_clients_are_parsed() {
        // Windows sends no body, or `prop` without a prefix; macOS and rclone use a prefix.
        assert_eq!(propfind(b""), Ok(Propfind::All));
        assert_eq!(propfind(b"<propfind xmlns='DAV:'><allprop/></propfind>"), Ok(Propfind::All));
        assert_eq!(propfind(b"<a:propfind xmlns:a='DAV:'><a:propname/></a:propfind>"), Ok(Propfind::Names));
        let found = propfind(
            b"<D:propfind xmlns:D=\"DAV:\"><D:prop><D:getetag/><x xmlns=\"u\"/></D:prop></D:propfind>",
        );
        let Ok(Propfind::These(names)) = found else { panic!("{found:?}") };
        assert!(names[0].is_dav("getetag") && names[1].namespace == "u");
        assert_eq!(propfind(b"<D:other xmlns:D=\"DAV:\"/>"), Err(XmlError::Malformed));
    }

    #[test]
    fn changes_of_properties_are_in_order() {
        let body = b"<D:propertyupdate xmlns:D='DAV:' xmlns:Z='urn:schemas-microsoft-com:'><D:set><D:prop>\
            <Z:Win32LastModifiedTime>Mon, 01 Jan 2024 00:00:00 GMT</Z:Win32LastModifiedTime></D:prop></D:set>\
            <D:remove><D:prop><Z:x/></D:prop></D:remove></D:propertyupdate>";
        let changes = proppatch(body).unwrap();
        assert_eq!(changes[0].value.as_deref(), Some("Mon, 01 Jan 2024 00:00:00 GMT"));
        assert_eq!((&*changes[1].name.local, &changes[1].value), ("x", &None));
        assert_eq!(proppatch(b"<D:propertyupdate xmlns:D='DAV:'/>"), Err(XmlError::Malformed));
    }

    #[test]
    fn locks_have_a_scope_and_an_owner() {
        let body = |scope: &str, owner: &str| {
            format!(
                "<D:lockinfo xmlns:D='DAV:'><D:lockscope><D:{scope}/></D:lockscope><D:locktype><D:write/></D:locktype>\
                 <D:owner>{owner}</D:owner></D:lockinfo>"
            )
        };
        let parsed = lock(body("exclusive", "<D:href>me</D:href>").as_bytes()).unwrap();
        assert_eq!(
            parsed,
            LockInfo { is_exclusive: true, owner: Owner { text: "me".into(), is_href: true } }
        );
        assert!(!lock(body("shared", "x").as_bytes()).unwrap().is_exclusive);
        assert_eq!(lock(body("other", "x").as_bytes()), Err(XmlError::Malformed));
        assert_eq!(lock(body("exclusive", &"x".repeat(2000)).as_bytes()), Err(XmlError::TooLarge));
    }
}
