//! Recognises the inputs of the signatures of TLS handshakes (RFC 8446 section 4.4.3, RFC 5246 sections 7.4.3 and 7.4.8).
//!
//! A signing process must not sign arbitrary bytes for a worker: with a signature of another protocol, an attacker could
//! issue certificates or sign messages in the name of the key. The input of TLS 1.3 has a fixed prefix. That of a server of
//! TLS 1.2 begins with two random values, of which the client chooses one, so only the form of what follows can be checked.

/// Number of spaces at the start of the input of TLS 1.3.
const SPACES: usize = 64;

const SERVER_13: &[u8] = b"TLS 1.3, server CertificateVerify\0";
const CLIENT_13: &[u8] = b"TLS 1.3, client CertificateVerify\0";

/// Lengths in bytes of the transcript's digest: those of SHA-256 and SHA-384, the digests of all suites.
const DIGESTS: [usize; 2] = [32, 48];

/// Length in bytes of the two random values of TLS 1.2.
const RANDOMS: usize = 64;

/// ECCurveType `named_curve` (RFC 8422 section 5.4).
const NAMED_CURVE: u8 = 3;

/// The groups that this server offers, with the lengths of their public keys in bytes, and whether these are uncompressed
/// points (RFC 8422 section 5.4).
const GROUPS: [(u16, usize, bool); 3] = [(23, 65, true), (24, 97, true), (29, 32, false)];

/// Handshake messages of a client that sends a certificate in TLS 1.2, from the first to the one before CertificateVerify.
const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const CLIENT_KEY_EXCHANGE: u8 = 16;

/// All types of messages between these (RFC 5246 section 7.4, RFC 5077, RFC 6066): NewSessionTicket, Certificate,
/// ServerKeyExchange, CertificateRequest, ServerHelloDone, CertificateStatus.
const BETWEEN: [u8; 6] = [4, 11, 12, 13, 14, 22];

/// The kinds of signatures in handshakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakePart {
    /// CertificateVerify of a server in TLS 1.3.
    Server13,
    /// CertificateVerify of a client in TLS 1.3.
    Client13,
    /// ServerKeyExchange in TLS 1.2.
    Server12,
    /// CertificateVerify of a client in TLS 1.2.
    Client12,
}

/// Returns which signature of a handshake has this input; `None` if no signature has it.
pub fn handshake_part(message: &[u8]) -> Option<HandshakePart> {
    // A random value of TLS 1.2 that consists of spaces is the attempt to get a signature for TLS 1.3.
    if message.starts_with(&[b' '; SPACES]) {
        return certificate_verify_13(&message[SPACES..]);
    }
    // The type of the first message is in the first random value, so a message may have both forms.
    let is_server = is_server_key_exchange(message);
    is_server
        .then_some(HandshakePart::Server12)
        .or_else(|| is_client_transcript(message).then_some(HandshakePart::Client12))
}

/// Returns the role of which this is the input of TLS 1.3 after the spaces.
fn certificate_verify_13(rest: &[u8]) -> Option<HandshakePart> {
    let kinds = [(SERVER_13, HandshakePart::Server13), (CLIENT_13, HandshakePart::Client13)];
    let (digest, kind) =
        kinds.iter().find_map(|(context, kind)| Some((rest.strip_prefix(*context)?, *kind)))?;
    DIGESTS.contains(&digest.len()).then_some(kind)
}

/// Whether this is `client_random`, `server_random` and the public key of an ephemeral exchange, the only kind of rustls.
fn is_server_key_exchange(message: &[u8]) -> bool {
    let Some((_, &[NAMED_CURVE, high, low, length, ref point @ ..])) = message.split_at_checked(RANDOMS)
    else {
        return false;
    };
    let group = u16::from_be_bytes([high, low]);
    GROUPS.iter().any(|(known, bytes, is_point)| {
        *known == group
            && usize::from(length) == *bytes
            && point.len() == *bytes
            && (!is_point || point.first() == Some(&4))
    })
}

/// Whether these are the messages of a handshake from ClientHello to ClientKeyExchange.
fn is_client_transcript(message: &[u8]) -> bool {
    let (mut rest, mut types) = (message, Vec::new());
    while let &[kind, high, middle, low, ref behind @ ..] = rest {
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        let Some((_, next)) = behind.split_at_checked(length) else { return false };
        types.push(kind);
        rest = next;
    }
    match types.as_slice() {
        [CLIENT_HELLO, SERVER_HELLO, between @ .., CLIENT_KEY_EXCHANGE] => {
            rest.is_empty() && between.iter().all(|kind| BETWEEN.contains(kind))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verify_13(context: &[u8], digest: usize) -> Vec<u8> {
        [&[b' '; SPACES][..], context, &vec![7; digest]].concat()
    }

    fn exchange_12(group: u16, point: &[u8]) -> Vec<u8> {
        let [high, low] = group.to_be_bytes();
        [&[9; RANDOMS][..], &[NAMED_CURVE, high, low, point.len() as u8], point].concat()
    }

    fn transcript(types: &[u8]) -> Vec<u8> {
        types.iter().flat_map(|kind| [*kind, 0, 0, 2, 5, 6]).collect()
    }

    #[test]
    fn inputs_of_handshakes_are_recognised() {
        assert_eq!(handshake_part(&verify_13(SERVER_13, 32)), Some(HandshakePart::Server13));
        assert_eq!(handshake_part(&verify_13(CLIENT_13, 48)), Some(HandshakePart::Client13));
        for (group, bytes, _) in GROUPS {
            let message = exchange_12(group, &vec![4; bytes]);
            assert_eq!(handshake_part(&message), Some(HandshakePart::Server12), "{group}");
        }
        let messages = transcript(&[1, 2, 11, 22, 12, 13, 14, 11, 16]);
        assert_eq!(handshake_part(&messages), Some(HandshakePart::Client12));
    }

    #[test]
    fn other_inputs_are_not_recognised() {
        let mut others = vec![Vec::new(), b"text".to_vec(), vec![0; 1000], vec![b' '; 200]];
        for digest in [0, 31, 33, 64] {
            others.push(verify_13(SERVER_13, digest));
        }
        others.push(verify_13(b"TLS 1.3, other CertificateVerify\0", 32));
        others.push(verify_13(SERVER_13, 32)[1..].to_vec());
        // The input of a delegated credential (RFC 9345 section 4), and a certificate to be signed.
        others.push(verify_13(b"TLS, server delegated credentials\0", 32));
        others.push([&[0x30, 0x82, 1, 0, 0xa0, 3, 2, 1, 2][..], &[1; 251]].concat());
        others.push(b"eyJhbGciOiJFUzI1NiJ9.e30".to_vec());
        others.push([&[b' '; RANDOMS][..], &exchange_12(29, &[7; 32])[RANDOMS..]].concat());
        for (group, bytes, is_point) in GROUPS {
            others.push(exchange_12(group, &vec![4; bytes + 1]));
            others.push(exchange_12(group + 100, &vec![4; bytes]));
            if is_point {
                others.push(exchange_12(group, &vec![5; bytes]));
            }
        }
        for types in [&[1, 2][..], &[2, 16], &[1, 16], &[1, 2, 20, 16], &[1, 2, 16, 15], &[2, 1, 16]] {
            others.push(transcript(types));
        }
        others.push([transcript(&[1, 2, 16]).as_slice(), &[0]].concat());
        for other in others {
            assert_eq!(handshake_part(&other), None, "{other:?}");
        }
    }
}
