//! Helpers of the unit tests: an engine of their own, pages of application code, and readers of the
//! code ring.

use core::sync::atomic::{AtomicU64, Ordering};

use entity::AppPc;
use isa::Transfer;
use wire::code::{Definition, Records};

use crate::cache_pc::CachePc;
use crate::change::PAGE;
use crate::emit::IndirectTable;
use crate::engine::Engine;
use crate::{memory, sys};

pub(crate) const MISSING: u64 = 0x1234;

/// An engine of its own, with memory as the injector would make it.
pub(crate) fn engine() -> Engine {
    static TABLES: AtomicU64 = AtomicU64::new(0x7000_0000);
    let protection = sys::PROT_READ | sys::PROT_WRITE;
    // SAFETY: zeroed memory of the right size is a control page, and it stays mapped.
    let control = unsafe { &*(memory::tests::shared() as *const wire::Control) };
    let length = (wire::TABLE_COUNT * wire::TABLE_BYTES) as u64;
    let address = TABLES.fetch_add(length, Ordering::Relaxed);
    let table = sys::map(address, length, protection, sys::MAP_FIXED_NOREPLACE).unwrap();
    let mut engine = Engine::new();
    // SAFETY: the tables were mapped just now, for this engine.
    unsafe { engine.set_up(control, IndirectTable { address: table, by_pext: true }, MISSING) };
    engine
}

/// A page of application code; what is not given is `nop`.
pub(crate) fn page(pieces: &[(usize, &[u8])]) -> AppPc {
    let protection = sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC;
    let address = AppPc::new(sys::map(0, PAGE, protection, 0).unwrap());
    write(address, &[0x90; PAGE as usize]);
    for (offset, code) in pieces {
        write(address + *offset as u64, code);
    }
    address
}

pub(crate) fn write(address: AppPc, bytes: &[u8]) {
    // SAFETY: the tests only pass pages of their own.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), address.get() as *mut u8, bytes.len()) };
}

/// The transfer of the instruction at an address of the cache, with its target there.
pub(crate) fn transfer_at(address: CachePc) -> Transfer {
    // SAFETY: the tests only pass addresses inside of a region of the cache.
    let bytes = unsafe { core::slice::from_raw_parts(address.get() as *const u8, 16) };
    isa::transfer(&isa::decoder(AppPc::new(address.get()), bytes).decode())
}

pub(crate) fn jumps_to(target: CachePc) -> Transfer {
    Transfer::Jump { target: AppPc::new(target.get()) }
}

/// The records of the code ring so far.
pub(crate) fn records(engine: &Engine) -> Vec<Definition<'_>> {
    let ring = core::ptr::from_ref(engine.control()) as usize + wire::CODE_RING_OFFSET;
    let head = engine.control().code_head.load(Ordering::SeqCst) as usize;
    // SAFETY: part of the mapping that `engine` made. The engine appends behind it: the tests do
    // not fill the ring.
    let bytes = unsafe { core::slice::from_raw_parts(ring as *const u8, head) };
    let mut records = Records::new(bytes);
    let list = records.by_ref().map(|record| record.parse().unwrap()).collect();
    assert!(records.rest().is_empty());
    list
}

/// test rax, rax; je +0x40
pub(crate) const BRANCH: [u8; 5] = [0x48, 0x85, 0xc0, 0x74, 0x3b];
pub(crate) const JUMP_TO_ITSELF: [u8; 2] = [0xeb, 0xfe];
