//! How control leaves a fragment and enters one: exit stubs, jumps through the indirect-branch
//! table, and indirect entries. rcx, and rdx of an indirect branch, are in their scratch places
//! meanwhile.

use entity::AppPc;

use super::Emitter;
use crate::tcb;

/// The indirect-branch table: addresses of indirect entries, indexed by the low bits of the
/// application address.
#[derive(Clone, Copy, Debug)]
pub struct IndirectTable {
    /// Address of the table. 0 for none: all indirect exits go to the dispatcher.
    pub address: u64,
    pub by_pext: bool,
}

impl IndirectTable {
    /// Index of the slot of an application address.
    pub fn index(self, address: AppPc) -> usize {
        (address.get() & self.mask()) as usize
    }

    /// The low address bits that make up the index.
    pub fn mask(self) -> u64 {
        if self.by_pext { wire::TABLE_BYTES as u64 / 8 - 1 } else { 0xffff }
    }
}

/// Bytes of [`Emitter::exit_stub`].
pub const EXIT_STUB_BYTES: usize = 22;

impl Emitter<'_> {
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
    pub fn jump_indirect(&mut self, table: IndirectTable) {
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

#[cfg(test)]
mod tests {
    use iced_x86::{Code, Register};

    use super::super::testing::{emit, is_gs};
    use super::*;

    #[test]
    fn the_table_is_indexed_by_low_bits() {
        for by_pext in [true, false] {
            let table = IndirectTable { address: 0x6000_0000, by_pext };
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
    fn a_table_beyond_two_gigabytes_is_reached_through_rcx() {
        for address in [0x8000_0000, 0xffff_f000, 0x5500_0000_0000] {
            let (_, instructions) = emit(|out| out.jump_indirect(IndirectTable { address, by_pext: true }));
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
}
