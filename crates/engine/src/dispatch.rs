//! The dispatcher: the assembly that switches between the code cache and the engine, and what
//! happens at each exit.
//!
//! Fragments enter the dispatcher in three ways: through an exit stub (`trackway_exit`), through an
//! empty slot of the indirect-branch table (`trackway_miss`), and through an indirect entry for
//! another target (`trackway_mismatch`). `trackway_enter` enters the code cache,
//! `trackway_enter_native` native code. Both only read the thread's saved state, so a signal that
//! comes there sees the application exactly as saved.

use core::arch::naked_asm;
use core::mem::offset_of;

use entity::{AppPc, FragmentId, PathId};

use crate::engine::{ENGINE, Engine};
use crate::failure::{self, Failure};
use crate::fragment::{FragmentRef, NoFragment};
use crate::tcb::{SIGNALS, Signals, Tcb};
use crate::translate::{ENTRY_CHANGED, ExitKind};
use crate::{detach, emulate, maps, memory, probe, reclaim, rseq, select, signal, skip, syscall};

const REGISTERS: usize = offset_of!(Tcb, registers);
const XMM: usize = offset_of!(Tcb, xmm);

/// Sets the addresses that translated code jumps to.
pub fn set_entries(tcb: &mut Tcb) {
    tcb.exit_entry = trackway_exit as *const () as u64;
    tcb.mismatch_entry = trackway_mismatch as *const () as u64;
    tcb.miss_entry = miss_entry();
    tcb.table_mask = ENGINE.lock().table().mask();
}

/// The entry for indirect targets that the table does not have.
pub fn miss_entry() -> u64 {
    trackway_miss as *const () as u64
}

unsafe extern "C" {
    fn trackway_enter_end();
    fn trackway_enter_native_end();
    fn trackway_enter_raise();
    fn trackway_enter_jump();
}

/// The beginning of `trackway_enter`, where a thread in it can start again at any time.
pub fn enter_start() -> u64 {
    trackway_enter as *const () as u64
}

/// The last instruction of `trackway_enter`.
pub fn enter_jump() -> u64 {
    trackway_enter_jump as *const () as u64
}

/// The instruction of `trackway_enter` that raises a signal, to deliver a deferred one.
pub fn enter_raise() -> u64 {
    trackway_enter_raise as *const () as u64
}

/// Whether the thread is on its way into the cache or to native code, with its state still as
/// saved.
pub fn is_entering(pc: u64) -> bool {
    (trackway_enter as *const () as u64..trackway_enter_end as *const () as u64).contains(&pc)
        || (trackway_enter_native as *const () as u64..trackway_enter_native_end as *const () as u64).contains(&pc)
}

/// Address of `trackway_resume`.
pub fn resume_entry() -> u64 {
    trackway_resume as *const () as u64
}

/// Entry for exit stubs: the exit's number is in ecx, rcx in its scratch place, the cursor in r15.
#[unsafe(naked)]
unsafe extern "C" fn trackway_exit() {
    naked_asm!(
        "mov gs:[{rdx}], rdx",
        "mov edx, ecx",
        "lea rcx, [rip + {on_exit}]",
        "jmp {save}",
        rdx = const REGISTERS + 8 * wire::RDX,
        on_exit = sym on_exit,
        save = sym trackway_save,
    )
}

/// Entry for indirect targets that the table does not have: the target is in rcx; rcx and rdx are
/// in their scratch places.
#[unsafe(naked)]
unsafe extern "C" fn trackway_miss() {
    naked_asm!(
        "mov rdx, gs:[{scratch_rdx}]",
        "mov gs:[{rdx}], rdx",
        "mov rdx, rcx",
        "lea rcx, [rip + {on_indirect}]",
        "jmp {save}",
        scratch_rdx = const offset_of!(Tcb, scratch_rdx),
        rdx = const REGISTERS + 8 * wire::RDX,
        on_indirect = sym on_indirect,
        save = sym trackway_save,
    )
}

/// Entry from the indirect entry of another target: rcx is the wanted target minus that one, rdx is
/// that one negated.
#[unsafe(naked)]
unsafe extern "C" fn trackway_mismatch() {
    naked_asm!(
        "not rdx", // unlike neg, leaves the flags alone
        "lea rcx, [rcx + rdx + 1]",
        "jmp {miss}",
        miss = sym trackway_miss,
    )
}

