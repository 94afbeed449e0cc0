//! Accesses to memory of a few instructions at a time, against lists written by hand; and, for
//! whole programs, that no write is missed.
//!
//! The byte at offset `n` of the data is `n % 256`. In the lists, addresses are offsets into the
//! data, and values are numbers.

use std::fmt::Write as _;
use std::process::{Command, Stdio};
use std::{fs, io};

use oracle::{Access, Error, Execution, Exit, StepOptions, single_step};

const DATA: u64 = 0x50_0000;
const DATA_BYTES: usize = 0x3000;
/// In the middle of the data.
const STACK: u64 = DATA + 0x2000;

/// Assembles `code` behind `rbx = DATA`, `rsp = STACK`, and steps it.
fn step(name: &str, code: &str) -> Result<Execution, Error> {
    let directory = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("memory-{name}"));
    fs::create_dir_all(&directory).unwrap();
    let (source, executable) = (directory.join("code.s"), directory.join("code"));
    let text = format!(
        ".intel_syntax noprefix\n.section .note.GNU-stack, \"\", @progbits\n.text\n.globl _start\n_start:\n\
         mov ebx, offset data\nmov esp, offset data + {:#x}\n{code}\nmov eax, 60\nxor edi, edi\nsyscall\n.data\n\
         .globl data\ndata: .set n, 0\n.rept {DATA_BYTES}\n.byte n & 255\n.set n, n + 1\n.endr\n",
        STACK - DATA
    );
    fs::write(&source, text).unwrap();
    let flags =
        ["-nostdlib", "-static", "-no-pie", "-Wl,-Ttext=0x401000", "-Wl,-Tdata=0x500000", "-Wl,--build-id=none"];
    let built = Command::new("cc").args(flags).arg("-o").arg(&executable).arg(&source).output().unwrap();
    assert!(built.status.success(), "{name}: {}", String::from_utf8_lossy(&built.stderr));
    let options = StepOptions { memory: true, check_writes: true, ..StepOptions::default() };
    single_step(Command::new(executable).env_clear().stdin(Stdio::null()), &options)
}

fn describe(access: &Access) -> String {
    let Access { address, writes, value, .. } = access;
    let mut text = format!("{} {:x} {} 0x", if *writes { "W" } else { "R" }, address.wrapping_sub(DATA), value.len());
    value.iter().rev().for_each(|byte| write!(text, "{byte:02x}").unwrap());
    text
}

fn check(name: &str, code: &str, expected: &str) {
    let run = step(name, code).unwrap();
    assert_eq!(run.exit, Exit::Status(0), "{name}");
    let found: Vec<String> = run.accesses[0].iter().map(describe).collect();
    let expected: Vec<&str> = expected.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    assert_eq!(found, expected, "{name}");
}

#[test]
fn plain_operands() {
    check(
        "plain",
        "mov eax, [rbx + 0x10]
         mov [rbx + 0x20], ax
         add byte ptr [rbx + 0x30], 1
         cmp dword ptr [rbx + 0x40], 5
         mov edx, 2
         mov r15, [rbx + rdx * 8 + 0x10]
         mov ecx, 0x1000
         lea rax, [rbx + 0x10]
         prefetcht0 [rbx]
         nop dword ptr [rbx]
         mov al, [rip + data + 5]
         mov ah, 0x77
         mov [rbx + 0x50], ah
         mov ax, word ptr [ebx + 0x7]
         mov eax, -8
         mov rax, [ebx + eax + 0x18]
         movabs al, [data + 0x11]
         movabs [data + 0x12], eax
         xlatb
         sete [rbx + 0x60]
         movzx eax, word ptr [rbx + 0x70]
         cmovz eax, [rbx + 0x70]
         cmovnz eax, [rbx + 0x74]",
        "R 10 4 0x13121110
         W 20 2 0x1110
         R 30 1 0x30
         W 30 1 0x31
         R 40 4 0x43424140
         R 20 8 0x2726252423221110
         R 5 1 0x05
         W 50 1 0x77
         R 7 2 0x0807
         R 10 8 0x1716151413121110
         R 11 1 0x11
         W 12 4 0x13121111
         R 11 1 0x11
         W 60 1 0x00
         R 70 2 0x7170
         R 70 4 0x73727170
         R 74 4 0x77767574",
    );
}

