//! s2n-quic, whose crate for HTTP/3 is not published: requests of HTTP/0.9.

use std::net::SocketAddr;
use std::path::Path;

use s2n_quic::client::Connect;
use s2n_quic::provider::tls::rustls::Client as Tls;
use s2n_quic::{Client, Connection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Requests a path. Returns the response, which ends with the stream.
async fn get(connection: &mut Connection, path: &str) -> Vec<u8> {
    let mut stream = connection.open_bidirectional_stream().await.expect("a stream");
    stream.write_all(format!("GET {path}\r\n").as_bytes()).await.expect("the request");
    stream.finish().expect("the end of the request");
    let mut body = Vec::new();
    stream.read_to_end(&mut body).await.expect("the response");
    body
}

pub fn run(port: u16, length: usize, root: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let tls = Tls::builder().with_certificate(Path::new(root)).expect("the authority");
        let tls = tls.with_application_protocols(["hq-interop"].into_iter()).expect("a protocol").build();
        let client = Client::builder().with_tls(tls.expect("TLS")).expect("TLS");
        let client = client.with_io("127.0.0.1:0").expect("a socket").start().expect("a client");
        for _ in 0..3 {
            let server = Connect::new(SocketAddr::from(([127, 0, 0, 1], port))).with_server_name("localhost");
            let mut connection = client.connect(server).await.expect("a connection");
            assert_eq!(get(&mut connection, "/hello").await, b"hello hq");
            assert_eq!(get(&mut connection, "/large.bin").await.len(), length);
            for _ in 0..50 {
                assert_eq!(get(&mut connection, "/hello").await, b"hello hq");
            }
            connection.close(0u32.into());
        }
    });
}
