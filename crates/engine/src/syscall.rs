//! System calls of the application. Most are passed through, some are observed, and the engine
//! answers a few itself.

use core::arch::naked_asm;
use core::mem::offset_of;
use core::sync::atomic::Ordering;

use entity::AppPc;
use wire::{R8, R9, R10, R11, RAX, RCX, RDI, RDX, RSI, RSP, Rseq, word};

use crate::engine::ENGINE;
use crate::sys::{self, number};
use crate::tcb::{SIGNALS, Signals, Tcb};
use crate::{clone, detach, exec, gs, limits, memory, probe, ring, rseq, seccomp, select, signal, skip};

pub const INSTRUCTION_BYTES: u64 = 2;
/// Returned by [`trackway_syscall`] when a deferred signal has to be delivered first; no system
/// call returns this.
const NOT_YET: i64 = -5000;
/// Instead of a result: a seccomp filter of the application has raised SIGSYS instead of the call.
pub const TRAPPED: i64 = -5001;

/// Instead of a result: the thread detaches, and its own instruction makes the call.
pub const NOT_MADE: i64 = -5002;

/// Handles the system call at `tcb.registers.rip`.
pub fn handle(tcb: &mut Tcb) {
    let call = tcb.registers.general[RAX];
    ring::append_syscall(tcb, call as u32);
    skip::return_quota(tcb);
    detach::park_if_requested(tcb);
    if tcb.interrupted != 0 {
        signal::set_mask(tcb, tcb.signals().mask.get());
    }
    if tcb.signals().mask_changed.load(Ordering::Relaxed) != 0 {
        deliver_deferred();
    }
    let arguments = [RDI, RSI, RDX, R10, R8, R9].map(|register| tcb.registers.general[register]);
    let [a, b, c, d, ..] = arguments;
    if tcb.is_child_process() {
        signal::block_asynchronous(tcb);
        if detach::must_detach_alone(tcb) || is_made_natively(call, a, b) {
            return make_natively(tcb);
        }
    }
    let result = match call {
        number::RT_SIGACTION => {
            signal_objection(tcb, call, arguments).unwrap_or_else(|| signal::sigaction(tcb, a, b, c, d))
        }
        number::RT_SIGPROCMASK => {
            signal_objection(tcb, call, arguments).unwrap_or_else(|| signal::sigprocmask(tcb, a, b, c, d))
        }
        number::SIGALTSTACK => signal_objection(tcb, call, arguments).unwrap_or_else(|| signal::sigaltstack(tcb, a, b)),
        number::RT_SIGRETURN => return sigreturn(tcb),
        number::TKILL => signal::send_to_thread(tcb, a, b, signal::tkill_info(b), pass_through),
        number::TGKILL => signal::send_to_thread(tcb, b, c, signal::tkill_info(c), pass_through),
        number::RT_TGSIGQUEUEINFO => signal::send_to_thread(tcb, b, c, memory::read(d), pass_through),
        number::KILL => signal::send_to_process(tcb, a, b, signal::kill_info(b), pass_through),
        number::RT_SIGQUEUEINFO => signal::send_to_process(tcb, a, b, memory::read(c), pass_through),
        number::RT_SIGPENDING => {
            let result = pass_through(tcb);
            if result == 0 && !signal::complete_sigpending(tcb, a) { sys::EFAULT } else { result }
        }
        number::RT_SIGTIMEDWAIT => match signal::try_sigtimedwait(tcb, a, b) {
            Some(result) => result,
            None => {
                let result = pass_through(tcb);
                signal::on_taken_by_call(tcb, result);
                result
            }
        },
        number::SIGNALFD | number::SIGNALFD4 => {
            signal::note_descriptor();
            pass_through(tcb)
        }
        number::RSEQ => {
            let result = pass_through(tcb);
            if result == 0 {
                rseq::register(tcb, Rseq { address: a, length: b as u32, signature: d as u32 }, c as u32);
            }
            result
        }
        number::MEMBARRIER => membarrier(tcb, a),
        number::CLONE | number::CLONE3 | number::FORK | number::VFORK => clone::clone(tcb, call),
        number::EXECVE | number::EXECVEAT => exec::exec(tcb),
        number::EXIT => clone::exit(tcb),
        number::EXIT_GROUP => clone::exit_process(tcb),
        number::MMAP => map(tcb, arguments),
        number::MUNMAP => unmap(arguments),
        number::MPROTECT | number::PKEY_MPROTECT => protect(call, arguments),
        number::SHMAT => attach_shared(arguments),
        number::SHMDT => detach_shared(arguments),
        number::MREMAP => remap(arguments),
        number::ARCH_PRCTL => gs::arch_prctl(tcb, a, b).unwrap_or_else(|| arch_prctl(tcb, a)),
        number::SETRLIMIT | number::GETRLIMIT | number::PRLIMIT64 => limits::limit(call, arguments),
        number::PRCTL => seccomp::prctl(tcb, arguments),
        number::SECCOMP => seccomp::seccomp(tcb, arguments),
        number::PPOLL | number::EPOLL_PWAIT | number::EPOLL_PWAIT2 => with_mask(tcb, mask_argument(call, arguments)),
        number::PSELECT6 => {
            let set = memory::read::<[u64; 2]>(arguments[5]).map_or(0, |[set, _]| set);
            with_mask(tcb, set)
        }
        number::RT_SIGSUSPEND => with_mask(tcb, a),
        _ => pass_through(tcb),
    };
    if result == NOT_MADE {
        return;
    }
    tcb.interrupted = 0;
    if result == TRAPPED {
        signal::on_seccomp_trap(tcb);
    }
    // The kernel leaves the number in rax when a filter raises SIGSYS, which is delivered on the
    // way into the cache.
    if matches!(call, number::MMAP | number::MUNMAP | number::MREMAP | number::BRK) && probe::is_enabled(tcb) {
        let low = if probe::is_nested_call(tcb) { word::MAPPING_NESTED } else { 0 };
        ring::append_mapping(tcb, low, call as u32, [a, b, c], result as u64);
    }
    complete(tcb, if result == TRAPPED { call } else { result as u64 });
    if tcb.control().next_thread.load(Ordering::Relaxed) > 1 {
        // The following code may depend on what other threads did during the call.
        ring::append_time(tcb, word::TIME);
    }
}

