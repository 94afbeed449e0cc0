//! Chains worked out by hand, and chains of random paths compared with a naive model: dependences
//! pair by pair, and memory byte by byte.

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register, RflagsBits};
use proptest::prelude::*;
use trace::{AppPc, BlockId, BlockIndex, DataMode, LiveTrace};
use trackway_segment::DependenceChains;

/// Makes each instruction a block; blocks follow each other.
fn blocks<'i>(instructions: impl IntoIterator<Item = &'i [u8]>) -> LiveTrace {
    let mut live = LiveTrace::new(DataMode::None);
    let mut address = 0x1000;
    for (id, bytes) in (0..).zip(instructions) {
        live.block(0, BlockId::new(id), AppPc::new(address), bytes).unwrap();
        address += bytes.len() as u64;
    }
    live
}

fn longest(chains: &mut DependenceChains<'_>, path: impl IntoIterator<Item = u32>) -> u32 {
    chains.longest(path.into_iter().map(|block| (BlockIndex(block), 0)))
}

/// Checks chains. Each instruction is preceded by the length of the longest chain that ends with
/// it.
#[track_caller]
fn check(instructions: &[(u32, &[u8])]) {
    let live = blocks(instructions.iter().map(|&(_, bytes)| bytes));
    let mut chains = DependenceChains::new(live.blocks());
    let mut expected = 0;
    for ((depth, bytes), count) in instructions.iter().zip(1..) {
        expected = expected.max(*depth);
        assert_eq!(longest(&mut chains, 0..count), expected, "up to {bytes:02x?}");
    }
}

#[test]
fn a_path_through_blocks() {
    let mut live = LiveTrace::new(DataMode::None);
    // inc eax; dec eax; jne to the dec
    live.block(0, BlockId::new(0), AppPc::new(0x1000), &[0xff, 0xc0, 0xff, 0xc8, 0x75, 0xfc]).unwrap();
    // inc ecx; nop
    live.block(0, BlockId::new(1), AppPc::new(0x2000), &[0xff, 0xc1, 0x90]).unwrap();
    let mut chains = DependenceChains::new(live.blocks());
    let mut longest =
        |path: &[(u32, u32)]| chains.longest(path.iter().map(|&(block, place)| (BlockIndex(block), place)));
    assert_eq!(longest(&[]), 0);
    assert_eq!(longest(&[(1, 1)]), 1);
    assert_eq!(longest(&[(0, 0), (0, 1), (0, 2)]), 3);
    assert_eq!(longest(&[(0, 1), (0, 2), (0, 1), (0, 2), (0, 1), (0, 2)]), 4);
    assert_eq!(longest(&[(1, 0), (0, 0), (1, 0)]), 2);
    // Unknown instructions.
    assert_eq!(longest(&[(1, 2), (2, 0), (u32::MAX, u32::MAX)]), 1);
}

#[test]
fn an_instruction_is_a_chain_of_one() {
    check(&[
        (1, &[0xb8, 5, 0, 0, 0]), // mov eax, 5
    ]);
    // Values from before the path are available at once.
    check(&[
        (1, &[0x72, 0xfe]),       // jc .
        (1, &[0x48, 1, 0xd8]),    // add rax, rbx
        (1, &[0x48, 0x8b, 0x0a]), // mov rcx, [rdx]
    ]);
    check(&[
        (1, &[0x90]),                   // nop
        (1, &[0x66, 0x0f, 0x1f, 4, 0]), // nop word ptr [rax+rax]
        (1, &[0xf3, 0x0f, 0x1e, 0xfa]), // endbr64
    ]);
}

