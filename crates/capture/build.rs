//! Builds the engine as an image of its own, checks that it can be injected, and puts it where the
//! crate embeds it.
//!
//! The engine and the two crates that it depends on are build dependencies: each says where its
//! sources are, whether that is this repository, cargo's registry or a vendored copy. Cargo runs
//! this script again when one of them changes. The image is the only program of a package that this
//! script writes into its output directory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

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

/// Settings of the release profile, whatever the workspace says.
const PROFILE: &str = "opt-level = 3\nlto = 'fat'\ncodegen-units = 1\npanic = 'abort'\ndebug = false\n";

fn main() {
    // The library's modules are watched by cargo; the image's only module is not one of them.
    println!("cargo::rerun-if-changed={}/src/image.rs", engine::MANIFEST_DIRECTORY);

    let out = PathBuf::from(variable("OUT_DIR"));
    let package = out.join("engine-package");
    write_package(&package);
    let built = build_image(&package, &out.join("engine"));
    let bytes = fs::read(&built).unwrap_or_else(|error| panic!("cannot read {}: {error}", built.display()));
    if let Err(error) = image::Image::parse(&bytes) {
        panic!("{error}");
    }
    write(&out.join("engine-image"), bytes);
}

/// Writes the package of the image: a manifest, and the versions of dependencies that the engine
/// was tested with.
fn write_package(package: &Path) {
    let engine = engine::MANIFEST_DIRECTORY;
    let image = toml_string(&format!("{engine}/src/image.rs"));
    let patches = [("trackway-isa", isa::MANIFEST_DIRECTORY), ("trackway-wire", wire::MANIFEST_DIRECTORY)]
        .map(|(name, directory)| format!("{name} = {{ path = {} }}\n", toml_string(directory)));
    let manifest = format!(
        "[package]\nname = 'engine-image'\nedition = '2024'\n\n\
         [[bin]]\nname = 'engine-image'\npath = {image}\n\n\
         [dependencies]\ntrackway-engine = {{ path = {}, features = ['image'] }}\n\n\
         [patch.crates-io]\n{}\n\
         [profile.release]\n{PROFILE}\n\
         [workspace]\n",
        toml_string(engine),
        patches.concat(),
    );
    fs::create_dir_all(package).expect("the build directory is writable");
    write(&package.join("Cargo.toml"), manifest);
    // A published engine has a lock file of its own; in the repository it shares the workspace's.
    let lock = Path::new(engine).ancestors().map(|directory| directory.join("Cargo.lock")).find(|path| path.is_file());
    if let Some(lock) = lock {
        write(&package.join("Cargo.lock"), fs::read(lock).expect("the lock file is readable"));
    }
}

fn build_image(package: &Path, target_directory: &Path) -> PathBuf {
    let mut cargo = Command::new(variable("CARGO"));
    cargo.current_dir(package).args(["build", "--release", "--target", TARGET, "--target-dir"]).arg(target_directory);
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

fn write(path: &Path, contents: impl AsRef<[u8]>) {
    fs::write(path, contents).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
}

fn toml_string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
