//! Finds the programs of the system that tests run. All are required: a machine without them cannot
//! say that Trackway works.

use std::path::PathBuf;

/// What `cargo xtask test` installs: lines of the form `package: program program`.
const PACKAGES: &str = include_str!("../../../xtask/packages.txt");

/// Where `name` is.
///
/// # Panics
///
/// If it is not installed, or if `cargo xtask test` would not install it.
#[must_use]
pub fn required(name: &str) -> PathBuf {
    if name == "rustc" {
        // Whoever can build these tests has it.
        return find(name).unwrap_or_else(|| PathBuf::from(env!("CARGO")).with_file_name(name));
    }
    let package = package(name).unwrap_or_else(|| panic!("{name} is missing in xtask/packages.txt"));
    find(name).unwrap_or_else(|| {
        panic!("tests need {name}, which is not installed: `apt install {package}` (`cargo xtask test` does it)")
    })
}

/// The package of a program.
fn package(name: &str) -> Option<&'static str> {
    let mut entries = PACKAGES.lines().filter_map(|line| line.split_once(": "));
    entries.find(|(_, programs)| programs.split_whitespace().any(|program| program == name)).map(|(package, _)| package)
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Servers are in directories that users may not have in their path.
    let directories = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories.map(|directory| directory.join(name)).find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_found_by_the_name_of_a_program() {
        assert_eq!(package("python3"), Some("python3"));
        assert_eq!(package("sort"), Some("coreutils"));
        assert_eq!(package("sor"), None);
    }
}
