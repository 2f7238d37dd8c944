//! `ringroad trust [ROOT]`: installs the root certificate of the local CA of `serve --tls` into the certificates that the system trusts.
//!
//! The certificate becomes a file in a directory of the distribution, then a command of the distribution adds it to the files that
//! programs read. The name of the file has the digest in the name of the CA, so each CA has one file, also after the renewal of its root.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use nix::unistd::User;
use tls::x509::{Certificate, NameForm};

use super::failure::CommandFailure;
use super::options::Arguments;
use super::output::print;
use super::serve::authority;
use crate::listen::error_text;

/// The place of a distribution for certificates that the administrator adds.
#[derive(Debug)]
struct Store {
    directory: PathBuf,
    /// The extension that the command needs.
    extension: &'static str,
    /// The command that adds the files of the directory to the trusted certificates, and removes missing ones.
    command: PathBuf,
}

/// Directories, extensions and commands: of Debian and Alpine, Fedora, Arch, openSUSE.
const STORES: [(&str, &str, &str); 4] = [
    ("/usr/local/share/ca-certificates", "crt", "update-ca-certificates"),
    ("/etc/pki/ca-trust/source/anchors", "pem", "update-ca-trust"),
    ("/etc/ca-certificates/trust-source/anchors", "crt", "update-ca-trust"),
    ("/etc/pki/trust/anchors", "pem", "update-ca-certificates"),
];

/// Directories of commands, besides those of `PATH`: that of a user may lack them.
const COMMANDS: [&str; 2] = ["/usr/sbin", "/usr/bin"];

/// Beginning of the name of a local CA.
const NAME: &str = "Ringroad local authority ";

/// Installs or removes the certificate, and prints each step.
pub(super) fn run(given: &Arguments) -> ExitCode {
    match change(given) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => CommandFailure::from(message).report("trust"),
    }
}

fn change(given: &Arguments) -> Result<(), String> {
    let root = match given.operands.first() {
        Some(root) => PathBuf::from(root),
        None => default_root().ok_or(
            "no local CA was found; \"ringroad serve --tls\" creates that of a user, and \"ringroad trust ROOT\" names the file root.pem",
        )?,
    };
    let store = Store::find().ok_or(
        "the system has no known place for trusted certificates; install the package ca-certificates",
    )?;
    let root = Root::read(&root)?;
    if given.has("remove") { store.remove(&root) } else { store.install(&root) }
}

/// Returns the root certificate of this user, or, as root, that of the user who has called sudo(8).
fn default_root() -> Option<PathBuf> {
    let own = authority::root_path().filter(|root| root.exists());
    own.or_else(|| {
        let caller = std::env::var("SUDO_USER").ok().filter(|_| rustix::process::geteuid().is_root())?;
        let home = User::from_name(&caller).ok()??.dir;
        Some(authority::root_path_in(&home)).filter(|root| root.exists())
    })
}

/// The root certificate of a local CA.
#[derive(Debug)]
struct Root {
    path: PathBuf,
    pem: String,
    /// The digest in the name of the CA.
    id: String,
    /// The end of its validity, as OpenSSL prints it.
    expires: String,
}

impl Root {
    /// Reads a certificate. Only those of local CAs are accepted, and only the certificate of the file is used.
    fn read(path: &Path) -> Result<Root, String> {
        let shown = path.display();
        let bytes = std::fs::read(path).map_err(|error| format!("\"{shown}\": {}", error_text(&error)))?;
        let root = Root::parse(&bytes);
        let (pem, id, expires) = root.ok_or_else(|| {
            format!("\"{shown}\" is not the root certificate of a local CA that \"ringroad serve --tls\" has created")
        })?;
        Ok(Root { path: path.to_owned(), pem, id, expires })
    }

    fn parse(bytes: &[u8]) -> Option<(String, String, String)> {
        let found = tls::certificate::certificates(bytes).ok()?;
        let [der] = found.as_slice() else { return None };
        let certificate = Certificate::from_der(der)?;
        let subject = certificate.subject(NameForm::Rfc2253)?;
        let name = subject.split(',').find_map(|part| part.strip_prefix("CN="))?;
        let id = name.strip_prefix(NAME)?;
        let is_digest = id.len() == 8 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_root = certificate.issuer(NameForm::Rfc2253)? == subject;
        let expires = certificate.not_after()?;
        (is_digest && is_root).then(|| (tls::certificate::to_pem(der), id.to_owned(), expires))
    }
}

