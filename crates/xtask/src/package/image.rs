//! Makes an OCI image with buildah, from an empty base: the program, its libraries, and the files that they read.
//!
//! The libraries are copied from the machine that makes the image, on which the program was linked. The image
//! has no shell and no package manager. Its configuration logs to the standard streams and writes only to `/tmp`, so that the
//! root may be read-only and any user may run it.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Release, fresh_dir, make_dir, stage, tool, write};
use crate::{Failure, workspace};

/// The user of the server in the container, which is not a user of the host.
const USER: &str = "10001:10001";

/// Files of the host that the C library and TLS to upstreams read, from the packages ca-certificates and tzdata.
const HOST_FILES: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/usr/share/zoneinfo"];

/// Files from the repository.
const FILES: [(&str, &str); 3] = [
    ("packaging/image/ringroad.conf", "etc/ringroad/ringroad.conf"),
    ("packaging/html/index.html", "usr/share/ringroad/html/index.html"),
    ("examples/mime.types", "etc/ringroad/mime.types"),
];

/// Makes the image. Returns the path of an archive in OCI layout, which `podman load`, `docker load` and skopeo accept.
pub(super) fn make(release: &Release) -> Result<PathBuf, Failure> {
    let root = release.work.join("image");
    fill(release, &root)?;
    let name = format!("ringroad-{}-{}.oci.tar", release.version, release.revision);
    let archive = release.out.join(&name);
    let _ = std::fs::remove_file(&archive);
    // A separate store leaves the images of the host's user unchanged. It needs neither a daemon nor mounts.
    let store = release.work.join("buildah");
    let buildah = || -> Result<Command, Failure> {
        let mut command = tool("buildah", "buildah")?;
        command.arg("--root").arg(store.join("root")).arg("--runroot").arg(store.join("run"));
        command.args(["--storage-driver", "vfs"]);
        Ok(command)
    };
    let container = workspace::output(buildah()?.args(["from", "scratch"]))?;
    let container = container.trim();
    let layout = release.work.join("oci");
    fresh_dir(&layout)?;
    let made = commit(release, &buildah, container, &root, &layout);
    // The container is removed, even after an error.
    workspace::output(buildah()?.args(["rm", container]))?;
    made?;
    pack(release, &layout, &archive)?;
    Ok(archive)
}

/// Packs the layout of the image. In an archive of buildah the files would have the time of the build.
fn pack(release: &Release, layout: &Path, archive: &Path) -> Result<(), Failure> {
    let mut pack = tool("tar", "tar")?;
    pack.args([
        "--create",
        "--sort=name",
        "--format=gnu",
        "--owner=root:0",
        "--group=root:0",
        "--mode=a+rX,u+w,go-w",
    ]);
    pack.arg(format!("--mtime=@{}", release.time)).arg("--file").arg(archive).arg("--directory").arg(layout);
    workspace::run(pack.args(["blobs", "index.json", "oci-layout"]))
}

/// Copies the tree, sets the command, and writes the image to a directory in OCI layout.
fn commit(
    release: &Release,
    buildah: &dyn Fn() -> Result<Command, Failure>,
    container: &str,
    root: &Path,
    layout: &Path,
) -> Result<(), Failure> {
    workspace::output(buildah()?.args(["copy", container]).arg(root).arg("/"))?;
    let mut config = buildah()?;
    config.args(["config", "--user", USER, "--port", "8080", "--stop-signal", "SIGQUIT"]);
    // The configuration includes the results.
    config.args(["--env", "NGINX_ENVSUBST_TEMPLATE_DIR=/etc/ringroad/templates"]);
    config.args(["--env", "NGINX_ENVSUBST_OUTPUT_DIR=/tmp/conf.d"]);
    config.args(["--entrypoint", "[\"/usr/sbin/ringroad\"]", "--cmd", "-g 'daemon off;'"]);
    for (key, value) in [
        ("title", "Ringroad"),
        ("description", super::notes::SUMMARY),
        ("version", release.version.as_str()),
        ("licenses", "Apache-2.0 OR MIT"),
    ] {
        config.arg("--label").arg(format!("org.opencontainers.image.{key}={value}"));
    }
    workspace::output(config.arg(container))?;
    let mut commit = buildah()?;
    commit.args(["commit", "--quiet", "--format", "oci", "--timestamp"]).arg(release.time.to_string());
    commit.arg(container).arg(format!("oci:{}:ringroad:{}", layout.display(), release.version));
    workspace::output(&mut commit).map(drop)
}

/// Fills the root directory of the image.
fn fill(release: &Release, root: &Path) -> Result<(), Failure> {
    fresh_dir(root)?;
    stage::copy(&release.program.stripped, &root.join("usr/sbin/ringroad"), 0o755)?;
    for (from, to) in FILES {
        stage::copy(&workspace::root().join(from), &root.join(to), 0o644)?;
    }
    for library in libraries(&release.program.stripped)? {
        stage::copy(&library, &root.join(library.strip_prefix("/").unwrap_or(&library)), 0o755)?;
    }
    for path in HOST_FILES.map(Path::new) {
        if !path.exists() {
            let detail = format!("{} is missing: apt-get install ca-certificates tzdata", path.display());
            return Err(Failure::Format { what: "the image", detail });
        }
        let to = root.join(path.strip_prefix("/").unwrap_or(path));
        if let Some(directory) = to.parent() {
            make_dir(directory)?;
        }
        workspace::run(tool("cp", "coreutils")?.args(["-rL", "--"]).arg(path).arg(&to))?;
    }
    write(&root.join("etc/passwd"), "root:x:0:0::/:/\nringroad:x:10001:10001::/:/\n")?;
    write(&root.join("etc/group"), "root:x:0:\nringroad:x:10001:\n")?;
    write(&root.join("etc/nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files dns\n")?;
    // The last three directories are mount points of the container engine, which cannot create them in a read-only root.
    for directory in
        ["etc/ringroad/conf.d", "tmp", "var/lib/ringroad", "var/cache/ringroad", "run", "proc", "sys", "dev"]
    {
        make_dir(&root.join(directory))?;
    }
    stage::settle(root, release.time)?;
    // The server's user writes to these directories if nothing is mounted on them.
    let mut chmod = tool("chmod", "coreutils")?;
    chmod.arg("1777");
    for directory in ["tmp", "run", "var/lib/ringroad", "var/cache/ringroad"] {
        chmod.arg(root.join(directory));
    }
    workspace::run(&mut chmod)
}

/// Returns the paths of the libraries from the output of ldd(1): `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, Failure> {
    let text = workspace::output(tool("ldd", "libc-bin")?.arg(program))?;
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(text.lines().filter_map(path).collect())
}
