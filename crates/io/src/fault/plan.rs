//! The fault plan, and its text form.
//!
//! A plan is a list of rules, one per line or separated by `;`. `#` starts a comment.
//!
//! ```text
//! rule      = operation SP fault *( SP condition )
//! operation = "accept" | "recv" | "send" | "connect" | "poll" | "close" | "open" | "stat" | "read"
//!           | "write" | "sendfile" | "readdir" | "unlink" | "rename" | "mkdir" | "link" | "advise"
//!           | "space" | "sync" | "any"
//! fault     = "short"                    ; half of the bytes, at least one
//!           | "error=" errno             ; fails without a system call, with EINTR, EAGAIN, EIO, ...; ENOBUFS of a
//!                                        ; receive into the pool delays it to the next turn, as a lack of buffers does
//!           | "end"                      ; a multishot operation ends at this completion
//!           | "delay=" number ("ms"|"s") ; the completion is delayed by this time
//!           | "lost"                     ; the completion never arrives; a drain leaks the operation
//! condition = "path=" prefix             ; prefix of the path that is opened, stat'ed or changed (either path of a
//!                                        ; rename), or of the path of the open file that is read, written or
//!                                        ; changed; with a "/" at its end: the directory and everything below it
//!           | "while=" path              ; only while a file exists at this path: a switch during a run
//!           | "after=" number            ; skips this number of matching operations first
//!           | "every=" number            ; then applies to every Nth matching operation
//!           | "first=" number            ; applies this number of times, then never again
//!           | "probability=" fraction    ; 0 to 1
//!           | "seed=" number             ; seed of the probability, so that a run can be repeated
//! ```
//!
//! `read short every=3`, `open delay=500ms path=/slow/`, `write error=ENOSPC path=/cache/ while=/tmp/full` and
//! `accept error=EMFILE first=2` are rules. If several rules fire for an operation, the first applies. Each engine counts
//! separately, and does not count while a `while` path does not exist.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rustix::io::Errno;

/// A list of rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    pub(super) rules: Vec<Rule>,
}

/// A fault and its conditions.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rule {
    /// The operation; `None` matches all.
    pub(super) operation: Option<&'static str>,
    pub(super) fault: Fault,
    /// Prefix of the file's path.
    pub(super) path: Option<String>,
    /// Path of the switch file: the rule is active only while it exists.
    pub(super) switch: Option<String>,
    pub(super) after: u64,
    pub(super) every: u64,
    pub(super) first: Option<u64>,
    pub(super) probability: f64,
    pub(super) seed: u64,
}

/// The fault of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Only half of the bytes are transferred.
    Short,
    /// The operation fails without a system call.
    Error(Errno),
    /// A multishot operation ends.
    End,
    /// The completion is delayed.
    Delay(Duration),
    /// The completion never arrives.
    Lost,
}

/// The operations that a rule can name.
const OPERATIONS: [&str; 19] = [
    "accept", "recv", "send", "connect", "poll", "close", "open", "stat", "read", "write", "sendfile",
    "readdir", "unlink", "rename", "mkdir", "link", "advise", "space", "sync",
];

/// The errors that a rule can name.
const ERRORS: [(&str, Errno); 23] = [
    ("EACCES", Errno::ACCESS),
    ("EAGAIN", Errno::AGAIN),
    ("EBADF", Errno::BADF),
    ("ECANCELED", Errno::CANCELED),
    ("ECONNABORTED", Errno::CONNABORTED),
    ("ECONNREFUSED", Errno::CONNREFUSED),
    ("ECONNRESET", Errno::CONNRESET),
    ("EDQUOT", Errno::DQUOT),
    ("EINTR", Errno::INTR),
    ("EINVAL", Errno::INVAL),
    ("EIO", Errno::IO),
    ("EMFILE", Errno::MFILE),
    ("ENFILE", Errno::NFILE),
    ("ENOBUFS", Errno::NOBUFS),
    ("ENODEV", Errno::NODEV),
    ("ENOENT", Errno::NOENT),
    ("ENOMEM", Errno::NOMEM),
    ("ENOSPC", Errno::NOSPC),
    ("EOPNOTSUPP", Errno::OPNOTSUPP),
    ("EPIPE", Errno::PIPE),
    ("EROFS", Errno::ROFS),
    ("ESTALE", Errno::STALE),
    ("ETIMEDOUT", Errno::TIMEDOUT),
];

/// An error in the text of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultParseError {
    /// Number of the rule, 1-based.
    pub rule: usize,
    /// The error.
    pub kind: FaultParseErrorKind,
}

/// An error in a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultParseErrorKind {
    /// The first word is not an operation.
    UnknownOperation(String),
    /// The second word is not a fault.
    UnknownFault(String),
    /// The rule has no second word.
    MissingFault,
    /// The name of the error is unknown.
    UnknownErrno(String),
    /// A further word is not a condition.
    UnknownCondition(String),
    /// A number, time or fraction cannot be parsed or is out of range.
    BadValue(String),
}

