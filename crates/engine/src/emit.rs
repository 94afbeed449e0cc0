//! The emitter: machine code, byte by byte. Nothing emitted here changes the flags.

use entity::AppPc;
use iced_x86::Register;
use wire::word;

use crate::cache_pc::CachePc;
use crate::tcb;

/// The indirect-branch table: addresses of indirect entries, indexed by the low bits of the
/// application address.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Address of the table. 0 for none: all indirect exits go to the dispatcher.
    pub address: u64,
    pub by_pext: bool,
}

impl Table {
    /// Index of the slot of an application address.
    pub fn index(self, address: AppPc) -> usize {
        (address.get() & self.mask()) as usize
    }

    /// The low address bits that make up the index.
    pub fn mask(self) -> u64 {
        if self.by_pext { wire::TABLE_BYTES as u64 / 8 - 1 } else { 0xffff }
    }
}

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

    /// `jmp rel32` whose displacement lies within eight aligned bytes, so that it can be changed
    /// while others execute it. Returns the position of the displacement.
    pub fn jump_patchable(&mut self, target: CachePc) -> usize {
        while (self.here() + 1).get() % 8 > 4 && !self.overflow {
            self.bytes(&[0x90]);
        }
        self.jump(target)
    }

    /// `jmp rel32`. Returns the position of the displacement.
    pub fn jump(&mut self, target: CachePc) -> usize {
        self.bytes(&[0xe9]);
        self.relative(target)
    }

    /// `jmp rel32` to where [`Self::land`] is called later with the returned position.
    pub fn jump_ahead(&mut self) -> usize {
        self.jump(CachePc::NONE)
    }

    /// `jcc rel32`. Returns the position of the displacement.
    fn jump_if(&mut self, condition: u8, target: CachePc) -> usize {
        self.bytes(&[0x0f, 0x80 | condition]);
        self.relative(target)
    }

    /// `jcc rel32` to where [`Self::land`] is called later with the returned position.
    pub fn jump_ahead_if(&mut self, condition: u8) -> usize {
        self.jump_if(condition, CachePc::NONE)
    }

    fn relative(&mut self, target: CachePc) -> usize {
        let position = self.position;
        let displacement = (target - (self.here() + 4)) as u32;
        self.bytes(&displacement.to_le_bytes());
        position
    }

    /// Makes the displacement at `position` jump to here.
    pub fn land(&mut self, position: usize) {
        self.patch_u32(position, (self.position - position - 4) as u32);
    }

    /// Pushes a constant: `push imm32`, or `push [rip + literal]`. In the second case, the caller
    /// emits the literal later and patches the displacement at the returned position.
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

    /// Removes everything behind `position`.
    pub fn rewind(&mut self, position: usize) {
        self.position = position;
    }

    /// Writes a word at the cursor, and moves the cursor over the word and the data behind it.
    pub fn record(&mut self, word: u32, data: u32) {
        self.bytes_and_u32(&[0x41, 0xc7, 0x07], word);
        let advance = data + 4;
        match i8::try_from(advance) {
            Ok(advance) => self.bytes(&[0x4d, 0x8d, 0x7f, advance as u8]),
            Err(_) => self.bytes_and_u32(&[0x4d, 0x8d, 0xbf], advance),
        }
    }

    /// `[r15 + displacement]` with the middle field of the instruction.
    fn at_cursor(&mut self, middle: u8, displacement: u32) {
        match i8::try_from(displacement) {
            Ok(short) => self.bytes(&[0x47 | middle << 3, short as u8]),
            Err(_) => self.bytes_and_u32(&[0x87 | middle << 3], displacement),
        }
    }

    /// Stores the low bytes (1, 2, 4 or 8) of a general register, which is not r15, behind the
    /// cursor.
    pub fn store_data(&mut self, displacement: u32, bytes: usize, register: u8) {
        if bytes == 2 {
            self.bytes(&[0x66]);
        }
        let rex = 0x41 | u8::from(bytes == 8) << 3 | (register >> 3) << 2;
        self.bytes(&[rex, if bytes == 1 { 0x88 } else { 0x89 }]);
        self.at_cursor(register & 7, displacement);
    }

    /// Stores a vector register, or its low four, eight or sixteen bytes, behind the cursor.
    pub fn store_data_vector(&mut self, displacement: u32, bytes: usize, register: Register) {
        let number = register.number() as u8;
        if register.is_mm() {
            self.bytes(&[0x41, 0x0f, 0x7f]); // movq
            return self.at_cursor(number, displacement);
        }
        let (prefix, code, wide) = match bytes {
            4 => (Some(0xf3), 2, 0),
            8 => (Some(0xf2), 3, 1),
            _ => (None, 0, 0),
        };
        if number < 16 && bytes <= 16 {
            self.bytes(prefix.as_slice());
            self.bytes(&[0x41 | (number >> 3) << 2, 0x0f, 0x11]);
            return self.at_cursor(number & 7, displacement);
        }
        if number < 16 && bytes == 32 {
            let first = if number < 8 { 0xc1 } else { 0x41 };
            self.bytes(&[0xc4, first, 0x7c, 0x11]);
            return self.at_cursor(number & 7, displacement);
        }
        let length = match bytes {
            ..=16 => 0,
            32 => 1,
            _ => 2,
        };
        let first = (!number >> 3 & 1) << 7 | 0x40 | (!number >> 4 & 1) << 4 | 1;
        self.bytes(&[0x62, first, wide << 7 | 0x7c | code, 8 | length << 5, 0x11]);
        // With eight bits, the displacement would count in units of the operand.
        self.bytes_and_u32(&[0x87 | (number & 7) << 3], displacement);
    }

    /// Stores a mask register, eight bytes of it or two, behind the cursor.
    pub fn store_data_mask(&mut self, displacement: u32, wide: bool, register: Register) {
        if !wide {
            // Writes all eight bytes, so that the store meets the guard page at the end of a
            // segment.
            self.bytes(&[0x41, 0xc7]);
            self.at_cursor(0, displacement + 4);
            self.bytes(&[0; 4]);
        }
        self.bytes(&[0xc4, 0xc1, if wide { 0xf8 } else { 0x78 }, 0x91]);
        self.at_cursor(register.number() as u8, displacement);
    }

    /// Writes a timestamp event at the cursor. rax and rdx are saved in the scratch places of rcx
    /// and rdx.
    pub fn record_time(&mut self) {
        self.store_gs(tcb::SCRATCH_RCX, 0);
        self.store_gs(tcb::SCRATCH_RDX, 2);
        // If the segment ends here, this store meets the guard page before the time is read:
        // timestamps must not go backwards.
        self.bytes(&[0x41, 0x89, 0x57, 8]); // mov [r15 + 8], edx
        self.bytes(&[0x0f, 0xae, 0xe8]); // lfence: not before the locked instruction is done
        self.bytes(&[0x0f, 0x31]); // rdtsc
        self.bytes(&[0x0f, 0xae, 0xe8]); // lfence: what follows is done after it
        self.bytes(&[0x41, 0x89, 0x57, 8]); // mov [r15 + 8], edx
        self.bytes(&[0x41, 0x89, 0x47, 4]); // mov [r15 + 4], eax
        self.load_gs(0, tcb::SCRATCH_RCX);
        self.load_gs(2, tcb::SCRATCH_RDX);
        self.bytes_and_u32(&[0x41, 0xc7, 0x07], word::event(word::TIME, 0));
        self.bytes(&[0x4d, 0x8d, 0x7f, 12]);
    }

    /// Switches r15 from the cursor to the application's value.
    pub fn load_app_r15(&mut self) {
        self.store_gs(tcb::CURSOR, 15);
        self.load_gs(15, tcb::APP_R15);
    }

    /// Switches r15 from the application's value to the cursor.
    pub fn load_cursor(&mut self) {
        self.store_gs(tcb::APP_R15, 15);
        self.load_gs(15, tcb::CURSOR);
    }

    /// Spills rcx and rdx for an indirect branch.
    pub fn spill_scratch(&mut self) {
        self.store_gs(tcb::SCRATCH_RCX, 1);
        self.store_gs(tcb::SCRATCH_RDX, 2);
    }

    pub fn reload_scratch(&mut self) {
        self.load_gs(1, tcb::SCRATCH_RCX);
        self.load_gs(2, tcb::SCRATCH_RDX);
    }

    /// Jumps to the application address in rcx through the table: `jmp [table + rdx * 8]`, where
    /// rdx is the low bits of rcx. They come from `pext edx, ecx, gs:[mask]` or, without BMI2,
    /// `movzx edx, cx`, which do not change the flags. The address of a table beyond 2 GiB does not
    /// fit the instruction and is loaded into rcx.
    pub fn jump_indirect(&mut self, table: Table) {
        if table.address == 0 {
            return self.jump_gs(tcb::MISS_ENTRY);
        }
        let low = i32::try_from(table.address);
        if low.is_err() {
            self.store_gs(tcb::SCRATCH_THIRD, 1);
        }
        if table.by_pext {
            self.bytes_and_u32(&[0x65, 0xc4, 0xe2, 0x72, 0xf5, 0x14, 0x25], tcb::TABLE_MASK);
        } else {
            self.bytes(&[0x0f, 0xb7, 0xd1]);
        }
        match low {
            Ok(address) => self.bytes_and_u32(&[0xff, 0x24, 0xd5], address as u32),
            Err(_) => {
                self.load_constant(1, table.address);
                self.bytes(&[0x48, 0x8d, 0x14, 0xd1]); // lea rdx, [rcx + rdx * 8]
                self.load_gs(1, tcb::SCRATCH_THIRD);
                self.bytes(&[0xff, 0x22]); // jmp [rdx]
            }
        }
    }

    /// An exit stub, which leaves the code cache with the number of an exit: `mov gs:[..], rcx; mov
    /// ecx, number; jmp gs:[entry]`.
    pub fn exit_stub(&mut self, exit: u32) {
        self.store_gs(tcb::SCRATCH_RCX, 1);
        self.bytes_and_u32(&[0xb9], exit);
        self.jump_gs(tcb::EXIT_ENTRY);
    }

    /// An indirect entry for `target`: goes to the dispatcher unless rcx is the target, and
    /// restores rcx and rdx.
    pub fn indirect_entry(&mut self, target: AppPc) {
        self.load_constant(2, target.get().wrapping_neg());
        self.bytes(&[0x48, 0x8d, 0x0c, 0x11]); // lea rcx, [rcx + rdx]
        self.bytes(&[0xe3, 8]); // jrcxz over the next instruction
        self.jump_gs(tcb::MISMATCH_ENTRY);
        self.reload_scratch();
    }
}

