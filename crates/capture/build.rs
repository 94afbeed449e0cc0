//! Builds the engine as an image of its own, checks that it can be injected, and puts it where the
//! crate embeds it.
//!
//! The engine and the three crates that it depends on are build dependencies: each says where its
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
    let sources = Sources::find();
    // The library's modules are watched by cargo; the image's only module is not one of them.
    println!("cargo::rerun-if-changed={}", sources.engine.join("src/image.rs").display());

    let out = PathBuf::from(variable("OUT_DIR"));
    let package = out.join("engine-package");
    write_package(&package, &sources);
    let built = build_image(&package, &sources, &out.join("engine"));
    let bytes = fs::read(&built).unwrap_or_else(|error| panic!("cannot read {}: {error}", built.display()));
    if let Err(error) = image::Image::parse(&bytes) {
        panic!("{error}");
    }
    write(&out.join("engine-image"), bytes);
}

/// Directories of the packages that the image is built from.
struct Sources {
    engine: PathBuf,
    entity: PathBuf,
    isa: PathBuf,
    wire: PathBuf,
}

impl Sources {
    fn find() -> Self {
        Self {
            engine: directory("engine", engine::MANIFEST_DIRECTORY),
            entity: directory("entity", entity::MANIFEST_DIRECTORY),
            isa: directory("isa", isa::MANIFEST_DIRECTORY),
            wire: directory("wire", wire::MANIFEST_DIRECTORY),
        }
    }

    /// Flags that keep the names of these directories out of the image.
    fn remapped(&self) -> [String; 4] {
        [("engine", &self.engine), ("entity", &self.entity), ("isa", &self.isa), ("wire", &self.wire)]
            .map(|(name, directory)| format!("--remap-path-prefix={}=crates/{name}", directory.display()))
    }
}

/// Returns the directory of a package: beside this one in the repository, and elsewhere where the
/// package was compiled. In a target directory that was moved or copied, the latter may name
/// another checkout.
fn directory(name: &str, compiled: &str) -> PathBuf {
    let beside = Path::new(&variable("CARGO_MANIFEST_DIR")).with_file_name(name);
    if beside.join("Cargo.toml").is_file() { beside } else { compiled.into() }
}

/// Writes the package of the image: a manifest, and the versions of dependencies that the engine
/// was tested with.
fn write_package(package: &Path, sources: &Sources) {
    let engine = &sources.engine;
    let patches = [("entity", &sources.entity), ("isa", &sources.isa), ("wire", &sources.wire)]
        .map(|(name, directory)| format!("trackway-{name} = {{ path = {} }}\n", toml_path(directory)));
    let manifest = format!(
        "[package]\nname = 'engine-image'\nedition = '2024'\n\n\
         [[bin]]\nname = 'engine-image'\npath = {}\n\n\
         [dependencies]\ntrackway-engine = {{ path = {}, features = ['image'] }}\n\n\
         [patch.crates-io]\n{}\n\
         [profile.release]\n{PROFILE}\n\
         [workspace]\n",
        toml_path(&engine.join("src/image.rs")),
        toml_path(engine),
        patches.concat(),
    );
    fs::create_dir_all(package).expect("the build directory is writable");
    write(&package.join("Cargo.toml"), manifest);
    // A published engine has a lock file of its own; in the repository it shares the workspace's.
    let lock = engine.ancestors().map(|directory| directory.join("Cargo.lock")).find(|path| path.is_file());
    if let Some(lock) = lock {
        write(&package.join("Cargo.lock"), fs::read(lock).expect("the lock file is readable"));
    }
}

/// Builds the image. The outer cargo does not say whether it may use the network, so this one
/// tries without it first: what the image needs, the outer build needs, too.
fn build_image(package: &Path, sources: &Sources, target_directory: &Path) -> PathBuf {
    let flags: Vec<String> = FLAGS.iter().map(|&flag| flag.to_owned()).chain(sources.remapped()).collect();
    let build = |network: &[&str]| {
        let mut cargo = Command::new(variable("CARGO"));
        // From here, cargo finds the configuration that the outer build has.
        cargo.current_dir(variable("CARGO_MANIFEST_DIR")).args(["build", "--release", "--target", TARGET]);
        cargo.args(network).arg("--manifest-path").arg(package.join("Cargo.toml"));
        cargo.arg("--target-dir").arg(target_directory);
        forget_outer_build(&mut cargo);
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
        cargo.status().expect("cargo can be run").success()
    };
    assert!(build(&["--offline"]) || build(&[]), "building the engine image failed");
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

fn toml_path(path: &Path) -> String {
    let text = path.to_str().expect("the paths of sources are UTF-8");
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
