//! The call stacks that threads have when the recorder attaches: found by call frame information,
//! while the threads are stopped.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use entity::AppPc;
use libc::user_regs_struct;
use symbols::FrameTable;
use unwind::{Frame, FrameRegister, FrameRegisters, Unwinder};

use crate::call_stack::OlderFrame;
use crate::maps::{self, Mapping};
use crate::ptrace::Tracee;

/// Deeper stacks lose their outermost frames.
const FRAMES_MAX: usize = 1 << 16;
const PAGE: u64 = 4096;

/// Finds the call stacks of the stopped threads of a process.
pub struct StackFinder {
    unwinder: Unwinder,
    frames: Vec<Frame>,
    pages: HashMap<u64, Option<Box<[u8; PAGE as usize]>>>,
}

impl StackFinder {
    /// Reads the call frame information of what is mapped.
    pub fn new(process: i32, mappings: &[Mapping]) -> Self {
        let mut unwinder = Unwinder::new();
        let mut tables: HashMap<&str, Option<Arc<FrameTable>>> = HashMap::new();
        for mapping in mappings.iter().filter(|mapping| mapping.is_module()) {
            let table = tables.entry(&mapping.path).or_insert_with(|| read_table(process, &mapping.path));
            if let Some(table) = table {
                unwinder.map(mapping.range.clone(), mapping.file_offset, Arc::clone(table));
            }
        }
        Self { unwinder, frames: Vec::new(), pages: HashMap::new() }
    }

    /// Returns the frames of a stopped thread that would go on with these registers, the innermost
    /// first.
    pub fn frames_of(&mut self, tracee: Tracee, registers: &user_regs_struct) -> Vec<OlderFrame> {
        let start = FrameRegisters::new(registers.rip, registers.rsp)
            .with(FrameRegister::Rbx, registers.rbx)
            .with(FrameRegister::Rbp, registers.rbp)
            .with(FrameRegister::R12, registers.r12)
            .with(FrameRegister::R13, registers.r13)
            .with(FrameRegister::R14, registers.r14)
            .with(FrameRegister::R15, registers.r15);
        let Self { unwinder, frames, pages } = self;
        frames.clear();
        unwinder.unwind(&start, FRAMES_MAX, &mut |address| word(pages, tracee, address), frames);
        let callers = frames.windows(2).filter_map(|pair| match pair {
            [called, caller] => Some(OlderFrame {
                slot: called.cfa?.wrapping_sub(8),
                address: AppPc::new(caller.address),
                is_interrupted: caller.is_exact,
            }),
            _ => None,
        });
        callers.collect()
    }
}

fn read_table(process: i32, path: &str) -> Option<Arc<FrameTable>> {
    let table = if path == "[vdso]" {
        FrameTable::parse(maps::own_vdso()?)?
    } else {
        FrameTable::of_file(&recorder_path(process, path)).ok()?
    };
    Some(Arc::new(table))
}

/// Returns the path under which the recorder reaches what a process reaches as `path`.
pub fn recorder_path(process: i32, path: &str) -> PathBuf {
    let inside = PathBuf::from(format!("/proc/{process}/root{path}"));
    // When the process has exited, its view of the file system is gone.
    if inside.exists() { inside } else { PathBuf::from(path) }
}

/// Returns the eight bytes at an address.
fn word(pages: &mut HashMap<u64, Option<Box<[u8; PAGE as usize]>>>, tracee: Tracee, address: u64) -> Option<u64> {
    let offset = (address % PAGE) as usize;
    if offset > PAGE as usize - 8 {
        let mut bytes = [0; 8];
        return tracee.read(address, &mut bytes).is_ok().then(|| u64::from_le_bytes(bytes));
    }
    let page = pages.entry(address - offset as u64).or_insert_with(|| {
        let mut page = Box::new([0; PAGE as usize]);
        tracee.read(address - offset as u64, page.as_mut_slice()).is_ok().then_some(page)
    });
    let bytes = page.as_ref()?.get(offset..offset + 8)?;
    bytes.try_into().ok().map(u64::from_le_bytes)
}
