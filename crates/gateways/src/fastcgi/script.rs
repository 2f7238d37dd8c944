//! The script name and path info of a request, from `fastcgi_split_path_info` and `fastcgi_index`.

use crate::fastcgi::conf::FastCgi;
use crate::passing::Passing;
use exchange::module::Variable;
use exchange::request::Request;

pub(super) const VARIABLES: &[Variable] = &[
    Variable {
        name: "fastcgi_script_name",
        get: |request, out| {
            let own = own(request);
            let name = split(own, request).map_or(&request.uri[..], |(name, _)| name);
            out.extend_from_slice(name);
            if let Some(index) = own.index.as_ref().filter(|_| name.ends_with(b"/")) {
                out.extend_from_slice(index.as_bytes());
            }
            true
        },
        set: None,
        help: "The script: the URI or the first group of `fastcgi_split_path_info`, with `fastcgi_index` appended to a final slash.",
    },
    Variable {
        name: "fastcgi_path_info",
        get: |request, out| {
            out.extend_from_slice(split(own(request), request).map_or(b"", |(_, info)| info));
            true
        },
        set: None,
        help: "The second group of `fastcgi_split_path_info`.",
    },
];

fn own(request: &Request) -> &FastCgi {
    &request.scope().of::<Passing<FastCgi>>().protocol
}

/// Returns the name and the path info, if the pattern matches.
fn split<'r>(own: &FastCgi, request: &'r Request) -> Option<(&'r [u8], &'r [u8])> {
    let uri = &request.uri[..];
    let pattern = own.split.as_ref()?;
    let found = pattern.find(uri).inspect_err(|gave_up| gave_up.log(uri, request)).ok().flatten()?;
    let mut groups =
        found.spans().skip(1).map(|span| span.map_or(&uri[..0], |(start, end)| &uri[start..end]));
    Some((groups.next().unwrap_or_default(), groups.next().unwrap_or_default()))
}