impl fmt::Display for FaultParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fault rule {}: {}", self.rule, self.kind)
    }
}

impl fmt::Display for FaultParseErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultParseErrorKind::UnknownOperation(word) => write!(f, "unknown operation \"{word}\""),
            FaultParseErrorKind::UnknownFault(word) => write!(f, "unknown fault \"{word}\""),
            FaultParseErrorKind::MissingFault => write!(f, "a fault is missing after the operation"),
            FaultParseErrorKind::UnknownErrno(word) => write!(f, "unknown error name \"{word}\""),
            FaultParseErrorKind::UnknownCondition(word) => write!(f, "unknown condition \"{word}\""),
            FaultParseErrorKind::BadValue(word) => write!(f, "invalid value in \"{word}\""),
        }
    }
}

impl std::error::Error for FaultParseError {}

impl FaultPlan {
    /// Parses the rules of `text`.
    ///
    /// # Errors
    /// The first rule that does not match the grammar at the top of this module.
    pub fn parse(text: &str) -> Result<FaultPlan, FaultParseError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or(""));
        let rules = lines.flat_map(|line| line.split(';')).map(str::trim).filter(|rule| !rule.is_empty());
        let parsed = rules
            .enumerate()
            .map(|(index, rule)| parse_rule(rule).map_err(|kind| FaultParseError { rule: index + 1, kind }));
        Ok(FaultPlan { rules: parsed.collect::<Result<_, _>>()? })
    }
}

impl Rule {
    /// Returns a rule without conditions.
    fn new(operation: Option<&'static str>, fault: Fault) -> Rule {
        let (every, probability, seed) = (1, 1.0, 1);
        Rule { operation, fault, path: None, switch: None, after: 0, every, first: None, probability, seed }
    }

    /// Whether the rule applies to an operation on files with these names, now.
    fn is_about(&self, operation: &str, names: &[String]) -> bool {
        self.operation.is_none_or(|wanted| wanted == operation)
            && self.path.as_deref().is_none_or(|prefix| names.iter().any(|name| is_below(name, prefix)))
            && self.switch.as_deref().is_none_or(|switch| rustix::fs::lstat(switch).is_ok())
    }
}

fn is_below(name: &str, prefix: &str) -> bool {
    name.starts_with(prefix) || prefix.strip_suffix('/') == Some(name)
}

fn parse_rule(text: &str) -> Result<Rule, FaultParseErrorKind> {
    let mut words = text.split_whitespace();
    let word = words.next().unwrap_or("");
    let operation = OPERATIONS.into_iter().find(|name| *name == word);
    if operation.is_none() && word != "any" {
        return Err(FaultParseErrorKind::UnknownOperation(word.to_owned()));
    }
    let fault = parse_fault(words.next().ok_or(FaultParseErrorKind::MissingFault)?)?;
    let mut rule = Rule::new(operation, fault);
    for word in words {
        let unknown = || FaultParseErrorKind::UnknownCondition(word.to_owned());
        let (name, value) = word.split_once('=').ok_or_else(unknown)?;
        match name {
            "path" => rule.path = Some(value.to_owned()),
            "while" => rule.switch = Some(value.to_owned()),
            "after" => rule.after = number(word, value)?,
            "every" => rule.every = number(word, value)?,
            "first" => rule.first = Some(number(word, value)?),
            "probability" => rule.probability = number(word, value)?,
            "seed" => rule.seed = number(word, value)?,
            _ => return Err(unknown()),
        }
        if rule.every == 0 || !(0.0..=1.0).contains(&rule.probability) {
            return Err(FaultParseErrorKind::BadValue(word.to_owned()));
        }
    }
    Ok(rule)
}

fn parse_fault(word: &str) -> Result<Fault, FaultParseErrorKind> {
    match word.split_once('=') {
        None if word == "short" => Ok(Fault::Short),
        None if word == "end" => Ok(Fault::End),
        None if word == "lost" => Ok(Fault::Lost),
        Some(("error", name)) => {
            let found = ERRORS.iter().find(|(known, _)| *known == name);
            found
                .map(|(_, errno)| Fault::Error(*errno))
                .ok_or_else(|| FaultParseErrorKind::UnknownErrno(name.to_owned()))
        }
        Some(("delay", time)) => {
            let (value, unit) = match time.strip_suffix("ms") {
                Some(value) => (value, 1),
                None => (time.strip_suffix('s').unwrap_or(time), 1000),
            };
            let value: u64 = number(word, value)?;
            Ok(Fault::Delay(Duration::from_millis(value.saturating_mul(unit))))
        }
        _ => Err(FaultParseErrorKind::UnknownFault(word.to_owned())),
    }
}

fn number<N: FromStr>(word: &str, value: &str) -> Result<N, FaultParseErrorKind> {
    value.parse().map_err(|_| FaultParseErrorKind::BadValue(word.to_owned()))
}

/// A rule with its state in one engine.
#[derive(Debug)]
pub(super) struct RuleState {
    pub(super) rule: Rule,
    seen: u64,
    struck: u64,
    random: u64,
}