#[test]
fn registers_are_renamed() {
    check(&[
        (1, &[0xb8, 1, 0, 0, 0]), // mov eax, 1
        (2, &[1, 0xd8]),          // add eax, ebx
        (3, &[1, 0xc1]),          // add ecx, eax
    ]);
    // rax is used again for something else.
    check(&[
        (1, &[0xb8, 1, 0, 0, 0]), // mov eax, 1
        (2, &[0x89, 0xc1]),       // mov ecx, eax
        (1, &[0xb8, 2, 0, 0, 0]), // mov eax, 2
        (2, &[0x89, 0xc2]),       // mov edx, eax
    ]);
    // A write after a read, and a write after a write.
    check(&[
        (1, &[0x48, 0x8d, 0x0c, 0x18]), // lea rcx, [rax+rbx]
        (1, &[0xb8, 7, 0, 0, 0]),       // mov eax, 7
        (1, &[0xb8, 8, 0, 0, 0]),       // mov eax, 8
        (2, &[0x48, 0x8d, 0x14, 8]),    // lea rdx, [rax+rcx]
    ]);
    // Vector registers of all widths are one.
    check(&[
        (1, &[0xc5, 0xec, 0x58, 0xcb]), // vaddps ymm1, ymm2, ymm3
        (2, &[0x0f, 0x58, 0xe1]),       // addps xmm4, xmm1
    ]);
    check(&[
        (1, &[0xc5, 0xec, 0x41, 0xcb]),             // kandw k1, k2, k3
        (2, &[0x62, 0xf1, 0x6c, 0xc9, 0x58, 0xcb]), // vaddps zmm1 {k1}{z}, zmm2, zmm3
    ]);
}

#[test]
fn parts_of_registers_keep_the_rest() {
    check(&[
        (1, &[0x48, 0x8b, 7]), // mov rax, [rdi]
        (2, &[0xb0, 1]),       // mov al, 1
    ]);
    check(&[
        (1, &[0x48, 0x8b, 7]),    // mov rax, [rdi]
        (2, &[0x66, 0x89, 0xd8]), // mov ax, bx
    ]);
    // 32 bits clear the rest.
    check(&[
        (1, &[0x48, 0x8b, 7]), // mov rax, [rdi]
        (1, &[0x89, 0xd8]),    // mov eax, ebx
    ]);
    check(&[
        (1, &[0x48, 0x8b, 7]),    // mov rax, [rdi]
        (1, &[0x39, 0xcb]),       // cmp ebx, ecx
        (2, &[0x0f, 0x94, 0xc0]), // sete al
        (3, &[0x0f, 0xb6, 0xc0]), // movzx eax, al
    ]);
    // The move needs its destination, too.
    check(&[
        (1, &[0x48, 0x8b, 7]),          // mov rax, [rdi]
        (2, &[0x48, 0xff, 0xc0]),       // inc rax
        (3, &[0x48, 0x0f, 0x44, 0xc3]), // cmove rax, rbx
    ]);
}

#[test]
fn zeroing_ends_chains() {
    check(&[
        (1, &[0x8b, 7]),       // mov eax, [rdi]
        (2, &[0x83, 0xc0, 1]), // add eax, 1
        (1, &[0x31, 0xc0]),    // xor eax, eax
        (2, &[1, 0xd8]),       // add eax, ebx
        (3, &[0x89, 0xc1]),    // mov ecx, eax
    ]);
    check(&[
        (1, &[0x0f, 0x58, 0xca]),       // addps xmm1, xmm2
        (1, &[0x66, 0x0f, 0xef, 0xc9]), // pxor xmm1, xmm1
        (2, &[0x0f, 0x58, 0xcb]),       // addps xmm1, xmm3
    ]);
    check(&[
        (1, &[0x0f, 0x58, 0xca]),       // addps xmm1, xmm2
        (1, &[0xc5, 0xf1, 0xef, 0xd9]), // vpxor xmm3, xmm1, xmm1
        (1, &[0x66, 0x0f, 0x76, 0xc9]), // pcmpeqd xmm1, xmm1
        (2, &[0x0f, 0x58, 0xcb]),       // addps xmm1, xmm3
    ]);
}

