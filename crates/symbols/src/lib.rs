//! The functions of executables and libraries: where they are and what they are called.
//!
//! [`Functions`] are read from an ELF file (its symbol tables, and those of a separate debug file
//! if one is installed). A [`Pattern`] is what a user calls a function, with wildcards; it knows
//! that compilers decorate names.
//!
//! Knows nothing of processes and traces; whoever has mapped a file tells where.

mod functions;
mod name;
mod pattern;
mod select;

pub use functions::{Function, Functions};
pub use name::{names, plain_name};
pub use pattern::Pattern;
pub use select::did_you_mean;
