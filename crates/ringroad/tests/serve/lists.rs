//! Times in directory listings in the machine's time zone, which the environment names.

use std::time::{Duration, SystemTime};

use crate::common::{one_server, serve_with};
use testkit::Client;

#[test]
fn local_times_use_the_time_zone() {
    // Both servers retain `TZ` of the environment in which they are started. The zone's offset is one that no machine
    // uses.
    let conf = one_server(
        "autoindex on; autoindex_localtime on;",
        "location /list/ { alias html/; } location /utc/ { alias html/; autoindex_localtime off; }
         location /json/ { alias html/; autoindex_format json; }",
    );
    let server = serve_with(&conf, |builder| {
        let builder = builder.text("html/a", "").env("TZ", "XYZ-05:45");
        let path = builder.dir().join("html/a");
        let file = std::fs::File::options().write(true).open(path).expect("it was just written");
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777)).expect("it is ours");
        builder
    });
    let mut client = Client::connect(server.addr(0));
    for (target, time) in [
        ("/list/", " 06-Nov-1994 14:34 "),
        ("/utc/", " 06-Nov-1994 08:49 "),
        // Machine-readable formats have GMT, whatever is configured.
        ("/json/", "\"Sun, 06 Nov 1994 08:49:37 GMT\""),
    ] {
        let text = client.get(target).text();
        assert!(text.contains(time), "{target}: {text}");
    }
}
