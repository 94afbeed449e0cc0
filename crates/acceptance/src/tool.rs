//! Finds the system's programs that tests run. All are required: without them, the tests cannot
//! show that Trackway works.

use std::path::PathBuf;

/// The packages that `cargo xtask test` installs: lines of the form `package: program program`.
const PACKAGES: &str = include_str!("../../../xtask/packages.txt");

/// Returns the path of a program.
///
/// # Panics
///
/// If it is not installed, or if `cargo xtask test` would not install it.
#[must_use]
pub fn required(name: &str) -> PathBuf {
    if name == "rustc" {
        // It was needed to build these tests.
        return find(name).unwrap_or_else(|| PathBuf::from(env!("CARGO")).with_file_name(name));
    }
    let package = package(name).unwrap_or_else(|| panic!("{name} is missing in xtask/packages.txt"));
    find(name).unwrap_or_else(|| {
        panic!("tests need {name}, which is not installed: `apt install {package}` (`cargo xtask test` does it)")
    })
}

/// Returns the package of a program.
fn package(name: &str) -> Option<&'static str> {
    let mut entries = PACKAGES.lines().filter_map(|line| line.split_once(": "));
    entries.find(|(_, programs)| programs.split_whitespace().any(|program| program == name)).map(|(package, _)| package)
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    // Servers are in directories that may not be in a user's path.
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
