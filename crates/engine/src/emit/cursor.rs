//! What is written at the cursor: the word of a path, the data behind it, and timestamps. r15 holds
//! the cursor, except while the application's code uses it.

use iced_x86::Register;
use wire::word;

use super::Emitter;
use crate::tcb;

impl Emitter<'_> {
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
}

#[cfg(test)]
mod tests {
    use iced_x86::{Code, Instruction, OpKind, Register};
    use wire::word;

    use super::super::testing::emit;

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
}
