//! The `trackway` command under test: the one that `TESTED_TRACKWAY` names, or else one that is
//! built with the profile of the tests, once per process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the executable of the `trackway` command.
///
/// # Panics
///
/// If it cannot be built.
#[must_use]
pub fn trackway() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| std::env::var_os("TESTED_TRACKWAY").map_or_else(build, PathBuf::from))
}

fn build() -> PathBuf {
    let target = target_directory();
    let (profile, flags): (&str, &[&str]) =
        if cfg!(debug_assertions) { ("debug", &[]) } else { ("release", &["--release"]) };
    let output = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "trackway"])
        .args(flags)
        .arg("--target-dir")
        .arg(&target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo has started this test and can be started again");
    assert!(output.status.success(), "trackway cannot be built:\n{}", String::from_utf8_lossy(&output.stderr));
    target.join(profile).join("trackway")
}

/// Returns cargo's target directory, which has a tag file. The running test lies in it.
fn target_directory() -> PathBuf {
    let executable = std::env::current_exe().expect("a running program has a path");
    let target = executable.ancestors().find(|directory| directory.join("CACHEDIR.TAG").is_file());
    target.unwrap_or_else(|| panic!("{} is not in a target directory of cargo", executable.display())).to_owned()
}