#[test]
fn flags_in_groups() {
    check(&[
        (1, &[0x39, 0xd8]), // cmp eax, ebx
        (2, &[0x75, 0xfe]), // jne .
    ]);
    // inc keeps the carry flag, which is from the comparison.
    check(&[
        (1, &[0x39, 0xd8]), // cmp eax, ebx
        (1, &[0xff, 0xc1]), // inc ecx
        (2, &[0xff, 0xc1]), // inc ecx
        (2, &[0x72, 0xfe]), // jc .
    ]);
    // But it writes the zero flag.
    check(&[
        (1, &[0x39, 0xd8]), // cmp eax, ebx
        (1, &[0xff, 0xc1]), // inc ecx
        (2, &[0xff, 0xc1]), // inc ecx
        (3, &[0x74, 0xfe]), // je .
    ]);
    // Sums over several words: the carry goes on, inc and lea do not touch it.
    check(&[
        (1, &[0x48, 1, 0xd8]),    // add rax, rbx
        (1, &[0x48, 0xff, 0xc6]), // inc rsi
        (2, &[0x48, 0x11, 0xd1]), // adc rcx, rdx
        (1, &[0x48, 0xff, 0xc7]), // inc rdi
        (3, &[0x4d, 0x11, 0xc8]), // adc r8, r9
    ]);
    // Two sums side by side.
    check(&[
        (1, &[0x66, 0x48, 0x0f, 0x38, 0xf6, 0xc3]), // adcx rax, rbx
        (1, &[0xf3, 0x48, 0x0f, 0x38, 0xf6, 0xca]), // adox rcx, rdx
        (2, &[0x66, 0x4c, 0x0f, 0x38, 0xf6, 0xc6]), // adcx r8, rsi
        (2, &[0xf3, 0x4c, 0x0f, 0x38, 0xf6, 0xcf]), // adox r9, rdi
    ]);
    // bt does not write the zero flag.
    check(&[
        (1, &[0x85, 0xc0]),          // test eax, eax
        (1, &[0x0f, 0xba, 0xe1, 3]), // bt ecx, 3
        (2, &[0x74, 0xfe]),          // je .
    ]);
}

#[test]
fn x87_is_one_register() {
    check(&[
        (1, &[0xdd, 0]),    // fld qword ptr [rax]
        (2, &[0xdd, 3]),    // fld qword ptr [rbx]
        (3, &[0xde, 0xc1]), // faddp
    ]);
}

#[test]
fn loads_need_stores() {
    check(&[
        (1, &[0x89, 0x47, 8]), // mov [rdi+8], eax
        (2, &[0x8b, 0x4f, 8]), // mov ecx, [rdi+8]
    ]);
    // Beside it.
    check(&[
        (1, &[0x89, 0x47, 8]),    // mov [rdi+8], eax
        (1, &[0x8b, 0x4f, 0x0c]), // mov ecx, [rdi+12]
    ]);
    // A part of it.
    check(&[
        (1, &[0x48, 0x89, 0x47, 8]),    // mov [rdi+8], rax
        (2, &[0x0f, 0xb6, 0x4f, 0x0f]), // movzx ecx, byte ptr [rdi+15]
    ]);
    // Another expression is another place.
    check(&[
        (1, &[0x89, 0x47, 8]),       // mov [rdi+8], eax
        (1, &[0x8b, 0x4e, 8]),       // mov ecx, [rsi+8]
        (1, &[0x8b, 0x14, 0x1f]),    // mov edx, [rdi+rbx]
        (1, &[0x64, 0x8b, 0x6f, 8]), // mov ebp, fs:[rdi+8]
    ]);
    // Another version of the register.
    check(&[
        (1, &[0x48, 0x8b, 0x3f]), // mov rdi, [rdi]
        (2, &[0x89, 7]),          // mov [rdi], eax
        (1, &[0x48, 0x8b, 0x3e]), // mov rdi, [rsi]
        (2, &[0x8b, 0x0f]),       // mov ecx, [rdi]
        (3, &[0x89, 0xca]),       // mov edx, ecx
    ]);
    // The same one.
    check(&[
        (1, &[0x48, 0x8b, 0x3f]), // mov rdi, [rdi]
        (2, &[0x89, 7]),          // mov [rdi], eax
        (3, &[0x8b, 0x0f]),       // mov ecx, [rdi]
        (4, &[0x89, 0xca]),       // mov edx, ecx
    ]);
    // With an index.
    check(&[
        (1, &[0x89, 0x44, 0xb7, 4]), // mov [rdi+rsi*4+4], eax
        (2, &[0x8b, 0x4c, 0xb7, 4]), // mov ecx, [rdi+rsi*4+4]
        (1, &[0x8b, 0x4c, 0xf7, 4]), // mov ecx, [rdi+rsi*8+4]
    ]);
    // Addresses relative to rip, of the same global, from different instructions.
    check(&[
        (1, &[0x89, 5, 0, 1, 0, 0]),       // mov [rip+0x100], eax
        (2, &[0x8b, 0x0d, 0xfa, 0, 0, 0]), // mov ecx, [rip+0xfa]
    ]);
    // Only the last store to a byte counts.
    check(&[
        (1, &[0x8b, 6]),             // mov eax, [rsi]
        (2, &[0x89, 7]),             // mov [rdi], eax
        (1, &[0xc7, 7, 0, 0, 0, 0]), // mov dword ptr [rdi], 0
        (2, &[0x8b, 0x0f]),          // mov ecx, [rdi]
    ]);
    // A load of bytes from two stores needs both.
    check(&[
        (1, &[0x8b, 6]),             // mov eax, [rsi]
        (2, &[0x48, 0x89, 7]),       // mov [rdi], rax
        (1, &[0xc7, 7, 0, 0, 0, 0]), // mov dword ptr [rdi], 0
        (3, &[0x48, 0x8b, 0x0f]),    // mov rcx, [rdi]
    ]);
    // Reads, adds, writes.
    check(&[
        (1, &[1, 7]),       // add [rdi], eax
        (2, &[1, 0x1f]),    // add [rdi], ebx
        (3, &[0x8b, 0x0f]), // mov ecx, [rdi]
    ]);
    // A masked store may leave what was there.
    check(&[
        (1, &[0x8b, 6]),                            // mov eax, [rsi]
        (2, &[0x89, 7]),                            // mov [rdi], eax
        (1, &[0x62, 0xf1, 0x7c, 0x49, 0x11, 0x0f]), // vmovups [rdi] {k1}, zmm1
        (3, &[0x8b, 0x0f]),                         // mov ecx, [rdi]
        (4, &[0x89, 0xca]),                         // mov edx, ecx
    ]);
}

