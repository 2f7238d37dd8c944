//! Verifies passwords against stored passwords, in all formats that nginx supports on Linux: nginx's own formats and
//! those of crypt(3).

use md5::{Digest, Md5};
use sha_crypt::{PasswordVerifier, ShaCrypt};
use sha1::Sha1;
use subtle::ConstantTimeEq;
use yescrypt::Yescrypt;

use crate::auth_basic::des;
use http::base64;

/// The formats, recognised by the beginning of a stored password.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// `{PLAIN}`: plain text.
    Plain,
    /// `{SHA}`: SHA-1 in Base64.
    Sha,
    /// `{SSHA}`: SHA-1 of the password and a salt, followed by the salt, in Base64.
    SaltedSha,
    /// `$apr1$`: Apache's MD5.
    Apr1,
    /// `$1$`: MD5.
    Md5,
    /// `$5$` and `$6$`: SHA-256 and SHA-512.
    Sha2,
    /// `$2a$`, `$2b$`, `$2x$` and `$2y$`: bcrypt.
    Bcrypt,
    /// `$y$`: yescrypt.
    Yescrypt,
    /// Anything else: DES.
    Des,
}

impl Form {
    /// Returns the format of a stored password.
    pub(super) fn of(stored: &[u8]) -> Form {
        const BEGINNINGS: [(&[u8], Form); 9] = [
            (b"{PLAIN}", Form::Plain),
            (b"{SSHA}", Form::SaltedSha),
            (b"{SHA}", Form::Sha),
            (b"$apr1$", Form::Apr1),
            (b"$1$", Form::Md5),
            (b"$5$", Form::Sha2),
            (b"$6$", Form::Sha2),
            (b"$2", Form::Bcrypt),
            (b"$y$", Form::Yescrypt),
        ];
        let found = BEGINNINGS.iter().find(|(beginning, _)| stored.starts_with(beginning));
        found.map_or(Form::Des, |&(_, form)| form)
    }

    /// Whether the hash is designed to be slow, so that a worker thread must not compute it. A check takes milliseconds,
    /// or longer if the stored password specifies more rounds.
    pub(super) fn is_slow(self) -> bool {
        matches!(self, Form::Sha2 | Form::Bcrypt | Form::Yescrypt)
    }
}

/// Maximum length of a password that is hashed many times, in bytes. crypt(3) of libxcrypt has the same limit
/// (CRYPT_MAX_PASSPHRASE_SIZE).
const PASSWORD_LEN_MAX: usize = 512;

/// Whether `password` is the stored one. A stored password in an unknown format matches no password.
pub(super) fn verify(password: &[u8], stored: &[u8]) -> bool {
    // crypt(3) reads the password up to a NUL byte.
    let password = password.split(|&byte| byte == 0).next().unwrap_or_default();
    let is_hashed_once = matches!(Form::of(stored), Form::Plain | Form::Sha | Form::SaltedSha);
    if !is_hashed_once && password.len() > PASSWORD_LEN_MAX {
        return false;
    }
    let text = std::str::from_utf8(stored);
    let same = |made: &[u8]| bool::from(made.ct_eq(stored));
    match Form::of(stored) {
        Form::Plain => same(&[b"{PLAIN}", password].concat()),
        Form::Sha => same(&sha(b"{SHA}", password, b"")),
        Form::SaltedSha => {
            // The salt follows the 20 bytes of the hash.
            let decoded = base64::decode(&stored[b"{SSHA}".len()..], base64::Alphabet::Standard);
            let salt = decoded.as_deref().and_then(|decoded| decoded.get(20..)).unwrap_or_default();
            same(&sha(b"{SSHA}", password, salt))
        }
        Form::Apr1 => same(&md5_crypt(password, stored, b"$apr1$")),
        Form::Md5 => same(&md5_crypt(password, stored, b"$1$")),
        Form::Sha2 => text.is_ok_and(|text| ShaCrypt::default().verify_password(password, text).is_ok()),
        Form::Bcrypt => text.is_ok_and(|text| bcrypt::verify(password, text).unwrap_or(false)),
        Form::Yescrypt => text.is_ok_and(|text| Yescrypt::default().verify_password(password, text).is_ok()),
        Form::Des => match stored.first_chunk::<2>().and_then(|salt| des::crypt(password, *salt)) {
            Some(made) => same(&made),
            None => false,
        },
    }
}

/// Returns SHA-1 of the password and a salt, followed by the salt, in Base64.
fn sha(beginning: &[u8], password: &[u8], salt: &[u8]) -> Vec<u8> {
    let digest = Sha1::new().chain_update(password).chain_update(salt).finalize();
    let mut out = beginning.to_vec();
    base64::encode(&[digest.as_slice(), salt].concat(), &mut out);
    out
}

/// Number of rounds of MD5 passwords, which is fixed.
const MD5_ROUNDS: u32 = 1000;

/// Maximum number of significant characters in the salt of MD5 passwords.
const MD5_SALT_LEN_MAX: usize = 8;

