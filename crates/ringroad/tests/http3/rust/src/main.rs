//! Clients of quiche (HTTP/3) and of s2n-quic (HTTP/0.9 over QUIC).
//!
//! `http3-peers quiche|s2n PORT LENGTH ROOT` requests `/hello` and `/large.bin` of `LENGTH` bytes, and prints `done`. `ROOT` is the file of
//! the authority that has signed the server's certificate.

mod quiche_client;
mod s2n_client;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, peer, port, length, root] = &arguments[..] else { panic!("PEER PORT LENGTH ROOT") };
    let (port, length) = (port.parse().expect("a port"), length.parse().expect("a number"));
    match &peer[..] {
        "quiche" => quiche_client::run(port, length),
        "s2n" => s2n_client::run(port, length, root),
        _ => panic!("{peer} is neither quiche nor s2n"),
    }
    println!("done");
}
