//! Helpers of the unit tests: an engine of their own, pages of application code, and readers of the
//! code ring.

use core::sync::atomic::{AtomicU64, Ordering};

use isa::Transfer;

use crate::change::PAGE;
use crate::emit::Table;
use crate::engine::Engine;
use crate::{memory, sys};

pub(crate) const MISSING: u64 = 0x1234;

/// An engine of its own, with memory as the injector would make it.
pub(crate) fn engine() -> Engine {
    static TABLES: AtomicU64 = AtomicU64::new(0x7000_0000);
    let protection = sys::PROT_READ | sys::PROT_WRITE;
    let shared = memory::tests::shared();
    let length = (wire::TABLE_COUNT * wire::TABLE_BYTES) as u64;
    let address = TABLES.fetch_add(length, Ordering::Relaxed);
    let table = sys::map(address, length, protection, sys::MAP_FIXED_NOREPLACE).unwrap();
    let mut engine = Engine::new();
    engine.set_up(shared, Table { address: table, by_pext: true }, MISSING);
    engine
}

/// A page of application code; what is not given is `nop`.
pub(crate) fn page(pieces: &[(usize, &[u8])]) -> u64 {
    let protection = sys::PROT_READ | sys::PROT_WRITE | sys::PROT_EXEC;
    let address = sys::map(0, PAGE, protection, 0).unwrap();
    write(address, &[0x90; PAGE as usize]);
    for (offset, code) in pieces {
        write(address + *offset as u64, code);
    }
    address
}

pub(crate) fn write(address: u64, bytes: &[u8]) {
    // SAFETY: the tests only pass pages of their own.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
}

/// The transfer of the instruction at an address of the cache.
pub(crate) fn transfer_at(address: u64) -> Transfer {
    // SAFETY: the tests only pass addresses inside of a region of the cache.
    let bytes = unsafe { core::slice::from_raw_parts(address as *const u8, 16) };
    isa::transfer(&isa::decoder(address, bytes).decode())
}

pub(crate) fn jumps_to(target: u64) -> Transfer {
    Transfer::Jump { target }
}

/// The records of the code ring so far.
pub(crate) fn records(engine: &Engine) -> Vec<(u32, Vec<u8>)> {
    let ring = engine.control as usize + wire::CODE_RING_OFFSET;
    let head = engine.control().code_head.load(Ordering::SeqCst) as usize;
    // SAFETY: part of the mapping that `engine` made.
    let bytes = unsafe { core::slice::from_raw_parts(ring as *const u8, head) };
    let mut list = Vec::new();
    let mut at = 0;
    while at < head {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let length = word(at + 4) as usize;
        list.push((word(at), bytes[at + 8..at + 8 + length].to_vec()));
        at += (8 + length + 7) & !7;
    }
    assert_eq!(at, head);
    list
}

pub(crate) fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|chunk| u32::from_le_bytes(chunk.try_into().unwrap())).collect()
}

/// test rax, rax; je +0x40
pub(crate) const BRANCH: [u8; 5] = [0x48, 0x85, 0xc0, 0x74, 0x3b];
pub(crate) const JUMP_TO_ITSELF: [u8; 2] = [0xeb, 0xfe];
