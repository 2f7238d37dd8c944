//! Changes to the servers of upstream groups: `http/upstreams/NAME/servers`, optionally followed by a server's number.

use conf::value;
use peers::Group;
use peers::address::Url;
use peers::change::{AddError, ServerChange};
use serde_json::{Map, Value};

use super::tree;
use super::{Fault, NOT_ALLOWED, NOT_FOUND, UNKNOWN_VERSION, VERSIONS, fault};
use exchange::request::Request;

/// No upstream block has this name.
const NO_GROUP: Fault = fault(404, "UpstreamNotFound", "upstream not found");
const NO_SERVER: Fault = fault(404, "UpstreamServerNotFound", "server with this id does not exist");
/// A new server must be an address with a port, or a UNIX-domain socket. A name would have to be resolved.
const BAD_ADDRESS: Fault = fault(400, "UpstreamBadAddress", "the server is no address");
/// Unknown fields are errors: if they were ignored, the object would silently remain unchanged.
const BAD_FORMAT: Fault = fault(400, "UpstreamConfFormatError", "a field is unknown, or its value is wrong");
const UNSUPPORTED: Fault = fault(
    400,
    "UpstreamConfFormatError",
    "the group's method does not support \"backup\" and \"slow_start\"",
);
const EXISTS: Fault = fault(409, "EntryExists", "the group has this server");
const UNREADABLE: Fault = fault(500, "InternalError", "the body could not be read");
pub(super) const TOO_LARGE: Fault = fault(413, "UpstreamConfFormatError", "the body is too large");

/// Maximum length of the body of a change of a server in bytes. Its fields need a few hundred.
pub(super) const BODY_MAX: u64 = 64 << 10;

/// Performs a change; returns the status and the resulting object.
pub(super) fn run(request: &Request, path: &[&str], body: &[u8]) -> Result<(u16, Value), Fault> {
    let (version, path) = path.split_first().ok_or(NOT_ALLOWED)?;
    if !VERSIONS.contains(version) {
        return Err(UNKNOWN_VERSION);
    }
    let ["http", "upstreams", name, "servers", rest @ ..] = path else { return Err(NOT_ALLOWED) };
    // Implicit groups have no block whose servers could be changed.
    let group = tree::group(request, name).filter(|group| group.port.is_none()).ok_or(NO_GROUP)?;
    match (request.method_text(), rest) {
        (b"POST", []) => add(group, object(body)?),
        (b"PATCH", [id]) => {
            let (id, change) = (number(id)?, change(object(body)?)?);
            if !group.supports(&change) {
                return Err(UNSUPPORTED);
            }
            match group.change(id, &change) {
                true => Ok((200, tree::server(&group.peer(id).ok_or(NO_SERVER)?))),
                false => Err(NO_SERVER),
            }
        }
        (b"DELETE", [id]) => match group.remove(number(id)?) {
            true => Ok((200, tree::servers(group))),
            false => Err(NO_SERVER),
        },
        (b"POST" | b"PATCH" | b"DELETE", [] | [_]) => Err(NOT_ALLOWED),
        _ => Err(NOT_FOUND),
    }
}

/// Parses the number of a server, which is never reused in the same process.
fn number(id: &str) -> Result<u32, Fault> {
    id.parse().map_err(|_| NO_SERVER)
}

/// Returns the body, which may be in a file, or an error if it has more than `max` bytes. It remains in the request, for `mirror`, the
/// log and the removal of the file.
pub(super) async fn body(request: &Request, max: u64, too_large: Fault) -> Result<Vec<u8>, Fault> {
    let Some(body) = request.body.clone() else { return Ok(Vec::new()) };
    if body.byte_count() > max {
        return Err(too_large);
    }
    let mut bytes = Vec::new();
    body.push_to(&mut bytes);
    let mut offset = 0;
    while offset < body.in_file() {
        let buf = body.read_file(offset, BODY_MAX).await.map_err(|_| UNREADABLE)?;
        offset += buf.len() as u64;
        bytes.extend_from_slice(&buf);
    }
    Ok(bytes)
}