impl Store {
    /// Returns the store of this system.
    fn find() -> Option<Store> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directories: Vec<PathBuf> =
            std::env::split_paths(&path).chain(COMMANDS.iter().map(PathBuf::from)).collect();
        STORES.iter().find_map(|&(directory, extension, command)| {
            let directory = PathBuf::from(directory);
            let command = directories.iter().map(|path| path.join(command)).find(|path| path.is_file())?;
            directory.is_dir().then_some(Store { directory, extension, command })
        })
    }

    fn file(&self, root: &Root) -> PathBuf {
        self.directory.join(format!("ringroad-{}.{}", root.id, self.extension))
    }

    fn install(&self, root: &Root) -> Result<(), String> {
        let file = self.file(root);
        let is_present = std::fs::read(&file).is_ok_and(|present| present == root.pem.as_bytes());
        if !is_present {
            // A rename, so that no program reads an incomplete certificate.
            let fresh = self.directory.join(format!(".ringroad-{}.new", std::process::id()));
            let written = std::fs::write(&fresh, &root.pem)
                .and_then(|()| std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o644)))
                .and_then(|()| std::fs::rename(&fresh, &file));
            if let Err(error) = written {
                let _ = std::fs::remove_file(&fresh);
                return Err(refused(&file, &error, root, ""));
            }
            print(format!("copied {} to {}\n", root.path.display(), file.display()));
        }
        self.update()?;
        let (id, expires) = (&root.id, &root.expires);
        print(format!(
            "programs that use the certificates of the system trust \"{NAME}{id}\" until {expires}\n"
        ));
        Ok(())
    }

    fn remove(&self, root: &Root) -> Result<(), String> {
        let file = self.file(root);
        match std::fs::remove_file(&file) {
            Ok(()) => print(format!("removed {}\n", file.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(refused(&file, &error, root, "--remove ")),
        }
        self.update()?;
        print(format!("\"{NAME}{}\" is not among the certificates of the system\n", root.id));
        Ok(())
    }

    /// Runs the command of the distribution. Its output is shown only after a failure.
    fn update(&self) -> Result<(), String> {
        let command = self.command.display();
        let output = Command::new(&self.command).output();
        let output = output.map_err(|error| format!("{command}: {}", error_text(&error)))?;
        if !output.status.success() {
            let text = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            return Err(format!("{command} failed ({}):\n{}", output.status, text.trim_end()));
        }
        print(format!("ran {command}\n"));
        Ok(())
    }
}

/// Returns the message of a change that the system refuses, with the command for root.
fn refused(file: &Path, error: &std::io::Error, root: &Root, option: &str) -> String {
    let (file, reason) = (file.display(), error_text(error));
    let remedy = match error.kind() {
        ErrorKind::PermissionDenied => {
            format!("; run: {}", authority::trust_command(option, &root.path))
        }
        _ => String::new(),
    };
    format!("\"{file}\": {reason}{remedy}")
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tls::issue::LocalAuthority;

    use super::*;

    /// Creates a directory with a command that lists the installed files.
    fn store(name: &str, command: &str) -> (PathBuf, Store) {
        let data = std::env::temp_dir().join(format!("ringroad-trust-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&data);
        let directory = data.join("anchors");
        std::fs::create_dir_all(&directory).expect("it can be created");
        let path = data.join("update");
        std::fs::write(&path, format!("#!/bin/sh\ncd '{}'\n{command}\n", data.display()))
            .expect("it can be written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        (data, Store { directory, extension: "pem", command: path })
    }

    fn root(directory: &Path) -> Root {
        let (pem, _) = LocalAuthority::create(SystemTime::now()).expect("a CA");
        let path = directory.join("root.pem");
        std::fs::write(&path, &pem).expect("it can be written");
        Root::read(&path).expect("a root")
    }

    #[test]
    fn a_certificate_is_installed_replaced_and_removed() {
        let (data, store) = store("store", "ls anchors > listed");
        let listed = || std::fs::read_to_string(data.join("listed")).expect("the command ran");
        let (first, second) = (root(&data), root(&data));
        store.install(&first).expect("installed");
        store.install(&first).expect("installed again");
        assert_eq!(listed(), format!("ringroad-{}.pem\n", first.id));
        let file = store.file(&first);
        assert_eq!(std::fs::read_to_string(&file).expect("a file"), first.pem);
        assert_eq!(std::fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o644);
        // A file that was damaged is replaced; that of another CA is a further file.
        std::fs::write(&file, "damaged").expect("it is ours");
        store.install(&first).expect("installed");
        assert_eq!(std::fs::read_to_string(&file).expect("a file"), first.pem);
        store.install(&second).expect("installed");
        assert_eq!(listed().lines().count(), 2);
        store.remove(&first).expect("removed");
        store.remove(&first).expect("nothing to do");
        assert_eq!(listed(), format!("ringroad-{}.pem\n", second.id));
        std::fs::remove_dir_all(&data).expect("it is ours");
    }

    #[test]
    fn a_failure_of_the_system_is_reported() {
        let (data, store) = store("failure", "echo broken >&2; exit 3");
        let message = store.install(&root(&data)).expect_err("the command fails");
        assert!(message.ends_with("failed (exit status: 3):\nbroken"), "{message}");
        std::fs::remove_dir_all(&data).expect("it is ours");
    }

    #[test]
    fn only_roots_of_local_authorities_are_installed() {
        let (pem, key) = LocalAuthority::create(SystemTime::now()).expect("a CA");
        let (installed, id, _) = Root::parse((pem.clone() + &key).as_bytes()).expect("a root");
        assert!(installed == pem && id.len() == 8, "never the key: {installed}");
        assert!(Root::parse((pem.clone() + &pem).as_bytes()).is_none(), "two certificates");
        let authority = LocalAuthority::open(pem.as_bytes(), key.as_bytes()).expect("the key of the CA");
        let names = [format!("{NAME}01234567")];
        let server = authority.issue(&names, SystemTime::now(), std::time::Duration::from_secs(60));
        assert!(Root::parse(server.expect("a certificate").as_bytes()).is_none(), "no root");
        assert!(Root::parse(b"").is_none());
    }
}
