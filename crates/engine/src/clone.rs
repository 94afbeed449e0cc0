//! Creation and exit of threads and processes. New threads are recorded from their first
//! instruction. So is a process that shares its parent's memory while its parent waits (vfork): it
//! is recorded as a thread of its parent, until it execs or exits. Other new processes run
//! natively.

use alloc::boxed::Box;
use core::arch::naked_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use entity::ThreadId;
use wire::{Control, RAX, RDI, RSI, RSP, SLOT_ABANDONED, SLOT_COUNT, SLOT_ENDED, SLOT_FREE, SLOT_LIVE, word};

use crate::engine::ENGINE;
use crate::failure::{self, Failure};
use crate::sys::{self, number};
use crate::tcb::{self, OwnedTcb, Tcb};
use crate::{
    detach, dispatch, engine_memory, follow, limits, memory, owners, pending, reclaim, ring, rseq, seccomp, select,
    signal, skip, syscall,
};

const CLONE_VM: u64 = 0x100;
const CLONE_SIGHAND: u64 = 0x800;
const CLONE_VFORK: u64 = 0x4000;
const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
const CLONE_THREAD: u64 = 0x1_0000;
/// Flags for new namespaces (cgroup, UTS, IPC, user, process, network; time, mount), in which a
/// process may have another id.
const CLONE_NEW: u64 = 0x7e02_0080;

static FSGSBASE: AtomicBool = AtomicBool::new(false);
static MIN_SIGNAL_STACK: AtomicU64 = AtomicU64::new(0);

/// Sets what new threads need.
pub fn set_up(fsgsbase: bool, min_signal_stack: u64) {
    FSGSBASE.store(fsgsbase, Ordering::Relaxed);
    MIN_SIGNAL_STACK.store(min_signal_stack, Ordering::Relaxed);
}

/// Whether the kernel allows `wrgsbase`.
pub fn has_fsgsbase() -> bool {
    FSGSBASE.load(Ordering::Relaxed)
}

/// The arguments of clone and clone3 that the engine uses.
struct Request {
    flags: u64,
    /// The child's stack pointer; 0: the same as the parent's.
    stack: u64,
}

fn request(tcb: &Tcb, call: u64) -> Option<Request> {
    let [flags, stack] = [RDI, RSI].map(|register| tcb.registers.general[register]);
    Some(match call {
        number::FORK => Request { flags: 0, stack: 0 },
        number::VFORK => Request { flags: CLONE_VM | CLONE_VFORK, stack: 0 },
        number::CLONE => Request { flags, stack },
        _ => {
            let [flags, .., stack, length] = crate::memory::read::<[u64; 7]>(flags)?;
            Request { flags, stack: if stack == 0 { 0 } else { stack.wrapping_add(length) } }
        }
    })
}

/// clone, clone3, fork and vfork. Returns the result for the parent.
pub fn clone(tcb: &mut Tcb, call: u64) -> i64 {
    let Some(request) = request(tcb, call) else { return syscall::pass_through(tcb) };
    loop {
        let is_thread = request.flags & CLONE_THREAD != 0;
        let result = if is_thread { new_thread(tcb, &request) } else { new_process(tcb, &request) };
        match result {
            Ok(result) => return result,
            // After the detach, the application's own instruction makes the call.
            Err(failure) if failure::detach(tcb, failure) => return syscall::NOT_MADE,
            Err(_) => {}
        }
    }
}

/// Takes a free slot. If none is free but the recorder is about to free some, waits for it.
fn take_slot(control: &Control) -> Option<u32> {
    const PATIENCE_MILLISECONDS: u32 = 2000;
    if failure::is_injected(control, Failure::TooManyThreads) {
        return None;
    }
    for _ in 0..PATIENCE_MILLISECONDS {
        let slot = try_to_take_slot(control);
        let is_ended = |slot: &wire::Slot| matches!(slot.state.load(Ordering::SeqCst), SLOT_ENDED | SLOT_ABANDONED);
        if slot.is_some() || !ring::has_recorder(control) || !control.slots.iter().any(is_ended) {
            return slot;
        }
        ring::ring_doorbell(control);
        sys::futex_wait(&control.stage, control.stage.load(Ordering::Relaxed), 1);
    }
    None
}

