//! Tokens of RFCs and of other implementations, and damaged tokens.
//!
//! `data/tokens.json` was made by `data/make_tokens.py`; `data/rfc7520.json` has the examples of RFC 7520.

use jose::object::Value;
use jose::token::Encrypted;
use jose::{Fault, KeySet, Object, Signed, base64url, claims, encrypted, signed};
use proptest::prelude::*;

fn read(text: &str) -> Object {
    Object::parse(text.as_bytes()).expect("an object")
}

/// The tokens of other implementations.
struct Made {
    public: KeySet,
    private: KeySet,
    all: Object,
}

fn made() -> Made {
    let all = read(include_str!("data/tokens.json"));
    let part = |name: &str, end: &str| {
        let text = include_str!("data/tokens.json");
        let start = text.find(&format!("\"{name}\":")).expect("a member");
        let start = start + text[start..].find('{').expect("an object");
        let end = start + text[start..].find(end).expect("the next member");
        text[start..end].trim_end().trim_end_matches(',').to_owned()
    };
    let public = KeySet::parse(part("public", "\"private\"").as_bytes()).expect("keys");
    let private = KeySet::parse(part("private", "\"signed\"").as_bytes()).expect("keys");
    Made { public, private, all }
}

impl Made {
    /// Returns the algorithm, the content encryption and the text of each token.
    fn tokens(&self, list: &str) -> Vec<(String, String, String)> {
        let Some(Value::Array(items)) = self.all.get(list) else { panic!("a list") };
        let token = |item: Value| {
            let Value::Object(item) = item else { panic!("an object") };
            let text = |name: &str| item.text(name).unwrap_or_default();
            (text("alg"), text("enc"), text("token"))
        };
        items.into_iter().map(token).collect()
    }
}

fn verify(token: &str, set: &KeySet) -> Result<Vec<u8>, Fault> {
    let token = Signed::parse(token.as_bytes())?;
    signed::verify(&token, &[set])?;
    Ok(token.payload)
}

fn decrypt(token: &str, set: &KeySet) -> Result<Vec<u8>, Fault> {
    encrypted::decrypt(&Encrypted::parse(token.as_bytes())?, &[set])
}

fn subject(payload: &[u8]) -> Option<String> {
    claims::parse(payload).ok()?.text("sub")
}

/// Returns a token with this header instead of its own.
fn with_header(token: &str, header: &str) -> String {
    let (_, rest) = token.split_once('.').expect("sections");
    format!("{}.{rest}", base64url::encode(header.as_bytes()))
}

#[test]
fn tokens_of_other_implementations_are_verified() {
    let made = made();
    let tokens = made.tokens("signed");
    assert_eq!(tokens.len(), 13);
    for (alg, _, token) in tokens {
        for set in [&made.public, &made.private] {
            assert_eq!(
                verify(&token, set).ok().as_deref().and_then(subject).as_deref(),
                Some("someone"),
                "{alg}"
            );
        }
    }
}

#[test]
fn tokens_of_other_implementations_are_decrypted() {
    let made = made();
    let tokens = made.tokens("encrypted");
    assert_eq!(tokens.len(), 56);
    for (alg, enc, token) in tokens {
        let content = decrypt(&token, &made.private);
        assert_eq!(content.ok().as_deref().and_then(subject).as_deref(), Some("someone"), "{alg} {enc}");
        let is_slow = encrypted::is_slow(&Encrypted::parse(token.as_bytes()).expect("it is valid"));
        assert_eq!(is_slow, alg.starts_with("RSA"));
        if alg.starts_with("RSA") {
            assert_eq!(decrypt(&token, &made.public), Err(Fault::NoKey), "a public key decrypts nothing");
        }
    }
    let (_, _, nested) = made.tokens("nested").remove(0);
    let inner = decrypt(&nested, &made.private).expect("it is decrypted");
    let inner = String::from_utf8(inner).expect("a token");
    assert_eq!(subject(&verify(&inner, &made.private).expect("it is signed")).as_deref(), Some("someone"));
}

#[test]
fn examples_of_rfc_7520_are_accepted() {
    let text = format!("{{\"all\":{}}}", include_str!("data/rfc7520.json"));
    let Some(Value::Array(examples)) = read(&text).get("all") else { panic!("a list") };
    assert_eq!(examples.len(), 8);
    let keys: Vec<&str> = include_str!("data/rfc7520.json").split("\"key\":").skip(1).collect();
    for (example, key) in examples.into_iter().zip(keys) {
        let Value::Object(example) = example else { panic!("an object") };
        let set = KeySet::parse(key[..=key.find('}').expect("its end")].trim().as_bytes()).expect("a key");
        let (section, token) =
            (example.text("section").expect("a text"), example.text("token").expect("a text"));
        let found = if section.starts_with('4') { verify(&token, &set) } else { decrypt(&token, &set) };
        let found = found.map(|content| String::from_utf8(content).expect("a text"));
        assert_eq!(found, Ok(example.text("content").expect("a text")), "{section}");
    }
}

