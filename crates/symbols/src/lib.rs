//! The functions of executables and libraries: their addresses and names.
//!
//! [`Functions`] reads the symbol tables of an ELF file, and those of a separate debug file if one
//! is installed. Code that no symbol names is found by the call frame information ([`FrameTable`]),
//! which stripped files have, too; a function of that kind has a range and no name. A part of a
//! function that the compiler has placed elsewhere (`sort.cold`) is a [`Function`] of its own that
//! knows its whole.
//!
//! A [`Pattern`] is a user's name for functions, with wildcards, or an address; it knows how
//! compilers decorate names. [`ambiguity`] and [`did_you_mean`] explain patterns that mean several
//! functions or none.
//!
//! All addresses are those that a file was linked for, as `nm` and `objdump` print them. This crate
//! knows nothing of processes and traces; the caller says where a file is mapped.

mod elf;
mod frames;
mod functions;
mod lookup;
mod name;
mod pattern;
mod propose;
mod select;
mod symbol_table;

pub use frames::{FrameEntry, FrameSection, FrameTable};
pub use functions::{Function, Functions, Source};
pub use name::{names, plain_name};
pub use pattern::Pattern;
pub use propose::{ambiguity, did_you_mean};
