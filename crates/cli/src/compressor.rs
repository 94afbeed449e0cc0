//! General-purpose compressors: external programs, which have to be installed.

use std::ffi::OsStr;

use clap::ValueEnum;

use crate::failure::Failure;

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressor {
    Bzip2,
    Pbzip2,
    Gzip,
    Pigz,
    Zstd,
    Xz,
}

impl Compressor {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bzip2 => "bzip2",
            Self::Pbzip2 => "pbzip2",
            Self::Gzip => "gzip",
            Self::Pigz => "pigz",
            Self::Zstd => "zstd",
            Self::Xz => "xz",
        }
    }

    /// Returns the suffix that it adds to the name of a file.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Bzip2 | Self::Pbzip2 => ".bz2",
            Self::Gzip | Self::Pigz => ".gz",
            Self::Zstd => ".zst",
            Self::Xz => ".xz",
        }
    }

    /// Returns the arguments with which it compresses standard input to standard output.
    pub fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Zstd => &["-q", "-c"],
            Self::Bzip2 | Self::Pbzip2 | Self::Gzip | Self::Pigz | Self::Xz => &["-c"],
        }
    }

    fn is_installed(self) -> bool {
        capture::find_program(OsStr::new(self.name())).is_some()
    }

    /// Fails if the compressor is not installed.
    pub fn require_installed(self) -> Result<(), Failure> {
        if self.is_installed() {
            return Ok(());
        }
        let others = Self::value_variants().iter().filter(|other| other.is_installed());
        let others: Vec<&str> = others.map(|other| other.name()).collect();
        let failure = Failure::new(format!("the compressor {} is not installed", self.name()));
        Err(match others.as_slice() {
            [] => failure.hint("no other is installed either"),
            others => failure.hint(format!("installed are {}", others.join(", "))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_on_the_command_line() {
        for compressor in Compressor::value_variants() {
            assert_eq!(compressor.to_possible_value().unwrap().get_name(), compressor.name());
        }
    }
}