#[test]
fn the_stack() {
    check(
        "stack",
        "push rbx
         push rsp
         pop rax
         push 0x1234
         pushw 5
         pop cx
         push qword ptr [rsp]
         pop qword ptr [rsp + 8]
         pop qword ptr [rbx + 8]
         pushf
         popf
         mov ebp, offset data + 0x100
         enter 16, 0
         leave
         enter 8, 2
         leave",
        "W 1ff8 8 0x0000000000500000
         W 1ff0 8 0x0000000000501ff8
         R 1ff0 8 0x0000000000501ff8
         W 1ff0 8 0x0000000000001234
         W 1fee 2 0x0005
         R 1fee 2 0x0005
         R 1ff0 8 0x0000000000001234
         W 1fe8 8 0x0000000000001234
         R 1fe8 8 0x0000000000001234
         W 1ff8 8 0x0000000000001234
         R 1ff0 8 0x0000000000001234
         W 8 8 0x0000000000001234
         W 1ff0 8 0x0000000000000202
         R 1ff0 8 0x0000000000000202
         W 1ff0 8 0x0000000000500100
         R 1ff0 8 0x0000000000500100
         R f8 8 0xfffefdfcfbfaf9f8
         W 1ff0 8 0x0000000000500100
         W 1fe8 8 0xfffefdfcfbfaf9f8
         W 1fe0 8 0x0000000000501ff0
         R 1ff0 8 0x0000000000500100",
    );
}

#[test]
fn control_transfers() {
    check(
        "control",
        "jmp 1f
         .org 0x100
         1: call 2f
         jmp 6f
         .org 0x110
         2: mov qword ptr [rbx], offset 3f
         jmp qword ptr [rbx]
         .org 0x120
         3: push offset 4f
         jmp 7f
         .org 0x12d
         7: call qword ptr [rsp]
         .org 0x140
         4: push offset 5f
         ret 16
         .org 0x160
         5: ret
         .org 0x180
         6:",
        "W 1ff8 8 0x0000000000401105
         W 0 8 0x0000000000401120
         R 0 8 0x0000000000401120
         W 1ff0 8 0x0000000000401140
         R 1ff0 8 0x0000000000401140
         W 1fe8 8 0x0000000000401130
         W 1fe0 8 0x0000000000401160
         R 1fe0 8 0x0000000000401160
         R 1ff8 8 0x0000000000401105",
    );
}

#[test]
fn read_modify_write() {
    check(
        "rmw",
        "mov eax, 0x13121110
         mov ecx, 7
         lock cmpxchg [rbx + 0x10], ecx
         lock cmpxchg [rbx + 0x20], cl
         mov edx, 1
         mov rax, 2
         lock xadd [rbx + 0x30], edx
         xchg [rbx + 0x40], al
         lock neg word ptr [rbx + 0x50]
         xor eax, eax
         xor edx, edx
         push rbx
         lea rsi, [rbx]
         mov ebx, 0x99
         lock cmpxchg16b [rsi + 0x60]
         pop rbx
         shl dword ptr [rbx + 0x70], 4",
        "R 10 4 0x13121110
         W 10 4 0x00000007
         R 20 1 0x20
         W 20 1 0x20
         R 30 4 0x33323130
         W 30 4 0x33323131
         R 40 1 0x40
         W 40 1 0x02
         R 50 2 0x5150
         W 50 2 0xaeb0
         W 1ff8 8 0x0000000000500000
         R 60 16 0x6f6e6d6c6b6a69686766656463626160
         W 60 16 0x6f6e6d6c6b6a69686766656463626160
         R 1ff8 8 0x0000000000500000
         R 70 4 0x73727170
         W 70 4 0x37271700",
    );
}