/// The objection of the application's seccomp filters to rt_sigaction, rt_sigprocmask or
/// sigaltstack, if they have one.
fn signal_objection(tcb: &Tcb, call: u64, arguments: [u64; 6]) -> Option<i64> {
    let harmless = match call {
        number::SIGALTSTACK => [0; 6],
        _ => [arguments[0], 0, 0, arguments[3], 0, 0],
    };
    // SAFETY: without structures to read and write, these calls do nothing.
    unsafe { seccomp::objection(tcb, call, harmless) }
}

/// Whether a child process that shares its parent's memory detaches before this system call: the
/// call would change state that the engine keeps for the parent, or would need state for the child
/// alone.
fn is_made_natively(call: u64, a: u64, b: u64) -> bool {
    match call {
        number::CLONE | number::CLONE3 | number::FORK | number::VFORK | number::SECCOMP | number::RSEQ => true,
        number::PRCTL => seccomp::is_of_process(a),
        number::SETRLIMIT => limits::is_of_memory(a),
        number::PRLIMIT64 => limits::is_of_memory(b),
        _ => false,
    }
}

/// Detaches the thread, so that its own instruction makes the call.
fn make_natively(tcb: &mut Tcb) {
    while !detach::detach_thread(tcb) {
        deliver_deferred();
    }
}

/// The page where the kernel emulates old system calls.
const VSYSCALL: AppPc = AppPc::new(0xffff_ffff_ff60_0000);

