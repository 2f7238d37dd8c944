//! Declares the `loom` configuration, with which the model of the mailbox is built.

fn main() {
    println!("cargo::rustc-check-cfg=cfg(loom)");
    println!("cargo::rerun-if-changed=build.rs");
}