#[test]
fn bits_far_from_their_operand() {
    check(
        "bits",
        "mov rax, -1
         bt [rbx + 0x10], eax
         bts [rbx + 0x10], rax
         mov eax, 0x10007
         btr word ptr [rbx + 0x10], ax
         mov eax, 40
         btc [rbx + 0x10], eax
         bt dword ptr [rbx + 0x10], 40
         mov eax, -17
         bt word ptr [rbx + 0x10], ax",
        "R c 4 0x0f0e0d0c
         R 8 8 0x0f0e0d0c0b0a0908
         W 8 8 0x8f0e0d0c0b0a0908
         R 10 2 0x1110
         W 10 2 0x1110
         R 14 4 0x17161514
         W 14 4 0x17161414
         R 10 4 0x13121110
         R c 2 0x0d0c",
    );
}

#[test]
fn string_instructions() {
    check(
        "strings",
        "cld
         lea rsi, [rbx + 0x10]
         lea rdi, [rbx + 0x11]
         mov ecx, 3
         rep movsb
         xor ecx, ecx
         rep movsq
         movsw
         lea rdi, [rbx + 0x20]
         mov eax, 0x2322
         mov ecx, 5
         repne scasw
         lea rsi, [rbx + 0x30]
         lea rdi, [rbx + 0x130]
         mov byte ptr [rbx + 0x132], 0
         mov ecx, 9
         repe cmpsb
         std
         mov ecx, 2
         lea rdi, [rbx + 0x48]
         rep stosq
         cld
         lea rsi, [rbx + 0x50]
         mov rcx, 0x100000001
         .byte 0x67
         rep lodsd",
        "R 10 1 0x10
         W 11 1 0x10
         R 11 1 0x10
         W 12 1 0x10
         R 12 1 0x10
         W 13 1 0x10
         R 13 2 0x1410
         W 14 2 0x1410
         R 20 2 0x2120
         R 22 2 0x2322
         W 132 1 0x00
         R 30 1 0x30
         R 130 1 0x30
         R 31 1 0x31
         R 131 1 0x31
         R 32 1 0x32
         R 132 1 0x00
         W 48 8 0x0000000000002322
         W 40 8 0x0000000000002322
         R 50 4 0x53525150",
    );
}

#[test]
fn floating_point() {
    check(
        "x87",
        "fninit
         fld1
         fst dword ptr [rbx]
         fstp tbyte ptr [rbx + 0x10]
         fild word ptr [rbx + 0x20]
         fistp qword ptr [rbx + 0x28]
         fnstcw [rbx + 0x30]
         fldcw [rbx + 0x30]
         ldmxcsr [rip + 1f]
         stmxcsr [rbx + 0x34]
         movaps xmm0, [rbx + 0x40]
         movhps [rbx + 0x50], xmm0
         addsd xmm1, [rbx + 0x60]
         pinsrw xmm0, [rbx + 0x70], 1
         jmp 2f
         .org 0x100
         1: .long 0x1f80
         2:",
        "W 0 4 0x3f800000
         W 10 10 0x3fff8000000000000000
         R 20 2 0x2120
         W 28 8 0x0000000000002120
         W 30 2 0x037f
         R 30 2 0x037f
         R fffffffffff01100 4 0x00001f80
         W 34 4 0x00001f80
         R 40 16 0x4f4e4d4c4b4a49484746454443424140
         W 50 8 0x4f4e4d4c4b4a4948
         R 60 8 0x6766656463626160
         R 70 2 0x7170",
    );
}

/// Reports what this machine cannot execute, even if the test succeeds.
fn has(feature: &str, is_there: bool) -> bool {
    if !is_there {
        // The test harness does not catch what is written in this way.
        let text = format!("NOT TESTED: this machine has no {feature}\n");
        io::Write::write_all(&mut io::stderr(), text.as_bytes()).unwrap();
    }
    is_there
}

