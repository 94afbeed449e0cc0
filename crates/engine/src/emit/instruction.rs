//! Single instructions that the engine's own code needs.

use super::Emitter;
use crate::cache_pc::CachePc;

impl Emitter<'_> {
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
}

#[cfg(test)]
mod tests {
    use iced_x86::Code;

    use super::super::testing::{ADDRESS, GENERAL, emit, is_gs, one};

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
}