/// Parses the object in the body.
fn object(body: &[u8]) -> Result<Map<String, Value>, Fault> {
    serde_json::from_slice(body).map_err(|_| BAD_FORMAT)
}

/// Adds a server, which new requests may use.
fn add(group: &Group, mut fields: Map<String, Value>) -> Result<(u16, Value), Fault> {
    let Some(Value::String(server)) = fields.remove("server") else { return Err(BAD_ADDRESS) };
    let backup = match fields.remove("backup") {
        None => None,
        Some(Value::Bool(backup)) => Some(backup),
        Some(_) => return Err(BAD_FORMAT),
    };
    let change = ServerChange { backup, ..change(fields)? };
    if server.contains(|char: char| char.is_ascii_control()) {
        return Err(BAD_ADDRESS);
    }
    let url: Url = Url::parse(&server, 80).map_err(|_| BAD_ADDRESS)?;
    group.add(&server, &url, &change).map_err(|error| match error {
        AddError::Name => BAD_ADDRESS,
        AddError::Duplicate => EXISTS,
        AddError::Unsupported => UNSUPPORTED,
    })?;
    let added = group.peers(rt::now()).into_iter().find(|peer| *peer.server == *server);
    Ok((201, tree::server(&added.ok_or(BAD_ADDRESS)?)))
}

/// Parses settings from the fields of an object.
fn change(fields: Map<String, Value>) -> Result<ServerChange, Fault> {
    let mut change = ServerChange::default();
    for (name, value) in fields {
        // Numbers have the same bound as in a configuration, because the `state` file is read as one.
        let signed = || value.as_i64().filter(|number| *number >= 0).ok_or(BAD_FORMAT);
        let whole = || signed().map(i64::cast_unsigned);
        let seconds = || {
            let text = value.as_str().ok_or(BAD_FORMAT)?;
            let seconds = value::seconds(text).map_err(|_| BAD_FORMAT)?;
            i64::try_from(seconds).map_err(|_| BAD_FORMAT)
        };
        let flag = || value.as_bool().ok_or(BAD_FORMAT);
        match name.as_str() {
            "weight" => change.weight = Some(signed()?).filter(|weight| *weight > 0),
            "max_conns" => change.max_conns = Some(whole()?),
            "max_fails" => change.max_fails = Some(whole()?),
            "fail_timeout" => change.fail_timeout = Some(seconds()?),
            "slow_start" => change.slow_start_ms = Some(seconds()?.checked_mul(1000).ok_or(BAD_FORMAT)?),
            "down" => change.down = Some(flag()?),
            "drain" => change.drain = Some(flag()?),
            _ => return Err(BAD_FORMAT),
        }
        if name == "weight" && change.weight.is_none() {
            return Err(BAD_FORMAT);
        }
    }
    Ok(change)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: Value) -> Result<ServerChange, Fault> {
        let Value::Object(fields) = value else { panic!("an object") };
        change(fields)
    }

    #[test]
    fn fields_of_a_change_are_server_settings() {
        let found = read(json!({ "weight": 5, "fail_timeout": "1m", "slow_start": "2s", "drain": true }));
        let expected = ServerChange {
            weight: Some(5),
            fail_timeout: Some(60),
            slow_start_ms: Some(2000),
            drain: Some(true),
            ..ServerChange::default()
        };
        assert_eq!(found, Ok(expected));
        let up = read(json!({ "down": false })).map(|change| (change.down, change.drain));
        assert_eq!(up, Ok((Some(false), None)));
        for wrong in [
            json!({ "weight": 0 }),
            json!({ "weight": "1" }),
            json!({ "port": 1 }),
            json!({ "down": 1 }),
            json!({ "max_conns": u64::MAX }),
        ] {
            assert_eq!(read(wrong), Err(BAD_FORMAT));
        }
    }
}
