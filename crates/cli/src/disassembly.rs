//! Disassembles instructions in the spelling of the theses (that of Pin's disassembler): Intel
//! operands, `0x` numbers, and `jnbe`, `jnb`, `jz` rather than `ja`, `jae`, `je`.

use iced_x86::{
    CC_a, CC_ae, CC_b, CC_be, CC_e, CC_g, CC_ge, CC_l, CC_le, CC_ne, CC_np, CC_p, Formatter, Instruction,
    IntelFormatter, MemorySizeOptions, Mnemonic,
};
use trace::AppPc;

/// A disassembler with its formatters.
pub struct Disassembler {
    plain: IntelFormatter,
    /// For `loope` and `loopne`, which the theses spell with an e although their jumps have a z.
    loops: IntelFormatter,
    instruction: Instruction,
}

impl Disassembler {
    pub fn new() -> Self {
        let mut loops = formatter();
        loops.options_mut().set_cc_e(CC_e::e);
        loops.options_mut().set_cc_ne(CC_ne::ne);
        Self { plain: formatter(), loops, instruction: Instruction::default() }
    }

    /// Appends the text of one instruction.
    pub fn append(&mut self, address: AppPc, bytes: &[u8], text: &mut String) {
        isa::decoder(address, bytes).decode_out(&mut self.instruction);
        let formatter = match self.instruction.mnemonic() {
            Mnemonic::Loope | Mnemonic::Loopne => &mut self.loops,
            _ => &mut self.plain,
        };
        formatter.format(&self.instruction, text);
    }
}

fn formatter() -> IntelFormatter {
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_branch_leading_zeros(false);
    options.set_show_branch_size(false);
    options.set_space_after_operand_separator(true);
    options.set_memory_size_options(MemorySizeOptions::Always);
    options.set_rip_relative_addresses(true);
    options.set_cc_b(CC_b::b);
    options.set_cc_ae(CC_ae::nb);
    options.set_cc_e(CC_e::z);
    options.set_cc_ne(CC_ne::nz);
    options.set_cc_be(CC_be::be);
    options.set_cc_a(CC_a::nbe);
    options.set_cc_p(CC_p::p);
    options.set_cc_np(CC_np::np);
    options.set_cc_l(CC_l::l);
    options.set_cc_ge(CC_ge::nl);
    options.set_cc_le(CC_le::le);
    options.set_cc_g(CC_g::nle);
    formatter
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: u64, bytes: &[u8], expected: &str) {
        let mut text = String::new();
        Disassembler::new().append(AppPc::new(address), bytes, &mut text);
        assert_eq!(text, expected);
    }

    /// Figures 4.2, 4.8, 4.10 and 4.12 of Myers 2014.
    #[test]
    fn instructions_are_spelled_as_in_the_seed() {
        check(0x3f_8320_0b03, &[0xe8, 0x28, 0x06, 0x00, 0x00], "call 0x3f83201130");
        check(0x4004d3, &[0x0f, 0x87, 0xc5, 0x00, 0x00, 0x00], "jnbe 0x40059e");
        check(0x4004d9, &[0x0f, 0x83, 0xbf, 0x00, 0x00, 0x00], "jnb 0x40059e");
        check(0x400572, &[0xe2, 0xfe], "loop 0x400572");
        check(0x40057b, &[0xe1, 0xfe], "loope 0x40057b");
        check(0x40057b, &[0xe0, 0xfe], "loopne 0x40057b");
        check(0x40058f, &[0xeb, 0x03], "jmp 0x400594");
        check(0x40059f, &[0xc3], "ret");
        check(0x4004f5, &[0x74, 0x00], "jz 0x4004f7");
        check(0x400511, &[0xff, 0xd0], "call rax");
    }

    #[test]
    fn all_conditions_are_spelled_as_in_the_seed() {
        let names = "jo jno jb jnb jz jnz jbe jnbe js jns jp jnp jl jnl jle jnle";
        for (code, name) in (0x70..).zip(names.split(' ')) {
            check(0x10, &[code, 0x00], &format!("{name} 0x12"));
        }
        check(0x10, &[0xe3, 0x00], "jrcxz 0x12");
    }

    #[test]
    fn operands_are_spelled_as_in_the_seed() {
        check(0, &[0x48, 0xc7, 0xc0, 0x02, 0x00, 0x00, 0x00], "mov rax, 0x2");
        check(0, &[0xc7, 0x44, 0x24, 0xf8, 0x0a, 0x00, 0x00, 0x00], "mov dword ptr [rsp-0x8], 0xa");
        check(0, &[0x48, 0x8b, 0x05, 0x10, 0x00, 0x00, 0x00], "mov rax, qword ptr [rip+0x10]");
        check(0, &[0x06], "(bad)");
    }
}
