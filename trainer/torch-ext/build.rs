//! Compiles the C++ side against the libtorch folder that `LIBTORCH` names.

use std::path::PathBuf;

const SOURCES: &[&str] = &[
    "arithmetic.cpp",
    "autocast.cpp",
    "collectives.cpp",
    "device.cpp",
    "device_event.cpp",
    "error.cpp",
    "flight_recorder.cpp",
    "host_copies.cpp",
    "memory.cpp",
    "optim.cpp",
    "process_group.cpp",
    "profile.cpp",
    "readback.cpp",
    "recompute.cpp",
    "reducer.cpp",
    "sharded.cpp",
    "sync_step.cpp",
    "trace.cpp",
    "transfer.cpp",
    "tree_reduce.cpp",
];

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-changed=cpp");
    let libtorch = PathBuf::from(std::env::var_os("LIBTORCH").unwrap_or_else(|| {
        panic!("LIBTORCH is not set: run `make libtorch`, or `export LIBTORCH=$(scripts/fetch-libtorch)`")
    }));
    let headers = libtorch.join("include");
    assert!(
        headers.join("torch/csrc/distributed/c10d/reducer.hpp").is_file(),
        "LIBTORCH is {}, which contains no libtorch headers: run `scripts/fetch-libtorch` and use the folder it prints",
        libtorch.display()
    );
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .flag_if_supported("-Wno-deprecated-declarations")
        .include("cpp/gloo_declarations")
        .include(&headers)
        .include(headers.join("torch/csrc/api/include"))
        .include("cpp");
    // Compiled as one file: libtorch's headers take longer than our code, and are read once.
    let sources = SOURCES.iter().map(|file| format!("#include \"{file}\"\n"));
    let together = PathBuf::from(std::env::var_os("OUT_DIR").expect("Cargo sets it")).join("sources.cpp");
    std::fs::write(&together, sources.collect::<String>()).expect("OUT_DIR can be written");
    build.clone().file(together).compile("torch_ext");
    // For this crate's tests: an archive is linked only into programs that use its functions.
    println!("cargo:rerun-if-changed=tests/reducer/delay.cpp");
    build.file("tests/reducer/delay.cpp").compile("torch_ext_tests");
    println!(
        "cargo:rustc-link-search=native={}",
        libtorch.join("lib").display()
    );
    println!("cargo:rustc-link-lib=dylib=torch_cpu");
    println!("cargo:rustc-link-lib=dylib=c10");
    // Lets this crate's tests run without LD_LIBRARY_PATH.
    println!(
        "cargo:rustc-link-arg=-Wl,-rpath,{}",
        libtorch.join("lib").display()
    );
}
