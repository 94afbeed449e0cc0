//! Taking over a thread that the injector has stopped.

use wire::{Control, FLAG_FSGSBASE, Init, VERSION, word};

use crate::emit::Table;
use crate::fragment::ENGINE;
use crate::tcb::{self, Tcb};
use crate::{clone, dispatch, ring, select, signal, sys};

/// The engine's own memory begins at a multiple of this behind the shared mapping.
const ARENA_GAP: u64 = 1 << 30;

/// Called once per image, on the injector's stack.
///
/// # Safety
/// `init` is what the injector wrote.
pub unsafe extern "C" fn start(init: &Init) -> ! {
    assert!(init.version == VERSION, "the engine and the recorder are of different versions");
    sys::set_arena(init.shared + ((wire::SHARED_BYTES as u64 + ARENA_GAP - 1) & !(ARENA_GAP - 1)));
    // SAFETY: the injector mapped it.
    let control = unsafe { &*(init.shared as *const Control) };
    let fsgsbase = init.flags & FLAG_FSGSBASE != 0;
    let table = Table { address: init.table as u32, by_pext: has_bmi2() };
    ENGINE.lock().set_up(init.shared, table, dispatch::miss_entry());
    signal::set_image(init.engine_start, init.engine_end);
    clone::set_up(fsgsbase, init.min_signal_stack);
    let Some(tcb) = Tcb::new(control, init.slot, init.thread, init.min_signal_stack) else {
        panic!("no memory for the state of a thread");
    };
    ENGINE.lock().find_writable_code();
    tcb.registers = init.registers;
    // SAFETY: the application has not executed anything that could use gs.
    unsafe { tcb::set_gs(tcb.this as u64, fsgsbase) };
    let mut mask = 0u64;
    // SAFETY: the kernel writes the mask.
    unsafe { sys::call(sys::number::RT_SIGPROCMASK, [0, 0, &raw mut mask as u64, 8, 0, 0]) };
    signal::set_mask(tcb, mask);
    tcb.install_signal_stack();
    signal::set_up();
    ring::open(tcb);
    ring::append_timed(tcb, word::START, init.registers.rip);
    ring::append_fs_base(tcb);
    select::start(tcb, &ENGINE.lock());
    dispatch::enter_first()
}

fn has_bmi2() -> bool {
    const BMI2: u32 = 1 << 8;
    core::arch::x86_64::__cpuid(0).eax >= 7 && core::arch::x86_64::__cpuid_count(7, 0).ebx & BMI2 != 0
}
