//! Declares to rustc the `cfg` `loom`, which is set from outside and replaces atomics by loom's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(loom)");
}
