//! The half of Trackway that lives inside the target: a same-ISA binary translator that appends each thread's path to a
//! shared ring (crate `wire`). No libc, no thread-local storage, nothing on the application's heap or stack.
//!
//! Who calls whom: [`start`] takes over the first thread; translated code (made by [`translate`], kept by [`fragment`] in the
//! memory of [`cache`]) leaves through the assembly in [`dispatch`], which finds or translates what comes next;
//! [`profile`] reads in the full segments of the ring what is hot, and has long chains made of it; [`syscall`] sees every system call, [`clone`] new threads and processes, [`signal`] every signal, [`change`] code that is replaced; [`select`] and [`skip`] know what of all that is to be recorded. All of them write to
//! the thread's [`ring`]. The state of one thread is its [`tcb::Tcb`], reached through gs.
//!
//! The engine never touches trace files and does not know what a recording is used for.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod cache;
pub mod change;
pub mod clone;
pub mod dispatch;
pub mod emit;
pub mod emulate;
pub mod exec;
pub mod failure;
pub mod follow;
pub mod fragment;
pub mod gs;
pub mod leave;
pub mod limits;
pub mod lock;
pub mod lookup;
pub mod maps;
pub mod memory;
pub mod own;
pub mod owners;
mod paths;
pub mod pending;
pub mod profile;
pub mod reclaim;
pub mod ring;
pub mod rseq;
pub mod seccomp;
pub mod select;
pub mod signal;
pub mod skip;
pub mod start;
pub mod sys;
pub mod syscall;
pub mod tcb;
pub mod translate;

/// The directory of this crate's sources, from which `capture` builds the engine image.
pub const MANIFEST_DIRECTORY: &str = env!("CARGO_MANIFEST_DIR");