#[test]
fn addresses_with_known_changes() {
    // A constant is added: the place is the same.
    check(&[
        (1, &[0x8b, 6]),             // mov eax, [rsi]
        (2, &[0x89, 0x47, 8]),       // mov [rdi+8], eax
        (1, &[0x48, 0x83, 0xc7, 8]), // add rdi, 8
        (3, &[0x8b, 0x0f]),          // mov ecx, [rdi]
    ]);
    check(&[
        (1, &[0x8b, 6]),                // mov eax, [rsi]
        (2, &[0x89, 0x47, 8]),          // mov [rdi+8], eax
        (1, &[0x48, 0x8d, 0x77, 0x0c]), // lea rsi, [rdi+12]
        (3, &[0x8b, 0x4e, 0xfc]),       // mov ecx, [rsi-4]
    ]);
    // As an index.
    check(&[
        (1, &[0x8b, 3]),             // mov eax, [rbx]
        (2, &[0x89, 4, 0xce]),       // mov [rsi+rcx*8], eax
        (1, &[0x48, 0xff, 0xc9]),    // dec rcx
        (3, &[0x8b, 0x54, 0xce, 8]), // mov edx, [rsi+rcx*8+8]
    ]);
    // 32 bits are another value.
    check(&[
        (1, &[0x8b, 6]),       // mov eax, [rsi]
        (2, &[0x89, 0x47, 8]), // mov [rdi+8], eax
        (1, &[0x83, 0xc7, 8]), // add edi, 8
        (2, &[0x8b, 0x0f]),    // mov ecx, [rdi]
    ]);
    // The addition itself takes time, other than with rsp.
    check(&[
        (1, &[0x48, 0xff, 0xc7]), // inc rdi
        (2, &[0x48, 0xff, 0xcf]), // dec rdi
        (3, &[0x89, 7]),          // mov [rdi], eax
    ]);
}

