//! Declares to rustc the one `cfg` that comes from outside: `loom`, which swaps atomics for loom's.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(loom)");
}
