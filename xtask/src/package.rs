//! `cargo xtask package`: packs every crate that can be published, installs the command from the
//! packed copies outside the repository, and records a program with it.
//!
//! Dependencies between our packages are patched to the unpacked copies, because a registry does
//! not have these versions yet. Nothing is downloaded, because the tests have built all
//! dependencies before. Build results are kept under `target/packages`.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::{root, run_cargo, succeed};

/// Pack every crate that can be published, and install the command from the packed copies.
#[derive(clap::Args, Default)]
pub struct Arguments {
    /// Only pack; do not install.
    #[arg(long)]
    no_install: bool,
}

/// A crate of the workspace that can be published.
struct Package {
    name: String,
    version: String,
}

pub fn run(arguments: &Arguments) -> Result<(), String> {
    let packages = publishable()?;
    pack(&packages)?;
    if arguments.no_install {
        return Ok(());
    }
    // Not below the repository, where cargo would find the workspace and its settings.
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    unpack(&packages, directory.path())?;
    let trackway = install(&packages, directory.path())?;
    record(&trackway, directory.path())
}

/// The packages of the workspace, without those that say `publish = false`.
fn publishable() -> Result<Vec<Package>, String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root());
    let output = cargo.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    let metadata: Value = serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
    let publishable = packages.iter().filter(|package| package["publish"].is_null());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(publishable
        .map(|package| Package { name: text(&package["name"]), version: text(&package["version"]) })
        .collect())
}

/// Where packages are packed and built.
fn target() -> PathBuf {
    root().join("target/packages")
}

fn pack(packages: &[Package]) -> Result<(), String> {
    let target = target();
    let mut words = vec!["package", "--quiet", "--offline", "--no-verify", "--allow-dirty", "--target-dir"];
    words.push(target.to_str().ok_or("the path of the repository is not UTF-8")?);
    words.extend(packages.iter().flat_map(|package| ["--package", &package.name]));
    run_cargo(&words)
}

fn unpack(packages: &[Package], directory: &Path) -> Result<(), String> {
    packages.iter().try_for_each(|Package { name, version }| {
        let packed = target().join("package").join(format!("{name}-{version}.crate"));
        succeed(Command::new("tar").arg("--extract").arg("--file").arg(packed).arg("--directory").arg(directory))
    })
}

/// Installs the command from its unpacked copy and returns the path of the executable.
fn install(packages: &[Package], directory: &Path) -> Result<PathBuf, String> {
    let command = packages.iter().find(|package| package.name == "trackway").ok_or("the command is not published")?;
    let copy = directory.join(format!("trackway-{}", command.version));
    let patches = directory.join("patches.toml");
    fs::write(&patches, patch_table(packages, directory)).map_err(|error| format!("patches.toml: {error}"))?;
    // The lock file names a registry for our packages; this replaces it by the patches and keeps
    // the rest.
    let update = ["update", "--quiet", "--workspace", "--config"];
    succeed(offline_cargo().args(update).arg(&patches).current_dir(&copy))?;
    let install = ["install", "--quiet", "--locked", "--path", ".", "--config"];
    let mut cargo = offline_cargo();
    cargo.args(install).arg(&patches).arg("--root").arg(directory).arg("--target-dir").arg(target());
    succeed(cargo.current_dir(&copy))?;
    Ok(directory.join("bin/trackway"))
}

/// Cargo without the network; what build scripts start does not use it either.
fn offline_cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.env("CARGO_NET_OFFLINE", "true");
    cargo
}

/// Settings of cargo that find our packages in their unpacked copies.
fn patch_table(packages: &[Package], directory: &Path) -> String {
    let mut table = "[patch.crates-io]\n".to_owned();
    for Package { name, version } in packages.iter().filter(|package| package.name != "trackway") {
        let copy = directory.join(format!("{name}-{version}"));
        writeln!(table, "{name} = {{ path = {copy:?} }}").expect("a string takes everything");
    }
    table
}

fn record(trackway: &Path, directory: &Path) -> Result<(), String> {
    let trace = directory.join("true.trk");
    succeed(Command::new(trackway).arg("record").arg("-o").arg(&trace).args(["--", "/bin/true"]))?;
    succeed(Command::new(trackway).arg("verify").arg(&trace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_and_its_crates_are_published_and_tests_are_not() {
        let names: Vec<String> = publishable().unwrap().into_iter().map(|package| package.name).collect();
        for name in ["trackway", "trackway-engine", "trackway-trace"] {
            assert!(names.iter().any(|published| published == name), "{name} is not in {names:?}");
        }
        assert!(!names.iter().any(|name| name == "acceptance" || name == "xtask"), "{names:?}");
    }

    #[test]
    fn patches_leave_the_command_alone() {
        let package = |name: &str| Package { name: name.into(), version: "0.1.0".into() };
        let table = patch_table(&[package("trackway"), package("trackway-isa")], Path::new("/d"));
        assert_eq!(table, "[patch.crates-io]\ntrackway-isa = { path = \"/d/trackway-isa-0.1.0\" }\n");
    }
}
