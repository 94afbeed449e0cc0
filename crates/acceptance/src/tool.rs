//! Finds the programs of the system that tests run. All are required: a machine without them cannot say that Trackway works.

use std::path::PathBuf;

/// Installs everything on a bare machine; says which package a program is in.
const PREPARATION: &str = include_str!("../../../.ci/run");

/// Where `name` is.
///
/// # Panics
///
/// If it is not installed, or if `.ci/run` would not install it.
#[must_use]
pub fn required(name: &str) -> PathBuf {
    if name == "rustc" {
        // Whoever can build these tests has it.
        return find(name).unwrap_or_else(|| PathBuf::from(env!("CARGO")).with_file_name(name));
    }
    let package = package(name).unwrap_or_else(|| panic!("{name} is missing in the list of packages of .ci/run"));
    find(name).unwrap_or_else(|| {
        panic!("these tests need {name}, which is not installed: `apt install {package}` (.ci/run installs everything)")
    })
}

/// The package of a program, from the lines of the form `[name]=package …`.
fn package(name: &str) -> Option<&'static str> {
    let entry = format!("[{name}]=");
    PREPARATION.split_whitespace().find_map(|word| word.strip_prefix(entry.as_str()))
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
