//! Address validation tokens for later connections (NEW_TOKEN, RFC 9000 section 8.1.3): each token is accepted once, by the worker process that has
//! sent it. A client with a token needs no Retry packet.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use quinn_proto::{TokenLog, TokenReuseError, ValidationTokenConfig};

/// Time for which a token is valid.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Number of tokens that a client gets for each proved address. It needs one for each later connection, which sends more.
const SENT: u32 = 2;

/// Maximum number of used tokens in each of two sets, which need about 3 MiB together.
const USED_MAX: usize = 1 << 16;

/// The tokens that clients have used.
struct UsedTokens(Mutex<Used>);

struct Used {
    newer: HashSet<u128>,
    older: HashSet<u128>,
    /// Time at which `newer` was created.
    since: SystemTime,
    /// Tokens that were issued before are refused: they may have been used.
    refused_before: SystemTime,
}

impl Used {
    fn new(now: SystemTime) -> Used {
        Used { newer: HashSet::new(), older: HashSet::new(), since: now, refused_before: now }
    }

    /// Notes the use of a token. Returns whether it may be the first use.
    fn use_once(&mut self, nonce: u128, issued: SystemTime, now: SystemTime) -> bool {
        if issued < self.refused_before || self.newer.contains(&nonce) || self.older.contains(&nonce) {
            return false;
        }
        if self.newer.len() >= USED_MAX {
            // The tokens of the older set are forgotten. They were used, and so issued, before the newer set was created.
            self.older = std::mem::take(&mut self.newer);
            self.refused_before = self.since;
            self.since = now;
        }
        debug_assert!(self.newer.len() < USED_MAX, "the sets are bounded");
        issued >= self.refused_before && self.newer.insert(nonce)
    }
}

impl TokenLog for UsedTokens {
    fn check_and_insert(&self, nonce: u128, issued: SystemTime, _: Duration) -> Result<(), TokenReuseError> {
        // No code can panic while it holds the lock, except for a failed allocation.
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if used.use_once(nonce, issued, rt::wall()) { Ok(()) } else { Err(TokenReuseError) }
    }
}

/// Returns the settings of tokens for all endpoints of the process.
pub(super) fn settings() -> ValidationTokenConfig {
    static USED: LazyLock<Arc<UsedTokens>> = LazyLock::new(|| {
        // Tokens have times in seconds.
        Arc::new(UsedTokens(Mutex::new(Used::new(rt::wall() - Duration::from_secs(1)))))
    });
    let mut config = ValidationTokenConfig::default();
    config.lifetime(LIFETIME).sent(SENT).log(Arc::clone(&USED) as Arc<dyn TokenLog>);
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_used_once() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut used = Used::new(at(100));
        assert!(!used.use_once(1, at(99), at(101)), "a token of an earlier process");
        assert!(used.use_once(1, at(100), at(101)));
        assert!(!used.use_once(1, at(100), at(102)));
        for nonce in 0..3 * USED_MAX as u128 {
            let issued = at(200 + nonce as u64);
            assert!(used.use_once(1000 + nonce, issued, issued), "{nonce}");
            assert!(!used.use_once(1000 + nonce, issued, issued));
            assert!(used.newer.len() + used.older.len() <= 2 * USED_MAX);
        }
        assert!(!used.use_once(1, at(100), at(1 << 20)), "the use of an old token may be forgotten");
        assert!(!used.use_once(2, at(100), at(1 << 20)));
    }
}