impl RuleState {
    pub(super) fn new(rule: Rule) -> RuleState {
        // A generator of this kind with state 0 returns only zeroes.
        let random = rule.seed.max(1);
        RuleState { rule, seen: 0, struck: 0, random }
    }

    /// Whether the rule matches this operation on files with these names, and its fault is due.
    pub(super) fn strikes(&mut self, operation: &str, names: &[String]) -> bool {
        let rule = &self.rule;
        if !rule.is_about(operation, names) {
            return false;
        }
        self.seen += 1;
        let due = self.seen > rule.after
            && (self.seen - rule.after).is_multiple_of(rule.every)
            && rule.first.is_none_or(|first| self.struck < first);
        let strikes = due && (rule.probability >= 1.0 || self.draw() < self.rule.probability);
        self.struck += u64::from(strikes);
        strikes
    }

    /// Returns a pseudo-random number from 0 to 1 (xorshift64, Marsaglia 2003).
    fn draw(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        // A double has a 53-bit mantissa.
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn state(text: &str) -> RuleState {
        RuleState::new(FaultPlan::parse(text).unwrap().rules.remove(0))
    }

    #[test]
    fn rules_are_parsed() {
        let plan =
            FaultPlan::parse("read short every=3 # often\nopen delay=2s path=/slow/; any lost").unwrap();
        assert_eq!(plan.rules.len(), 3);
        assert_eq!(plan.rules[0].fault, Fault::Short);
        assert_eq!(plan.rules[1].fault, Fault::Delay(Duration::from_secs(2)));
        assert_eq!(plan.rules[1].path.as_deref(), Some("/slow/"));
        assert_eq!(plan.rules[2].operation, None);
    }

    #[test]
    fn bad_rules_are_reported() {
        use FaultParseErrorKind::*;
        let cases = [
            ("flush short", 1, UnknownOperation("flush".into())),
            ("read short\nread", 2, MissingFault),
            ("read slow", 1, UnknownFault("slow".into())),
            ("read error=EWHAT", 1, UnknownErrno("EWHAT".into())),
            ("read short often", 1, UnknownCondition("often".into())),
            ("read short twice=2", 1, UnknownCondition("twice=2".into())),
            ("read short every=0", 1, BadValue("every=0".into())),
            ("read short probability=2", 1, BadValue("probability=2".into())),
            ("read delay=soon", 1, BadValue("delay=soon".into())),
        ];
        for (text, rule, kind) in cases {
            assert_eq!(FaultPlan::parse(text), Err(FaultParseError { rule, kind }), "{text}");
        }
    }

    #[test]
    fn conditions_count_only_matching_operations() {
        let mut third = state("read short every=3 first=2");
        let strikes: Vec<bool> = (0..12).map(|_| third.strikes("read", &[])).collect();
        assert_eq!(strikes.iter().filter(|&&struck| struck).count(), 2);
        assert!(strikes[2] && strikes[5]);
        assert!(!third.strikes("open", &[]));
        let mut slow = state("any lost path=/slow/");
        assert!(slow.strikes("read", &names(&["/slow/a"])));
        assert!(!slow.strikes("read", &names(&["/fast/a"])));
        assert!(!slow.strikes("recv", &[]));
        assert!(slow.strikes("open", &names(&["/slow"])), "the directory itself");
        assert!(!slow.strikes("open", &names(&["/slower"])));
        assert!(slow.strikes("rename", &names(&["/fast/a", "/slow/b"])), "either of two");
    }

    #[test]
    fn the_first_operations_can_be_spared() {
        let mut late = state("write error=EROFS after=3 every=2 first=2");
        let strikes: Vec<bool> = (0..10).map(|_| late.strikes("write", &[])).collect();
        let struck: Vec<usize> = (0..10).filter(|&place| strikes[place]).collect();
        assert_eq!(struck, [4, 6]);
    }

    #[test]
    fn a_switch_turns_a_rule_on_and_off_and_its_counting() {
        let switch = std::env::temp_dir().join(format!("ringroad-switch-{}", std::process::id()));
        let mut rule = state(&format!("write error=EDQUOT first=2 after=1 while={}", switch.display()));
        let mut struck = |times: usize| (0..times).filter(|_| rule.strikes("write", &[])).count();
        assert_eq!(struck(5), 0);
        std::fs::write(&switch, "").unwrap();
        assert_eq!(struck(2), 1, "the first one since it is on is spared");
        std::fs::remove_file(&switch).unwrap();
        assert_eq!(struck(5), 0);
        std::fs::write(&switch, "").unwrap();
        assert_eq!(struck(5), 1);
        std::fs::remove_file(&switch).unwrap();
    }

    #[test]
    fn the_same_seed_repeats_a_run() {
        let run = |seed: u64| -> Vec<bool> {
            let mut rule = state(&format!("read short probability=0.5 seed={seed}"));
            (0..64).map(|_| rule.strikes("read", &[])).collect()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        let struck = run(7).iter().filter(|&&struck| struck).count();
        assert!((16..48).contains(&struck), "{struck} of 64 at one half");
    }
}
