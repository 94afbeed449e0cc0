//! The symbols of a path.
//!
//! | first byte | symbol |
//! | --- | --- |
//! | `0x00` | none: not written yet |
//! | `0x02..=0x7f` | outcomes: below the highest set bit, 1 to 6 outcomes, the first one in the most significant place |
//! | `0x80..=0xbf` | an event, see the constants; its payload follows, integers little-endian, unaligned |
//! | `0xc0..=0xff` | arrival at a block: four bytes, 30 bits of block number, see [`arrive`] |
//!
//! # How a path is read
//!
//! The reader stands at a block and looks at how it ends:
//!
//! * **conditional branch**: takes one outcome, 1 = taken.
//! * **direct jump or call**: to a higher address than its own: nothing is recorded. Otherwise (backwards, or to itself):
//!   takes one outcome, always 1. So every cycle in a program leaves something in the path.
//! * **return**: takes one outcome if there is one (bits left over, or the next symbol is outcomes): 1 = it returned to
//!   the instruction after the call that the reader's own stack of calls has on top (every call pushes, every return pops,
//!   64 entries deep are enough); 0 = it did not, and an arrival follows. If the next symbol is an arrival, that is where it
//!   went. The engine uses an outcome only where it knows both the call and the return on one straight path.
//! * **indirect jump or call**: an arrival follows.
//! * **system call**: [`SYSCALL`] follows; then the next instruction, unless another event says otherwise.
//! * **anything else** (the block was cut because it is long): falls through to the next address.
//!
//! Outcomes are used up before the next symbol is looked at. Wherever an event can stand, no outcomes are left over.
//! [`SIGNAL`] may come wherever a symbol is expected: starting at the current block, the blocks that need no symbol
//! were executed until the instruction at `pc` was next; as those only ever go to higher addresses, `pc` is met once.
//! After an event that says where the thread goes on (`START`, `RESUME`, `SIGNAL` with a handler), the reader stands
//! there.

/// `pc: u64, tsc: u64`. First instruction of a thread, or of the thread in a new image.
pub const START: u8 = 0x80;
/// `pc: u64, tsc: u64`. Opens every further segment. Says where the reader stands already; 0 means that an arrival (or an
/// event) comes next. No calls made before it are needed to understand what follows.
pub const SYNC: u8 = 0x81;
/// `number: u32, tsc: u64`. The system call that ends the block, before it is executed.
pub const SYSCALL: u8 = 0x82;
/// `signal: u8, pc: u64, handler: u64, tsc: u64`. The thread was interrupted before (or by) the instruction at `pc`; it goes
/// on at `handler`. 0: no handler, the thread ends here.
pub const SIGNAL: u8 = 0x83;
/// `pc: u64, tsc: u64`. A signal handler has returned to `pc` (comes after the `SYSCALL` for rt_sigreturn).
pub const RESUME: u8 = 0x84;
/// `tsc: u64`. The thread has ended, or its process has called exec.
pub const END: u8 = 0x85;
/// `tsc: u64`. The time here; stands where an outcome or arrival could stand.
pub const TIME: u8 = 0x86;
/// `thread: u32, os_tid: u32`. The system call just recorded has created a thread.
pub const CHILD: u8 = 0x87;
/// `tsc: u64`. From here on the thread runs natively and is no longer recorded.
pub const LEAVE: u8 = 0x88;

/// Greatest number of outcomes in one symbol.
pub const OUTCOMES_MAX: u32 = 6;
/// Largest block number that an arrival can hold.
pub const BLOCK_MAX: u32 = (1 << 30) - 1;
/// Length of the longest symbol.
pub const SYMBOL_MAX: usize = 26;

/// The word that records an arrival at `block`.
#[must_use]
pub const fn arrive(block: u32) -> u32 {
    (block & 0x3f) | 0xc0 | (block >> 6) << 8
}

/// The block in a word written by [`arrive`].
#[must_use]
pub const fn arrived(word: u32) -> u32 {
    (word & 0x3f) | (word >> 8) << 6
}

/// The symbol for the `count` lowest bits of `bits`, the first outcome in the highest of them.
#[must_use]
pub const fn outcomes(bits: u8, count: u32) -> u8 {
    (1 << count) | bits
}

/// Length of the symbol that starts with `first`; `None` if no symbol starts so.
#[must_use]
pub const fn length(first: u8) -> Option<usize> {
    match first {
        0x02..=0x7f => Some(1),
        0xc0..=0xff => Some(4),
        START | SYNC | RESUME => Some(17),
        SYSCALL => Some(13),
        SIGNAL => Some(26),
        END | TIME | LEAVE => Some(9),
        CHILD => Some(9),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_keeps_its_block() {
        for block in [0, 1, 63, 64, 65, 1 << 20, BLOCK_MAX] {
            let word = arrive(block);
            assert_eq!(arrived(word), block);
            assert_eq!(length(word as u8), Some(4));
        }
    }

    #[test]
    fn outcomes_are_one_byte() {
        assert_eq!(outcomes(0, 1), 2);
        assert_eq!(outcomes(0b111111, 6), 0x7f);
        assert_eq!(length(outcomes(0, 6)), Some(1));
    }
}
