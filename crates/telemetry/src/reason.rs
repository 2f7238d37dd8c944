//! The text of a failed system call in log lines.

use std::fmt;

use io::Errno;

/// The reason of a failed system call in nginx's form: `2: No such file or directory`.
pub struct Reason(pub Errno);

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.0.raw_os_error();
        let text = std::io::Error::from_raw_os_error(code).to_string();
        write!(f, "{code}: {}", text.trim_end_matches(&format!(" (os error {code})")))
    }
}