/// Saves the application's state and calls the function in rcx with the thread's state and rdx. rdx
/// is saved already, rcx is in its scratch place.
#[unsafe(naked)]
unsafe extern "C" fn trackway_save() {
    naked_asm!(
        "mov gs:[{r} + 0*8], rax",
        "mov gs:[{r} + 3*8], rbx",
        "mov gs:[{r} + 4*8], rsp",
        "mov gs:[{r} + 5*8], rbp",
        "mov gs:[{r} + 6*8], rsi",
        "mov gs:[{r} + 7*8], rdi",
        "mov gs:[{r} + 8*8], r8",
        "mov gs:[{r} + 9*8], r9",
        "mov gs:[{r} + 10*8], r10",
        "mov gs:[{r} + 11*8], r11",
        "mov gs:[{r} + 12*8], r12",
        "mov gs:[{r} + 13*8], r13",
        "mov gs:[{r} + 14*8], r14",
        "mov gs:[{cursor}], r15",
        "mov rax, gs:[{scratch_rcx}]",
        "mov gs:[{r} + 1*8], rax",
        "mov rsp, gs:[{stack}]",
        "pushfq",
        "pop gs:[{rflags}]",
        "push 2", // no direction, no alignment checks
        "popfq",
        "stmxcsr gs:[{mxcsr}]",
        "movaps gs:[{x}], xmm0",
        "movaps gs:[{x} + 16], xmm1",
        "movaps gs:[{x} + 32], xmm2",
        "movaps gs:[{x} + 48], xmm3",
        "movaps gs:[{x} + 64], xmm4",
        "movaps gs:[{x} + 80], xmm5",
        "movaps gs:[{x} + 96], xmm6",
        "movaps gs:[{x} + 112], xmm7",
        "movaps gs:[{x} + 128], xmm8",
        "movaps gs:[{x} + 144], xmm9",
        "movaps gs:[{x} + 160], xmm10",
        "movaps gs:[{x} + 176], xmm11",
        "movaps gs:[{x} + 192], xmm12",
        "movaps gs:[{x} + 208], xmm13",
        "movaps gs:[{x} + 224], xmm14",
        "movaps gs:[{x} + 240], xmm15",
        "mov rdi, gs:[0]",
        "mov rsi, rdx",
        "call rcx",
        "jmp {enter}",
        r = const REGISTERS,
        x = const XMM,
        cursor = const offset_of!(Tcb, cursor),
        scratch_rcx = const offset_of!(Tcb, scratch_rcx),
        stack = const offset_of!(Tcb, engine_stack),
        rflags = const REGISTERS + offset_of!(wire::Registers, rflags),
        mxcsr = const offset_of!(Tcb, mxcsr),
        enter = sym trackway_enter,
    )
}

/// Resumes the application at `tcb.registers.rip`, with the saved state.
#[unsafe(naked)]
unsafe extern "C" fn trackway_resume() {
    naked_asm!(
        "cld",
        "mov rsp, gs:[{stack}]",
        "mov rdi, gs:[0]",
        "call {resume}",
        "jmp {enter}",
        stack = const offset_of!(Tcb, engine_stack),
        resume = sym resume,
        enter = sym trackway_enter,
    )
}