/// Bytes of [`Emitter::exit_stub`].
pub const EXIT_STUB_BYTES: usize = 22;

#[cfg(test)]
mod tests {
    use iced_x86::{Code, Instruction, OpKind, Register};

    use super::*;

    const ADDRESS: CachePc = CachePc::new(0x7000_0000);

    fn emit(write: impl FnOnce(&mut Emitter)) -> (Vec<u8>, Vec<Instruction>) {
        let mut room = [0; 512];
        let mut out = Emitter::new(&mut room, ADDRESS);
        write(&mut out);
        assert!(!out.overflowed());
        let length = out.position();
        let code = room[..length].to_vec();
        let instructions = isa::decoder(AppPc::new(ADDRESS.get()), &code).into_iter().collect();
        (code, instructions)
    }

    fn one(write: impl FnOnce(&mut Emitter)) -> Instruction {
        let (code, instructions) = emit(write);
        assert_eq!(instructions.len(), 1, "{code:x?}");
        assert_eq!(instructions[0].len(), code.len());
        instructions[0]
    }

    const GENERAL: [Register; 16] = [
        Register::RAX,
        Register::RCX,
        Register::RDX,
        Register::RBX,
        Register::RSP,
        Register::RBP,
        Register::RSI,
        Register::RDI,
        Register::R8,
        Register::R9,
        Register::R10,
        Register::R11,
        Register::R12,
        Register::R13,
        Register::R14,
        Register::R15,
    ];

