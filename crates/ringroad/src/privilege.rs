//! The user of the worker: user and groups, resolved by the master and set by the worker.
//!
//! [`resolve`] converts the `user` directive to [`Credentials`] with nginx's checks; [`Credentials::assume`] drops all
//! other privileges. It must run before the first thread is started and before an io_uring is created, because io_uring
//! retains the credentials of the creator.

use std::ffi::CString;

use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User, initgroups, setgid, setuid};
use rustix::thread::{CapabilitySet, CapabilitySets};
pub(crate) use site::settings::main::UserSpec;

use crate::log::place_of;

/// The user of workers if the configuration does not name one.
pub(crate) const DEFAULT_USER: &str = "nobody";

/// A user and its group as ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// User name, for its supplementary groups.
    pub(crate) user: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

/// The result of [`resolve`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// `None`: the worker keeps the user of the master.
    pub(crate) credentials: Option<Credentials>,
    /// A warning for the log.
    pub(crate) warning: Option<String>,
}

/// Looks up user and group. An unknown user or group is a fatal error, as in nginx.
pub(crate) fn resolve(spec: Option<&UserSpec>) -> Result<Resolved, String> {
    if !Uid::effective().is_root() {
        // Loading the configuration has already caused a warning about the directive.
        return Ok(Resolved::default());
    }
    let default = UserSpec { user: DEFAULT_USER.to_owned(), group: None, position: None };
    let written = spec.is_some();
    let spec = spec.unwrap_or(&default);
    let user = match User::from_name(&spec.user) {
        Ok(Some(user)) => user,
        Ok(None) | Err(_) => {
            return Err(format!("getpwnam(\"{}\") failed{}", spec.user, place_of(spec.position.as_ref())));
        }
    };
    let (gid, warning) = find_group(spec, &user)?;
    let credentials = Credentials { user: user.name, uid: user.uid.as_raw(), gid: gid.as_raw() };
    Ok(Resolved { credentials: Some(credentials), warning: warning.filter(|_| written) })
}

/// Without a second argument, nginx looks for a group with the user's name.
fn find_group(spec: &UserSpec, user: &User) -> Result<(Gid, Option<String>), String> {
    let name = spec.group.as_ref().unwrap_or(&spec.user);
    if let Ok(Some(group)) = Group::from_name(name) {
        return Ok((group.gid, None));
    }
    if spec.group.is_some() {
        return Err(format!("getgrnam(\"{name}\") failed{}", place_of(spec.position.as_ref())));
    }
    // nginx fails here if no group has the user's name. This server does not, because Debian has no group with the name
    // of the default user.
    let own = match Group::from_gid(user.gid) {
        Ok(Some(group)) => format!("\"{}\"", group.name),
        Ok(None) | Err(_) => user.gid.to_string(),
    };
    let warning = format!(
        "there is no group \"{name}\", using primary group {own} of user \"{name}\"{}",
        place_of(spec.position.as_ref())
    );
    Ok((user.gid, Some(warning)))
}

/// The failed system call when privileges were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotDropped {
    call: &'static str,
    id: u32,
    errno: Errno,
}

impl std::fmt::Display for NotDropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let NotDropped { call, id, errno } = self;
        write!(f, "{call}({id}) failed ({}: {})", *errno as i32, errno.desc())
    }
}

impl Credentials {
    /// Changes to this user permanently. The groups are changed first, because this needs the privileges that `setuid`
    /// drops. With `net_raw`, the capability CAP_NET_RAW is retained, as in nginx for `proxy_bind … transparent`.
    pub(crate) fn assume(&self, net_raw: bool) -> Result<(), NotDropped> {
        let failed = |call, id| move |errno| NotDropped { call, id, errno };
        setgid(Gid::from_raw(self.gid)).map_err(failed("setgid", self.gid))?;
        // A name with NUL cannot be from the user database and has no groups.
        let name = CString::new(self.user.as_str()).unwrap_or_default();
        initgroups(&name, Gid::from_raw(self.gid)).map_err(failed("initgroups", self.gid))?;
        let kept = |keep| {
            let set = rustix::thread::set_keep_capabilities(keep);
            set.map_err(|error| failed("prctl(PR_SET_KEEPCAPS)", 1)(Errno::from_raw(error.raw_os_error())))
        };
        if net_raw {
            kept(true)?;
        }
        setuid(Uid::from_raw(self.uid)).map_err(failed("setuid", self.uid))?;
        if net_raw {
            keep_net_raw()
                .map_err(|error| failed("capset", self.uid)(Errno::from_raw(error.raw_os_error())))?;
            kept(false)?;
        }
        // The change of the user disables core files of the process. Like nginx, the worker enables them again.
        nix::sys::prctl::set_dumpable(true).map_err(failed("prctl(PR_SET_DUMPABLE)", 1))
    }
}

/// Drops all capabilities(7) except CAP_NET_RAW, which permits to bind to addresses of other machines. A master without
/// this capability, for example in a container, cannot pass it on. Then each such connection fails, and a log line has
/// the reason.
fn keep_net_raw() -> rustix::io::Result<()> {
    let held = rustix::thread::capabilities(None)?;
    let kept = held.permitted & CapabilitySet::NET_RAW;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use conf::{FileId, Span};

    fn spec(user: &str, group: Option<&str>) -> UserSpec {
        let group = group.map(str::to_owned);
        let position = Span { file: FileId::file("a.conf".as_ref()), line: 1, offset: 0 };
        UserSpec { user: user.to_owned(), group, position: Some(position) }
    }

    #[test]
    fn users_are_looked_up_only_by_root() {
        if Uid::effective().is_root() {
            let unknown = resolve(Some(&spec("no such user", None)));
            assert_eq!(unknown, Err("getpwnam(\"no such user\") failed in a.conf:1".to_owned()));
            let unknown = resolve(Some(&spec("root", Some("no such group"))));
            assert_eq!(unknown, Err("getgrnam(\"no such group\") failed in a.conf:1".to_owned()));
            let root = resolve(Some(&spec("root", None))).expect("root is everywhere");
            let credentials = Credentials { user: "root".to_owned(), uid: 0, gid: 0 };
            assert_eq!(root, Resolved { credentials: Some(credentials), warning: None });
        } else {
            let ignored = resolve(Some(&spec("no such user", None))).expect("not looked up");
            assert_eq!(ignored, Resolved::default());
            assert_eq!(resolve(None), Ok(Resolved::default()));
        }
    }
}
