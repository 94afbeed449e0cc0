//! Injects the engine into a process whose threads are stopped: before the first instruction of a
//! new image ([`inject`]), or anywhere in a running process (`attach`, with functions of this
//! module).
//!
//! A stopped thread executes the system calls that make all memory in the target, the shared memory
//! included. Afterwards the target runs without ptrace and has no file of the recorder open.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use entity::ThreadId;
use libc::user_regs_struct;
use wire::{CodeMapping, Init, Registers, Rseq};

use crate::error::reason;
use crate::image::{Image, ImageSegment, PAGE};
use crate::maps::{self, Mapping};
use crate::ptrace::{Exit, Stop, Tracee};
use crate::remote::{self, Remote};
use crate::shared::{FILE_NAME, Shared};
use crate::{setup, task};

const STACK_BYTES: u64 = 256 << 10;

/// Addresses for the engine: below 2 GiB, so that 32-bit addresses reach its table; far from
/// programs without address randomisation and their heaps.
const ENGINE_PLACES: Range<u64> = 0x6000_0000..0x7000_0000;
/// Addresses to try next: the whole range that 32-bit addresses reach.
const ENGINE_OTHER_PLACES: Range<u64> = 0x1000_0000..0x7fff_0000;
/// Addresses to try last, if there is no room below 2 GiB (Chromium keeps 4 GiB free of
/// everything): translated code then takes a longer way to the table. Just below the shared memory,
/// for the same reasons.
const ENGINE_HIGH_PLACES: Range<u64> = 0x5500_0000_0000..0x5510_0000_0000;
const ENGINE_STEP: u64 = 16 << 20;

/// Addresses for the shared memory: just below the lowest address of a position-independent
/// program. Sanitizers take this for ordinary memory; elsewhere they have shadows, and refuse to
/// start if something is there. Go's arenas, heaps grown by brk and the kernel's own choices are
/// far away.
const SHARED_PLACES: Range<u64> = 0x5510_0000_0000..0x5540_0000_0000;
const SHARED_STEP: u64 = 4 << 30;

/// `cs` of 64-bit code.
pub const CODE_SEGMENT_64: u64 = 0x33;