    fn is_gs(instruction: &Instruction, offset: u32) -> bool {
        instruction.memory_segment() == Register::GS
            && instruction.memory_base() == Register::None
            && instruction.memory_index() == Register::None
            && instruction.memory_displacement64() == u64::from(offset)
    }

    #[test]
    fn moves_from_and_to_the_state_of_the_thread() {
        for (number, register) in GENERAL.iter().enumerate() {
            let store = one(|out| out.store_gs(0x128, number as u8));
            assert_eq!((store.code(), store.op1_register()), (Code::Mov_rm64_r64, *register));
            assert!(is_gs(&store, 0x128));
            let load = one(|out| out.load_gs(number as u8, 0x7f8));
            assert_eq!((load.code(), load.op0_register()), (Code::Mov_r64_rm64, *register));
            assert!(is_gs(&load, 0x7f8));
        }
        let jump = one(|out| out.jump_gs(0x20));
        assert_eq!(jump.code(), Code::Jmp_rm64);
        assert!(is_gs(&jump, 0x20));
    }

    #[test]
    fn constants() {
        for (number, register) in GENERAL[..8].iter().enumerate() {
            let load = one(|out| out.load_constant(number as u8, 0xfedc_ba98_7654_3210));
            assert_eq!((load.code(), load.op0_register()), (Code::Mov_r64_imm64, *register));
            assert_eq!(load.immediate64(), 0xfedc_ba98_7654_3210);
        }
    }

