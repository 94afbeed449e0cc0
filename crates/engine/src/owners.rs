//! The table of owners: which thread has synchronised last on a word, hashed by the word's address.
//!
//! While an entry holds a thread's *tag* for a locked operand, no other thread has synchronised on
//! a word of that entry since the thread's last timestamp, and its locked instructions need no
//! timestamp. Translated code (see `translate::order`) reads and exchanges entries. Instructions
//! that the engine emulates clear them with [`disown`]. Clearing an entry is always safe: it costs
//! a timestamp.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::engine_memory;
use crate::lock::Mutex;
use crate::tcb::Tcb;

/// Number of entries: the index has 16 bits.
pub const OWNER_COUNT: usize = 1 << 16;

/// A tag is the address of the operand, the logarithm of its size from bit `SIZE_SHIFT` on, and the
/// thread's number above.
const SIZE_SHIFT: u32 = 47;
const THREAD_SHIFT: u32 = 49;
/// In a tag: the thread has not recorded the timestamp yet. An entry holds the complement of a tag,
/// so that 0 means no owner.
pub const PENDING: u64 = 1 << 62;
/// A tag that no entry ever holds.
pub const NO_TAG: u64 = 1 << 63;
/// Operands at these addresses, and those that are not aligned, never get a tag.
pub const HIGH_ADDRESS: u64 = u64::MAX << SIZE_SHIFT;

/// Number of thread numbers in tags: twice as many as there can be threads.
const NUMBERS: usize = 1 << 13;
const _: () = assert!(NUMBERS >= 2 * wire::SLOT_COUNT && THREAD_SHIFT + NUMBERS.trailing_zeros() == 62);

/// Address of the table; 0 for none.
static TABLE: AtomicU64 = AtomicU64::new(0);

/// Makes the table. False if there is no memory.
pub fn set_up() -> bool {
    let Some(table) = engine_memory::map(8 * OWNER_COUNT as u64) else { return false };
    TABLE.store(table, Ordering::SeqCst);
    true
}

/// The table; empty if there is none.
fn table() -> &'static [AtomicU64] {
    let table = TABLE.load(Ordering::Relaxed) as *const AtomicU64;
    if table.is_null() {
        return &[];
    }
    // SAFETY: mapped in `set_up` with this length, zeroed, and it stays.
    unsafe { core::slice::from_raw_parts(table, OWNER_COUNT) }
}

/// The entry for the word of eight bytes that `address` is in, as translated code computes it.
fn index(address: u64) -> usize {
    let mut sum = 0u32;
    // SAFETY: there is a table only on processors with BMI2, and those have this instruction.
    unsafe {
        asm!("crc32 {:e}, {:e}", inout(reg) sum, in(reg) address >> 3, options(pure, nomem, nostack, preserves_flags))
    };
    sum as usize % OWNER_COUNT
}

/// Clears the entries of an operand, before the engine emulates a locked instruction.
pub fn disown(address: u64, bytes: usize) {
    let table = table();
    if table.is_empty() {
        return;
    }
    for address in [address, address.wrapping_add(bytes.max(1) as u64 - 1)] {
        table[index(address)].swap(0, Ordering::SeqCst);
    }
}

/// The numbers of live threads, and where the search for a free one continues.
struct ThreadNumbers {
    live: [u64; NUMBERS / 64],
    next: usize,
}

static LIVE: Mutex<ThreadNumbers> = Mutex::new(ThreadNumbers { live: [0; NUMBERS / 64], next: 0 });

impl ThreadNumbers {
    /// Takes a free number. All numbers are used before one is reused, and then the table is
    /// cleared: it may hold tags of the number's previous thread.
    fn take(&mut self, empty_table: impl FnOnce()) -> usize {
        let is_free = |live: &[u64], number: usize| live[number / 64] >> (number % 64) & 1 == 0;
        let number = match (self.next..NUMBERS).find(|number| is_free(&self.live, *number)) {
            Some(number) => number,
            None => {
                empty_table();
                (0..NUMBERS).find(|number| is_free(&self.live, *number)).unwrap_or(0)
            }
        };
        self.next = number + 1;
        self.live[number / 64] |= 1 << (number % 64);
        number
    }

    fn give(&mut self, number: usize) {
        self.live[number / 64] &= !(1 << (number % 64));
    }
}

/// See `lock::Mutex::release_for_dead`.
///
/// # Safety
/// As there.
pub unsafe fn release_for_dead(stacks: core::ops::Range<u64>) -> bool {
    // SAFETY: the caller's promise.
    unsafe { LIVE.release_for_dead(stacks) }
}

/// Gives a new thread the keys of its tags.
pub fn adopt(tcb: &mut Tcb) {
    let table = table();
    if table.is_empty() {
        return;
    }
    let number = LIVE.lock().take(|| table.iter().for_each(|entry| _ = entry.swap(0, Ordering::SeqCst)));
    tcb.owners = table.as_ptr() as u64;
    for (size, key) in tcb.order_keys.iter_mut().enumerate() {
        *key = (number as u64) << THREAD_SHIFT | (size as u64) << SIZE_SHIFT;
    }
}

/// Frees the number of a thread that has ended or was not created.
pub fn release(tcb: &Tcb) {
    if tcb.owners != 0 {
        LIVE.lock().give((tcb.order_keys[0] >> THREAD_SHIFT) as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_only_when_the_table_is_empty() {
        let mut numbers = ThreadNumbers { live: [0; NUMBERS / 64], next: 0 };
        let mut emptied = 0;
        assert_eq!(numbers.take(|| emptied += 1), 0);
        numbers.give(0);
        for expected in 1..NUMBERS {
            assert_eq!(numbers.take(|| emptied += 1), expected);
            if expected != 5 {
                numbers.give(expected);
            }
        }
        assert_eq!(emptied, 0);
        assert_eq!(numbers.take(|| emptied += 1), 0);
        assert_eq!(emptied, 1);
        let next: Vec<usize> = (0..5).map(|_| numbers.take(|| emptied += 1)).collect();
        assert_eq!(next, [1, 2, 3, 4, 6], "5 is still alive");
        assert_eq!(emptied, 1);
    }

    #[test]
    fn words_of_one_operand_have_one_entry() {
        if !std::arch::is_x86_feature_detected!("sse4.2") {
            use std::io::Write;
            std::io::stderr().write_all(b"NOT TESTED: this machine has no sse4.2\n").unwrap();
            return;
        }
        for address in [0u64, 0x7fff_1234_5678, 0x5555_0000_0ff8] {
            let of = |offset| index(address + offset);
            assert!((1..8).all(|offset| of(offset) == of(0)));
            assert_ne!(of(8), of(0));
            // Stacks and arenas of threads lie at such distances.
            for distance in [8 << 20, 64 << 20, 1 << 30] {
                assert_ne!(of(distance), of(0));
            }
        }
    }
}