#[test]
fn the_stack_pointer_is_no_chain() {
    check(&[
        (1, &[0x50]),                         // push rax
        (1, &[0x53]),                         // push rbx
        (1, &[0x51]),                         // push rcx
        (1, &[0x48, 0x83, 0xec, 0x28]),       // sub rsp, 40
        (1, &[0x48, 0x8d, 0x64, 0x24, 0xf8]), // lea rsp, [rsp-8]
        (1, &[0x52]),                         // push rdx
    ]);
    // What is popped was not pushed on this path.
    check(&[
        (1, &[0x58]),                // pop rax
        (1, &[0x5b]),                // pop rbx
        (1, &[0x48, 0x83, 0xc4, 8]), // add rsp, 8
        (1, &[0x59]),                // pop rcx
    ]);
    // add rsp writes flags like any other.
    check(&[
        (1, &[0x48, 0x83, 0xc4, 8]), // add rsp, 8
        (2, &[0x74, 0xfe]),          // je .
    ]);
    // Its value may still have to be computed.
    check(&[
        (1, &[0x48, 0x89, 0xec]),       // mov rsp, rbp
        (2, &[0x48, 0x83, 0xe4, 0xf0]), // and rsp, -16
        (3, &[0x50]),                   // push rax
    ]);
    check(&[
        (1, &[0x48, 0x89, 0xec]), // mov rsp, rbp
        (2, &[0x50]),             // push rax
        (2, &[0x53]),             // push rbx
        (3, &[0x59]),             // pop rcx
    ]);
    // pop rsp loads it.
    check(&[
        (1, &[0x5c]), // pop rsp
        (2, &[0x50]), // push rax
    ]);
}

#[test]
fn values_go_over_the_stack() {
    check(&[
        (1, &[0x48, 0x8b, 7]),    // mov rax, [rdi]
        (2, &[0x50]),             // push rax
        (3, &[0x5b]),             // pop rbx
        (4, &[0x48, 0x89, 0xd9]), // mov rcx, rbx
    ]);
    // In the other order.
    check(&[
        (1, &[0x50]),          // push rax
        (1, &[0x53]),          // push rbx
        (2, &[0x58]),          // pop rax
        (2, &[0x5b]),          // pop rbx
        (3, &[0x48, 1, 0xd8]), // add rax, rbx
    ]);
    // At another depth.
    check(&[
        (1, &[0x50]),                         // push rax
        (1, &[0x48, 0x83, 0xec, 0x10]),       // sub rsp, 16
        (2, &[0x48, 0x8b, 0x4c, 0x24, 0x10]), // mov rcx, [rsp+16]
        (1, &[0x48, 0x83, 0xc4, 0x10]),       // add rsp, 16
        (2, &[0x5b]),                         // pop rbx
        (3, &[0x48, 0x8d, 0x14, 0x0b]),       // lea rdx, [rbx+rcx]
    ]);
    // push of a place, pop to a place.
    check(&[
        (1, &[0xff, 0x37]),    // push qword ptr [rdi]
        (2, &[0x8f, 6]),       // pop qword ptr [rsi]
        (3, &[0x48, 0x8b, 6]), // mov rax, [rsi]
    ]);
    // Other expressions for a frame.
    check(&[
        (1, &[0x48, 0x8b, 0x1f]),          // mov rbx, [rdi]
        (1, &[0x55]),                      // push rbp
        (1, &[0x48, 0x89, 0xe5]),          // mov rbp, rsp
        (2, &[0x53]),                      // push rbx
        (2, &[0x48, 0x8b, 0x4c, 0x24, 8]), // mov rcx, [rsp+8]
        (3, &[0x48, 0x8b, 0x45, 0xf8]),    // mov rax, [rbp-8]
    ]);
    // leave: rsp is rbp + 8, and rbp what was pushed. ret finds what call has stored.
    check(&[
        (1, &[0xe8, 0xfb, 0xff, 0xff, 0xff]), // call .
        (1, &[0x55]),                         // push rbp
        (1, &[0x48, 0x89, 0xe5]),             // mov rbp, rsp
        (1, &[0x48, 0x83, 0xec, 0x20]),       // sub rsp, 32
        (2, &[0xc9]),                         // leave
        (3, &[0xc3]),                         // ret
    ]);
    check(&[
        (1, &[0x48, 0x8b, 7]),          // mov rax, [rdi]
        (2, &[0x48, 0x8d, 0x40, 8]),    // lea rax, [rax+8]
        (3, &[0x50]),                   // push rax
        (1, &[0x55]),                   // push rbp
        (1, &[0x48, 0x89, 0xe5]),       // mov rbp, rsp
        (1, &[0x48, 0x83, 0xec, 0x20]), // sub rsp, 32
        (2, &[0xc9]),                   // leave
        (4, &[0x59]),                   // pop rcx
    ]);
    check(&[
        (1, &[0xe8, 0xfb, 0xff, 0xff, 0xff]), // call .
        (1, &[0xe8, 0xfb, 0xff, 0xff, 0xff]), // call .
        (2, &[0xc3]),                         // ret
        (2, &[0xc2, 0x10, 0]),                // ret 16
        (1, &[0xe8, 0xfb, 0xff, 0xff, 0xff]), // call .
        (2, &[0xc3]),                         // ret
    ]);
    // A call through a register needs it.
    check(&[
        (1, &[0x48, 0x8b, 7]), // mov rax, [rdi]
        (2, &[0xff, 0xd0]),    // call rax
        (3, &[0xc3]),          // ret
    ]);
    check(&[
        (1, &[0x48, 0x89, 0x5f, 8]), // mov [rdi+8], rbx
        (2, &[0xff, 0x57, 8]),       // call [rdi+8]
        (3, &[0xc3]),                // ret
    ]);
    // Flags, too.
    check(&[
        (1, &[0x39, 0xd8]), // cmp eax, ebx
        (2, &[0x9c]),       // pushfq
        (3, &[0x9d]),       // popfq
    ]);
}

