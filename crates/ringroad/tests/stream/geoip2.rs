//! `geoip2` in `stream`: values by the address of the client, which the PROXY protocol names, and a file that is replaced.

use std::io::Write;

use testkit::mmdb::{Mmdb, map};
use testkit::{Deadline, Server, TempDir, wait};

use crate::support::{connect, read_all, serve_with};

fn database(country: &str) -> Vec<u8> {
    let record = map([("country", map([("iso_code", country.into())]))]);
    Mmdb::new(1_700_000_000).with("1.2.0.0/16", &record).bytes()
}

fn ask(server: &Server, client: &str) -> String {
    let mut stream = connect(server.addr(0).tcp());
    write!(stream, "PROXY TCP4 {client} 127.0.0.1 1000 80\r\n").expect("the server listens");
    String::from_utf8(read_all(&mut stream)).expect("a text")
}

#[test]
fn sessions_have_values_from_a_database() {
    let data = TempDir::new("geoip2");
    let path = data.write("country.mmdb", database("DE"));
    let server = serve_with(
        "",
        &format!(
            "geoip2 {} {{ auto_reload 1s; $country default=none country iso_code;
               $sent default=none source=$proxy_protocol_addr country iso_code; $made metadata build_epoch; }}
             map $country $is_refused {{ FR 1; default 0; }}
             server {{ listen 127.0.0.1:0 proxy_protocol; set_real_ip_from 127.0.0.0/8;
               return '$country $sent $made $is_refused'; }}",
            path.display()
        ),
    );
    assert_eq!(ask(&server, "1.2.3.4"), "DE DE 1700000000 0");
    assert_eq!(ask(&server, "1.3.3.4"), "none none 1700000000 0");
    data.write("new", database("FR"));
    std::fs::rename(data.path().join("new"), &path).expect("both are there");
    let is_new = || (ask(&server, "1.2.3.4") == "FR FR 1700000000 1").then_some(());
    wait::until("the new file", Deadline::default(), is_new).expect("it is loaded");
}