#[test]
fn vectors_with_masks_and_indexes() {
    if !has("AVX2", std::is_x86_feature_detected!("avx2")) {
        return;
    }
    check(
        "avx2",
        "vpcmpeqd ymm1, ymm1, ymm1
         vpsllq ymm2, ymm1, 32           # every second doubleword
         vmovdqu ymm0, [rbx + 0x20]
         vpmaskmovd [rbx + 0x101], ymm2, ymm0
         vmaskmovpd xmm3, xmm1, [rbx + 0x40]
         vpmovzxbq xmm4, [rip + data + 3] # 3 and 4
         vmovdqa xmm5, xmm1
         vpgatherqq xmm6, [rbx + xmm4 * 4 + 0x10], xmm5
         vmovdqa xmm5, xmm2
         vpgatherqd xmm6, [rbx + xmm4 * 1], xmm5
         mov edi, offset data + 0x180
         vpsllq xmm2, xmm1, 56
         vmaskmovdqu xmm0, xmm2
         vbroadcastss ymm0, [rbx + 0x14]
         vextracti128 [rbx + 0x190], ymm0, 1",
        "R 20 32 0x3f3e3d3c3b3a393837363534333231302f2e2d2c2b2a29282726252423222120
         W 105 4 0x27262524
         W 10d 4 0x2f2e2d2c
         W 115 4 0x37363534
         W 11d 4 0x3f3e3d3c
         R 40 8 0x4746454443424140
         R 48 8 0x4f4e4d4c4b4a4948
         R 3 2 0x0403
         R 1c 8 0x232221201f1e1d1c
         R 20 8 0x2726252423222120
         R 4 4 0x07060504
         W 187 1 0x27
         W 18f 1 0x2f
         R 14 4 0x17161514
         W 190 16 0x17161514171615141716151417161514",
    );
}

#[test]
fn mask_registers() {
    if !has("AVX-512", std::is_x86_feature_detected!("avx512bw") && std::is_x86_feature_detected!("avx512vl")) {
        return;
    }
    check(
        "avx512",
        "mov eax, 0x8005
         kmovd k1, eax
         vmovdqu64 zmm20, [rbx]
         vmovdqu32 [rbx + 0x200]{k1}, zmm20
         vpaddw xmm21{k1}, xmm20, [rbx + 0x40]
         vpaddd zmm22{k1}{z}, zmm20, [rbx + 0x40]{1to16}
         vpaddd zmm22, zmm20, [rbx + 0x44]{1to16}
         kxord k2, k2, k2
         vpaddd zmm22{k2}, zmm20, [rbx + 0x44]{1to16}
         vpunpckldq xmm22{k2}, xmm20, [rbx + 0x50]
         vpcompressd [rbx + 0x301]{k1}, zmm20
         vpexpandw xmm23{k1}, [rbx + 0x60]
         kmovq [rbx + 0x70], k1
         vpmovzxbd zmm24, [rip + data + 0x10]
         vpscatterdd [rbx + zmm24 * 2]{k1}, zmm20
         kmovd k1, eax
         vaddss xmm23{k1}, xmm20, [rbx + 0x80]
         vaddss xmm23{k2}, xmm20, [rbx + 0x80]
         vpmuludq xmm23{k1}, xmm20, [rbx + 0x90]
         vpmovdb [rbx + 0xa0]{k1}, zmm20
         vpslld xmm23{k2}, xmm20, [rbx + 0xb0]
         vpslld xmm23{k1}, [rbx + 0xb0], 1",
        "R 0 64 0x3f3e3d3c3b3a393837363534333231302f2e2d2c2b2a292827262524232221201f1e1d1c1b1a191817161514131211100f0e0d0c0b0a09080706050403020100
         W 200 4 0x03020100
         W 208 4 0x0b0a0908
         W 23c 4 0x3f3e3d3c
         R 40 2 0x4140
         R 44 2 0x4544
         R 40 4 0x43424140
         R 44 4 0x47464544
         R 50 16 0x5f5e5d5c5b5a59585756555453525150
         W 301 4 0x03020100
         W 305 4 0x0b0a0908
         W 309 4 0x3f3e3d3c
         R 60 2 0x6160
         R 62 2 0x6362
         W 70 8 0x0000000000008005
         R 10 16 0x1f1e1d1c1b1a19181716151413121110
         W 20 4 0x03020100
         W 24 4 0x0b0a0908
         W 3e 4 0x3f3e3d3c
         R 80 4 0x83828180
         R 90 8 0x9796959493929190
         W a0 1 0x00
         W a2 1 0x08
         W af 1 0x3c
         R b0 16 0xbfbebdbcbbbab9b8b7b6b5b4b3b2b1b0
         R b0 4 0xb3b2b1b0
         R b8 4 0xbbbab9b8",
    );
}