#[test]
fn strings_and_system_calls_are_one_instruction() {
    check(&[
        (1, &[0x48, 0x8d, 0x78, 8]), // lea rdi, [rax+8]
        (2, &[0xf3, 0xa4]),          // rep movsb
        (3, &[0x48, 0x89, 0xfb]),    // mov rbx, rdi
    ]);
    // The first element is seen.
    check(&[
        (1, &[0x88, 6]),    // mov [rsi], al
        (2, &[0xf3, 0xa4]), // rep movsb
        (3, &[0x89, 0xc8]), // mov eax, ecx
    ]);
    check(&[
        (1, &[0xb8, 0x3c, 0, 0, 0]), // mov eax, 60
        (2, &[0x0f, 5]),             // syscall
        (3, &[0x48, 0x85, 0xc0]),    // test rax, rax
    ]);
    check(&[
        (1, &[0x0f, 5]),          // syscall
        (2, &[0x48, 0x89, 0xc8]), // mov rax, rcx
    ]);
}

/// What an instruction without memory operands reads and writes, as `iced_x86` has it and names it.
#[derive(Debug, Default)]
struct Use {
    reads: BTreeSet<String>,
    writes: BTreeSet<String>,
}

impl Use {
    /// `None` for what follows a rule of its own or has to do with memory.
    fn of(instruction: &Instruction) -> Option<Self> {
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(instruction);
        let uses_stack = info.used_registers().iter().any(|used| used.register().full_register() == Register::RSP);
        if instruction.is_invalid() || !info.used_memory().is_empty() || uses_stack || has_own_rule(instruction) {
            return None;
        }
        let mut result = Self::default();
        for used in info.used_registers() {
            let (register, full, access) = (used.register(), used.register().full_register(), used.access());
            if !full.is_gpr64() && !full.is_vector_register() && !full.is_k() {
                continue;
            }
            let name = format!("{full:?}");
            let writes = !matches!(access, OpAccess::Read | OpAccess::CondRead);
            let keeps = register.is_gpr8() || register.is_gpr16() || access != OpAccess::Write;
            if keeps {
                result.reads.insert(name.clone());
            }
            if writes {
                result.writes.insert(name);
            }
        }
        result.add_flags(instruction);
        Some(result)
    }

    fn add_flags(&mut self, instruction: &Instruction) {
        let status = RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::PF;
        for flags in [RflagsBits::CF, RflagsBits::OF, status, RflagsBits::DF] {
            let results = instruction.rflags_written() | instruction.rflags_cleared() | instruction.rflags_set();
            let kept = flags & !instruction.rflags_modified();
            let is_written = results & flags != 0;
            if instruction.rflags_read() & flags != 0 || is_written && kept != 0 {
                self.reads.insert(format!("flags {flags}"));
            }
            if is_written {
                self.writes.insert(format!("flags {flags}"));
            }
        }
    }
}

