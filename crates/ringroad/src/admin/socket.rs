//! The listening socket of `admin_socket`.
//!
//! The socket is created under a temporary name with mode 0600 and then renamed. So other users can never connect, and
//! a client finds either the old or the new socket. The file of a killed server is replaced, the file of a running
//! server is not.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, Mode};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
    sockopt,
};

use crate::listen::{errno_text, error_text};

/// Listen backlog: more than the number of operators who run a command concurrently.
const BACKLOG: i32 = 16;

/// A listening socket. Dropping it removes its file, unless another server has replaced the file.
#[derive(Debug)]
pub(crate) struct AdminSocket {
    socket: OwnedFd,
    /// The configured path, relative to the prefix.
    path: PathBuf,
    /// Device and inode number of its file.
    file: (u64, u64),
}

impl AdminSocket {
    /// Opens the socket. `takes_over`: the file may belong to another master that this one replaces.
    pub(crate) fn open(path: &Path, takes_over: bool) -> Result<AdminSocket, String> {
        let shown = path.display();
        let failed = |call: &str, errno| failure(path, call, errno);
        match std::fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(occupied(path)),
            Ok(_) if !takes_over && lives(path) => {
                return Err(format!(
                    "admin_socket: another server listens on \"{shown}\"; configure another path or stop that server"
                ));
            }
            _ => {}
        }
        // In the same directory, because a rename works only within a file system.
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}", std::process::id()));
        let draft = PathBuf::from(draft);
        let _ = std::fs::remove_file(&draft);
        let socket = new_socket().map_err(|errno| failed("socket", errno))?;
        // The file gets the mode of the socket (unix(7)), independent of the umask.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(|errno| failed("fchmod", errno))?;
        let address = SocketAddrUnix::new(&draft).map_err(|errno| failed("bind", errno))?;
        bind(&socket, &address).map_err(|errno| failed("bind", errno))?;
        let ready = listen(&socket, BACKLOG).map_err(io::Error::from);
        let file = ready.and_then(|()| std::fs::symlink_metadata(&draft)).and_then(|file| {
            std::fs::rename(&draft, path)?;
            Ok((file.dev(), file.ino()))
        });
        match file {
            Ok(file) => Ok(AdminSocket { socket, path: path.to_owned(), file }),
            Err(error) => {
                let _ = std::fs::remove_file(&draft);
                Err(format!("admin_socket: \"{shown}\" could not be created ({})", error_text(&error)))
            }
        }
    }

    /// Returns why a start could not create the socket, for a test of the configuration. The socket of a running server is no
    /// obstacle.
    pub(crate) fn obstacle(path: &Path) -> Option<String> {
        if std::fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
            return Some(occupied(path));
        }
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty())?;
        let errno = rustix::fs::access(directory, Access::WRITE_OK | Access::EXEC_OK).err()?;
        Some(failure(path, "bind", errno))
    }

    /// Returns the descriptor for poll(2).
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.socket
    }

    /// Returns the path of its file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Accepts the next caller. A caller of another user is returned as an error, whatever the mode of the file is; so is a process
    /// of the server (`children`), which may have the user of the master.
    pub(crate) fn accept(&self, children: &[u32]) -> Option<Result<OwnedFd, OwnedFd>> {
        let caller = accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok()?;
        let may_ask = sockopt::socket_peercred(&caller).is_ok_and(|who| {
            let is_child = children.contains(&who.pid.as_raw_nonzero().get().unsigned_abs());
            (who.uid.is_root() || who.uid == rustix::process::geteuid()) && !is_child
        });
        Some(if may_ask { Ok(caller) } else { Err(caller) })
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        let is_ours =
            std::fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.file);
        if is_ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns the message for a failed system call, with the remedy.
fn failure(path: &Path, call: &str, errno: Errno) -> String {
    let remedy = match errno {
        Errno::NOENT | Errno::NOTDIR => "; its directory does not exist",
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            "; the user that starts the server must be able to write to its directory"
        }
        _ => "",
    };
    format!("admin_socket: {call}() of \"{}\" failed ({}){remedy}", path.display(), errno_text(errno))
}

/// Returns the message for a path that is not a socket.
fn occupied(path: &Path) -> String {
    format!("admin_socket: \"{}\" exists and is not a socket; configure another path", path.display())
}

/// Creates a non-blocking close-on-exec socket.
fn new_socket() -> Result<OwnedFd, Errno> {
    socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// Whether a server listens on this path. Only ECONNREFUSED and ENOENT prove that none does. With a full backlog or a
/// socket of another type, connect(2) fails with another error.
fn lives(path: &Path) -> bool {
    let connected = || connect(&new_socket()?, &SocketAddrUnix::new(path)?);
    !matches!(connected(), Err(Errno::CONNREFUSED | Errno::NOENT))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Workers of a master without root have its user.
    #[test]
    fn a_process_of_the_server_is_no_caller() {
        let path = std::env::temp_dir().join(format!("ringroad-admin-child-{}", std::process::id()));
        let socket = AdminSocket::open(&path, false).expect("it is free");
        let own = std::process::id();
        for (children, is_accepted) in [(&[own + 1][..], true), (&[own + 1, own], false)] {
            connect(new_socket().expect("a socket"), &SocketAddrUnix::new(&path).expect("a short path"))
                .expect("it listens");
            assert_eq!(socket.accept(children).expect("a caller").is_ok(), is_accepted);
        }
    }

    #[test]
    fn a_socket_file_of_a_stopped_server_is_replaced() {
        let folder = std::env::temp_dir().join(format!("ringroad-admin-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a directory");
        let path = folder.join("a.sock");
        let first = AdminSocket::open(&path, false).expect("it is free");
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let refused = AdminSocket::open(&path, false).expect_err("another one listens");
        assert!(refused.contains("another server listens on"), "{refused}");
        let second = AdminSocket::open(&path, true).expect("it takes over");
        drop(first);
        assert!(path.exists(), "the file is that of the second");
        // A killed server leaves its file behind.
        let AdminSocket { socket, .. } = &second;
        rustix::net::shutdown(socket, rustix::net::Shutdown::Both).expect("it listens");
        drop(AdminSocket::open(&path, false).expect("nothing listens"));
        drop(second);
        assert!(!path.exists());
        std::fs::write(&path, "text").expect("a file");
        let refused = AdminSocket::open(&path, true).expect_err("a file of another kind");
        assert!(refused.contains("is not a socket"), "{refused}");
        assert_eq!(AdminSocket::obstacle(&path), Some(refused));
        let missing = folder.join("missing/a.sock");
        let refused = AdminSocket::open(&missing, false).expect_err("no directory");
        assert!(
            refused.ends_with("(2: No such file or directory); its directory does not exist"),
            "{refused}"
        );
        assert_eq!(AdminSocket::obstacle(&missing), Some(refused));
        std::fs::remove_dir_all(&folder).expect("it was made here");
    }
}
