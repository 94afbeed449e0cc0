//! Start: takes over the threads that the injector has stopped, the only one of a new image or all
//! those of a running process.
//!
//! The first thread sets the engine up and makes the states of the others, which are stopped
//! meanwhile. They start at `adopt`.

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use wire::{CodeMapping, Control, EngineLayout, FLAG_ATTACHED, FLAG_FSGSBASE, Init, STAGE_STARTED, VERSION, word};

use crate::emit::IndirectTable;
use crate::engine::ENGINE;
use crate::failure::Failure;
use crate::maps::Mapping;
use crate::tcb::{self, OwnedTcb, Tcb, Vectors};
use crate::translate::Order;
use crate::{clone, detach, dispatch, engine_memory, failure, limits, owners, pending, ring, select, signal, syscall};

/// The engine's entry point, called once per image on the injector's stack.
///
/// # Safety
/// `init` is what the injector wrote; as many as it says follow it.
pub unsafe extern "C" fn start(init: *mut Init) -> ! {
    // SAFETY: the caller's promise.
    let first = unsafe { &*init };
    assert!(first.version == VERSION, "the engine and the recorder are of different versions");
    // SAFETY: the injector mapped it.
    let control = unsafe { &*(first.shared as *const Control) };
    engine_memory::set_up(control);
    signal::note_fault_actions(control);
    publish(&control.layout);
    fail_if_injected(control);
    set_up(control, first);
    let count = if is_attached(first) { first.thread_count.max(1) } else { 1 };
    // SAFETY: the injector wrote as many, behind the initial values, and nothing changes them.
    let mappings =
        unsafe { core::slice::from_raw_parts(first.mappings as *const CodeMapping, first.mapping_count as usize) };
    // SAFETY: the caller's promise. `first` is not used any more, and the recorder reads nothing
    // before the stage changes.
    let threads = unsafe { core::slice::from_raw_parts_mut(init, count as usize) };
    for init in &mut *threads {
        init.state = make_state(control, init).this as u64;
    }
    if count > 1 {
        ENGINE.lock().order_threads();
    }
    ENGINE.lock().add_writable_code(mappings.iter().map(Mapping::from));
    // SAFETY: just made, for this thread; `make_state` has kept no reference.
    let tcb = unsafe { &mut *(threads[0].state as *mut Tcb) };
    fail_if_injected(control);
    fault_if_injected(control);
    // Nothing may fail from here to the change of the stage: changes of the kernel's state would
    // not be undone.
    take_over(tcb);
    signal::set_up();
    failure::set_up();
    control.stage.store(STAGE_STARTED, Ordering::SeqCst);
    failure::wait_while(control, STAGE_STARTED);
    enter(tcb)
}

fn fail_if_injected(control: &Control) {
    assert!(!failure::is_injected_in_set_up(control, Failure::Defect), "a test wants the engine to fail");
}

fn fault_if_injected(control: &Control) {
    if failure::is_injected_in_set_up(control, Failure::Handler) {
        // SAFETY: nothing is executed after a fault that no handler catches.
        unsafe { core::arch::asm!("ud2", options(noreturn)) };
    }
}

/// Called for each further thread of a running process, on its engine stack.
unsafe extern "C" fn adopt(tcb: &mut Tcb) -> ! {
    take_over(tcb);
    enter(tcb)
}

fn is_attached(init: &Init) -> bool {
    init.flags & FLAG_ATTACHED != 0
}

/// Sets up the state that all threads share.
fn set_up(control: &'static Control, init: &Init) {
    pending::set_up();
    limits::grow(wire::SHARED_BYTES as u64 + (init.engine_end - init.engine_start));
    let table = IndirectTable { address: init.table, by_pext: has_bmi2() };
    // SAFETY: the injector has mapped the tables with the engine.
    unsafe { ENGINE.lock().set_up(control, table, dispatch::miss_entry()) };
    signal::set_image(init.engine_start, init.engine_end);
    clone::set_up(init.flags & FLAG_FSGSBASE != 0, init.min_signal_stack);
    order_by_contention(control, table);
}

