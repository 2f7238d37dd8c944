//! Declares the `loom` configuration that the model of the mailbox is built with.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(loom)");
    println!("cargo::rerun-if-changed=build.rs");
}