fn try_to_take_slot(control: &Control) -> Option<u32> {
    let taken = |slot: &wire::Slot| {
        slot.state.compare_exchange(SLOT_FREE, SLOT_LIVE, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    };
    (0..SLOT_COUNT).find(|&index| taken(&control.slots[index])).map(|index| index as u32)
}

/// Copies the parent's state to the child, as the kernel would.
fn inherit(child: &mut Tcb, parent: &Tcb, request: &Request) {
    child.registers = parent.registers;
    syscall::complete(child, 0);
    if request.stack != 0 {
        child.registers.general[RSP] = request.stack;
    }
    child.xmm = parent.xmm;
    child.mxcsr = parent.mxcsr;
    child.gs_base = parent.gs_base;
    signal::set_mask(child, parent.signals().mask.get());
}

fn new_thread(tcb: &mut Tcb, request: &Request) -> Result<i64, Failure> {
    ENGINE.lock().order_threads();
    let mut child = new_recorded_state(tcb)?;
    let thread = child.thread;
    inherit(&mut child, tcb, request);
    owners::adopt(&mut child);
    signal::block_for_clone(tcb);
    // SAFETY: the child's state is complete; it runs on stacks of its own.
    let result = unsafe { trackway_clone(child.as_ptr(), start_thread as *const () as u64) };
    signal::block_asynchronous(tcb);
    if result < 0 {
        forget_child(child);
    } else {
        ring::append_child(tcb, thread, result as u32);
    }
    Ok(result)
}

/// The state of a new thread that is to be recorded, with a slot of its own.
fn new_recorded_state(tcb: &Tcb) -> Result<OwnedTcb, Failure> {
    let control = tcb.control();
    let slot_index = take_slot(control).ok_or(Failure::TooManyThreads)?;
    pending::reset(slot_index);
    let slot = &control.slots[slot_index as usize];
    let thread = ThreadId::new(control.next_thread.fetch_add(1, Ordering::SeqCst));
    slot.thread.store(thread.get(), Ordering::Relaxed);
    slot.parent.store(tcb.thread.get(), Ordering::Relaxed);
    slot.os_tid.store(0, Ordering::SeqCst);
    new_state(control, slot_index, thread).ok_or_else(|| {
        slot.state.store(SLOT_FREE, Ordering::SeqCst);
        Failure::NoMemory
    })
}

/// Frees the state of a thread that was not created.
fn forget_child(child: OwnedTcb) {
    owners::release(&child);
    let slot = child.slot();
    // SAFETY: no thread was made to use it.
    unsafe { child.free() };
    slot.state.store(SLOT_FREE, Ordering::SeqCst);
}

/// Whether a new process can be recorded as a thread of its parent: it shares the memory, its
/// parent waits for it, and only its signal actions are its own.
fn is_like_vfork(request: &Request) -> bool {
    let kind = CLONE_VM | CLONE_VFORK | CLONE_SIGHAND | CLONE_THREAD | CLONE_NEW;
    request.flags & kind == CLONE_VM | CLONE_VFORK
}

/// Creates a process that shares the memory until it execs or exits, and records it as a thread.
/// When the kernel resumes this thread, the process no longer uses the memory, and this thread
/// reaps its state. `None` if there is no slot or no memory for it.
fn record_child(tcb: &mut Tcb, request: &Request) -> Option<i64> {
    let control = tcb.control();
    let mut child = new_recorded_state(tcb).ok()?;
    let thread = child.thread;
    let actions = Box::into_raw(signal::copy_actions(request.flags & CLONE_CLEAR_SIGHAND != 0));
    child.signals().own_actions.set(actions);
    inherit(&mut child, tcb, request);
    child.alternate_stack = tcb.alternate_stack;
    child.created = sys::tsc();
    owners::adopt(&mut child);
    control.vforks.fetch_add(1, Ordering::SeqCst);
    signal::block_for_clone(tcb);
    // SAFETY: the child's state is complete; it runs on stacks of its own.
    let result = unsafe { trackway_clone(child.as_ptr(), start_child as *const () as u64) };
    signal::block_asynchronous(tcb);
    if result < 0 {
        forget_child(child);
    } else if reap_child(child) {
        ring::append_child(tcb, thread, result as u32);
    }
    // SAFETY: made above; no thread uses the table any more.
    drop(unsafe { Box::from_raw(actions) });
    control.vforks.fetch_sub(1, Ordering::SeqCst);
    Some(result)
}

/// Reaps the state of a process that has shared the memory, after its exec, exit or death by a
/// signal. False if it has recorded nothing.
fn reap_child(mut child: OwnedTcb) -> bool {
    if release_locks(&child) {
        failure::report(child.control(), Failure::KilledChild);
    }
    let has_started = child.closed || child.cursor != child.segment;
    if child.executing && !child.closed {
        ring::close(&mut child, word::END);
    } else if !child.closed {
        // How far it has come is unknown.
        skip::abandon(&mut child);
        pending::publish(child.slot_index, !0);
        reclaim::exit_cache(&child);
        child.slot().state.store(SLOT_ABANDONED, Ordering::SeqCst);
        ring::ring_doorbell(child.control());
    }
    owners::release(&child);
    // SAFETY: its thread is gone.
    unsafe { child.free() };
    has_started
}

/// Releases the locks that a thread held when it was killed. True if there were any.
fn release_locks(dead: &Tcb) -> bool {
    let stacks = dead.mapping..dead.mapping + dead.mapping_length;
    // SAFETY: the thread is dead, and the mapping was its own.
    unsafe {
        [
            memory::release_for_dead(stacks.clone()),
            ENGINE.release_for_dead(stacks.clone()),
            engine_memory::release_for_dead(stacks.clone()),
            owners::release_for_dead(stacks.clone()),
            limits::release_for_dead(stacks.clone()),
            seccomp::release_for_dead(stacks),
        ]
        .contains(&true)
    }
}

/// The state of a new thread or process. `None` if there is no memory.
fn new_state(control: &Control, slot_index: u32, thread: ThreadId) -> Option<OwnedTcb> {
    if failure::is_injected(control, Failure::NoMemory) {
        return None;
    }
    OwnedTcb::new(control, slot_index, thread, MIN_SIGNAL_STACK.load(Ordering::Relaxed))
}

fn new_process(tcb: &mut Tcb, request: &Request) -> Result<i64, Failure> {
    if is_like_vfork(request)
        && let Some(result) = record_child(tcb, request)
    {
        return Ok(result);
    }
    let mut child = new_state(tcb.control(), tcb.slot_index, tcb.thread).ok_or(Failure::NoMemory)?;
    inherit(&mut child, tcb, request);
    child.alternate_stack = tcb.alternate_stack;
    let waited_for = request.flags & (CLONE_VM | CLONE_VFORK) == CLONE_VM | CLONE_VFORK;
    let still_shared = request.flags & (CLONE_VM | CLONE_VFORK) == CLONE_VM;
    if request.flags & CLONE_SIGHAND == 0 {
        child.actions = Some(signal::copy_actions(request.flags & CLONE_CLEAR_SIGHAND != 0));
    }
    signal::block_asynchronous(tcb);
    // The child runs natively, so it must not inherit pages that the engine has write-protected.
    // The lock is held until it has its copy.
    let mut engine = ENGINE.lock();
    engine.release_guarded();
    let engine = (request.flags & CLONE_VM == 0).then_some(engine);
    let control = tcb.control();
    let follow = follow::prepare(control);
    child.follow = follow.map_or(core::ptr::null(), core::ptr::from_ref);
    child.shares = request.flags & CLONE_VM != 0;
    if waited_for {
        control.vforks.fetch_add(1, Ordering::SeqCst);
    }
    if still_shared {
        control.sharers.store(1, Ordering::SeqCst);
    }
    signal::block_for_clone(tcb);
    // SAFETY: the child's state is complete; it runs on stacks of its own, also when it shares our
    // memory.
    let result = unsafe { trackway_clone(child.as_ptr(), start_process as *const () as u64) };
    signal::block_asynchronous(tcb);
    drop(engine);
    if result < 0 {
        follow::forget(follow);
    }
    if waited_for {
        control.vforks.fetch_sub(1, Ordering::SeqCst);
    }
    if result < 0 || !still_shared {
        drop(child.actions.take());
        // SAFETY: there is no child, it has a copy of its own, or it has called exec or ended.
        unsafe { child.free() };
    }
    Ok(result)
}

/// Entry point of a new thread.
extern "C" fn start_thread(tcb: &mut Tcb) -> ! {
    // SAFETY: the thread has just been created, with its parent's gs.
    unsafe { tcb::set_gs(tcb.this as u64, has_fsgsbase()) };
    tcb.install_signal_stack();
    begin(tcb)
}

/// Entry point of a new process that is recorded as a thread.
extern "C" fn start_child(tcb: &mut Tcb) -> ! {
    // SAFETY: as for a thread.
    unsafe { tcb::set_gs(tcb.this as u64, has_fsgsbase()) };
    // The kernel's alternate stack is the parent's signal stack, so the application's is kept.
    let stack = tcb.alternate_stack;
    tcb.install_signal_stack();
    tcb.alternate_stack = stack;
    signal::install_own_actions(tcb);
    begin(tcb)
}

/// Enters the code cache for the first time. Signal handlers can find the thread's state and stack
/// by now.
fn begin(tcb: &mut Tcb) -> ! {
    signal::block_asynchronous(tcb);
    tcb.slot().os_tid.store(sys::gettid(), Ordering::SeqCst);
    // From now on other threads can send hints to this one. It checks by itself for what was
    // pending before.
    signal::set_mask(tcb, tcb.signals().mask.get());
    ring::open(tcb);
    let pc = tcb.pc();
    ring::append_timed(tcb, word::START, pc);
    ring::append_fs_base(tcb);
    select::start(tcb, &ENGINE.lock());
    dispatch::enter_first()
}

/// Entry point of a new process that runs natively.
extern "C" fn start_process(tcb: &mut Tcb) -> ! {
    // SAFETY: as for a thread; the process's copy of the engine is no longer entered once it runs
    // natively.
    unsafe { tcb::set_gs(tcb.this as u64, has_fsgsbase()) };
    if let Some(actions) = &tcb.actions {
        signal::restore_actions(actions);
    }
    let stack = tcb.alternate_stack;
    // SAFETY: the kernel reads the application's own alternate stack.
    unsafe { sys::call(number::SIGALTSTACK, [&raw const stack as u64, 0, 0, 0, 0, 0]) };
    // SAFETY: part of the shared mapping, of which this process has inherited the beginning if it
    // is to be followed.
    if let Some(child) = unsafe { tcb.follow.as_ref() } {
        follow::wait(tcb, child, tcb.shares, sys::tsc());
    }
    detach::set_native(tcb);
    if !tcb.shares {
        follow::unmap(tcb);
    }
    dispatch::enter_native()
}

unsafe extern "C" {
    fn trackway_clone_instruction();
}

/// The address behind the instruction that makes the application's clone call.
pub fn call_end() -> u64 {
    trackway_clone_instruction as *const () as u64 + syscall::INSTRUCTION_BYTES
}

/// Makes the application's clone call; the child calls `start` with its state, on its engine stack.
#[unsafe(naked)]
unsafe extern "C" fn trackway_clone(child: *mut Tcb, start: u64) -> i64 {
    naked_asm!(
        "push rbx",
        "push rbp",
        "mov rbx, rdi",
        "mov rbp, rsi",
        "mov rax, gs:[{r} + 0*8]",
        "mov rdi, gs:[{r} + 7*8]",
        "mov rsi, gs:[{r} + 6*8]",
        "mov rdx, gs:[{r} + 2*8]",
        "mov r10, gs:[{r} + 10*8]",
        "mov r8, gs:[{r} + 8*8]",
        "mov r9, gs:[{r} + 9*8]",
        ".globl trackway_clone_instruction",
        "trackway_clone_instruction:",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "pop rbp",
        "pop rbx",
        "ret",
        "2:",
        "mov rsp, [rbx + {stack}]",
        "mov rdi, rbx",
        "mov rax, rbp",
        "xor ebp, ebp",
        "call rax",
        "ud2",
        r = const offset_of!(Tcb, registers),
        stack = const offset_of!(Tcb, engine_stack),
    )
}

/// The application's exit_group: of all threads.
pub fn exit_process(tcb: &mut Tcb) -> ! {
    signal::block_asynchronous(tcb);
    ring::close(tcb, word::END);
    let [call, status] = [RAX, RDI].map(|register| tcb.registers.general[register]);
    loop {
        // SAFETY: ends the process.
        unsafe { sys::call(call, [status, 0, 0, 0, 0, 0]) };
    }
}

/// The application's exit: of one thread.
pub fn exit(tcb: &mut Tcb) -> ! {
    if tcb.is_child_process() {
        // The whole process exits. Its parent reaps the state.
        exit_process(tcb);
    }
    // A signal that was sent to the process and deferred here must not be lost with the thread.
    while !signal::block_all(tcb) {
        signal::block_asynchronous(tcb);
        syscall::deliver_deferred();
    }
    signal::stop_taking_signals(tcb);
    ring::close(tcb, word::END);
    owners::release(tcb);
    rseq::leave_section(tcb);
    tcb.string_run = None;
    limits::shrink(tcb.mapping_length);
    let status = tcb.registers.general[RDI];
    // SAFETY: the thread's stacks go away together with the thread; the assembly uses none. Signals
    // are blocked.
    unsafe {
        core::arch::asm!("syscall", "mov eax, 60", "mov rdi, r12", "syscall", "ud2", in("rax") number::MUNMAP,
            in("rdi") tcb.mapping, in("rsi") tcb.mapping_length, in("r12") status, options(noreturn));
    }
}
