//! Compiles the libraries of the simulated device against the libtorch folder in `LIBTORCH`.

use std::path::{Path, PathBuf};
use std::process::Command;

const DEVICE: &[&str] = &[
    "device.cpp",
    "links.cpp",
    "memory.cpp",
    "nccl.cpp",
    "operators.cpp",
    "plugin.cpp",
    "settings.cpp",
    "streams.cpp",
];

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-changed=cpp");
    let libtorch = PathBuf::from(std::env::var_os("LIBTORCH").unwrap_or_else(|| {
        panic!("LIBTORCH is not set: run `make libtorch`, or `export LIBTORCH=$(scripts/fetch-libtorch)`")
    }));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("Cargo sets it"));
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .opt_level(1)
        .debug(false)
        .pic(true)
        .warnings(false)
        .include(libtorch.join("include"))
        .include(libtorch.join("include/torch/csrc/api/include"));
    let objects = |sources: &[&str]| {
        let mut build = build.clone();
        build.files(sources.iter().map(|source| Path::new("cpp").join(source)));
        build.compile_intermediates()
    };
    let link = |library: &str, objects: Vec<PathBuf>, others: &[String]| {
        let mut command = Command::new(build.get_compiler().path());
        command
            .args(["-shared", "-Wl,-z,defs", &format!("-Wl,-soname,{library}"), "-o"])
            .arg(out.join(library))
            .args(objects)
            .args(others);
        let status = command.status().expect("the compiler starts");
        assert!(status.success(), "{library} could not be linked");
    };
    link(
        "libsimulated_driver.so",
        objects(&["driver.cpp"]),
        &["-ldl".into()],
    );
    link(
        "libtorch_cuda.so",
        objects(DEVICE),
        &[
            format!("-L{}", libtorch.join("lib").display()),
            format!("-L{}", out.display()),
            "-ltorch_cpu".into(),
            "-lc10".into(),
            "-lsimulated_driver".into(),
        ],
    );
    // The plugin is in the same library; torch-ext loads it by this name.
    let plugin = out.join("libvit_nccl.so");
    if plugin.symlink_metadata().is_err() {
        std::os::unix::fs::symlink("libtorch_cuda.so", plugin).expect("OUT_DIR can be written");
    }
}