/// Under a mask that selects nothing, an instruction accesses memory if and only if it faults where
/// there is none.
#[test]
fn empty_masks_are_as_the_processor_has_them() {
    let features = [
        std::is_x86_feature_detected!("avx512bw"),
        std::is_x86_feature_detected!("avx512vl"),
        std::is_x86_feature_detected!("avx512cd"),
        std::is_x86_feature_detected!("avx512vbmi"),
        std::is_x86_feature_detected!("avx512vnni"),
        std::is_x86_feature_detected!("avx512bitalg"),
        std::is_x86_feature_detected!("gfni"),
    ];
    if !has("AVX-512 with all its extensions", features.into_iter().all(|there| there)) {
        return;
    }
    let instructions = [
        "vaddps zmm0{k6}, zmm1, [rax]",
        "vaddps zmm0{k6}, zmm1, [rax]{1to16}",
        "vaddss xmm0{k6}, xmm1, [rax]",
        "vbroadcastf32x4 zmm0{k6}, [rax]",
        "vbroadcastss zmm0{k6}, [rax]",
        "vcvtps2pd zmm0{k6}, [rax]",
        "vgf2p8affineqb zmm0{k6}, zmm1, [rax], 1",
        "vgf2p8mulb zmm0{k6}, zmm1, [rax]",
        "vinserti32x4 zmm0{k6}, zmm1, [rax], 1",
        "vmovddup zmm0{k6}, [rax]",
        "vmovdqu8 zmm0{k6}, [rax]",
        "vmovshdup zmm0{k6}, [rax]",
        "vpackssdw zmm0{k6}, zmm1, [rax]",
        "vpalignr zmm0{k6}, zmm1, [rax], 1",
        "vpbroadcastb zmm0{k6}, [rax]",
        "vpcmpd k7{k6}, zmm0, [rax], 1",
        "vpconflictd zmm0{k6}, [rax]",
        "vpdpbusd zmm0{k6}, zmm1, [rax]",
        "vpermd zmm0{k6}, zmm1, [rax]",
        "vpermd zmm0{k6}, zmm1, [rax]{1to16}",
        "vpermilps zmm0{k6}, zmm1, [rax]",
        "vpermq zmm0{k6}, [rax], 1",
        "vpermt2d zmm0{k6}, zmm1, [rax]",
        "vpexpandd zmm0{k6}, [rax]",
        "vplzcntd zmm0{k6}, [rax]",
        "vpmaddwd zmm0{k6}, zmm1, [rax]",
        "vpmovzxbd zmm0{k6}, [rax]",
        "vpmulhrsw zmm0{k6}, zmm1, [rax]",
        "vpmultishiftqb zmm0{k6}, zmm1, [rax]",
        "vpmuludq zmm0{k6}, zmm1, [rax]",
        "vpshufb zmm0{k6}, zmm1, [rax]",
        "vpshufbitqmb k7{k6}, zmm1, [rax]",
        "vpslld zmm0{k6}, [rax], 3",
        "vpslld zmm0{k6}, zmm1, [rax]",
        "vpunpckldq zmm0{k6}, zmm1, [rax]",
        "vshufps zmm0{k6}, zmm1, [rax], 1",
        "valignd zmm0{k6}, zmm1, [rax], 1",
        "vdbpsadbw zmm0{k6}, zmm1, [rax], 1",
    ];
    let begin = "kxorq k6, k6, k6\n";
    let all = step("masks", &format!("{begin}mov rax, rbx\nvzeroall\n{}", instructions.join("\n"))).unwrap();
    // From the instruction after vzeroall on.
    let pcs = &all.threads[0][5..][..instructions.len()];
    for (number, (instruction, &pc)) in instructions.iter().zip(pcs).enumerate() {
        let accesses = all.accesses[0].iter().filter(|access| access.pc == pc).count();
        let alone = step(&format!("mask-{number}"), &format!("{begin}xor eax, eax\n{instruction}")).unwrap();
        let faults = alone.exit == Exit::Signal(11);
        assert_eq!(accesses > 0, faults, "{instruction}: {accesses} accesses, and it ends with {:?}", alone.exit);
    }
}