/// Emulates the three functions that the kernel provides at fixed, unreadable addresses: makes the
/// system call and returns from the function. False if `tcb.registers.rip` is not one of them.
pub fn vsyscall(tcb: &mut Tcb) -> bool {
    const CALLS: [u64; 3] = [96, 201, 309]; // gettimeofday, time, getcpu
    let offset = tcb.pc() - VSYSCALL;
    if !offset.is_multiple_of(0x400) {
        return false;
    }
    let Some(&call) = CALLS.get((offset / 0x400) as usize) else { return false };
    let Some(target) = memory::read::<u64>(tcb.registers.general[RSP]) else { return false };
    let arguments = [RDI, RSI, RDX, R10, R8, R9].map(|register| tcb.registers.general[register]);
    // SAFETY: the application's own call.
    tcb.registers.general[RAX] = unsafe { call_now(call, arguments) } as u64;
    tcb.registers.general[RSP] += 8;
    tcb.set_pc(AppPc::new(target));
    true
}

fn mask_argument(call: u64, arguments: [u64; 6]) -> u64 {
    match call {
        number::PPOLL => arguments[3],
        _ => arguments[4],
    }
}

/// Delivers deferred signals before a system call, and unblocks others. If one is delivered, this
/// does not return: the system call is made again when the handler has returned.
pub fn deliver_deferred() {
    // SAFETY: gs points at the calling thread's state, which is that before the system call.
    unsafe { trackway_unblock() };
}

/// Executes the application's system call as it is.
pub fn pass_through(tcb: &mut Tcb) -> i64 {
    let asks_for_signals = asks_for_signals(tcb.registers.general[RAX]);
    let mut is_handed_over = false;
    loop {
        // During the call, the kernel has the pending signals.
        if signal::has_pending(tcb, asks_for_signals) {
            signal::hand_pending_to_kernel(tcb, asks_for_signals);
            is_handed_over = true;
        }
        // SAFETY: the application's own system call, with its own arguments.
        let result = unsafe { trackway_syscall(tcb) };
        if result != NOT_YET && tcb.is_child_process() {
            signal::block_asynchronous(tcb);
        }
        if is_handed_over && result != NOT_YET {
            signal::take_pending_back(tcb);
            is_handed_over = false;
        }
        if result == sys::EFAULT && ENGINE.lock().release_guarded() {
            continue;
        }
        if result != NOT_YET {
            tcb.interrupted = 0;
            return result;
        }
        deliver_deferred();
    }
}

/// Whether a system call looks at signals that are pending for the process.
fn asks_for_signals(call: u64) -> bool {
    matches!(
        call,
        number::RT_SIGSUSPEND
            | number::PPOLL
            | number::PSELECT6
            | number::EPOLL_PWAIT
            | number::EPOLL_PWAIT2
            | number::EXECVE
            | number::EXECVEAT
    ) || matches!(call, number::READ | number::READV) && signal::has_descriptor()
}

/// Executes a system call during which another mask holds (if `set` is not null).
fn with_mask(tcb: &mut Tcb, set: u64) -> i64 {
    tcb.signals().call_mask.set(if set == 0 { None } else { memory::read::<u64>(set) });
    let result = pass_through(tcb);
    tcb.signals().call_mask.set(None);
    result
}

/// Puts the result where the kernel would, and steps over the instruction.
pub fn complete(tcb: &mut Tcb, result: u64) {
    let registers = &mut tcb.registers;
    registers.rip += INSTRUCTION_BYTES;
    registers.general[RAX] = result;
    registers.general[RCX] = registers.rip;
    registers.general[R11] = registers.rflags;
}

fn sigreturn(tcb: &mut Tcb) {
    if !signal::sigreturn(tcb) {
        // As in the kernel, the application gets a SIGSEGV: a jump to address 0 raises it.
        tcb.set_pc(AppPc::new(0));
    }
}

fn arch_prctl(tcb: &mut Tcb, code: u64) -> i64 {
    const ARCH_SET_FS: u64 = 0x1002;
    const ARCH_SHSTK_ENABLE: u64 = 0x5001;
    match code {
        // Shadow stacks do not work with translated returns.
        ARCH_SHSTK_ENABLE => sys::EINVAL,
        ARCH_SET_FS => {
            let result = pass_through(tcb);
            ring::append_fs_base(tcb);
            result
        }
        _ => pass_through(tcb),
    }
}