#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    #[error("the process ended before it could be traced")]
    Exited(Exit),
    #[error("the program is not 64-bit code")]
    Not64Bit,
    #[error("there is no free address space for the engine")]
    NoRoom,
    #[error("the recorder's part in the process was ended by signal {0}")]
    Fault(i32),
    /// The engine could not be set up, for this reason. The threads go on without it.
    #[error("{0}")]
    SetUp(&'static str),
    #[error("{what} failed: {}", reason(error))]
    System { what: &'static str, error: io::Error },
}

pub type Result<T> = std::result::Result<T, InjectError>;

/// Adds what failed to an error of the system.
pub trait Context<T> {
    fn context(self, what: &'static str) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn context(self, what: &'static str) -> Result<T> {
        self.map_err(|error| InjectError::System { what, error })
    }
}

/// The part of a thread's initial values that the injector does not find out itself.
#[derive(Debug, Clone, Copy)]
pub struct ThreadPlacement {
    pub thread: ThreadId,
    pub slot: u32,
    pub process: i32,
    /// The only address where the engine may be, because seccomp filters know it there.
    pub base: Option<u64>,
}

/// The ranges of the engine in a process.
#[derive(Debug, Clone)]
pub struct InjectedRanges {
    /// Image, initial values, stack and table.
    pub engine: Range<u64>,
    pub shared: Range<u64>,
}

/// Injects the engine into a thread that is stopped at its exec event, and lets it go on. After
/// [`InjectError::SetUp`] the thread goes on natively. After another error it is still stopped,
/// unless it has exited, and in its original state.
pub fn inject(tracee: Tracee, image: &Image, shared: &Shared, placement: ThreadPlacement) -> Result<InjectedRanges> {
    finish_exec(tracee)?;
    let registers = tracee.registers().context("reading registers")?;
    if registers.cs != CODE_SEGMENT_64 {
        return Err(InjectError::Not64Bit);
    }
    let mappings = maps::of_process(placement.process).context("reading the memory map")?;
    let mut remote = Remote::new(tracee, remote::gate(tracee, &mappings), 0)?;
    let started = start(&mut remote, image, shared, &mappings, placement);
    match started {
        Ok(layout) => {
            setup::release(remote, shared.control())?;
            Ok(layout.injected_ranges())
        }
        Err(InjectError::Exited(exit)) => Err(InjectError::Exited(exit)),
        Err(error) => {
            remote.finish()?;
            if matches!(error, InjectError::SetUp(_)) {
                remote.detach()?;
            }
            Err(error)
        }
    }
}

/// Makes a thread map the engine and set it up.
fn start(
    remote: &mut Remote,
    image: &Image,
    shared: &Shared,
    mappings: &[Mapping],
    placement: ThreadPlacement,
) -> Result<Layout> {
    let layout = prepare(remote, image, shared, mappings, 1, placement.base)?;
    let init = Init { mask: remote.mask, ..initial_values(remote.tracee, &remote.registers, &layout, placement)? };
    remote.tracee.write(layout.init, as_bytes(&init)).context("writing to the target")?;
    let entry = layout.entry(image, &remote.registers);
    setup::run(remote, &entry, &layout, shared.control())?;
    Ok(layout)
}

/// Continues from the exec event to the end of the system call, where the registers are those of
/// the new image.
fn finish_exec(tracee: Tracee) -> Result<()> {
    loop {
        tracee.resume_to_syscall(0).context("continuing")?;
        match tracee.wait().context("waiting")? {
            Stop::Syscall => return Ok(()),
            Stop::Exited(exit) => return Err(InjectError::Exited(exit)),
            _ => {}
        }
    }
}

/// The addresses of everything that is injected.
pub struct Layout {
    base: u64,
    end: u64,
    /// The initial values, one [`Init`] per thread.
    pub init: u64,
    mappings: u64,
    mapping_count: u32,
    guard: u64,
    stack_top: u64,
    table: u64,
    shared: u64,
}

impl Layout {
    /// In this order: image, initial values of threads, code mappings, guard page, stack, table.
    fn new(base: u64, image: &Image, threads: usize, mapping_count: usize) -> Self {
        let init = base + image.span;
        let mappings = init + (threads * size_of::<Init>()) as u64;
        let guard = (mappings + (mapping_count * size_of::<CodeMapping>()) as u64).next_multiple_of(PAGE);
        let stack_top = guard + PAGE + STACK_BYTES;
        let end = stack_top + (wire::TABLE_COUNT * wire::TABLE_BYTES) as u64;
        let mapping_count = mapping_count as u32;
        Self { base, init, mappings, mapping_count, guard, stack_top, table: stack_top, end, shared: 0 }
    }

    /// Returns the registers with which a thread starts the engine.
    pub fn entry(&self, image: &Image, registers: &user_regs_struct) -> user_regs_struct {
        start_at(self.base + image.entry, self.init, self.stack_top, registers)
    }

    pub fn injected_ranges(&self) -> InjectedRanges {
        let shared = self.shared..self.shared + wire::SHARED_BYTES as u64;
        InjectedRanges { engine: self.base..self.end, shared }
    }
}

/// The flag that is always set, and the one for interrupts.
const PLAIN_FLAGS: u64 = 0x202;

/// Returns registers that call a function of the engine with one argument, on a stack that ends at
/// `stack_top`.
pub fn start_at(function: u64, argument: u64, stack_top: u64, registers: &user_regs_struct) -> user_regs_struct {
    user_regs_struct {
        rdi: argument,
        rip: function,
        rsp: stack_top - 8,
        eflags: PLAIN_FLAGS,
        // Not in a system call: the kernel must not restart one.
        orig_rax: u64::MAX,
        ..*registers
    }
}

/// Makes all memory in the target, for `threads` threads. Unmaps it again if a later step fails.
pub fn prepare(
    remote: &mut Remote,
    image: &Image,
    shared: &Shared,
    mappings: &[Mapping],
    threads: usize,
    wanted: Option<u64>,
) -> Result<Layout> {
    let modifiable = maps::modifiable_code(mappings);
    let base = map_engine(remote, Layout::new(0, image, threads, modifiable.len()).end, mappings, wanted)?;
    let mut layout = Layout::new(base, image, threads, modifiable.len());
    let filled = fill(remote, image, &layout)
        .and_then(|()| remote.tracee.write(layout.mappings, bytes_of(&modifiable)).context("writing to the target"))
        .and_then(|()| map_shared(remote, layout.init, shared, mappings, wanted.is_some()));
    match filled {
        Ok(address) => layout.shared = address,
        Err(error) => {
            remote.call("munmap", libc::SYS_munmap, [base, layout.end - base, 0, 0, 0, 0])?;
            return Err(error);
        }
    }
    Ok(layout)
}

fn map_engine(remote: &mut Remote, length: u64, mappings: &[Mapping], wanted: Option<u64>) -> Result<u64> {
    let places = [ENGINE_PLACES, ENGINE_OTHER_PLACES, ENGINE_HIGH_PLACES];
    let places = places.iter().flat_map(|places| starts(places, ENGINE_STEP).map(move |start| (start, places.end)));
    for (start, limit) in places.filter(|&(start, _)| wanted.is_none_or(|wanted| start == wanted)) {
        let range = start..start + length;
        if range.end > limit.max(ENGINE_OTHER_PLACES.end) || !maps::is_free(mappings, &range) {
            continue;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        match remote.call("mmap", libc::SYS_mmap, [start, length, protection, flags as u64, u64::MAX, 0]) {
            Err(InjectError::System { error, .. }) if error.raw_os_error() == Some(libc::EEXIST) => {}
            result => return result,
        }
    }
    Err(InjectError::NoRoom)
}

fn starts(places: &Range<u64>, step: u64) -> impl Iterator<Item = u64> + use<> {
    places.clone().step_by(step as usize)
}

fn fill(remote: &mut Remote, image: &Image, layout: &Layout) -> Result<()> {
    for (segment, bytes) in image.segments.iter().zip(image.relocated(layout.base)) {
        remote.tracee.write(layout.base + segment.offset, &bytes).context("writing to the target")?;
        remote.protect(layout.base + segment.start(), segment.end() - segment.start(), protection(segment))?;
    }
    remote.protect(layout.guard, PAGE, libc::PROT_NONE)
}

fn protection(segment: &ImageSegment) -> i32 {
    let flag = |is: bool, flag: i32| if is { flag } else { 0 };
    flag(segment.readable, libc::PROT_READ)
        | flag(segment.writable, libc::PROT_WRITE)
        | flag(segment.executable, libc::PROT_EXEC)
}

/// Maps the shared memory in the target. `scratch` is writable memory for its name.
fn map_shared(
    remote: &mut Remote,
    scratch: u64,
    shared: &Shared,
    mappings: &[Mapping],
    is_filtered: bool,
) -> Result<u64> {
    let address = match share_file(remote, scratch, shared, mappings) {
        // The recorder may not lift its `ulimit -f`. Seccomp filters were not checked for the calls
        // of the other way.
        Err(InjectError::System { error, .. }) if error.raw_os_error() == Some(libc::EFBIG) && !is_filtered => {
            share_segment(remote, shared, mappings)?
        }
        result => result?,
    };
    // A child must not write to its parent's rings and does not inherit them; a core dump does not
    // need them. A child that is followed inherits the control page, to report itself.
    let is_followed = shared.control().follow.load(Ordering::SeqCst) != 0;
    let inherited = if is_followed { wire::CONTROL_BYTES as u64 } else { 0 };
    for (advice, skipped) in [(libc::MADV_DONTFORK, inherited), (libc::MADV_DONTDUMP, 0)] {
        let arguments = [address + skipped, wire::SHARED_BYTES as u64 - skipped, advice as u64, 0, 0, 0];
        remote.call("madvise", libc::SYS_madvise, arguments)?;
    }
    Ok(address)
}

/// Makes the target create the shared memory, and maps it there and here. No descriptor stays open
/// in the target.
fn share_file(remote: &mut Remote, scratch: u64, shared: &Shared, mappings: &[Mapping]) -> Result<u64> {
    remote.tracee.write(scratch, FILE_NAME).context("writing to the target")?;
    let file = make_shared_file(remote, scratch)?;
    let adopted = open_file(remote.tracee, file).and_then(|file| shared.adopt(file));
    let address = adopted.context("sharing memory").and_then(|()| map_shared_file(remote, file, mappings));
    remote.call("close", libc::SYS_close, [file, 0, 0, 0, 0, 0])?;
    address
}

/// Creates the shared memory here, and makes the target attach it.
fn share_segment(remote: &mut Remote, shared: &Shared, mappings: &[Mapping]) -> Result<u64> {
    let segment = shared.adopt_segment().context("sharing memory")?;
    let address = shared_place(mappings).unwrap_or(0);
    remote.call("attaching the shared memory", libc::SYS_shmat, [segment.id as u64, address, 0, 0, 0, 0])
}

/// Returns an address with room for the shared memory.
fn shared_place(mappings: &[Mapping]) -> Option<u64> {
    let length = wire::SHARED_BYTES as u64;
    starts(&SHARED_PLACES, SHARED_STEP).find(|&start| maps::is_free(mappings, &(start..start + length)))
}

fn make_shared_file(remote: &mut Remote, name: u64) -> Result<u64> {
    let mut call = |flags: u32| {
        remote.call("making the shared memory", libc::SYS_memfd_create, [name, u64::from(flags), 0, 0, 0, 0])
    };
    match call(libc::MFD_CLOEXEC) {
        // An administrator may have forbidden executable files in memory (`vm.memfd_noexec`).
        Err(InjectError::System { error, .. }) if error.raw_os_error() == Some(libc::EACCES) => {
            call(libc::MFD_CLOEXEC | libc::MFD_NOEXEC_SEAL)
        }
        result => result,
    }
}

/// Opens a file that the thread has open under this descriptor.
fn open_file(tracee: Tracee, file: u64) -> io::Result<OwnedFd> {
    let path = format!("/proc/{}/fd/{file}", tracee.tid);
    Ok(File::options().read(true).write(true).open(path)?.into())
}

fn map_shared_file(remote: &mut Remote, file: u64, mappings: &[Mapping]) -> Result<u64> {
    let length = wire::SHARED_BYTES as u64;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    if let Some(start) = shared_place(mappings) {
        let flags = (flags | libc::MAP_FIXED_NOREPLACE) as u64;
        if let Ok(address) = remote.call("mmap", libc::SYS_mmap, [start, length, protection, flags, file, 0]) {
            return Ok(address);
        }
    }
    remote.call("mapping the shared memory", libc::SYS_mmap, [0, length, protection, flags as u64, file, 0])
}

/// Returns the initial values of a thread of a new image.
pub fn initial_values(
    tracee: Tracee,
    registers: &user_regs_struct,
    layout: &Layout,
    placement: ThreadPlacement,
) -> Result<Init> {
    let vector = maps::auxiliary_vector(tracee.tid).context("reading the auxiliary vector")?;
    let entry = |wanted: u64| vector.iter().find(|&&(key, _)| key == wanted).map_or(0, |&(_, value)| value);
    let fsgsbase = entry(maps::AT_HWCAP2) & 2 != 0;
    Ok(Init {
        version: wire::VERSION,
        flags: if fsgsbase { wire::FLAG_FSGSBASE } else { 0 },
        shared: layout.shared,
        table: layout.table,
        engine_start: layout.base,
        engine_end: layout.end,
        registers: in_wire_order(registers),
        gs_base: registers.gs_base,
        os_tid: task::own_number(tracee.tid),
        pid: task::own_number(placement.process),
        min_signal_stack: entry(maps::AT_MINSIGSTKSZ),
        thread: placement.thread,
        slot: placement.slot,
        thread_count: 1,
        interrupted: 0,
        mask: 0,
        rseq: Rseq::default(),
        state: 0,
        mappings: layout.mappings,
        mapping_count: layout.mapping_count,
        mxcsr: 0,
        vectors: [[0; 2]; 16],
    })
}

fn in_wire_order(from: &user_regs_struct) -> Registers {
    Registers {
        general: [
            from.rax, from.rcx, from.rdx, from.rbx, from.rsp, from.rbp, from.rsi, from.rdi, from.r8, from.r9, from.r10,
            from.r11, from.r12, from.r13, from.r14, from.r15,
        ],
        rip: from.rip,
        rflags: from.eflags,
    }
}

pub fn as_bytes(init: &Init) -> &[u8] {
    // SAFETY: `Init` is `repr(C)` and consists of integers that leave no padding between them.
    unsafe { std::slice::from_raw_parts((&raw const *init).cast(), size_of::<Init>()) }
}

fn bytes_of(mappings: &[CodeMapping]) -> &[u8] {
    // SAFETY: `CodeMapping` is `repr(C)` and consists of integers that leave no padding between
    // them.
    unsafe { std::slice::from_raw_parts(mappings.as_ptr().cast(), size_of_val(mappings)) }
}

/// Unmaps everything that was injected.
pub fn remove(remote: &mut Remote, injected: &InjectedRanges) -> Result<()> {
    for range in [&injected.shared, &injected.engine] {
        remote.call("munmap", libc::SYS_munmap, [range.start, range.end - range.start, 0, 0, 0, 0])?;
    }
    Ok(())
}
