//! Finds the programs of the system that tests run. Most are required: a machine without them cannot say that Trackway works.

use std::path::PathBuf;

/// Where `name` is.
///
/// # Panics
///
/// If it is not installed.
#[must_use]
pub fn required(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|| panic!("these tests need {name}, which is not installed (not found in PATH)"))
}

/// Where `name` is, if it is installed; says so if it is not.
#[must_use]
pub fn optional(name: &str) -> Option<PathBuf> {
    let found = find(name);
    if found.is_none() {
        eprintln!("{name}: not installed, and not tested here");
    }
    found
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|candidate| candidate.is_file())
}
