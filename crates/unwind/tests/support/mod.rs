//! Builds the test programs, and looks into processes that are stopped.

use std::collections::HashMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use libc::{c_int, pid_t, user_regs_struct};
use symbols::FrameTable;
use trackway_unwind::{FrameRegister, FrameRegisters, Unwinder};

/// Builds a program of `tests/programs` in a directory.
pub fn build(directory: &Path, source: &str, options: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(source);
    let program = directory.join("program");
    let is_cpp = source.extension().is_some_and(|extension| extension == "cc");
    let mut compiler = if is_cpp { Command::new("g++") } else { Command::new("gcc") };
    compiler.arg("-w").args(options).arg(source).arg("-o").arg(&program).arg("-pthread");
    assert!(compiler.status().unwrap().success(), "{options:?}");
    program
}

/// A process whose memory can be read.
pub struct Memory(File);

impl Memory {
    pub fn of_process(process: pid_t) -> Self {
        Self(File::open(format!("/proc/{process}/mem")).unwrap())
    }

    /// Reads as many bytes as there are, up to the length of `bytes`.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> usize {
        if address > i64::MAX as u64 { 0 } else { self.0.read_at(bytes, address).unwrap_or(0) }
    }

    pub fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        (self.read(address, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
    }
}

/// Keeps the unwinder of a process up to date with its mappings.
#[derive(Default)]
pub struct Process {
    pub unwinder: Unwinder,
    mappings: String,
    tables: HashMap<String, Arc<FrameTable>>,
    code: Vec<(Range<u64>, u64, Arc<FrameTable>)>,
}

impl Process {
    /// Reads the mappings again.
    pub fn update(&mut self, process: pid_t, memory: &Memory) {
        let mappings = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        if mappings == self.mappings {
            return;
        }
        self.unwinder = Unwinder::new();
        self.code.clear();
        for line in mappings.lines().filter(|line| line.contains("r-xp")) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [addresses, _, offset, _, _, path] = fields.as_slice() else { continue };
            let (start, end) = addresses.split_once('-').unwrap();
            let range = hex(start)..hex(end);
            let table = self.tables.entry((*path).to_owned()).or_insert_with(|| read_table(path, &range, memory));
            self.unwinder.map(range.clone(), hex(offset), table.clone());
            self.code.push((range, hex(offset), table.clone()));
        }
        self.mappings = mappings;
    }

    /// Returns whether an instruction has call frame information.
    pub fn is_covered(&self, address: u64) -> bool {
        let found = self.code.iter().find(|(range, _, _)| range.contains(&address));
        found.is_some_and(|(range, offset, table)| {
            let bias = table.bias(range.start, *offset);
            bias.is_some_and(|bias| table.entry_at(address.wrapping_sub(bias)).is_some())
        })
    }
}

fn read_table(path: &str, range: &Range<u64>, memory: &Memory) -> Arc<FrameTable> {
    if path.starts_with('/') {
        return Arc::new(FrameTable::of_file(path.as_ref()).unwrap());
    }
    let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap()];
    let length = memory.read(range.start, &mut bytes);
    Arc::new(FrameTable::parse(&bytes[..length]).unwrap_or_default())
}

pub fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap_or_else(|_| panic!("{text}"))
}

/// Makes a ptrace request that takes no data, or a signal.
pub fn ptrace(request: libc::c_uint, thread: pid_t, data: usize) {
    // SAFETY: none of the requests that the tests make writes to this process.
    let result = unsafe { libc::ptrace(request, thread, 0, data) };
    assert_eq!(result, 0, "ptrace {request:#x}: {}", std::io::Error::last_os_error());
}

/// Waits for a stop or the end of a child, or of a thread that is traced.
pub fn wait(thread: pid_t) -> c_int {
    let mut status = 0;
    // SAFETY: the kernel writes to `status` only.
    let result = unsafe { libc::waitpid(thread, &raw mut status, libc::WUNTRACED | libc::__WALL) };
    assert_eq!(result, thread, "{}", std::io::Error::last_os_error());
    status
}

pub fn registers(thread: pid_t) -> user_regs_struct {
    // SAFETY: all values of the fields, which are numbers, are valid.
    let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one such structure.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETREGS, thread, 0, &raw mut registers) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    registers
}

/// Converts all general registers.
pub fn converted(all: &user_regs_struct) -> FrameRegisters {
    use FrameRegister::{R8, R9, R10, R11, R12, R13, R14, R15, Rax, Rbp, Rbx, Rcx, Rdi, Rdx, Rsi};
    let low = [(Rax, all.rax), (Rbx, all.rbx), (Rcx, all.rcx), (Rdx, all.rdx), (Rsi, all.rsi), (Rdi, all.rdi)];
    let high = [(R8, all.r8), (R9, all.r9), (R10, all.r10), (R11, all.r11), (R12, all.r12), (R13, all.r13)];
    let rest = [(R14, all.r14), (R15, all.r15), (Rbp, all.rbp)];
    let values = low.into_iter().chain(high).chain(rest);
    values.fold(FrameRegisters::new(all.rip, all.rsp), |registers, (register, value)| registers.with(register, value))
}
