//! Tells the binary where to look for libtorch's libraries at run time.

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    // An image has them in `lib` beside the binary; a developer's build has them where it linked them.
    let mut places = "$ORIGIN/lib".to_owned();
    if let Ok(libtorch) = std::env::var("LIBTORCH") {
        places = format!("{places}:{libtorch}/lib");
    }
    println!("cargo:rustc-link-arg=-Wl,-rpath,{places}");
}