/// membarrier: also waits for threads in restartable sequences, if the command asks for that.
fn membarrier(tcb: &mut Tcb, command: u64) -> i64 {
    const PRIVATE_EXPEDITED_RSEQ: u64 = 1 << 7;
    let result = pass_through(tcb);
    if result == 0 && command == PRIVATE_EXPEDITED_RSEQ {
        rseq::await_sections(tcb);
    }
    result
}

/// Makes a system call of the application that does not block and that the engine has to complete:
/// signals are deferred.
///
/// # Safety
/// The application has asked for this call, or for one that does more.
pub unsafe fn call_now(call: u64, arguments: [u64; 6]) -> i64 {
    // SAFETY: the assembly reads the arguments; the rest is the caller's promise.
    unsafe { trackway_call(call, &raw const arguments) }
}

/// Longest path of a file that the kernel knows.
const PATH_MAX: usize = 4096;

/// mmap: new executable file mappings are modules. An anonymous mapping may name a descriptor, too.
fn map(tcb: &Tcb, arguments: [u64; 6]) -> i64 {
    let [_, length, protection, flags, file, offset] = arguments;
    // SAFETY: the application's own call.
    let result = unsafe { call_now(number::MMAP, arguments) };
    let Ok(address) = u64::try_from(result) else { return result };
    let mut engine = ENGINE.lock();
    engine.on_remap(address, length, protection);
    if flags & sys::MAP_SHARED != 0 {
        engine.add_shared(address, length);
    }
    drop(engine);
    let is_of_file = flags & sys::MAP_ANONYMOUS == 0 && (file as i32) >= 0;
    if protection & sys::PROT_EXEC != 0 && is_of_file {
        let mut link = *b"/proc/thread-self/fd/0000000000\0";
        let mut path = [0u8; PATH_MAX];
        let name = write_number(&mut link, file as u32);
        // SAFETY: the kernel reads the name and fills the buffer.
        let count = unsafe {
            sys::call(number::READLINK, [name.as_ptr() as u64, path.as_mut_ptr() as u64, path.len() as u64, 0, 0, 0])
        };
        let count = usize::try_from(count).unwrap_or(0);
        ENGINE.lock().announce_module(address, length, offset, &path[..count]);
        select::await_recorder(tcb.control(), count != 0);
    }
    result
}

/// munmap: fragments of the range are dropped before the call. After it, the range may be another
/// thread's new mapping.
fn unmap(arguments: [u64; 6]) -> i64 {
    let [address, length, ..] = arguments;
    let mut engine = ENGINE.lock();
    let (was_writable, was_shared) = (engine.pages.is_writable(address), engine.pages.is_shared(address));
    engine.on_remap(address, length, 0);
    drop(engine);
    // SAFETY: the application's own call.
    let result = unsafe { call_now(number::MUNMAP, arguments) };
    let mut engine = ENGINE.lock();
    if result == 0 {
        engine.announce_unmap(address, length);
    } else {
        engine.on_remap(address, length, if was_writable { sys::PROT_WRITE | sys::PROT_EXEC } else { 0 });
        if was_shared {
            engine.add_shared(address, length);
        }
    }
    result
}

/// mprotect, pkey_mprotect: code may have become writable, or data code.
fn protect(call: u64, arguments: [u64; 6]) -> i64 {
    const PROT_GROWSDOWN: u64 = 0x0100_0000;
    let [address, length, protection, ..] = arguments;
    // Under the lock: no other thread may change the protection of a page meanwhile.
    let mut engine = ENGINE.lock();
    engine.suspend_fragments(address, length);
    // SAFETY: the application's own call.
    let result = unsafe { call_now(call, arguments) };
    match result {
        0 if protection & PROT_GROWSDOWN != 0 => {
            engine.on_protect_failed(address, length);
            engine.find_writable_code();
        }
        0 => engine.on_protect(address, length, protection),
        _ => engine.on_protect_failed(address, length),
    }
    result
}

