//! Hostile HTTP/2 clients with another implementation than the test client of `http2/limits.rs`: hyper-h2 with its own
//! checks disabled. The sessions and their expected results are in `hyper/hostile.py`.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::BINARY;
use testkit::Setup;
use testkit::origin::Origin;

#[test]
fn protocol_violations_end_sessions_as_required() {
    let import = Command::new("python3").args(["-c", "import h2.connection"]).stderr(Stdio::null()).status();
    if !import.is_ok_and(|status| status.success()) {
        testkit::skip("hyper-h2 is not installed (python3 -m pip install h2)");
        return;
    }
    let silent = Origin::raw(|connection| {
        connection.read_request();
        connection.wait_for_close();
    });
    let text = "worker_processes 1; events {} http { http2 on; server { listen 127.0.0.1:0;
        location / { return 200 x; } location /slow { proxy_pass http://@ORIGIN@; } } }";
    let server = Setup::new(text).origin(&silent).start(BINARY);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hyper/hostile.py");
    let port = server.addr(0).tcp().port().to_string();
    let output = Command::new("python3").arg(script).arg(port).output().expect("it is installed");
    let said = String::from_utf8_lossy(&output.stdout);
    let failed: Vec<&str> = said.lines().filter(|line| !line.starts_with("ok ")).collect();
    assert_eq!(failed, ["done"], "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.lines().count() > 60, "{said}");
}