    #[test]
    fn jumps_lead_to_their_target() {
        for target in [ADDRESS, ADDRESS + 2, ADDRESS + 0x7000_0000, ADDRESS - 0x6000_0000] {
            assert_eq!(one(|out| _ = out.jump(target)).near_branch_target(), target.get());
            for condition in 0..16 {
                let jump = one(|out| _ = out.jump_if(condition, target));
                assert_eq!(jump.near_branch_target(), target.get());
                assert_eq!(jump.condition_code() as u8, condition + 1, "in the order of machine code, after None");
            }
        }
        let (_, instructions) = emit(|out| {
            let site = out.jump_ahead();
            out.bytes(&[0x90; 9]);
            out.land(site);
            out.bytes(&[0xc3]);
        });
        assert_eq!(instructions[0].near_branch_target(), (ADDRESS + 14).get());
    }

    #[test]
    fn patchable_displacements_lie_in_eight_aligned_bytes() {
        for before in 0..64 {
            let (_, instructions) = emit(|out| {
                out.bytes(&vec![0x90; before]);
                let position = out.jump_patchable(ADDRESS);
                let site = ADDRESS.get() + position as u64;
                assert_eq!(site / 8, (site + 3) / 8);
            });
            assert_eq!(instructions.last().unwrap().near_branch_target(), ADDRESS.get());
        }
    }

    #[test]
    fn pushed_constants() {
        for value in [0, 5, 0x7fff_ffff, u64::MAX, (i32::MIN as i64) as u64] {
            let mut position = Some(0);
            let push = one(|out| position = out.push_constant(value));
            assert_eq!((position, push.code()), (None, Code::Pushq_imm32));
            assert_eq!(push.immediate(0), value);
        }
        for value in [0x8000_0000, 0x5555_5555_5555] {
            let mut position = None;
            let (code, instructions) = emit(|out| {
                position = out.push_constant(value);
                out.bytes(&[0x90; 3]);
                out.land(position.unwrap());
                out.bytes(&value.to_le_bytes());
            });
            assert_eq!(instructions[0].code(), Code::Push_rm64);
            let literal = (instructions[0].ip_rel_memory_address() - ADDRESS.get()) as usize;
            assert_eq!(code[literal..literal + 8], value.to_le_bytes());
        }
    }

    #[test]
    fn a_word_is_written_before_the_cursor_moves() {
        let (_, instructions) = emit(|out| out.record(0x1234_5678, 0));
        let [store, advance] = instructions[..] else { panic!("{instructions:?}") };
        assert_eq!((store.code(), store.memory_base()), (Code::Mov_rm32_imm32, Register::R15));
        assert_eq!((store.memory_displacement64(), store.immediate32()), (0, 0x1234_5678));
        assert_eq!((advance.code(), advance.op0_register()), (Code::Lea_r64_m, Register::R15));
        assert_eq!((advance.memory_base(), advance.memory_displacement64()), (Register::R15, 4));
    }