fn has_own_rule(instruction: &Instruction) -> bool {
    let is_x87 = instruction.cpuid_features().iter().any(|feature| {
        let name = format!("{feature:?}");
        name.starts_with("FPU") || name.contains("MMX") || name.contains("3DNOW")
    });
    let name = format!("{:?}", instruction.mnemonic());
    let compares_vectors = name.contains("Pcmp") || name.contains("pcmp");
    let uses_mm = (0..instruction.op_count()).any(|operand| instruction.op_register(operand).is_mm());
    let others = [Mnemonic::Vzeroupper, Mnemonic::Syscall, Mnemonic::Emms, Mnemonic::Femms];
    is_x87 || compares_vectors || uses_mm || others.contains(&instruction.mnemonic())
}

/// Random instructions without memory operands, and what they do. The registers are few, so that
/// chains are long.
static POOL: LazyLock<(LiveTrace, Vec<Use>)> = LazyLock::new(|| {
    // Prefixes and, of the masks, kandw and what writes under a mask.
    const STARTS: [&[u8]; 10] = [
        &[],
        &[0x48],
        &[0x66],
        &[0x0f],
        &[0x48, 0x0f],
        &[0x66, 0x0f],
        &[0xc5, 0xf1],
        &[0xc4, 0xe2, 0x69],
        &[0xc5, 0xec, 0x41],
        &[0x62, 0xf1, 0x74, 0x49],
    ];
    let mut state = 7u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u8
    };
    let (mut code, mut uses) = (Vec::new(), Vec::new());
    while uses.len() < 3000 {
        let start = STARTS[usize::from(random()) % STARTS.len()];
        let bytes: Vec<u8> = start.iter().copied().chain((0..12).map(|_| random())).collect();
        let instruction = isa::decoder(AppPc::NONE, &bytes).decode();
        if let Some(used) = Use::of(&instruction) {
            code.push(bytes[..instruction.len()].to_vec());
            uses.push(used);
        }
    }
    (blocks(code.iter().map(Vec::as_slice)), uses)
});

/// Returns the longest path through the graph of all pairs of which one needs the other.
fn longest_by_pairs(path: &[&Use]) -> u32 {
    let mut depths: Vec<u32> = Vec::new();
    for (late, used) in path.iter().enumerate() {
        let needs = |early: usize| {
            let is_kept = |name: &&String| !path[early + 1..late].iter().any(|between| between.writes.contains(*name));
            used.reads.intersection(&path[early].writes).any(|name| is_kept(&name))
        };
        let before = (0..late).filter(|&early| needs(early)).map(|early| depths[early]).max();
        depths.push(1 + before.unwrap_or(0));
    }
    depths.into_iter().max().unwrap_or(0)
}

#[test]
fn the_pool_has_all_kinds() {
    let uses = &POOL.1;
    let count = |name: &str| uses.iter().filter(|used| used.writes.contains(name)).count();
    for name in ["RAX", "RCX", "RDI", "ZMM0", "ZMM7", "K1", "flags 1"] {
        assert!(count(name) > 10, "{name}: {}", count(name));
    }
}

/// Moves over the stack, with values of addresses that are known. Registers are `rax`, `rcx`,
/// `rdx`, `rbx`.
#[derive(Clone, Copy, Debug)]
enum Op {
    Push(u8),
    Pop(u8),
    /// `add rsp, n`
    Adjust(i8),
    /// `mov rbp, rsp`
    Frame,
    Store {
        by_frame: bool,
        displacement: i8,
        size: u8,
        register: u8,
    },
    Load {
        by_frame: bool,
        displacement: i8,
        size: u8,
        register: u8,
    },
}

impl Op {
    fn encode(self) -> Vec<u8> {
        match self {
            Self::Push(register) => vec![0x50 + register],
            Self::Pop(register) => vec![0x58 + register],
            Self::Adjust(by) => vec![0x48, 0x83, 0xc4, by as u8],
            Self::Frame => vec![0x48, 0x89, 0xe5],
            Self::Store { by_frame, displacement, size, register } => mov(0x88, by_frame, displacement, size, register),
            Self::Load { by_frame, displacement, size, register } => mov(0x8a, by_frame, displacement, size, register),
        }
    }
}

