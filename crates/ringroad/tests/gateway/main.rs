//! Application servers: FastCGI, uwsgi, SCGI, gRPC and HTTP/2 upstreams.
#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../gateways/mod.rs"]
mod gateways;

mod cpu;
mod fastcgi;
mod grpc_clients;
mod hostile;
mod http2;
mod programs;
mod scripts;
