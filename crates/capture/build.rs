//! Builds the engine as an image of its own, checks that it can be injected, and leaves it where
//! the crate embeds it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

// The build only checks an image; the parts that describe how to place one are the crate's.
#[allow(dead_code)]
#[path = "src/image.rs"]
mod image;

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// For the linker and the compiler, in the image and in everything that is linked into it. The
/// baseline processor keeps AVX out, so that saving the sixteen xmm registers is enough to leave
/// vector state alone.
const FLAGS: &[&str] = &[
    "-Cpanic=abort",
    "-Crelocation-model=pie",
    "-Ctarget-cpu=x86-64",
    "-Cforce-unwind-tables=no",
    "-Clink-arg=-nostartfiles",
    "-Clink-arg=-nostdlib",
    "-Clink-arg=-static-pie",
    "-Clink-arg=-Wl,-z,norelro",
    "-Clink-arg=-Wl,-z,separate-code",
    "-Clink-arg=-Wl,--build-id=none",
];

/// Settings of the release profile that an image wants whatever the workspace says.
const PROFILE: &[&str] = &["opt-level=3", "lto='fat'", "codegen-units=1", "panic='abort'", "debug=false"];

fn main() {
    let manifest_directory = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let crates = manifest_directory.parent().expect("the crate lies beside the engine");
    for part in ["engine", "wire", "isa"] {
        for kind in ["src", "Cargo.toml", "build.rs"] {
            let path = crates.join(part).join(kind);
            if path.exists() {
                println!("cargo::rerun-if-changed={}", path.display());
            }
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/image.rs");

    let out = PathBuf::from(variable("OUT_DIR"));
    let built = build_engine(&crates.join("engine"), &out.join("engine"));
    let bytes = std::fs::read(&built).unwrap_or_else(|error| panic!("cannot read {}: {error}", built.display()));
    if let Err(error) = image::Image::parse(&bytes) {
        panic!("{error}");
    }
    std::fs::write(out.join("engine-image"), bytes).expect("the build directory is writable");
}

fn build_engine(engine: &Path, target_directory: &Path) -> PathBuf {
    let mut cargo = Command::new(variable("CARGO"));
    cargo.current_dir(engine).args(["build", "--release", "--package", "engine", "--bin", "engine-image"]);
    cargo.args(["--features", "image", "--target", TARGET, "--target-dir"]).arg(target_directory);
    for setting in PROFILE {
        cargo.arg("--config").arg(format!("profile.release.{setting}"));
    }
    forget_outer_build(&mut cargo);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"));
    let status = cargo.status().expect("cargo can be run");
    assert!(status.success(), "building the engine image failed");
    target_directory.join(TARGET).join("release/engine-image")
}

/// What the outer cargo (or clippy, or a coverage tool) has set for this build must not leak into
/// the other one.
fn forget_outer_build(cargo: &mut Command) {
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let kept = matches!(&*text, "CARGO_HOME" | "CARGO_NET_OFFLINE" | "RUSTUP_HOME" | "RUSTUP_TOOLCHAIN");
        let outer = ["CARGO", "RUST", "CLIPPY", "DEP_", "LLVM_PROFILE", "PROFILE", "OPT_LEVEL", "TARGET", "DEBUG"];
        if !kept && outer.iter().any(|prefix| text.starts_with(prefix)) {
            cargo.env_remove(name);
        }
    }
}

fn variable(name: &str) -> OsString {
    env::var_os(name).unwrap_or_else(|| panic!("cargo sets {name}"))
}