/// Makes the table of owners, unless the processor lacks instructions that translated code needs
/// for it, or uninstrumented code would synchronise without it.
fn order_by_contention(control: &Control, table: IndirectTable) {
    if table.by_pext && clone::has_fsgsbase() && !select::has_uninstrumented_mode(control) && owners::set_up() {
        ENGINE.lock().order = Order::Contention;
    }
}

fn make_state(control: &Control, init: &Init) -> OwnedTcb {
    let has_memory = !failure::is_injected_in_set_up(control, Failure::NoMemory);
    let state = || OwnedTcb::new(control, init.slot, init.thread, init.min_signal_stack);
    let Some(mut tcb) = has_memory.then(state).flatten() else {
        failure::abandon_set_up(control, Failure::NoMemory);
    };
    tcb.registers = init.registers;
    tcb.gs_base = init.gs_base;
    owners::adopt(&mut tcb);
    signal::set_mask(&tcb, init.mask);
    if is_attached(init) {
        tcb.xmm = Vectors(init.vectors);
        tcb.mxcsr = init.mxcsr;
        tcb.interrupted = init.interrupted;
        tcb.rseq = init.rseq;
        if tcb.interrupted != 0 {
            // Signals are blocked until the thread is in its system call again, where they would
            // have come.
            tcb.signals().real_mask.set(!signal::SYNCHRONOUS);
        }
    }
    tcb
}

/// Gives the calling thread the engine's gs and signal stack.
fn take_over(tcb: &mut Tcb) {
    // SAFETY: the application's base is in the state.
    unsafe { tcb::set_gs(tcb.this as u64, clone::has_fsgsbase()) };
    tcb.install_signal_stack();
}

fn enter(tcb: &mut Tcb) -> ! {
    // Faults of copies from application memory are expected from here on.
    signal::block_asynchronous(tcb);
    ring::open(tcb);
    let pc = tcb.pc();
    ring::append_timed(tcb, word::START, pc);
    ring::append_fs_base(tcb);
    select::start(tcb, &ENGINE.lock());
    dispatch::enter_first()
}

/// Publishes the addresses and offsets that the recorder needs to attach and detach threads.
fn publish(layout: &EngineLayout) {
    let address = |field: &AtomicU64, address: u64| field.store(address, Ordering::SeqCst);
    address(&layout.adopt, adopt as *const () as u64);
    address(&layout.finish, detach::finish as *const () as u64);
    address(&layout.system_call, syscall::instruction());
    address(&layout.gate, detach::trackway_gate as *const () as u64);
    let offset = |field: &AtomicU32, offset: usize| field.store(offset as u32, Ordering::SeqCst);
    offset(&layout.this, offset_of!(Tcb, this));
    offset(&layout.registers, offset_of!(Tcb, registers));
    offset(&layout.vectors, offset_of!(Tcb, xmm));
    offset(&layout.mxcsr, offset_of!(Tcb, mxcsr));
    offset(&layout.gs_base, offset_of!(Tcb, gs_base));
    offset(&layout.mask, tcb::SIGNALS + offset_of!(tcb::Signals, mask));
    offset(&layout.alternate_stack, offset_of!(Tcb, alternate_stack));
    offset(&layout.parked, offset_of!(Tcb, parked));
    offset(&layout.engine_stack, offset_of!(Tcb, engine_stack));
    offset(&layout.cursor, offset_of!(Tcb, cursor));
    offset(&layout.segment, offset_of!(Tcb, segment));
    offset(&layout.slot, offset_of!(Tcb, slot_index));
}

fn has_bmi2() -> bool {
    const BMI2: u32 = 1 << 8;
    core::arch::x86_64::__cpuid(0).eax >= 7 && core::arch::x86_64::__cpuid_count(7, 0).ebx & BMI2 != 0
}
