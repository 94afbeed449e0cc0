//! Runs the two commands of the README on a machine that has only Rust and gcc: a fresh Debian in a
//! directory, made by debootstrap.
//!
//! The mounts and processes are in namespaces of their own, so that none of them stays behind.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use super::run_to_success;
use crate::{root, run_cargo};

/// The packages that the README asks for beside Rust.
const PACKAGES: &str = "gcc,libc6-dev";

/// Settings for apt and the network, which are copied from this machine.
const SETTINGS: [&str; 4] = ["/etc/apt", "/usr/share/keyrings", "/etc/hosts", "/etc/resolv.conf"];

/// Directories in the new system.
const TREE: &str = "trackway";
const TOOLCHAIN: &str = "opt/rust";
const CARGO_HOME: &str = "opt/cargo";

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The file for the output of the commands.
const LOG: &str = "target/bare-machine.log";

/// Makes $1 the root, as a container does, and runs both commands of the README with the Rust
/// toolchain in $2. In a chroot, tests could not create user namespaces.
const ENTER: &str = r#"
set -e
mount --bind "$1" "$1"
cd "$1"
mount --bind -o ro "$2" opt/rust
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs tmpfs dev/shm
pivot_root . mnt
umount --lazy mnt
cd /trackway
cargo run --release -- demo
cargo xtask test
"#;

/// Creates the system, clones the last commit into it, and runs both commands there.
pub fn run() -> Result<(), String> {
    // Downloads everything now: the new system has no certificates.
    run_cargo(&["fetch", "--locked", "--target", TARGET])?;
    let directory = tempfile::tempdir_in(root().join("target")).map_err(|error| error.to_string())?;
    let system = directory.path().join("system");
    debootstrap(&system)?;
    copy_settings(&system)?;
    copy_crates(&system)?;
    let clone = ["clone", "--quiet", "--no-hardlinks"];
    run_to_success(Command::new("git").args(clone).arg(root()).arg(system.join(TREE)))?;
    test(&system)
}

/// Creates a minimal system from the repository of this machine's apt.
fn debootstrap(system: &Path) -> Result<(), String> {
    let format = "$(CODENAME) $(REPO_URI)";
    let sources = output_of("apt-get", &["indextargets", "--format", format, "Created-By: Packages"])?;
    let source = sources.lines().next().and_then(|line| line.split_once(' '));
    let (codename, repository) = source.ok_or("apt has no sources")?;
    let options = ["--variant=minbase", "--include", PACKAGES, codename];
    run_to_success(Command::new("debootstrap").args(options).arg(system).arg(repository))
}

fn copy_settings(system: &Path) -> Result<(), String> {
    SETTINGS.iter().try_for_each(|setting| {
        let into = system.join(setting.trim_start_matches('/'));
        copy(Path::new(setting), into.parent().ok_or("a setting has no place")?)
    })
}

/// Copies the crates that cargo has downloaded, and its configuration.
fn copy_crates(system: &Path) -> Result<(), String> {
    let from = match std::env::var_os("CARGO_HOME") {
        Some(home) => home.into(),
        None => std::env::home_dir().ok_or("there is no home directory")?.join(".cargo"),
    };
    let into = system.join(CARGO_HOME);
    for directory in [&into, &system.join(TOOLCHAIN)] {
        std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    }
    let parts = ["registry", "git", "config.toml"].map(|part| from.join(part));
    parts.iter().filter(|part| part.exists()).try_for_each(|part| copy(part, &into))
}

/// Copies a file or a directory into a directory, and overwrites existing files.
fn copy(from: &Path, into: &Path) -> Result<(), String> {
    run_to_success(Command::new("cp").args(["--archive", "--dereference"]).arg(from).arg(into))
}

/// Runs the tests and writes their output to [`LOG`]; an error lists the tests that failed.
fn test(system: &Path) -> Result<(), String> {
    let log = File::create(root().join(LOG)).map_err(|error| format!("{LOG}: {error}"))?;
    let errors = log.try_clone().map_err(|error| format!("{LOG}: {error}"))?;
    let mut command = enter(system)?;
    let status = command.stdout(log).stderr(errors).status().map_err(|error| format!("unshare: {error}"))?;
    let text = std::fs::read_to_string(root().join(LOG)).map_err(|error| format!("{LOG}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("it ended with {status}; see {LOG}:\n{}", failures(&text))) }
}

fn enter(system: &Path) -> Result<Command, String> {
    let compiler = Path::new(env!("CARGO")).with_file_name("rustc");
    let toolchain = output_of(&compiler.to_string_lossy(), &["--print", "sysroot"])?;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh"]).arg(system).arg(toolchain);
    command.env_clear().envs(std::env::vars_os().filter(|(name, _)| is_proxy(&name.to_string_lossy())));
    command.env("PATH", format!("/{TOOLCHAIN}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"));
    command.env("CARGO_HOME", format!("/{CARGO_HOME}")).env("HOME", "/root").env("TERM", "dumb");
    Ok(command)
}

/// Returns the lines that name failed tests, and the last ones.
fn failures(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let (before, last) = lines.split_at(lines.len().saturating_sub(10));
    before.iter().filter(|line| line.ends_with("... FAILED")).chain(last).copied().collect::<Vec<_>>().join("\n")
}

fn is_proxy(variable: &str) -> bool {
    variable.to_lowercase().ends_with("_proxy")
}

/// Returns the standard output of a command that must succeed.
fn output_of(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).current_dir(root()).output();
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{program} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_named() {
        let log = format!("test a ... ok\ntest b ... FAILED\n{}", "more\n".repeat(10));
        assert_eq!(failures(&log), format!("test b ... FAILED\n{}", ["more"; 10].join("\n")));
    }
}