/// mremap: code at the old and at the new address is no longer valid.
fn remap(arguments: [u64; 6]) -> i64 {
    let [address, length, new_length, ..] = arguments;
    let mut engine = ENGINE.lock();
    let (was_writable, was_shared) = (engine.pages.is_writable(address), engine.pages.is_shared(address));
    engine.on_remap(address, length, 0);
    drop(engine);
    // SAFETY: the application's own call.
    let result = unsafe { call_now(number::MREMAP, arguments) };
    let (address, length) = u64::try_from(result).map_or((address, length), |address| (address, new_length));
    let mut engine = ENGINE.lock();
    engine.on_remap(address, length, if was_writable { sys::PROT_WRITE | sys::PROT_EXEC } else { 0 });
    if was_shared {
        engine.add_shared(address, length);
    }
    result
}

/// shmat: shared memory, which may be attached a second time or written to by another process.
fn attach_shared(arguments: [u64; 6]) -> i64 {
    const IPC_STAT: u64 = 2;
    const SEGMENT_SIZE: usize = 48;
    // SAFETY: the application's own call.
    let result = unsafe { call_now(number::SHMAT, arguments) };
    let Ok(address) = u64::try_from(result) else { return result };
    let mut description = [0u64; 16];
    // SAFETY: the kernel fills the description, which has 112 bytes.
    let known =
        unsafe { sys::call(number::SHMCTL, [arguments[0], IPC_STAT, description.as_mut_ptr() as u64, 0, 0, 0]) };
    if known == 0 {
        let length = description[SEGMENT_SIZE / 8].next_multiple_of(sys::PAGE);
        let mut engine = ENGINE.lock();
        engine.on_remap(address, length, 0);
        engine.add_shared(address, length);
    }
    result
}

fn detach_shared(arguments: [u64; 6]) -> i64 {
    let address = arguments[0];
    let length = ENGINE.lock().shared_length(address);
    // SAFETY: the application's own call.
    let result = unsafe { call_now(number::SHMDT, arguments) };
    if let (0, Some(length)) = (result, length) {
        let mut engine = ENGINE.lock();
        engine.on_remap(address, length, 0);
        engine.announce_unmap(address, length);
    }
    result
}

/// Writes the decimal `value` over the ten digits at the end of `link`, without leading zeroes.
fn write_number(link: &mut [u8; 32], value: u32) -> &[u8] {
    const PREFIX: usize = 21;
    let mut digits = [0u8; 10];
    let mut count = 0;
    let mut rest = value;
    loop {
        digits[count] = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
        if rest == 0 {
            break;
        }
    }
    for index in 0..count {
        link[PREFIX + index] = digits[count - 1 - index];
    }
    link[PREFIX + count] = 0;
    &link[..=PREFIX + count]
}

pub enum Window {
    /// The system call has not been executed, or is to be executed again.
    Before,
    /// It has been executed; rax is its result.
    After,
    Outside,
}

unsafe extern "C" {
    fn trackway_syscall_instruction();
    fn trackway_call_instruction();
    fn trackway_unblock_end();
    fn trackway_unblock_raise();
}

/// Where a thread in one of the two windows before a system call starts again, to check for
/// deferred signals.
pub fn window_start(pc: u64) -> u64 {
    let is_call = (trackway_syscall as *const () as u64..=instruction_end()).contains(&pc);
    (if is_call { trackway_syscall as *const () } else { trackway_unblock as *const () }) as u64
}

/// The instruction that raises a signal, to deliver a deferred one.
pub fn unblock_raise() -> u64 {
    trackway_unblock_raise as *const () as u64
}

/// The address behind the instruction that makes most of the application's system calls.
pub fn instruction_end() -> u64 {
    trackway_syscall_instruction as *const () as u64 + INSTRUCTION_BYTES
}

/// The address behind the instruction of [`call_now`].
pub fn call_end() -> u64 {
    trackway_call_instruction as *const () as u64 + INSTRUCTION_BYTES
}

