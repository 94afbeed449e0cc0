//! The emitter: machine code, byte by byte. Nothing emitted here changes the flags.
//!
//! This module has the buffer. `instruction` appends single instructions, `cursor` what records,
//! and `linkage` what leads from fragment to fragment. All of them know nothing of the
//! application's code, which [`crate::translate`] copies.

use crate::cache_pc::CachePc;

mod cursor;
mod instruction;
mod linkage;
#[cfg(test)]
mod testing;

pub use linkage::{EXIT_STUB_BYTES, IndirectTable};

/// Appends to a buffer that will be executed at `address`.
pub struct Emitter<'a> {
    buffer: &'a mut [u8],
    address: CachePc,
    position: usize,
    overflow: bool,
}

impl<'a> Emitter<'a> {
    pub fn new(buffer: &'a mut [u8], address: CachePc) -> Self {
        Self { buffer, address, position: 0, overflow: false }
    }

    pub fn position(&self) -> usize {
        self.position
    }

    /// Address of the next byte.
    pub fn here(&self) -> CachePc {
        self.address + self.position as u64
    }

    /// Whether the buffer was too short; its content is invalid then.
    pub fn overflowed(&self) -> bool {
        self.overflow
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        let end = self.position + bytes.len();
        match self.buffer.get_mut(self.position..end) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.position = end;
            }
            None => self.overflow = true,
        }
    }

    fn bytes_and_u32(&mut self, bytes: &[u8], value: u32) {
        self.bytes(bytes);
        self.bytes(&value.to_le_bytes());
    }

    /// Writes over the four bytes at `position`.
    pub fn patch_u32(&mut self, position: usize, value: u32) {
        if let Some(room) = self.buffer.get_mut(position..position + 4) {
            room.copy_from_slice(&value.to_le_bytes());
        }
    }

    pub fn align(&mut self, alignment: u64) {
        while !self.here().get().is_multiple_of(alignment) && !self.overflow {
            self.bytes(&[0x90]);
        }
    }

    /// Makes the displacement at `position` jump to here.
    pub fn land(&mut self, position: usize) {
        self.patch_u32(position, (self.position - position - 4) as u32);
    }

    /// Removes everything behind `position`.
    pub fn rewind(&mut self, position: usize) {
        self.position = position;
    }
}

#[cfg(test)]
mod tests {
    use entity::AppPc;

    use super::testing::{ADDRESS, emit};
    use super::*;

    /// Flags are the application's all the time.
    #[test]
    fn nothing_changes_flags() {
        let table = |address, by_pext| IndirectTable { address, by_pext };
        let (_, instructions) = emit(|out| {
            out.record(1, 0);
            out.record_time();
            out.load_app_r15();
            out.load_cursor();
            out.spill_scratch();
            out.reload_scratch();
            out.exit_stub(1);
            out.indirect_entry(AppPc::new(0x40_0000));
            out.jump_indirect(table(0x6000_0000, true));
            out.jump_indirect(table(0x6000_0000, false));
            out.jump_indirect(table(0x5500_0000_0000, true));
        });
        for instruction in instructions {
            assert_eq!(instruction.rflags_modified(), 0, "{:?}", instruction.code());
        }
    }

    #[test]
    fn a_full_buffer_overflows() {
        let mut room = [0; 4];
        let mut out = Emitter::new(&mut room, ADDRESS);
        out.bytes(&[1, 2, 3]);
        out.bytes(&[4, 5]);
        assert!(out.overflowed());
        assert_eq!(out.position(), 3);
        out.align(64);
        out.patch_u32(2, 0);
    }
}
