//! Texts about a version: its section of `CHANGELOG.md`, and fields of Debian packages.

use crate::Failure;

/// Returns the maintainer of a package, a name with an address. Both are from the variables that Debian's tools use.
pub(super) fn maintainer() -> String {
    let of = |name: &str, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
    format!("{} <{}>", of("DEBFULLNAME", "The Ringroad authors"), of("DEBEMAIL", "ringroad@example.org"))
}

/// Returns the section of the changelog for a version, with its heading.
pub(super) fn of_version(changelog: &str, version: &str) -> Result<String, Failure> {
    let heading =
        |line: &str| line.strip_prefix("## ").map(|rest| rest.split_whitespace().next() == Some(version));
    let mut lines = changelog.lines().skip_while(|line| heading(line) != Some(true));
    let missing = || Failure::Format { what: "CHANGELOG.md", detail: format!("no heading \"## {version}\"") };
    let first = lines.next().ok_or_else(missing)?;
    let text: Vec<&str> = lines.take_while(|line| heading(line).is_none()).collect();
    Ok(format!("{first}\n{}\n", text.join("\n").trim_end()))
}

/// Returns an entry of `changelog.Debian`. The changes of the version are in the upstream changelog.
pub(super) fn debian(version: &str, revision: u32, date: &str) -> String {
    format!(
        "ringroad ({version}-{revision}) unstable; urgency=medium\n\n  * Version {version}: see /usr/share/doc/ringroad/changelog.gz.\n\n -- {}  {date}\n",
        maintainer()
    )
}

/// A paragraph that describes the server, in lines of less than 80 characters.
pub(super) const DESCRIPTION: [&str; 5] = [
    "Ringroad serves files, passes requests to upstream servers and caches their",
    "responses. It reads the configuration of nginx, and moves every byte through",
    "an I/O engine of choice: io_uring, or epoll with libaio, threads or sendfile.",
    "HTTP/1.1, HTTP/2 and TLS, certificates by ACME, FastCGI, uwsgi, gRPC, metrics",
    "and a dashboard are part of it.",
];

/// The description in one line.
pub(super) const SUMMARY: &str = "HTTP server and caching proxy that reads nginx configuration";

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Changelog\n\n## Unreleased\n\n* new\n\n## 0.2.0 - 2026-11-26\n\n### Added\n\n* two\n\n## 0.1.0\n\n* one\n";

    #[test]
    fn the_notes_of_a_version_end_at_the_next_heading() {
        assert_eq!(
            of_version(TEXT, "0.2.0").expect("there"),
            "## 0.2.0 - 2026-11-26\n\n### Added\n\n* two\n"
        );
        assert_eq!(of_version(TEXT, "0.1.0").expect("there"), "## 0.1.0\n\n* one\n");
        assert!(of_version(TEXT, "0.2").is_err());
    }

    #[test]
    fn debian_parses_its_changelog_entry() {
        let entry = debian("0.1.0", 2, "Thu, 26 Nov 2026 12:00:00 +0000");
        assert!(entry.starts_with("ringroad (0.1.0-2) unstable; urgency=medium\n\n  * "));
        assert!(entry.ends_with(">  Thu, 26 Nov 2026 12:00:00 +0000\n"));
        assert!(DESCRIPTION.iter().all(|line| line.len() < 80));
    }
}