/// RFC 7515 appendix A.1 and A.3, RFC 8037 appendix A.4.
#[test]
fn examples_of_rfc_7515_and_rfc_8037_are_accepted() {
    let payload =
        "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ";
    for (key, token) in [
        (
            r#"{"kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow"}"#,
            format!("eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.{payload}.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"),
        ),
        (
            r#"{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}"#,
            format!("eyJhbGciOiJFUzI1NiJ9.{payload}.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"),
        ),
        (
            r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#,
            "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg".to_owned(),
        ),
    ] {
        let set = KeySet::parse(key.as_bytes()).expect("a key");
        assert!(verify(&token, &set).is_ok(), "{token}");
        // The unsecured form of RFC 7519 section 6.1, with and without a signature.
        let unsecured = with_header(&token, "{\"alg\":\"none\"}");
        assert_eq!(verify(&unsecured, &set), Err(Fault::Algorithm));
        let end = unsecured.rfind('.').expect("a section");
        assert_eq!(verify(&unsecured[..=end], &set), Err(Fault::Algorithm));
    }
}

/// The public key of an issuer must never be the secret of a MAC.
#[test]
fn an_algorithm_is_used_only_with_keys_of_its_type() {
    let made = made();
    let names =
        ["HS256", "HS384", "HS512", "RS256", "PS256", "ES256", "ES384", "ES512", "EdDSA", "none", "None", ""];
    for (alg, _, token) in made.tokens("signed") {
        for name in names.iter().filter(|name| **name != alg) {
            let changed = with_header(&token, &format!("{{\"alg\":\"{name}\"}}"));
            assert!(verify(&changed, &made.private).is_err(), "{alg} as {name}");
        }
    }
    // A MAC whose secret is the modulus, its text, or the complete key.
    let rsa = KeySet::parse(
        br#"{"kty":"RSA","e":"AQAB","n":"n4EPtAOCc9AlkeQHPzHStgAbgs7bTZLwUBZdR8_KuKPEHLd4rHVTeT-O-XV2jRojdNhxJWTDvNd7nqQ0VEiZQHz_AJmSCpMaJMRBSFKrKb2wqVwGU_NsYOYL-QtiWN2lbzcEe6XC0dApr5ydQLrHqkHHig3RBordaZ6Aj-oBHqFEHYpPe7Tpe-OfVfHd1E6cS6M1FZcD1NNLYD5lFHpPI9bTwJlsde3uhGqC0ZCuEHg8lhzwOHrtIQbS0FVbb9k3-tVTU4fg_3L_vniUFAKwuCLqKnS2BYwdq_mzSnbLY7h_qixoR7jig3__kRhuaxwUkRz5iaiQkqgc5gHdrNP5zw"}"#,
    );
    let rsa = rsa.expect("a key");
    let (_, _, mac) = made.tokens("signed").remove(0);
    assert_eq!(verify(&with_header(&mac, "{\"alg\":\"HS256\"}"), &rsa), Err(Fault::NoKey));
}

#[test]
fn keys_are_selected_by_id_use_operations_and_algorithm() {
    let secret = r#""kty":"oct","k":"AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow""#;
    let token = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    for (more, expected) in [
        ("", Ok(())),
        (r#","use":"sig""#, Ok(())),
        (r#","alg":"HS256","kid":"x""#, Ok(())),
        (r#","key_ops":["verify"]"#, Ok(())),
        (r#","key_ops":["sign"]"#, Ok(())),
        (r#","use":"enc""#, Err(Fault::NoKey)),
        (r#","alg":"HS512""#, Err(Fault::NoKey)),
        (r#","alg":"RS256""#, Err(Fault::NoKey)),
        (r#","key_ops":[]"#, Err(Fault::NoKey)),
        (r#","key_ops":["encrypt","decrypt"]"#, Err(Fault::NoKey)),
    ] {
        let set = KeySet::parse(format!("{{{secret}{more}}}").as_bytes()).expect("a key");
        assert_eq!(verify(token, &set).map(|_| ()), expected, "{more}");
    }
    // A token that names another key.
    let made = made();
    let (_, _, token) = made.tokens("signed").remove(0);
    for kid in ["\"oct48\"", "\"rsa\"", "\"none\"", "\"\""] {
        let changed = with_header(&token, &format!("{{\"alg\":\"HS256\",\"kid\":{kid}}}"));
        assert!(verify(&changed, &made.private).is_err(), "{kid}");
    }
    assert_eq!(
        verify(&with_header(&token, "{\"alg\":\"HS256\",\"kid\":1}"), &made.private),
        Err(Fault::Format)
    );
    // A key that the token itself brings is not used.
    let own =
        with_header(&token, r#"{"alg":"HS256","jwk":{"kty":"oct","k":"AQ"},"jku":"http://evil.example/"}"#);
    assert_eq!(verify(&own, &made.private), Err(Fault::Signature));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// No change of a character leaves a token valid.
    #[test]
    fn damaged_tokens_are_refused(pick in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let made = made();
        let all = [made.tokens("signed"), made.tokens("encrypted")].concat();
        let (alg, _, token) = pick.get(&all);
        let mut bytes = token.clone().into_bytes();
        let at = at.index(bytes.len());
        prop_assume!(bytes[at] != to);
        bytes[at] = to;
        let signed = Signed::parse(&bytes).and_then(|token| signed::verify(&token, &[&made.private]));
        let opened = Encrypted::parse(&bytes).and_then(|token| encrypted::decrypt(&token, &[&made.private]).map(|_| ()));
        prop_assert!(signed.is_err() && opened.is_err(), "{} at {}", alg, at);
    }

    /// Any bytes are parsed without a panic.
    #[test]
    fn any_bytes_are_parsed(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let set = KeySet::parse(&bytes);
        prop_assert!(set.is_err());
        let _ = (Signed::parse(&bytes), Encrypted::parse(&bytes));
    }
}
