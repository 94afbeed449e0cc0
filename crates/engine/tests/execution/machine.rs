//! Runs code, native or translated, from a given state of all registers and gives back the state at
//! its end; on request stops after every instruction and notes the state there.
//!
//! A thread's state is faked: gs points at a page whose fields translated code uses. One user at a
//! time: see [`machine`].

use std::arch::naked_asm;
use std::mem::offset_of;
use std::sync::{Mutex, MutexGuard, PoisonError};

use trackway_engine::{sys, tcb};

/// The status flags and the direction flag.
pub const FLAGS: u64 = 0xcd5;
const TRAP_FLAG: u64 = 0x100;
const ALWAYS_SET: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Registers {
    /// In the order of machine code.
    pub general: [u64; 16],
    pub flags: u64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Translated code left through this exit.
    Exit(u32),
    /// Translated code went to this application address by way of the table.
    Indirect(u64),
    /// Native code reached its end.
    Native,
}

/// What the assembly below works on.
#[repr(C)]
struct Cell {
    general: [u64; 16],
    flags: u64,
    entry: u64,
    host_stack: u64,
    kind: u64,
    number: u64,
}

static mut CELL: Cell = Cell { general: [0; 16], flags: 0, entry: 0, host_stack: 0, kind: 0, number: 0 };

const KIND_EXIT: u64 = 1;
const KIND_INDIRECT: u64 = 2;
const KIND_NATIVE: u64 = 3;

#[unsafe(naked)]
unsafe extern "C" fn enter() {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [rip + {c} + {host}], rsp",
        "push qword ptr [rip + {c} + {flags}]",
        "popfq",
        "mov rax, [rip + {c} + 0]",
        "mov rcx, [rip + {c} + 8]",
        "mov rdx, [rip + {c} + 16]",
        "mov rbx, [rip + {c} + 24]",
        "mov rbp, [rip + {c} + 40]",
        "mov rsi, [rip + {c} + 48]",
        "mov rdi, [rip + {c} + 56]",
        "mov r8, [rip + {c} + 64]",
        "mov r9, [rip + {c} + 72]",
        "mov r10, [rip + {c} + 80]",
        "mov r11, [rip + {c} + 88]",
        "mov r12, [rip + {c} + 96]",
        "mov r13, [rip + {c} + 104]",
        "mov r14, [rip + {c} + 112]",
        "mov r15, [rip + {c} + 120]",
        "mov rsp, [rip + {c} + 32]",
        "jmp [rip + {c} + {entry}]",
        c = sym CELL,
        host = const offset_of!(Cell, host_stack),
        flags = const offset_of!(Cell, flags),
        entry = const offset_of!(Cell, entry),
    )
}

/// What the exits of translated code jump to: the exit's number is in ecx, rcx in its scratch
/// place.
#[unsafe(naked)]
unsafe extern "C" fn on_exit() {
    naked_asm!(
        "mov [rip + {c} + {number}], rcx",
        "mov qword ptr [rip + {c} + {kind}], {exit}",
        "mov rcx, gs:[{rcx}]",
        "jmp {back}",
        c = sym CELL,
        number = const offset_of!(Cell, number),
        kind = const offset_of!(Cell, kind),
        exit = const KIND_EXIT,
        rcx = const tcb::SCRATCH_RCX,
        back = sym return_to_test,
    )
}

/// Where the table of indirect targets leads: the target is in rcx; rcx and rdx are in their
/// scratch places.
#[unsafe(naked)]
unsafe extern "C" fn on_indirect() {
    naked_asm!(
        "mov [rip + {c} + {number}], rcx",
        "mov qword ptr [rip + {c} + {kind}], {indirect}",
        "mov rcx, gs:[{rcx}]",
        "mov rdx, gs:[{rdx}]",
        "jmp {back}",
        c = sym CELL,
        number = const offset_of!(Cell, number),
        kind = const offset_of!(Cell, kind),
        indirect = const KIND_INDIRECT,
        rcx = const tcb::SCRATCH_RCX,
        rdx = const tcb::SCRATCH_RDX,
        back = sym return_to_test,
    )
}

/// Where an indirect entry goes that is not the one for the target: rcx is the difference, rdx the
/// indirect entry's target negated.
#[unsafe(naked)]
unsafe extern "C" fn on_mismatch() {
    naked_asm!("not rdx", "lea rcx, [rcx + rdx + 1]", "jmp {indirect}", indirect = sym on_indirect)
}

