//! Machine code, byte by byte. Everything emitted here leaves the flags alone.

use wire::word;

use crate::tcb;

/// The table of indirect targets: by the low bits of an application address, where to go in the cache.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Below 2 GiB.
    pub address: u32,
    pub by_pext: bool,
}

impl Table {
    /// Which entry belongs to an application address.
    pub fn index(self, address: u64) -> usize {
        (address & self.mask()) as usize
    }

    /// The low bits that count.
    pub fn mask(self) -> u64 {
        if self.by_pext { wire::TABLE_BYTES as u64 / 8 - 1 } else { 0xffff }
    }
}

/// Appends to a buffer that will be executed at `address`.
pub struct Emitter<'a> {
    buffer: &'a mut [u8],
    address: u64,
    position: usize,
    overflow: bool,
}

impl<'a> Emitter<'a> {
    pub fn new(buffer: &'a mut [u8], address: u64) -> Self {
        Self { buffer, address, position: 0, overflow: false }
    }

    pub fn position(&self) -> usize {
        self.position
    }

    /// Address of the next byte.
    pub fn here(&self) -> u64 {
        self.address + self.position as u64
    }

    /// The buffer was too short; what it holds is of no use.
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
        while !self.here().is_multiple_of(alignment) && !self.overflow {
            self.bytes(&[0x90]);
        }
    }

    /// `mov gs:[offset], rcx` and its like; `register` is 0 to 15.
    pub fn store_gs(&mut self, offset: u32, register: u8) {
        self.gs_move(0x89, offset, register);
    }

    /// `mov register, gs:[offset]`.
    pub fn load_gs(&mut self, register: u8, offset: u32) {
        self.gs_move(0x8b, offset, register);
    }

    fn gs_move(&mut self, opcode: u8, offset: u32, register: u8) {
        let rex = 0x48 | (register >> 3) << 2;
        self.bytes_and_u32(&[0x65, rex, opcode, (register & 7) << 3 | 4, 0x25], offset);
    }

    /// `jmp gs:[offset]`.
    pub fn jump_gs(&mut self, offset: u32) {
        self.bytes_and_u32(&[0x65, 0xff, 0x24, 0x25], offset);
    }

    /// `mov register, imm64` for one of the low eight registers.
    pub fn load_constant(&mut self, register: u8, value: u64) {
        self.bytes(&[0x48, 0xb8 | register]);
        self.bytes(&value.to_le_bytes());
    }

    /// `jmp rel32` whose displacement lies within eight aligned bytes, so that it can be changed while others execute it.
    /// Returns the position of the displacement.
    pub fn jump_patchable(&mut self, target: u64) -> usize {
        while (self.here() + 1) % 8 > 4 && !self.overflow {
            self.bytes(&[0x90]);
        }
        self.jump(target)
    }

    /// `jmp rel32`. Returns the position of the displacement.
    pub fn jump(&mut self, target: u64) -> usize {
        self.bytes(&[0xe9]);
        self.relative(target)
    }

    /// `jcc rel32`. Returns the position of the displacement.
    pub fn jump_if(&mut self, condition: u8, target: u64) -> usize {
        self.bytes(&[0x0f, 0x80 | condition]);
        self.relative(target)
    }

    fn relative(&mut self, target: u64) -> usize {
        let position = self.position;
        let displacement = target.wrapping_sub(self.here() + 4) as u32;
        self.bytes(&displacement.to_le_bytes());
        position
    }

    /// Makes the displacement at `position` lead to here.
    pub fn land(&mut self, position: usize) {
        self.patch_u32(position, (self.position - position - 4) as u32);
    }

    /// Pushes a constant: `push imm32`, or `push [rip + literal]` with the literal in a place to be filled in later,
    /// whose displacement's position is returned.
    pub fn push_constant(&mut self, value: u64) -> Option<usize> {
        if value as i32 as i64 as u64 == value {
            self.bytes_and_u32(&[0x68], value as u32);
            return None;
        }
        self.bytes(&[0xff, 0x35]);
        let position = self.position;
        self.bytes(&[0; 4]);
        Some(position)
    }

    /// Writes a word at the cursor and moves it on.
    pub fn record(&mut self, word: u32) {
        self.bytes_and_u32(&[0x41, 0xc7, 0x07], word);
        self.bytes(&[0x4d, 0x8d, 0x7f, 4]);
    }

    /// Writes an event with the time at the cursor and moves it on. rax and rdx go to the scratch places of rcx and rdx.
    pub fn record_time(&mut self) {
        self.store_gs(tcb::SCRATCH_RCX, 0);
        self.store_gs(tcb::SCRATCH_RDX, 2);
        self.bytes(&[0x0f, 0xae, 0xe8]); // lfence: not before the locked instruction is done
        self.bytes(&[0x0f, 0x31]); // rdtsc
        self.bytes(&[0x41, 0x89, 0x57, 8]); // mov [r15 + 8], edx
        self.bytes(&[0x41, 0x89, 0x47, 4]); // mov [r15 + 4], eax
        self.load_gs(0, tcb::SCRATCH_RCX);
        self.load_gs(2, tcb::SCRATCH_RDX);
        self.bytes_and_u32(&[0x41, 0xc7, 0x07], word::event(word::TIME, 0));
        self.bytes(&[0x4d, 0x8d, 0x7f, 12]);
    }

    /// From the cursor in r15 to the application's r15.
    pub fn take_r15(&mut self) {
        self.store_gs(tcb::CURSOR, 15);
        self.load_gs(15, tcb::APP_R15);
    }

    /// From the application's r15 to the cursor.
    pub fn give_r15(&mut self) {
        self.store_gs(tcb::APP_R15, 15);
        self.load_gs(15, tcb::CURSOR);
    }

    /// Spills what the way to an indirect target needs.
    pub fn spill_scratch(&mut self) {
        self.store_gs(tcb::SCRATCH_RCX, 1);
        self.store_gs(tcb::SCRATCH_RDX, 2);
    }

    pub fn reload_scratch(&mut self) {
        self.load_gs(1, tcb::SCRATCH_RCX);
        self.load_gs(2, tcb::SCRATCH_RDX);
    }

    /// Goes to the application address in rcx by way of the table: `jmp [table + rdx * 8]`, rdx being the low bits of rcx. They
    /// are taken with `pext edx, ecx, gs:[mask]` or, on processors without BMI2, `movzx edx, cx`: both leave the flags alone.
    pub fn jump_indirect(&mut self, table: Table) {
        if table.by_pext {
            self.bytes_and_u32(&[0x65, 0xc4, 0xe2, 0x72, 0xf5, 0x14, 0x25], tcb::TABLE_MASK);
        } else {
            self.bytes(&[0x0f, 0xb7, 0xd1]);
        }
        self.bytes_and_u32(&[0xff, 0x24, 0xd5], table.address);
    }

    /// Leaves the code cache with the number of an exit: `mov gs:[..], rcx; mov ecx, number; jmp gs:[entry]`.
    pub fn leave(&mut self, exit: u32) {
        self.store_gs(tcb::SCRATCH_RCX, 1);
        self.bytes_and_u32(&[0xb9], exit);
        self.jump_gs(tcb::EXIT_ENTRY);
    }

    /// How an indirect jump arrives at `target`: checks that rcx is the target (else leaves for the slow way) and restores
    /// rcx and rdx.
    pub fn arrival(&mut self, target: u64) {
        self.load_constant(2, target.wrapping_neg());
        self.bytes(&[0x48, 0x8d, 0x0c, 0x11]); // lea rcx, [rcx + rdx]
        self.bytes(&[0xe3, 8]); // jrcxz over the next instruction
        self.jump_gs(tcb::MISMATCH_ENTRY);
        self.reload_scratch();
    }
}

/// Bytes that [`Emitter::leave`] takes.
pub const LEAVE_BYTES: usize = 22;
