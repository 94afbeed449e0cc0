//! The programs that Trackway's tests, benchmarks and demo trace, and how to build them.
//!
//! All of them are ours, in C and assembly, and embedded here as text: [`build`] compiles one with
//! the system's C compiler when it is needed and keeps the result, so that the installed command
//! has its demo too. The `catalog` says for each program what it is for, in which [`Variant`]s it
//! can be built, and what it prints. This crate knows nothing of tracing.

mod build;
mod catalog;

pub use build::{Builder, Error, build};
pub use catalog::{
    Bench, Exit, Group, OracleProgram, Program, Run, Variant, bench_programs, find, oracle_programs, programs,
};