#[unsafe(naked)]
unsafe extern "C" fn on_native_end() {
    naked_asm!(
        "mov qword ptr [rip + {c} + {kind}], {native}",
        "jmp {back}",
        c = sym CELL,
        kind = const offset_of!(Cell, kind),
        native = const KIND_NATIVE,
        back = sym return_to_test,
    )
}

#[unsafe(naked)]
unsafe extern "C" fn return_to_test() {
    naked_asm!(
        "mov [rip + {c} + 0], rax",
        "mov [rip + {c} + 8], rcx",
        "mov [rip + {c} + 16], rdx",
        "mov [rip + {c} + 24], rbx",
        "mov [rip + {c} + 32], rsp",
        "mov [rip + {c} + 40], rbp",
        "mov [rip + {c} + 48], rsi",
        "mov [rip + {c} + 56], rdi",
        "mov [rip + {c} + 64], r8",
        "mov [rip + {c} + 72], r9",
        "mov [rip + {c} + 80], r10",
        "mov [rip + {c} + 88], r11",
        "mov [rip + {c} + 96], r12",
        "mov [rip + {c} + 104], r13",
        "mov [rip + {c} + 112], r14",
        "mov [rip + {c} + 120], r15",
        "mov rsp, [rip + {c} + {host}]",
        "pushfq",
        "pop qword ptr [rip + {c} + {flags}]",
        "push 2",
        "popfq",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        c = sym CELL,
        host = const offset_of!(Cell, host_stack),
        flags = const offset_of!(Cell, flags),
    )
}

/// Where the entry of a run has to jump at its native end.
pub fn native_end() -> u64 {
    on_native_end as *const () as u64
}

/// The state after one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stop {
    pub pc: u64,
    pub registers: Registers,
    /// The fields of the thread's state that a signal handler would look at.
    pub scratch: [u64; 3],
    pub flags: u64,
    pub cursor: u64,
    pub has_app_r15: u64,
}

const STOPS_MAX: usize = 1 << 16;

struct Stops {
    list: Vec<Stop>,
    /// Stops between these addresses count.
    from: u64,
    to: u64,
}

static mut STOPS: Stops = Stops { list: Vec::new(), from: 0, to: 0 };

/// One user at a time may refer to it.
fn stops() -> *mut Stops {
    &raw mut STOPS
}

extern "C" fn on_trap(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel's context; only the thread that owns the machine is single-stepped, and it
    // looks at the stops when it is not.
    let (context, stops) = unsafe { (&*context.cast::<libc::ucontext_t>(), &mut *stops()) };
    let value = |register: i32| context.uc_mcontext.gregs[register as usize] as u64;
    let pc = value(libc::REG_RIP);
    if !(stops.from..stops.to).contains(&pc) || stops.list.len() == stops.list.capacity() {
        return;
    }
    use libc::{REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    use libc::{REG_RAX, REG_RBP, REG_RBX, REG_RCX, REG_RDI, REG_RDX, REG_RSI, REG_RSP};
    let order = [
        REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI, REG_R8, REG_R9, REG_R10, REG_R11,
        REG_R12, REG_R13, REG_R14, REG_R15,
    ];
    let registers = Registers { general: order.map(value), flags: value(libc::REG_EFL) & FLAGS };
    let field = |offset: u32| read(FAKE + u64::from(offset));
    stops.list.push(Stop {
        pc,
        registers,
        scratch: [field(tcb::SCRATCH_RCX), field(tcb::SCRATCH_RDX), field(tcb::SCRATCH_THIRD)],
        flags: field(tcb::FLAGS),
        cursor: field(tcb::CURSOR),
        has_app_r15: field(tcb::APP_R15),
    });
}

/// Where the faked state of the thread is, with its engine stack behind it.
const FAKE: u64 = 0x6400_0000;
const FAKE_BYTES: u64 = 1 << 20;
/// Where the table of owners is.
const OWNERS: u64 = 0x6600_0000;
/// Where the table of indirect targets is: below 2 GiB, or not.
pub const TABLES: [u64; 2] = [0x6800_0000, 0x5500_6800_0000];

/// The word at an address of memory that [`Machine`] has mapped.
pub fn read(address: u64) -> u64 {
    // SAFETY: tests only pass addresses of their own mappings.
    unsafe { (address as *const u64).read_unaligned() }
}

pub fn write(address: u64, value: u64) {
    // SAFETY: as above.
    unsafe { *(address as *mut u64) = value };
}

pub struct Machine {
    signal_stack: Vec<u8>,
}

static MACHINE: Mutex<Option<Machine>> = Mutex::new(None);

/// The machine, for one user at a time.
pub fn machine() -> MutexGuard<'static, Option<Machine>> {
    let mut guard = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_with(Machine::new);
    guard
}

