//! [`Method`]: the methods that nginx recognises (RFC 9110 section 9, RFC 4918 for WebDAV).

/// A request method. Other methods are valid too; their text is in [`crate::request::Head::method_span`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Method {
    /// GET
    Get,
    /// HEAD
    Head,
    /// POST
    Post,
    /// PUT
    Put,
    /// DELETE
    Delete,
    /// MKCOL
    Mkcol,
    /// COPY
    Copy,
    /// MOVE
    Move,
    /// OPTIONS
    Options,
    /// PROPFIND
    Propfind,
    /// PROPPATCH
    Proppatch,
    /// LOCK
    Lock,
    /// UNLOCK
    Unlock,
    /// PATCH
    Patch,
    /// TRACE
    Trace,
    /// CONNECT
    Connect,
    /// Any other method.
    #[default]
    Other,
}

impl Method {
    /// Returns the method with this name; methods are case-sensitive.
    #[must_use]
    pub fn of(name: &[u8]) -> Self {
        match name {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"MKCOL" => Self::Mkcol,
            b"COPY" => Self::Copy,
            b"MOVE" => Self::Move,
            b"OPTIONS" => Self::Options,
            b"PROPFIND" => Self::Propfind,
            b"PROPPATCH" => Self::Proppatch,
            b"LOCK" => Self::Lock,
            b"UNLOCK" => Self::Unlock,
            b"PATCH" => Self::Patch,
            b"TRACE" => Self::Trace,
            b"CONNECT" => Self::Connect,
            _ => Self::Other,
        }
    }

    /// Returns the name; empty for [`Method::Other`].
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Mkcol => "MKCOL",
            Self::Copy => "COPY",
            Self::Move => "MOVE",
            Self::Options => "OPTIONS",
            Self::Propfind => "PROPFIND",
            Self::Proppatch => "PROPPATCH",
            Self::Lock => "LOCK",
            Self::Unlock => "UNLOCK",
            Self::Patch => "PATCH",
            Self::Trace => "TRACE",
            Self::Connect => "CONNECT",
            Self::Other => "",
        }
    }
}