/// Where the application's system call is made from the saved registers.
pub fn entry() -> u64 {
    trackway_syscall as *const () as u64
}

/// The address of the instruction with which the application's system calls are made.
pub fn instruction() -> u64 {
    trackway_syscall_instruction as *const () as u64
}

/// The position of `pc` with regard to a system call of the application.
pub fn window(pc: u64) -> Window {
    let instruction = instruction();
    if (trackway_syscall as *const () as u64..=instruction).contains(&pc) {
        Window::Before
    } else if pc == instruction + INSTRUCTION_BYTES {
        Window::After
    } else if (trackway_unblock as *const () as u64..=trackway_unblock_end as *const () as u64).contains(&pc) {
        Window::Before
    } else {
        Window::Outside
    }
}

/// Executes the system call in the saved registers, unless a deferred signal has to be delivered
/// first.
#[unsafe(naked)]
unsafe extern "C" fn trackway_syscall(tcb: *mut Tcb) -> i64 {
    naked_asm!(
        "mov rax, {not_yet}",
        "cmp dword ptr gs:[{mask_changed}], 0",
        "jne 2f",
        "mov rax, gs:[{r} + 0*8]",
        "mov rdi, gs:[{r} + 7*8]",
        "mov rsi, gs:[{r} + 6*8]",
        "mov rdx, gs:[{r} + 2*8]",
        "mov r10, gs:[{r} + 10*8]",
        "mov r8, gs:[{r} + 8*8]",
        "mov r9, gs:[{r} + 9*8]",
        ".globl trackway_syscall_instruction",
        "trackway_syscall_instruction:",
        "syscall",
        "2:",
        "ret",
        not_yet = const NOT_YET,
        mask_changed = const SIGNALS + offset_of!(Signals, mask_changed),
        r = const offset_of!(Tcb, registers),
    )
}

/// Makes a system call of the application at a known address, so that seccomp filters can
/// distinguish it from the engine's.
#[unsafe(naked)]
unsafe extern "C" fn trackway_call(call: u64, arguments: *const [u64; 6]) -> i64 {
    naked_asm!(
        "mov rax, rdi",
        "mov rdi, [rsi]",
        "mov rdx, [rsi + 2*8]",
        "mov r10, [rsi + 3*8]",
        "mov r8, [rsi + 4*8]",
        "mov r9, [rsi + 5*8]",
        "mov rsi, [rsi + 1*8]",
        ".globl trackway_call_instruction",
        "trackway_call_instruction:",
        "syscall",
        "ret",
    )
}

/// Gives the kernel the application's mask, and delivers deferred signals.
#[unsafe(naked)]
unsafe extern "C" fn trackway_unblock() {
    naked_asm!(
        "cmp dword ptr gs:[{has_deferred}], 0",
        "je 2f",
        "mov eax, 14", // rt_sigprocmask(SIG_SETMASK, &raise_mask, NULL, 8)
        "mov edi, 2",
        "mov rsi, gs:[0]",
        "add rsi, {raise_mask}",
        "xor edx, edx",
        "mov r10d, 8",
        "syscall",
        ".globl trackway_unblock_raise",
        "trackway_unblock_raise:",
        "ud2", // the handler delivers what is waiting, or sends us back to the beginning
        "2:",
        "mov dword ptr gs:[{mask_changed}], 0",
        "mov eax, 14", // rt_sigprocmask(SIG_SETMASK, &real_mask, NULL, 8)
        "mov edi, 2",
        "mov rsi, gs:[0]",
        "add rsi, {real_mask}",
        "xor edx, edx",
        "mov r10d, 8",
        "syscall",
        ".globl trackway_unblock_end",
        "trackway_unblock_end:",
        "ret",
        mask_changed = const SIGNALS + offset_of!(Signals, mask_changed),
        has_deferred = const SIGNALS + offset_of!(Signals, has_deferred),
        raise_mask = const SIGNALS + offset_of!(Signals, raise_mask),
        real_mask = const SIGNALS + offset_of!(Signals, real_mask),
    )
}
