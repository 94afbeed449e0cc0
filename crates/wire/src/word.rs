//! The words of a thread's ring: the paths that it has executed and its events, in order.
//!
//! | word | meaning |
//! | --- | --- |
//! | 0 | not written yet |
//! | top bit clear | one execution of the path with this number (see [`crate::code::FRAGMENT`]) |
//! | top bit set | an event: kind in bits 24 to 30, [`length`] words in all, then [`data_words`] words of data |
//!
//! A path's word is followed by as many bytes of data as [`crate::code::ACCESS_DESCRIPTORS`] says
//! for it.
//!
//! A word can be decoded without the words before it. The target of an indirect exit is the first
//! block of the next path. 64-bit values take two words, the low one first.

use entity::PathId;

/// `pc, tsc`: 5 words. The first instruction of a thread, or of the process in a new image.
pub const START: u8 = 0;
/// `tsc`: 3 words. A timestamp; the first event of every segment but a thread's first.
pub const TIME: u8 = 1;
/// `number, tsc`: 4 words. The system call at the end of the last path, before it is executed.
pub const SYSCALL: u8 = 2;
/// `fragment, blocks, pc, handler, tsc`: 9 words. The low byte of the first word is the signal. The
/// thread was interrupted before (or by) the instruction at `pc`, and continues at `handler` (0: it
/// ends). Since the last path it had executed the first `blocks` blocks of the fragment whose first
/// path is `fragment` (0: none), and the next block up to `pc`. The data is that of the fragment's
/// access descriptors up to there. After [`SYSCALL`], a `pc` at the system call means that it will
/// be executed again. Signal 0 means that the engine itself has interrupted the thread, which
/// continues at `handler`, equal to `pc`.
pub const SIGNAL: u8 = 3;
/// `pc, tsc`: 5 words. A handler has returned to `pc` (after the [`SYSCALL`] for rt_sigreturn).
pub const RESUME: u8 = 4;
/// `tsc`: 3 words. The thread has ended.
pub const END: u8 = 5;
/// `thread, os_tid`: 3 words. The last recorded system call has created a thread.
pub const CHILD: u8 = 6;
/// `tsc`: 3 words. From here on the thread runs natively and is not recorded.
pub const DETACH: u8 = 7;

/// `base`: 3 words. The base of the thread's fs segment from here on.
pub const FS_BASE: u8 = 8;
/// `pc, source, destination, count, shape`: 9 words. The string instruction at `pc` has made
/// `count` more iterations, the first of them at these addresses (rsi and rdi). The event belongs
/// to the next path, which consists of this instruction alone, or to the next signal, which
/// interrupts the instruction. If values are recorded, the data is the elements read at the source,
/// in the order of iterations, then those read at the destination. `movs` writes the values that it
/// has read.
pub const STRING: u8 = 9;
/// `pc, address, size`: 6 words. The instruction at `pc` has made this access. The event belongs to
/// the next path, which consists of this instruction alone. The top bit of `size` is set for a
/// write. If values are recorded, the data is the value.
pub const ACCESS: u8 = 10;
/// `pc`: 3 words. The thread is not recorded from the instruction at `pc` on. The next path is
/// where recording continues.
pub const GAP: u8 = 11;

/// `pc, rsp, first, second, third, caller, stack, tsc`: 16 words. The thread has called an
/// allocation routine, whose [`crate::routine`] is in the low byte of the first word. It is at the
/// routine's entry, with this stack pointer and these first three arguments, and will return to
/// `caller`. The engine leaves `stack`, one word, 0. The recorder puts the number of the call stack
/// there.
pub const ENTER: u8 = 12;
/// `value, tsc`: 5 words. The last allocation routine that was entered has returned; the low byte
/// of the first word is as there. `value` is what it has returned, or the address that it has
/// stored.
pub const RETURN: u8 = 13;
/// `number, first, second, third, result, stack, tsc`: 13 words. The system call `number` has
/// mapped, unmapped or moved memory, with these arguments and this result. `stack` is as in
/// [`ENTER`]. [`MAPPING_NESTED`] is set in the first word if an allocation routine has made it.
pub const MAPPING: u8 = 14;
/// `rsp`: 3 words. The stack pointer here. It serves the recorder only, which leaves it out of the
/// trace.
pub const STACK_POINTER: u8 = 15;

/// In the first word of a [`MAPPING`].
pub const MAPPING_NESTED: u32 = 1;
/// Positions of the call stack's number among the words of an [`ENTER`] and a [`MAPPING`].
pub const ENTER_STACK: usize = 13;
pub const MAPPING_STACK: usize = 10;

/// In the shape of a [`STRING`], beside the size of an element in its low byte.
pub const STRING_READS_SOURCE: u32 = 1 << 8;
pub const STRING_READS_DESTINATION: u32 = 1 << 9;
pub const STRING_WRITES_DESTINATION: u32 = 1 << 10;
/// The direction flag is set: addresses go down.
pub const STRING_BACKWARDS: u32 = 1 << 11;

/// In the size of an [`ACCESS`].
pub const ACCESS_WRITES: u32 = 1 << 31;

pub const EVENT: u32 = 1 << 31;
/// Largest path number.
pub const PATH_MAX: u32 = EVENT - 1;
/// Words of the longest event.
pub const EVENT_WORDS_MAX: usize = 16;

/// The path that a word names; `None` if an event begins there. A word that is not written yet
/// yields the number 0, which no path has.
#[must_use]
#[inline]
pub const fn path(word: u32) -> Option<PathId> {
    if word & EVENT == 0 { Some(PathId::new(word)) } else { None }
}

/// The first word of an event; `low` are its 24 low bits.
#[must_use]
pub const fn event(kind: u8, low: u32) -> u32 {
    EVENT | (kind as u32) << 24 | low & 0xff_ffff
}

/// The kind of an event, from its first word.
#[must_use]
pub const fn kind(word: u32) -> u8 {
    (word >> 24) as u8 & 0x7f
}

/// Number of words of the path or event that begins with `word`: 1 for a path, `None` for 0 and for
/// an unknown event.
#[must_use]
pub const fn length(word: u32) -> Option<usize> {
    if word & EVENT == 0 {
        return if word == 0 { None } else { Some(1) };
    }
    match kind(word) {
        START | RESUME | RETURN => Some(5),
        TIME | END | CHILD | DETACH | FS_BASE | GAP | STACK_POINTER => Some(3),
        SYSCALL => Some(4),
        SIGNAL | STRING => Some(9),
        ACCESS => Some(6),
        ENTER => Some(16),
        MAPPING => Some(13),
        _ => None,
    }
}

/// Number of words of data behind an event, from its first word.
#[must_use]
pub const fn data_words(word: u32) -> usize {
    match kind(word) {
        SIGNAL | STRING | ACCESS if word & EVENT != 0 => (word >> 8) as usize & DATA_WORDS_MAX,
        _ => 0,
    }
}

/// Most words of data behind an event.
pub const DATA_WORDS_MAX: usize = 0xffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_paths_or_events_of_a_known_length() {
        assert_eq!((path(7), path(event(TIME, 7))), (Some(PathId::new(7)), None));
        assert_eq!(length(0), None);
        assert_eq!(length(1), Some(1));
        assert_eq!(length(PATH_MAX), Some(1));
        assert_eq!(length(event(SIGNAL, 11)), Some(9));
        assert_eq!(length(event(99, 0)), None);
        assert_eq!(kind(event(SIGNAL, 11)), SIGNAL);
    }
}
