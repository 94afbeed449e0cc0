//! The half of Trackway that lives inside the target: a same-ISA binary translator that records
//! each thread's paths in a shared ring (crate `wire`). It uses no libc, no thread-local storage,
//! and nothing on the application's heap or stack.
//!
//! Who calls whom: [`start`] takes over the first thread. [`translate`] makes fragments
//! ([`fragment`]) in the code cache ([`cache`]). A fragment exits through the assembly in
//! [`dispatch`], which finds or translates the next one and links the two ([`link`], [`indirect`]).
//! [`profile`] finds hot paths in full ring segments and has superblocks made of them. [`syscall`]
//! handles system calls, [`clone`] new threads and processes, [`signal`] signals, and [`change`]
//! code that changes. [`select`] and [`skip`] decide what is recorded, [`probe`] sees allocations.
//! All of them write to the thread's [`ring`]; [`code_ring`] announces code. [`engine::Engine`] is
//! the state that threads share; [`tcb::Tcb`] is the state of one thread, reached through gs.
//! Addresses of instructions are [`entity::AppPc`]s in the application and [`cache_pc::CachePc`]s
//! in the code cache.
//!
//! The engine never touches trace files and does not know what a recording is used for.
#![cfg_attr(not(test), no_std)]

extern crate alloc;

pub mod address_table;
pub mod cache;
pub mod cache_pc;
pub mod change;
pub mod clone;
pub mod code_ring;
pub mod detach;
pub mod dispatch;
pub mod emit;
pub mod emulate;
pub mod engine;
pub mod engine_memory;
pub mod exec;
pub mod failure;
pub mod follow;
pub mod fragment;
pub mod gs;
pub mod indirect;
pub mod limits;
pub mod link;
pub mod lock;
pub mod maps;
pub mod memory;
pub mod owners;
mod paths;
pub mod pending;
pub mod probe;
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
#[cfg(test)]
pub(crate) mod testing;
pub mod translate;

/// The directory of this crate's sources, from which `capture` builds the engine image.
pub const MANIFEST_DIRECTORY: &str = env!("CARGO_MANIFEST_DIR");