/// Enters the code cache at `tcb.next` with the saved state. Deferred signals are delivered first.
#[unsafe(naked)]
unsafe extern "C" fn trackway_enter() {
    naked_asm!(
        "cmp byte ptr gs:[{native}], 0",
        "jne {enter_native}",
        "cmp dword ptr gs:[{mask_changed}], 0",
        "je 2f",
        "cmp dword ptr gs:[{has_deferred}], 0",
        "je 3f",
        "mov eax, 14", // rt_sigprocmask(SIG_SETMASK, &raise_mask, NULL, 8)
        "mov edi, 2",
        "mov rsi, gs:[0]",
        "add rsi, {raise_mask}",
        "xor edx, edx",
        "mov r10d, 8",
        "syscall",
        ".globl trackway_enter_raise",
        "trackway_enter_raise:",
        "ud2", // the handler delivers what is waiting, or sends us back to the beginning
        "3:",
        "mov dword ptr gs:[{mask_changed}], 0",
        "mov eax, 14", // rt_sigprocmask(SIG_SETMASK, &real_mask, NULL, 8)
        "mov edi, 2",
        "mov rsi, gs:[0]",
        "add rsi, {real_mask}",
        "xor edx, edx",
        "mov r10d, 8",
        "syscall",
        "2:",
        "ldmxcsr gs:[{mxcsr}]",
        "movaps xmm0, gs:[{x}]",
        "movaps xmm1, gs:[{x} + 16]",
        "movaps xmm2, gs:[{x} + 32]",
        "movaps xmm3, gs:[{x} + 48]",
        "movaps xmm4, gs:[{x} + 64]",
        "movaps xmm5, gs:[{x} + 80]",
        "movaps xmm6, gs:[{x} + 96]",
        "movaps xmm7, gs:[{x} + 112]",
        "movaps xmm8, gs:[{x} + 128]",
        "movaps xmm9, gs:[{x} + 144]",
        "movaps xmm10, gs:[{x} + 160]",
        "movaps xmm11, gs:[{x} + 176]",
        "movaps xmm12, gs:[{x} + 192]",
        "movaps xmm13, gs:[{x} + 208]",
        "movaps xmm14, gs:[{x} + 224]",
        "movaps xmm15, gs:[{x} + 240]",
        "mov rsp, gs:[{stack}]",
        "push gs:[{rflags}]",
        "popfq",
        "mov rax, gs:[{r} + 0*8]",
        "mov rcx, gs:[{r} + 1*8]",
        "mov rdx, gs:[{r} + 2*8]",
        "mov rbx, gs:[{r} + 3*8]",
        "mov rbp, gs:[{r} + 5*8]",
        "mov rsi, gs:[{r} + 6*8]",
        "mov rdi, gs:[{r} + 7*8]",
        "mov r8, gs:[{r} + 8*8]",
        "mov r9, gs:[{r} + 9*8]",
        "mov r10, gs:[{r} + 10*8]",
        "mov r11, gs:[{r} + 11*8]",
        "mov r12, gs:[{r} + 12*8]",
        "mov r13, gs:[{r} + 13*8]",
        "mov r14, gs:[{r} + 14*8]",
        "mov r15, gs:[{cursor}]",
        "mov rsp, gs:[{r} + 4*8]",
        ".globl trackway_enter_jump",
        "trackway_enter_jump:",
        "jmp gs:[{next}]",
        ".globl trackway_enter_end",
        "trackway_enter_end:",
        mask_changed = const SIGNALS + offset_of!(Signals, mask_changed),
        has_deferred = const SIGNALS + offset_of!(Signals, has_deferred),
        raise_mask = const SIGNALS + offset_of!(Signals, raise_mask),
        real_mask = const SIGNALS + offset_of!(Signals, real_mask),
        r = const REGISTERS,
        x = const XMM,
        cursor = const offset_of!(Tcb, cursor),
        stack = const offset_of!(Tcb, engine_stack),
        rflags = const REGISTERS + offset_of!(wire::Registers, rflags),
        mxcsr = const offset_of!(Tcb, mxcsr),
        next = const offset_of!(Tcb, next),
        native = const SIGNALS + offset_of!(Signals, native),
        enter_native = sym trackway_enter_native,
    )
}

/// Enters the cache with the saved state of a new thread.
pub fn enter_first() -> ! {
    // SAFETY: gs points at the calling thread's state, which is complete; nothing on this stack is
    // needed any more.
    unsafe {
        core::arch::asm!("jmp {resume}", resume = sym trackway_resume, options(noreturn));
    }
}

/// Goes to native code with the saved state, after `detach::set_native`.
pub fn enter_native() -> ! {
    // SAFETY: as for `enter_first`.
    unsafe {
        core::arch::asm!("jmp {enter}", enter = sym trackway_enter_native, options(noreturn));
    }
}

