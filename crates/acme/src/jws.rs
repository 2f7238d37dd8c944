//! Signed requests (RFC 8555 section 6.2, RFC 7515): a JSON object with a header, a payload and a signature, each encoded in
//! base64url.

use serde_json::{Value, json};
use tls::signing::{PublicKey, SigningKey, mac};

use crate::base64url;

/// The signer of a request: an account, or a key without an account.
#[derive(Clone, Copy, Debug)]
pub enum Signer<'a> {
    /// The URL of an account.
    Account(&'a str),
    /// A key without an account; the request contains the public key.
    Key,
}

/// Signs a request to a URL. A request without a payload reads a resource (POST-as-GET, RFC 8555 section 6.3).
pub fn sign(
    key: &SigningKey,
    signer: Signer<'_>,
    url: &str,
    nonce: &str,
    payload: Option<&Value>,
) -> Option<String> {
    let mut header = json!({ "alg": key.algorithm(), "nonce": nonce, "url": url });
    match signer {
        Signer::Account(account) => header["kid"] = account.into(),
        Signer::Key => header["jwk"] = public(key),
    }
    // The signed text is also the text that is sent, so it must be serialized only once.
    let payload = payload.map(Value::to_string).unwrap_or_default();
    let (header, payload) = (base64url::encode(header.to_string()), base64url::encode(payload));
    let signature = key.sign(format!("{header}.{payload}").as_bytes())?;
    Some(message(&header, &payload, &signature).to_string())
}

/// Returns the proof that the owner of an external account owns this key (RFC 8555 section 7.3.4).
pub fn bind(key: &SigningKey, url: &str, id: &str, secret: &[u8]) -> Value {
    let header = json!({ "alg": "HS256", "kid": id, "url": url });
    let payload = base64url::encode(public(key).to_string());
    let header = base64url::encode(header.to_string());
    let signature = mac(secret, format!("{header}.{payload}").as_bytes());
    message(&header, &payload, &signature)
}

fn message(header: &str, payload: &str, signature: &[u8]) -> Value {
    json!({ "protected": header, "payload": payload, "signature": base64url::encode(signature) })
}

/// Returns the public key as a JSON Web Key (RFC 7517), with its members sorted by name.
fn public(key: &SigningKey) -> Value {
    match key.public() {
        PublicKey::Ecdsa { curve, x, y } => {
            json!({ "crv": curve, "kty": "EC", "x": base64url::encode(x), "y": base64url::encode(y) })
        }
        PublicKey::Rsa { n, e } => {
            json!({ "e": base64url::encode(e), "kty": "RSA", "n": base64url::encode(n) })
        }
    }
}

/// Returns the thumbprint of a key (RFC 7638): the digest of its required members, sorted by name and without spaces.
pub fn thumbprint(key: &SigningKey) -> String {
    base64url::encode(tls::digest(public(key).to_string().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tls::signing::{KeyKind, generate};

    #[test]
    fn a_request_contains_its_url_nonce_and_signer() {
        let key = generate(KeyKind::EcdsaP256).expect("a key");
        let key = SigningKey::from_pem(key.as_bytes()).expect("it is readable");
        let part = |text: &str, name: &str| {
            let message: Value = serde_json::from_str(text).expect("JSON");
            let part = message[name].as_str().expect("a text").to_owned();
            base64url::decode(&part).expect("base64url")
        };
        let text = sign(&key, Signer::Account("https://a/1"), "https://a/new", "n", Some(&json!({"x": 1})))
            .expect("signed");
        let header: Value = serde_json::from_slice(&part(&text, "protected")).expect("JSON");
        assert_eq!(
            header,
            json!({"alg": "ES256", "kid": "https://a/1", "nonce": "n", "url": "https://a/new"})
        );
        assert_eq!(part(&text, "payload"), b"{\"x\":1}");
        assert_eq!(part(&text, "signature").len(), 64);
        let text = sign(&key, Signer::Key, "https://a/new", "n", None).expect("signed");
        let header: Value = serde_json::from_slice(&part(&text, "protected")).expect("JSON");
        assert_eq!((&header["kid"], &header["jwk"]["kty"]), (&Value::Null, &json!("EC")));
        assert_eq!(part(&text, "payload"), b"");
    }

    /// The digest is that of a text, so another order of the members would give another thumbprint.
    #[test]
    fn members_of_a_public_key_are_sorted() {
        let key = generate(KeyKind::Rsa2048).expect("a key");
        let key = SigningKey::from_pem(key.as_bytes()).expect("it is readable");
        let text = public(&key).to_string();
        assert!(text.starts_with("{\"e\":\"AQAB\",\"kty\":\"RSA\",\"n\":\""), "{text}");
        assert_eq!(base64url::decode(&thumbprint(&key)).map(|digest| digest.len()), Some(32));
    }
}