fn mov(opcode: u8, by_frame: bool, displacement: i8, size: u8, register: u8) -> Vec<u8> {
    let prefix: &[u8] = match size {
        2 => &[0x66],
        8 => &[0x48],
        _ => &[],
    };
    let address: &[u8] = if by_frame { &[0x45 | register << 3] } else { &[0x44 | register << 3, 0x24] };
    [prefix, &[opcode + u8::from(size > 1)], address, &[displacement as u8]].concat()
}

/// Executes moves one by one: who has written which byte and which register.
#[derive(Default)]
struct Machine {
    depths: [u32; 4],
    bytes: HashMap<i64, u32>,
    rsp: i64,
    /// Where `rbp` is, once it is known.
    frame: Option<i64>,
    longest: u32,
}

impl Machine {
    fn execute(&mut self, op: Op) {
        match op {
            Op::Push(register) => {
                self.rsp -= 8;
                self.store(self.rsp, 8, 1 + self.depths[usize::from(register)]);
            }
            Op::Pop(register) => {
                self.load(self.rsp, 8, 0, register);
                self.rsp += 8;
            }
            Op::Adjust(by) => self.rsp += i64::from(by),
            Op::Frame => self.frame = Some(self.rsp),
            Op::Store { by_frame, displacement, size, register } => {
                let (base, depth) = self.base(by_frame);
                let depth = depth.max(self.depths[usize::from(register)]);
                self.store(base + i64::from(displacement), size, 1 + depth);
            }
            Op::Load { by_frame, displacement, size, register } => {
                let (base, depth) = self.base(by_frame);
                self.load(base + i64::from(displacement), size, depth, register);
            }
        }
        self.longest = self.longest.max(1);
    }

    /// Before a frame is made, `rbp` is far from the stack.
    fn base(&self, by_frame: bool) -> (i64, u32) {
        match self.frame {
            Some(frame) if by_frame => (frame, 1),
            None if by_frame => (1 << 40, 0),
            _ => (self.rsp, 0),
        }
    }

    fn store(&mut self, address: i64, size: u8, depth: u32) {
        self.bytes.extend((address..address + i64::from(size)).map(|address| (address, depth)));
        self.longest = self.longest.max(depth);
    }

    fn load(&mut self, address: i64, size: u8, base_depth: u32, register: u8) {
        let bytes = (address..address + i64::from(size)).filter_map(|address| self.bytes.get(&address)).max();
        let depth = &mut self.depths[usize::from(register)];
        let kept = if size < 4 { *depth } else { 0 };
        *depth = 1 + base_depth.max(kept).max(bytes.copied().unwrap_or(0));
        self.longest = self.longest.max(*depth);
    }
}

fn any_op() -> impl Strategy<Value = Op> {
    let place = (any::<bool>(), -40..40i8, prop::sample::select(vec![1, 2, 4, 8]), 0..4u8);
    prop_oneof![
        (0..4u8).prop_map(Op::Push),
        (0..4u8).prop_map(Op::Pop),
        (-3..4i8).prop_map(|slots| Op::Adjust(8 * slots)),
        Just(Op::Frame),
        place.clone().prop_map(|(by_frame, displacement, size, register)| Op::Store {
            by_frame,
            displacement,
            size,
            register
        }),
        place.prop_map(|(by_frame, displacement, size, register)| Op::Load { by_frame, displacement, size, register }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn registers_pair_by_pair(path in prop::collection::vec(0..3000u32, 1..120)) {
        let (live, uses) = &*POOL;
        let expected = longest_by_pairs(&path.iter().map(|&place| &uses[place as usize]).collect::<Vec<_>>());
        let mut chains = DependenceChains::new(live.blocks());
        prop_assert_eq!(longest(&mut chains, path.iter().copied()), expected);
        prop_assert_eq!(longest(&mut chains, path), expected, "nothing is left of the path before");
    }

    #[test]
    fn memory_byte_by_byte(ops in prop::collection::vec(any_op(), 1..150)) {
        let code: Vec<Vec<u8>> = ops.iter().map(|op| op.encode()).collect();
        let live = blocks(code.iter().map(Vec::as_slice));
        let mut machine = Machine::default();
        ops.iter().for_each(|&op| machine.execute(op));
        prop_assert_eq!(longest(&mut DependenceChains::new(live.blocks()), 0..ops.len() as u32), machine.longest);
    }
}