/// Enters native code at `tcb.registers.rip` with the saved state, which it only reads. gs becomes
/// the application's, so rdi points at the state, and the last step is `iretq`, which needs no
/// register. A signal that comes here sees the application exactly as saved. In a child process
/// with its own signal handlers, the handler returns here.
#[unsafe(naked)]
unsafe extern "C" fn trackway_enter_native() {
    naked_asm!(
        "mov rbx, gs:[0]",
        "mov rsp, [rbx + {stack}]",
        "mov eax, 14", // rt_sigprocmask(SIG_SETMASK, &real_mask, NULL, 8)
        "mov edi, 2",
        "lea rsi, [rbx + {real_mask}]",
        "xor edx, edx",
        "mov r10d, 8",
        "syscall",
        "mov rsi, [rbx + {gs_base}]",
        "cmp byte ptr [rbx + {fsgsbase}], 0",
        "je 2f",
        "wrgsbase rsi",
        "jmp 3f",
        "2:",
        "mov eax, 158", // arch_prctl(ARCH_SET_GS, gs_base)
        "mov edi, 0x1001",
        "syscall",
        "3:",
        "mov rdi, rbx",
        "mov eax, ss",
        "push rax",
        "push [rdi + {r} + 4*8]",
        "push [rdi + {rflags}]",
        "mov eax, cs",
        "push rax",
        "push [rdi + {rip}]",
        "push [rdi + {r} + 7*8]",
        "ldmxcsr [rdi + {mxcsr}]",
        "movaps xmm0, [rdi + {x}]",
        "movaps xmm1, [rdi + {x} + 16]",
        "movaps xmm2, [rdi + {x} + 32]",
        "movaps xmm3, [rdi + {x} + 48]",
        "movaps xmm4, [rdi + {x} + 64]",
        "movaps xmm5, [rdi + {x} + 80]",
        "movaps xmm6, [rdi + {x} + 96]",
        "movaps xmm7, [rdi + {x} + 112]",
        "movaps xmm8, [rdi + {x} + 128]",
        "movaps xmm9, [rdi + {x} + 144]",
        "movaps xmm10, [rdi + {x} + 160]",
        "movaps xmm11, [rdi + {x} + 176]",
        "movaps xmm12, [rdi + {x} + 192]",
        "movaps xmm13, [rdi + {x} + 208]",
        "movaps xmm14, [rdi + {x} + 224]",
        "movaps xmm15, [rdi + {x} + 240]",
        "mov rax, [rdi + {r} + 0*8]",
        "mov rcx, [rdi + {r} + 1*8]",
        "mov rdx, [rdi + {r} + 2*8]",
        "mov rbx, [rdi + {r} + 3*8]",
        "mov rbp, [rdi + {r} + 5*8]",
        "mov rsi, [rdi + {r} + 6*8]",
        "mov r8, [rdi + {r} + 8*8]",
        "mov r9, [rdi + {r} + 9*8]",
        "mov r10, [rdi + {r} + 10*8]",
        "mov r11, [rdi + {r} + 11*8]",
        "mov r12, [rdi + {r} + 12*8]",
        "mov r13, [rdi + {r} + 13*8]",
        "mov r14, [rdi + {r} + 14*8]",
        "mov r15, [rdi + {r} + 15*8]",
        "pop rdi",
        "iretq",
        ".globl trackway_enter_native_end",
        "trackway_enter_native_end:",
        stack = const offset_of!(Tcb, engine_stack),
        real_mask = const SIGNALS + offset_of!(Signals, real_mask),
        gs_base = const offset_of!(Tcb, gs_base),
        fsgsbase = const offset_of!(Tcb, fsgsbase),
        r = const REGISTERS,
        x = const XMM,
        rip = const REGISTERS + offset_of!(wire::Registers, rip),
        rflags = const REGISTERS + offset_of!(wire::Registers, rflags),
        mxcsr = const offset_of!(Tcb, mxcsr),
    )
}

/// Blocks signals in a child process that shares its parent's memory: it must not die of a signal
/// while it holds a lock, because its parent lives on. The way into the cache or into a system call
/// unblocks them.
fn hold_signals(tcb: &Tcb) {
    if tcb.is_child_process() && !tcb.signals().native.get() {
        signal::block_asynchronous(tcb);
    }
}

/// Handles the exit of a fragment with this number: its path, or [`ENTRY_CHANGED`] and the
/// fragment.
extern "C" fn on_exit(tcb: &mut Tcb, exit: u64) {
    let path = PathId::new(exit as u32 & !ENTRY_CHANGED);
    hold_signals(tcb);
    if exit as u32 & ENTRY_CHANGED != 0 {
        return on_changed(tcb, FragmentId::new(path));
    }
    let mut engine = ENGINE.lock();
    // It cannot have been reclaimed: until now, the thread was in the fragment.
    let Some(exit) = engine.exit(path) else { panic!("path {path} is unknown") };
    tcb.set_pc(exit.target);
    reclaim::exit_cache(tcb);
    match exit.kind {
        ExitKind::Syscall => {
            drop(engine);
            syscall::handle(tcb);
            resume(tcb);
        }
        ExitKind::Emulated => {
            tcb.records = engine.records_data(path);
            drop(engine);
            emulate::run(tcb, path);
            resume(tcb);
        }
        ExitKind::Direct | ExitKind::Indirect => {
            if tcb.selection.skipping || rseq::concerns(tcb, &engine.sections) {
                drop(engine);
                skip::update_mode(tcb);
                rseq::update_section(tcb);
                engine = ENGINE.lock();
            }
            if !exit.is_linkable {
                probe::append_stack_pointer(tcb);
            }
            let is_probed = probe::visit(tcb, &mut engine);
            match go_to(tcb, &mut engine, false) {
                Continuation::Linkable(target) if tcb.pc() == exit.target && !is_probed => engine.link(path, target),
                // The thread has aborted a critical section, or the way must not be linked.
                Continuation::Linkable(_) | Continuation::Found => {}
                Continuation::Unreadable | Continuation::Failed(_) => {
                    drop(engine);
                    return resume(tcb);
                }
            }
            drop(engine);
            detach_if_requested(tcb);
        }
    }
}

