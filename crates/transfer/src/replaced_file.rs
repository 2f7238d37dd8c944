//! Replaces small files that workers write, such as those of `state`, atomically and durably. The calls block, so only helper
//! threads make them.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Replaces a file. Readers get the old content or the new one. When this function returns, the new content survives a crash of
/// the system.
#[expect(clippy::disallowed_methods, reason = "only helper threads call this function")]
pub fn replace(path: &Path, bytes: &[u8], mode: u32) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
    let temp = Path::new(&name);
    let mut options = std::fs::OpenOptions::new();
    // Created by this call, so that a symbolic link with this name has no effect.
    let options = options.write(true).create_new(true);
    // A process with the same id may have left a file.
    let _ = std::fs::remove_file(temp);
    // With a mode, because the umask of a worker is 0.
    let written = options.mode(mode).open(temp).and_then(|mut file| {
        file.write_all(bytes)?;
        // Without this call, a crash of the system could leave an empty file with the final name.
        file.sync_data()
    });
    let done = written.and_then(|()| std::fs::rename(temp, path));
    if done.is_err() {
        let _ = std::fs::remove_file(temp);
        return done;
    }
    // The new name is durable with its directory (fsync(2)).
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    std::fs::File::open(directory.unwrap_or(Path::new(".")))?.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may wait")]
    fn a_link_with_the_temporary_name_is_not_followed() {
        let dir = testkit::TempDir::new("replaced-file");
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("other"), "unchanged").unwrap();
        let temps: Vec<_> =
            (0..20).map(|number| path(&format!("a.state.{}-{number}", std::process::id()))).collect();
        for temp in &temps {
            std::os::unix::fs::symlink(path("other"), temp).unwrap();
        }
        replace(&path("a.state"), b"first", 0o644).unwrap();
        replace(&path("a.state"), b"second", 0o600).unwrap();
        assert_eq!(std::fs::read(path("other")).unwrap(), b"unchanged");
        assert_eq!(std::fs::read(path("a.state")).unwrap(), b"second");
        let facts = std::fs::symlink_metadata(path("a.state")).unwrap();
        assert!(facts.is_file());
        assert_eq!(std::os::unix::fs::PermissionsExt::mode(&facts.permissions()) & 0o777, 0o600);
        assert_eq!(
            temps.iter().filter(|temp| temp.symlink_metadata().is_ok()).count(),
            18,
            "both were replaced"
        );
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test may wait")]
    fn a_failure_leaves_no_file() {
        let dir = testkit::TempDir::new("replaced-file");
        let path = |name: &str| dir.path().join(name);
        std::fs::create_dir(path("a")).unwrap();
        assert!(replace(&path("a"), b"text", 0o600).is_err(), "it is a directory");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(replace(&path("missing/a"), b"text", 0o600).is_err());
    }
}
