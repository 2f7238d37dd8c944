//! The messages of the gRPC health checking protocol, `grpc.health.v1.Health/Check`: a request with the name of a service, and a
//! response with a status, each as a protobuf message after the five bytes of gRPC.

/// Path of the method.
pub(super) const PATH: &str = "/grpc.health.v1.Health/Check";

/// Number of bytes before a message: a flag for compression, and the length.
const PREFIX_LEN: usize = 5;

/// Tag of field 1 with the wire type of a string, and of an integer.
const STRING_1: u8 = 1 << 3 | 2;
const INTEGER_1: u8 = 1 << 3;

/// Value of the status of a server that accepts requests.
const SERVING: u8 = 1;

/// Encodes the request for a service; an empty name means the complete server.
pub(super) fn request(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(STRING_1);
        let mut len = service.len();
        while len > 0x7f {
            message.push(len as u8 | 0x80);
            len >>= 7;
        }
        message.push(len as u8);
        message.extend_from_slice(service.as_bytes());
    }
    let mut framed = vec![0];
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.append(&mut message);
    framed
}

/// Whether a response has the status SERVING. Only the exact message passes: the protocol has no other field.
pub(super) fn is_serving(body: &[u8]) -> bool {
    let Some((prefix, message)) = body.split_at_checked(PREFIX_LEN) else { return false };
    prefix == [0, 0, 0, 0, 2] && message == [INTEGER_1, SERVING]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_encoded_as_by_protobuf() {
        assert_eq!(request(""), [0; 5]);
        assert_eq!(request("ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        let long = request(&"x".repeat(300));
        assert_eq!(long[..8], [0, 0, 0, 1, 47, 0x0a, 0xac, 0x02]);
        assert_eq!(long.len(), 5 + 3 + 300);
    }

    #[test]
    fn only_a_serving_server_passes() {
        assert!(is_serving(&[0, 0, 0, 0, 2, 8, 1]));
        for body in
            [&[][..], &[0, 0, 0, 0, 0], &[0, 0, 0, 0, 2, 8, 2], &[1, 0, 0, 0, 2, 8, 1], &[0, 0, 0, 0, 2, 8]]
        {
            assert!(!is_serving(body), "{body:?}");
        }
    }
}
