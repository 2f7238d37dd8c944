//! Runs the image in containers, with crun and without a daemon: as its user, with a read-only root, with and without io_uring.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testkit::ports::free_port;
use testkit::{Client, Deadline, ListenAddr, TempDir, skip, wait};

use super::chroot::{is_root, make_named, run};

#[test]
#[ignore = "needs root, buildah, skopeo, umoci, crun and a release build"]
fn the_image_serves_with_and_without_the_seccomp_profile() {
    if !is_root() {
        return skip("containers need root");
    }
    for tool in ["buildah", "skopeo", "umoci", "crun"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return skip(format_args!("{tool} is not installed (apt-get install {tool})"));
        }
    }
    let out = TempDir::new("packages");
    let archive = make_named(out.path(), &["image"], "1", ".oci.tar");
    let layout = out.path().join("layout");
    let from = format!("oci-archive:{}", archive.display());
    run(Command::new("skopeo")
        .args(["copy", "--insecure-policy"])
        .arg(from)
        .arg(format!("oci:{}:ringroad", layout.display())));
    let bundle = out.path().join("bundle");
    run(Command::new("umoci")
        .args(["unpack", "--image"])
        .arg(format!("{}:ringroad", layout.display()))
        .arg(&bundle));

    let profile = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/image/seccomp.json");
    let text = std::fs::read_to_string(profile).expect("the profile is there");
    let with: Value = serde_json::from_str(&text).expect("it is JSON");
    let mut without = with.clone();
    let names = without["syscalls"][0]["names"].as_array_mut().expect("a list of names");
    names.retain(|name| !name.as_str().is_some_and(|name| name.starts_with("io_uring")));
    for (name, profile, engine) in [
        ("with", with, "using the \"io_uring\" event method"),
        ("without", without, "using the \"epoll\" event method"),
    ] {
        let log = serve(&bundle, name, profile, out.path());
        println!("{name} the calls of io_uring: {log}");
        assert!(log.contains(engine), "{name}: {log}");
        assert!(
            name == "with"
                || log.contains(
                    "allow io_uring_setup, io_uring_enter and io_uring_register in the seccomp profile"
                ),
            "the log names the cause: {log}"
        );
    }
}

/// Runs a container with this seccomp profile until it has served a request, and stops it by the image's stop signal. Returns the
/// log.
fn serve(bundle: &Path, name: &str, profile: Value, dir: &Path) -> String {
    let path = bundle.join("config.json");
    let text = std::fs::read_to_string(&path).expect("umoci makes it");
    let mut config: Value = serde_json::from_str(&text).expect("it is JSON");
    let port = free_port();
    // Port 8080 may be in use on this machine.
    let conf =
        std::fs::read_to_string(bundle.join("rootfs/etc/ringroad/ringroad.conf")).expect("the image's");
    let own = dir.join("ringroad.conf");
    let listen = format!("listen 127.0.0.1:{port} ");
    testkit::write(
        &own,
        conf.replace("listen 8080 ", &listen).replace("/dev/stderr;", "/dev/stderr notice;"),
    )
    .expect("a file");
    config["linux"]["seccomp"] = profile;
    config["root"]["readonly"] = json!(true);
    config["process"]["terminal"] = json!(false);
    assert_eq!(config["process"]["user"]["uid"], 10001);
    // The test must be able to connect to the port.
    let namespaces = config["linux"]["namespaces"].as_array_mut().expect("a list");
    namespaces.retain(|namespace| namespace["type"] != "network" && namespace["type"] != "cgroup");
    let mounts = config["mounts"].as_array_mut().expect("a list");
    mounts.retain(|mount| mount["destination"] != "/etc/resolv.conf" && mount["type"] != "cgroup");
    if !mounts.iter().any(|mount| mount["destination"] == "/tmp") {
        mounts.push(json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}));
    }
    let target = "/etc/ringroad/ringroad.conf";
    mounts.retain(|mount| mount["destination"] != target);
    mounts.push(json!({"destination": target, "type": "bind", "source": own, "options": ["bind", "ro"]}));
    testkit::write(&path, config.to_string()).expect("it is ours");

    let name = format!("ringroad-test-{}-{name}", std::process::id());
    let out = dir.join(&name);
    let file = std::fs::File::create(&out).expect("a file");
    // crun refuses machines that mount both versions of cgroups, although it needs neither here: another mount hides them.
    let hidden = "mount -t tmpfs none /sys/fs/cgroup && exec crun --cgroup-manager=disabled run --bundle \"$1\" \"$2\"";
    let mut child = Command::new("unshare")
        .args(["--mount", "sh", "-c", hidden, "sh"])
        .arg(bundle)
        .arg(&name)
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a descriptor"))
        .stderr(file)
        .spawn()
        .expect("crun was there a moment ago");
    let log = || std::fs::read_to_string(&out).unwrap_or_default();
    let address = ListenAddr::Tcp(([127, 0, 0, 1], port).into());
    let ready = wait::until("the container", Deadline::default(), || {
        let ended = child.try_wait().expect("it is our child");
        assert!(ended.is_none(), "{ended:?}: {}", log());
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok().then_some(())
    });
    ready.unwrap_or_else(|late| panic!("{late}: {}", log()));
    assert_eq!(Client::connect(&address).get("/health").status, 200);
    assert!(Client::connect(&address).get("/").text().contains("Ringroad is installed"));
    run(Command::new("crun").args(["--cgroup-manager=disabled", "kill", &name, "QUIT"]));
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}: {}", log());
    log()
}