/// Handles changed code at the entry of a fragment.
fn on_changed(tcb: &mut Tcb, fragment: FragmentId) {
    let mut engine = ENGINE.lock();
    // It cannot have been reclaimed, as above.
    let Some(at) = engine.reference(fragment) else { panic!("fragment {fragment} is unknown") };
    tcb.set_pc(engine.fragment(at).address);
    reclaim::exit_cache(tcb);
    engine.drop_fragment(at);
    drop(engine);
    resume(tcb);
}

/// Handles an indirect jump, call or return to a target that the table does not have.
extern "C" fn on_indirect(tcb: &mut Tcb, target: AppPc) {
    hold_signals(tcb);
    tcb.set_pc(target);
    reclaim::exit_cache(tcb);
    skip::update_mode(tcb);
    rseq::update_section(tcb);
    probe::append_stack_pointer(tcb);
    let mut engine = ENGINE.lock();
    let is_probed = probe::visit(tcb, &mut engine);
    match go_to(tcb, &mut engine, true) {
        Continuation::Linkable(target) if !is_probed => engine.add_to_table(target),
        Continuation::Linkable(_) | Continuation::Found => {}
        Continuation::Unreadable | Continuation::Failed(_) => {
            drop(engine);
            return resume(tcb);
        }
    }
    drop(engine);
    detach_if_requested(tcb);
}

/// Finds or makes the fragment for `tcb.registers.rip`.
extern "C" fn resume(tcb: &mut Tcb) {
    hold_signals(tcb);
    reclaim::exit_cache(tcb);
    if tcb.is_child_process() && tcb.signals().native.get() {
        return;
    }
    assert!(!failure::is_injected(tcb.control(), Failure::Defect), "a test wants the engine to fail");
    skip::update_mode(tcb);
    rseq::update_section(tcb);
    loop {
        probe::append_stack_pointer(tcb);
        let next = go_to(tcb, &mut ENGINE.lock(), false);
        let failure = match next {
            Continuation::Unreadable if syscall::vsyscall(tcb) => continue,
            Continuation::Unreadable if maps::is_executable(tcb.registers.rip) => Failure::Unreadable,
            Continuation::Failed(failure) => failure,
            Continuation::Unreadable | Continuation::Linkable(_) | Continuation::Found => break,
        };
        if failure::detach(tcb, failure) {
            return;
        }
    }
    detach_if_requested(tcb);
}

/// Where a thread continues.
enum Continuation {
    /// In this fragment, to which the exit may be linked.
    Linkable(FragmentRef),
    /// In a fragment, to which the exit must not be linked.
    Found,
    Unreadable,
    Failed(Failure),
}

/// Sets `tcb.next` for `tcb.registers.rip`. Unreadable code is jumped to natively, so that the
/// processor raises the fault that the application has to see.
fn go_to(tcb: &mut Tcb, engine: &mut Engine, with_indirect_entry: bool) -> Continuation {
    let pc = tcb.pc();
    let is_gate = select::choose_mode(tcb, engine) || engine.sections.contains(pc);
    match engine.find_in(tcb.selection.mode, pc, with_indirect_entry) {
        Ok(_) if memory::is_exhausted() => Continuation::Failed(Failure::NoMemory),
        Ok(at) => {
            tcb.next = engine.fragment(at).body.get();
            engine.enter_cache(tcb);
            if is_gate { Continuation::Found } else { Continuation::Linkable(at) }
        }
        Err(NoFragment::Unreadable) => {
            tcb.next = pc.get();
            Continuation::Unreadable
        }
        Err(NoFragment::Failed(failure)) => Continuation::Failed(failure),
    }
}

fn detach_if_requested(tcb: &mut Tcb) {
    if (detach::must_detach_alone(tcb) || detach::is_parking(tcb.control())) && rseq::abort_before_detach(tcb) {
        // The thread continues at the abort handler.
        return resume(tcb);
    }
    detach::park_if_requested(tcb);
    if detach::must_detach_alone(tcb) {
        let _ = detach::detach_thread(tcb);
    }
}
