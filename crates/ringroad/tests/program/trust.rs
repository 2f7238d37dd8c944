//! `ringroad trust`: the root certificate of `serve --tls` among the trusted certificates of the system. The test changes copies of
//! Debian's directories in a mount namespace, with Debian's command.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::control::BINARY;
use testkit::program::{Program, run};
use testkit::{Deadline, TempDir, skip};

/// The arguments are the program and the URL of the server.
const SCRIPT: &str = r#"
set -e
copy() {
    mkdir $XDG_DATA_HOME/$2
    cp -dR $1/. $XDG_DATA_HOME/$2
    mount --bind $XDG_DATA_HOME/$2 $1
}
copy /etc/ssl ssl
copy /usr/local/share/ca-certificates local
check() { "$1" health "$2" >/dev/null 2>&1 && echo trusted || echo refused; }
check "$1" "$2"
"$1" trust
check "$1" "$2"
"$1" trust
ls /usr/local/share/ca-certificates | grep ringroad
"$1" trust --remove
check "$1" "$2"
"$1" trust --remove
"#;

#[test]
fn programs_trust_the_local_authority_until_it_is_removed() {
    let update = Path::new("/usr/sbin/update-ca-certificates");
    let namespaces = Command::new("unshare").args(["-rm", "true"]).stderr(Stdio::null()).status();
    if !update.exists() || !namespaces.is_ok_and(|status| status.success()) {
        skip(format_args!(
            "user namespaces or {} do not exist (apt-get install ca-certificates)",
            update.display()
        ));
        return;
    }
    let (site, data, said) = (TempDir::new("site"), TempDir::new("data"), TempDir::new("said"));
    let mut serve = Command::new(BINARY);
    serve.arg("serve").arg(site.path()).args(["--tls", "--listen", "127.0.0.1:0"]);
    serve.env("XDG_DATA_HOME", data.path());
    let mut server = Program::spawn(serve, said.path());
    let url = server.wait_for_output("https://", Deadline::default());
    let url = url.trim().replace("127.0.0.1", "localhost");
    let root = data.path().join("ringroad/local-authority/root.pem");
    let output = Command::new("unshare")
        .args(["-rm", "sh", "-c", SCRIPT, "sh", BINARY, &url])
        .env("XDG_DATA_HOME", data.path())
        .env_remove("SSL_CERT_FILE")
        .output()
        .expect("it exists");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = text.lines().collect();
    let id = lines[7].strip_prefix("ringroad-").and_then(|name| name.strip_suffix(".crt")).expect("a name");
    let file = format!("/usr/local/share/ca-certificates/ringroad-{id}.crt");
    let (ran, root) = (format!("ran {}", update.display()), root.display());
    let trusted = format!(
        "programs that use the certificates of the system trust \"Ringroad local authority {id}\" until "
    );
    let removed = format!("\"Ringroad local authority {id}\" is not among the certificates of the system");
    assert_eq!(lines[0], "refused");
    assert_eq!(lines[1], format!("copied {root} to {file}"));
    assert!(lines[2] == ran && lines[3].starts_with(&trusted), "{text}");
    assert_eq!(lines[4], "trusted");
    assert!(lines[5] == ran && lines[6].starts_with(&trusted), "not copied again: {text}");
    assert_eq!(lines[8..12], [&format!("removed {file}"), &ran, &removed, "refused"]);
    assert_eq!(lines[12..], [&ran, &removed]);
}

#[test]
fn without_permission_or_a_local_authority_nothing_is_changed() {
    let data = TempDir::new("data");
    let mut none = Command::new(BINARY);
    none.arg("trust").env("XDG_DATA_HOME", data.path()).env_remove("SUDO_USER");
    let output = none.output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.starts_with("ringroad trust: no local CA was found; \"ringroad serve --tls\" creates"),
        "{said}"
    );
    let other = data.write("root.pem", "no certificate");
    let said = run(BINARY, &["trust", &other.display().to_string()]);
    let stores = ["is not the root certificate of a local CA", "no known place"];
    assert!(
        said.status.code() == Some(1) && stores.iter().any(|text| said.stderr.contains(text)),
        "{}",
        said.stderr
    );
    if !Path::new("/usr/local/share/ca-certificates").exists() {
        return;
    }
    // As another user than root.
    let (site, out) = (TempDir::new("site"), TempDir::new("said"));
    let mut serve = Command::new(BINARY);
    serve.arg("serve").arg(site.path()).args(["--tls", "--listen", "127.0.0.1:0"]);
    serve.env("XDG_DATA_HOME", data.path());
    let mut server = Program::spawn(serve, out.path());
    server.wait_for_output("https://", Deadline::default());
    let pem = std::fs::read(data.path().join("ringroad/local-authority/root.pem")).expect("a root");
    let root = std::env::temp_dir().join(format!("ringroad-root-{}.pem", std::process::id()));
    std::fs::write(&root, pem).expect("it can be written");
    let mut trust = Command::new(BINARY);
    trust.args(["trust".as_ref(), root.as_os_str()]);
    if rustix::process::geteuid().is_root() {
        trust.uid(65534).gid(65534);
    }
    let output = trust.output();
    let _ = std::fs::remove_file(&root);
    // Another user may not be able to read the directory of the program.
    let Ok(output) = output else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("run: sudo {BINARY} trust '{}'", root.display())), "{said}");
}