/// Maps memory that can be read, written and executed, at exactly this address.
pub fn map(address: u64, length: u64) {
    let protection = sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC;
    let mapped = sys::map(address, length, protection, sys::MAP_FIXED_NOREPLACE | sys::MAP_NORESERVE);
    assert_eq!(mapped, Some(address), "the address is taken");
}

impl Machine {
    fn new() -> Self {
        map(FAKE, FAKE_BYTES);
        map(OWNERS, 8 * trackway_engine::owners::OWNER_COUNT as u64);
        for table in TABLES {
            map(table, wire::TABLE_BYTES as u64);
            for index in 0..wire::TABLE_BYTES as u64 / 8 {
                write(table + 8 * index, on_indirect as *const () as u64);
            }
        }
        // SAFETY: the handler only notes what it sees.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_trap as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()), 0);
        }
        Self { signal_stack: vec![0; 256 << 10] }
    }

    /// Makes this thread one whose state is faked.
    pub fn prepare(&mut self, table_mask: u64) {
        let field = |offset: u32, value| write(FAKE + u64::from(offset), value);
        write(FAKE, FAKE);
        field(tcb::EXIT_ENTRY, on_exit as *const () as u64);
        field(tcb::MISMATCH_ENTRY, on_mismatch as *const () as u64);
        field(tcb::TABLE_MASK, table_mask);
        field(tcb::ENGINE_STACK, FAKE + FAKE_BYTES);
        field(tcb::OWNERS, OWNERS);
        for size in 0..4 {
            field(tcb::ORDER_KEYS + 8 * size, 5 << 49 | u64::from(size) << 47);
        }
        let stack = libc::stack_t {
            ss_sp: self.signal_stack.as_mut_ptr().cast(),
            ss_flags: 0,
            ss_size: self.signal_stack.len(),
        };
        // SAFETY: the test's thread does not use gs otherwise; the stack lives as long as the
        // machine.
        unsafe {
            tcb::set_gs(FAKE, false);
            assert_eq!(libc::sigaltstack(&raw const stack, std::ptr::null_mut()), 0);
        }
    }

    /// Executes from `entry` with these registers. For translated code, `cursor` goes into r15 and
    /// the application's r15 into its place; afterwards the other way round.
    pub fn run(&mut self, entry: u64, registers: &mut Registers, cursor: Option<&mut u64>, step: bool) -> End {
        let mut general = registers.general;
        if let Some(cursor) = &cursor {
            write(FAKE + u64::from(tcb::APP_R15), general[15]);
            general[15] = **cursor;
        }
        let trap = if step { TRAP_FLAG } else { 0 };
        // SAFETY: the machine has one user; the code at `entry` is the test's own and comes back
        // through `return_to_test`.
        let cell = unsafe {
            let cell = &raw mut CELL;
            (*cell).general = general;
            (*cell).flags = registers.flags | ALWAYS_SET | trap;
            (*cell).entry = entry;
            enter();
            &*cell
        };
        registers.general = cell.general;
        registers.flags = cell.flags & FLAGS;
        if let Some(cursor) = cursor {
            *cursor = cell.general[15];
            registers.general[15] = read(FAKE + u64::from(tcb::APP_R15));
        }
        match cell.kind {
            KIND_EXIT => End::Exit(cell.number as u32),
            KIND_INDIRECT => End::Indirect(cell.number),
            _ => End::Native,
        }
    }

    /// Notes from now on the stops between two addresses.
    pub fn watch(&mut self, from: u64, to: u64) {
        // SAFETY: no thread is being single-stepped now.
        let stops = unsafe { &mut *stops() };
        *stops = Stops { list: Vec::with_capacity(STOPS_MAX), from, to };
    }

    /// The stops since `watch`.
    pub fn stops(&mut self) -> Vec<Stop> {
        // SAFETY: as above.
        let stops = unsafe { &mut *stops() };
        assert!(stops.list.len() < STOPS_MAX, "too many stops");
        std::mem::take(&mut stops.list)
    }
}