#[test]
fn saved_states() {
    let sizes = |code: &str, name: &str| -> Vec<(bool, u64, usize)> {
        let run = step(name, code).unwrap();
        assert_eq!(run.exit, Exit::Status(0), "{name}");
        run.accesses[0].iter().map(|access| (access.writes, access.address - DATA, access.value.len())).collect()
    };
    let legacy = "fxsave [rbx]
fxrstor [rbx]
fnsave [rbx + 1]
frstor [rbx + 1]
fnstenv [rbx]
fldenv [rbx]";
    let expected = [(true, 0, 512), (false, 0, 512), (true, 1, 108), (false, 1, 108), (true, 0, 28), (false, 0, 28)];
    assert_eq!(sizes(legacy, "legacy"), expected);

    if !has("XSAVEC and AVX", std::is_x86_feature_detected!("xsavec") && std::is_x86_feature_detected!("avx")) {
        return;
    }
    // Registers that hold nothing would not be saved.
    let code = "lea rdi, [rbx]
         mov ecx, 0x1000 / 8
         xor eax, eax
         1: mov [rdi], rax
         add rdi, 8
         dec ecx
         jnz 1b
         xor edx, edx
         mov eax, 3
         xsave [rbx]
         xrstor [rbx]
         mov eax, 7
         xsave [rbx]
         xsavec [rbx + 0x800]
         xrstor [rbx + 0x800]";
    let found = sizes(code, "xsave");
    // The upper halves of ymm0 to ymm15 come right after the header.
    let expected = [(true, 0, 576), (false, 0, 576), (true, 0, 832), (true, 0x800, 832), (false, 0x800, 832)];
    assert_eq!(found[0x200..], expected);
}

#[test]
fn an_instruction_with_unknown_accesses_is_an_error() {
    let error = step(
        "far",
        "push 0x33
push offset 1f
.byte 0x48
retf
1:",
    )
    .unwrap_err();
    assert!(matches!(&error, Error::Operand { code, .. } if code.contains("Retf")), "{error}");
}

#[test]
fn every_program_without_a_library_explains_its_writes() {
    let mut count = 0;
    for entry in workloads::oracle_programs() {
        let executable = workloads::build(entry.program.name, entry.variant).unwrap();
        let is_large = fs::metadata(&executable).unwrap().len() > 200_000;
        // The longest of them has no instruction that the others do not have.
        if is_large || entry.variant != workloads::Variant::Static || entry.program.name == "memory_faults" {
            continue;
        }
        let options = StepOptions { memory: true, check_writes: true, ..StepOptions::default() };
        let mut command = Command::new(executable);
        command.env_clear().args(entry.arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let run = single_step(&mut command, &options).unwrap_or_else(|error| panic!("{}: {error}", entry.program.name));
        assert_eq!(String::from_utf8_lossy(&run.stdout), entry.program.runs[0].stdout, "{}", entry.program.name);
        count += 1;
    }
    assert!(count > 10, "{count}");
}