/// Returns Poul-Henning Kamp's hash; Apache's differs only in its name, which is part of the hashed bytes.
fn md5_crypt(password: &[u8], stored: &[u8], name: &[u8]) -> Vec<u8> {
    let rest = &stored[name.len()..];
    let end = memchr::memchr(b'$', rest).unwrap_or(rest.len()).min(MD5_SALT_LEN_MAX);
    let salt = &rest[..end];
    let inner = Md5::new().chain_update(password).chain_update(salt).chain_update(password).finalize();
    let mut outer = Md5::new().chain_update(password).chain_update(name).chain_update(salt);
    for piece in password.chunks(inner.len()) {
        outer.update(&inner[..piece.len()]);
    }
    // Adds a NUL or the password's first character for each bit of the password's length.
    let mut bits = password.len();
    while bits != 0 {
        outer.update(if bits & 1 == 1 { &[0] } else { &password[..1] });
        bits >>= 1;
    }
    let mut digest = outer.finalize();
    for round in 0..MD5_ROUNDS {
        let mut next = Md5::new();
        next.update(if round % 2 == 1 { password } else { &digest });
        if round % 3 != 0 {
            next.update(salt);
        }
        if round % 7 != 0 {
            next.update(password);
        }
        next.update(if round % 2 == 1 { &digest } else { password });
        digest = next.finalize();
    }
    let mut out = [name, salt, b"$"].concat();
    let mut push = |bytes: &[u8], digits: u32| {
        let bits = bytes.iter().fold(0_u32, |bits, &byte| bits << 8 | u32::from(byte));
        out.extend((0..digits).map(|digit| des::DIGITS[(bits >> (6 * digit) & 63) as usize]));
    };
    for first in 0..5 {
        // The third byte of the last group is byte 5, because a digest has no byte 16.
        let third = if first == 4 { 5 } else { first + 12 };
        push(&[digest[first], digest[first + 6], digest[third]], 4);
    }
    push(&[digest[11]], 2);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Generated with crypt(3) of libxcrypt, openssl(1) and slappasswd's rule; the password is "secret".
    const KNOWN: [(&str, Form); 13] = [
        ("{PLAIN}secret", Form::Plain),
        ("{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", Form::Sha),
        ("{SSHA}YEpOsaoQ2aGbZi/bERjRurCCm4NncmFpbg==", Form::SaltedSha),
        ("$apr1$saltsalt$LrttParrLPdxvgutaSXWJ0", Form::Apr1),
        ("$1$saltsalt$9xy1btjgzLYfb7hivXtC//", Form::Md5),
        ("$5$rounds=1000$saltsalt$eKLZU9t9OoPWrqOQsoTIKG0aYkZ5rGOoOQhiIvoSWX2", Form::Sha2),
        (
            "$6$saltsalt$TVLlQcbpFVof5W3Yz4DTP6gRstiNuHwwTt6GLc1E5n0U0aDehy0S5knV8wiOQSpT0Y77vwPZN.Pq.H91p5hVO1",
            Form::Sha2,
        ),
        ("$2a$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a", Form::Bcrypt),
        ("$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a", Form::Bcrypt),
        ("$2y$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a", Form::Bcrypt),
        ("$y$j75$abcdefghijklmnop$vZlXu1XtxOBWRxjOpQqONp1WYfMO0dN.H4xeSMU2ZvC", Form::Yescrypt),
        ("abNANd1rDfiNc", Form::Des),
        ("$1$toolongs$OEwttSKsBv3b2i5Zx2s6p0", Form::Md5),
    ];

    /// A password of 6 KB takes 20 ms for MD5, and seconds for SHA-2.
    #[test]
    fn long_passwords_are_not_hashed_many_times() {
        let long = vec![b'a'; PASSWORD_LEN_MAX + 1];
        let stored = md5_crypt(&long, b"$apr1$saltsalt$", b"$apr1$");
        assert!(!verify(&long, &stored));
        let stored = md5_crypt(&long[1..], b"$apr1$saltsalt$", b"$apr1$");
        assert!(verify(&long[1..], &stored));
    }

    #[test]
    fn known_passwords_are_verified() {
        for (stored, form) in KNOWN {
            let stored = stored.as_bytes();
            assert_eq!(Form::of(stored), form);
            assert!(verify(b"secret", stored), "{}", stored.escape_ascii());
            for wrong in [&b""[..], b"Secret", b"secret ", b"secre"] {
                assert!(!verify(wrong, stored), "{}", stored.escape_ascii());
            }
        }
        // A password longer than a digest, and an empty one.
        assert!(verify(b"0123456789012345678901234567890123456789", b"$1$ab$3p2L66BkUwnz314p7POov0"));
        assert!(verify(b"", b"$1$ab$rn6aQS/o7141mj179E/zA."));
        assert!(verify(b"sec\0ret", b"{PLAIN}sec"));
    }

    #[test]
    fn malformed_hashes_match_no_password() {
        for stored in [
            "",
            "a",
            "secret",
            "$",
            "$1",
            "$1$",
            "$apr1$",
            "$2",
            "$2y$05$",
            "$2y$99$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a",
            "$5$",
            "$6$rounds=1$x$y",
            "$6$salt",
            "$y$",
            "$y$j75$x",
            "$y$\u{e9}$x$y",
            "{SHA}",
            "{SSHA}",
            "{SSHA}x",
            "{SSHA}AAAA",
            "*0",
            "$bad",
            "\u{e9}\u{e9}",
        ] {
            assert!(!verify(b"secret", stored.as_bytes()), "{stored}");
            assert!(!verify(b"", stored.as_bytes()), "{stored}");
        }
    }
}
