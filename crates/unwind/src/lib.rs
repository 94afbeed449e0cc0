//! Call stacks of x86-64 code: which calls led to where a thread is.
//!
//! An [`Unwinder`] knows what is mapped into a process. From the [`FrameRegisters`] of a thread and
//! its memory, which a closure reads, it finds the [`Frame`]s of the thread, from the innermost one
//! outwards: the return addresses, and where each function's frame is on the stack.
//!
//! ```
//! use std::sync::Arc;
//! use symbols::FrameTable;
//! use trackway_unwind::{FrameRegister, FrameRegisters, UnwindEnd, Unwinder};
//!
//! # fn main() -> std::io::Result<()> {
//! let mut unwinder = Unwinder::new();
//! let table = Arc::new(FrameTable::of_file("/proc/self/exe".as_ref())?);
//! unwinder.map(0x40_0000..0x50_0000, 0, table);
//! let registers = FrameRegisters::new(0x40_1200, 0x7ffc_0000).with(FrameRegister::Rbp, 0x7ffc_0040);
//! let mut read = |_address: u64| None; // eight bytes of the thread's memory
//! let mut frames = Vec::new();
//! let end = unwinder.unwind(&registers, 64, &mut read, &mut frames);
//! assert_eq!((frames[0].address, end == UnwindEnd::Limit), (0x40_1200, false));
//! # Ok(())
//! # }
//! ```
//!
//! # How a caller is found
//!
//! * By the call frame information of the module ([`symbols::FrameTable`]), which describes every
//!   instruction: prologues and epilogues, stubs of the procedure linkage table, the return from a
//!   signal handler. Behind a signal's frame, unwinding goes on with the interrupted instruction,
//!   on whichever stack it was.
//! * Where there is none, by what the machine code shows: the call of the kernel that ends a signal
//!   handler, the first instructions of a function, a jump to an address without code.
//! * Otherwise by the frame pointer, if it leads to an address behind a call instruction. A
//!   function without call frame information that uses the register for something else hides
//!   callers; unwinding then stops or leaves some out.
//!
//! # What a damaged stack does
//!
//! The number of frames is limited, and every frame lies above the one that it called; only a
//! signal may change the stack. So unwinding ends, whatever is in the memory and in the modules'
//! files. It never panics.
//!
//! # Speed
//!
//! The rules of an address are compiled when they are first needed, and kept. Registers that a
//! frame has saved are read only if a caller's frame depends on them. So a frame usually takes one
//! or two reads of memory, and the reads take most of the time: give a closure that reads a copy.
//!
//! Knows nothing of processes and ptrace.

mod cache;
mod code;
mod expression;
mod modules;
mod registers;
mod row;
mod unwinder;

pub use registers::{FrameRegister, FrameRegisters};
pub use unwinder::{Frame, UnwindEnd, Unwinder};