    #[test]
    fn the_first_word_of_the_time_is_written_last() {
        let (_, instructions) = emit(|out| out.record_time());
        let stores: Vec<u64> = instructions
            .iter()
            .filter(|instruction| {
                instruction.op0_kind() == OpKind::Memory && instruction.memory_base() == Register::R15
            })
            .map(Instruction::memory_displacement64)
            .collect();
        // The first one is only there to meet the end of the segment before the time is taken.
        assert_eq!(stores, [8, 8, 4, 0]);
        let advance = instructions.last().unwrap();
        let words = word::length(word::event(word::TIME, 0)).unwrap() as u64;
        assert_eq!((advance.code(), advance.memory_displacement64()), (Code::Lea_r64_m, 4 * words));
    }

    /// Flags are the application's all the time.
    #[test]
    fn nothing_changes_flags() {
        let table = |address, by_pext| Table { address, by_pext };
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
    fn the_table_is_indexed_by_low_bits() {
        for by_pext in [true, false] {
            let table = Table { address: 0x6000_0000, by_pext };
            let (_, instructions) = emit(|out| out.jump_indirect(table));
            let [index, jump] = instructions[..] else { panic!("{instructions:?}") };
            if by_pext {
                assert_eq!(index.code(), Code::VEX_Pext_r32_r32_rm32);
                assert!(is_gs(&index, tcb::TABLE_MASK));
            } else {
                assert_eq!(index.code(), Code::Movzx_r32_rm16);
            }
            assert_eq!(jump.code(), Code::Jmp_rm64);
            assert_eq!((jump.memory_index(), jump.memory_index_scale()), (Register::RDX, 8));
            assert_eq!(jump.memory_displacement64(), table.address);
            assert!((table.mask() + 1).is_power_of_two() && (table.mask() + 1) * 8 <= wire::TABLE_BYTES as u64);
            assert_eq!(table.index(AppPc::new(0x7fff_1234_5678)), (0x7fff_1234_5678 & table.mask()) as usize);
            assert_eq!(table.index(AppPc::new(u64::MAX)), table.mask() as usize);
        }
    }

    #[test]
    fn a_table_beyond_two_gigabytes_is_reached_by_way_of_rcx() {
        for address in [0x8000_0000, 0xffff_f000, 0x5500_0000_0000] {
            let (_, instructions) = emit(|out| out.jump_indirect(Table { address, by_pext: true }));
            let [save, index, constant, entry, restore, jump] = instructions[..] else { panic!("{instructions:?}") };
            assert!(is_gs(&save, tcb::SCRATCH_THIRD) && save.op1_register() == Register::RCX);
            assert_eq!(index.code(), Code::VEX_Pext_r32_r32_rm32);
            assert_eq!((constant.op0_register(), constant.immediate64()), (Register::RCX, address));
            assert_eq!((entry.code(), entry.op0_register()), (Code::Lea_r64_m, Register::RDX));
            assert_eq!((entry.memory_base(), entry.memory_index()), (Register::RCX, Register::RDX));
            assert_eq!((entry.memory_index_scale(), entry.memory_displacement64()), (8, 0));
            assert!(is_gs(&restore, tcb::SCRATCH_THIRD) && restore.op0_register() == Register::RCX);
            assert_eq!((jump.code(), jump.memory_base()), (Code::Jmp_rm64, Register::RDX));
            assert_eq!((jump.memory_index(), jump.memory_displacement64()), (Register::None, 0));
        }
    }

    #[test]
    fn exit_stubs_have_a_fixed_size() {
        let (code, instructions) = emit(|out| out.exit_stub(0x1234));
        assert_eq!(code.len(), EXIT_STUB_BYTES);
        assert_eq!(instructions[1].immediate32(), 0x1234);
        assert!(is_gs(&instructions[2], tcb::EXIT_ENTRY));
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
