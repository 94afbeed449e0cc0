//! The functions of executables and libraries: their addresses and names.
//!
//! [`Functions`] reads the symbol tables of an ELF file, and those of a separate debug file if one
//! is installed. A [`Pattern`] is a user's name for functions, with wildcards; it knows how
//! compilers decorate names.
//!
//! Knows nothing of processes and traces; the caller says where a file is mapped.

mod functions;
mod name;
mod pattern;
mod select;

pub use functions::{Function, Functions};
pub use name::{names, plain_name};
pub use pattern::Pattern;
pub use select::did_you_mean;
