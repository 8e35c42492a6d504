//! Names the shared library as programs ask for it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcudaq-realtime-bridge-cpu-roce.so");
    println!("cargo::rerun-if-changed=build.rs");
}
