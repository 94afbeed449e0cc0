//! What a mask register decides about a memory operand: engine, oracle and this processor agree on
//! every EVEX instruction there is.
//!
//! The processor is asked by fault suppression: what is not selected may lie where there is no
//! memory.

use std::arch::asm;
use std::collections::BTreeMap;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use oracle::{MaskUse, mask_use};
use trackway_engine::translate::operand;
use wire::code;

const PAGE: usize = 4096;

/// Every EVEX instruction with a memory operand at [rax] and the mask k1, once.
fn instructions() -> Vec<(Instruction, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let forms = (0..8u8).flat_map(|map| (0..4u8).flat_map(move |prefix| (0..2u8).map(move |wide| (map, prefix, wide))));
    for (map, prefix, wide) in forms {
        for (length, broadcast) in (0..3u8).flat_map(|length| [(length, 0), (length, 1u8)]) {
            for (opcode, register) in (0..=255u8).flat_map(|opcode| (0..8u8).map(move |register| (opcode, register))) {
                let third = length << 5 | broadcast << 4 | 8 | 1;
                let bytes = [0x62, 0xf0 | map, wide << 7 | 0x7c | prefix, third, opcode, register << 3, 0];
                let instruction = Decoder::with_ip(64, &bytes, 0, DecoderOptions::NONE).decode();
                let names_memory = (0..instruction.op_count()).any(|at| instruction.op_kind(at) == OpKind::Memory);
                if !instruction.is_invalid() && names_memory && instruction.op_mask() == Register::K1 {
                    let key = (instruction.code() as usize, broadcast);
                    found.entry(key).or_insert((instruction, bytes[..instruction.len()].to_vec()));
                }
            }
        }
    }
    found.into_values().filter(|(instruction, _)| !instruction.is_vsib()).collect()
}

fn of_engine(instruction: &Instruction) -> Option<MaskUse> {
    let operand = operand::masked(instruction)?;
    let (bytes, elements) = (usize::from(operand.size), usize::from(operand.count));
    Some(match operand.kind {
        code::PLAIN => MaskUse::Whole,
        code::ANY => MaskUse::Any { elements },
        code::PACKED => MaskUse::Packed { bytes },
        _ => MaskUse::Elements { bytes },
    })
}

#[test]
fn engine_and_oracle_agree() {
    let all = instructions();
    assert!(all.len() > 1000, "{} instructions", all.len());
    let differ = all.iter().filter(|(instruction, _)| of_engine(instruction) != mask_use(instruction));
    let list: Vec<String> = differ
        .map(|(it, _)| format!("{:?} {}: {:?}, {:?}", it.code(), it.is_broadcast(), of_engine(it), mask_use(it)))
        .collect();
    assert!(list.is_empty(), "{} differ (code, broadcast: engine, oracle)\n{}", list.len(), list.join("\n"));
}

/// Two pages, of which the second cannot be accessed, and a page for code.
struct Machine {
    memory: usize,
    code: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Fine,
    Fault,
    /// This processor does not know the instruction.
    Unknown,
}

impl Machine {
    fn new() -> Self {
        let map = |length, protection| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping.
            let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
            assert!(address != libc::MAP_FAILED);
            address as usize
        };
        let memory = map(2 * PAGE, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: the second page of the mapping just made.
        unsafe { libc::mprotect((memory + PAGE) as *mut _, PAGE, libc::PROT_NONE) };
        Self { memory, code: map(PAGE, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC) }
    }

    /// Executes an instruction in a child process, `before_end` bytes before the end of memory and
    /// under this mask.
    fn run(&self, bytes: &[u8], before_end: usize, mask: u64) -> End {
        // SAFETY: the page is ours; the child executes the instruction and ends.
        unsafe {
            let code = self.code as *mut u8;
            code.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            code.add(bytes.len()).write(0xc3);
            match libc::fork() {
                0 => {
                    asm!("kmovq k1, {mask}", "call {code}", mask = in(reg) mask, code = in(reg) self.code,
                        inout("rax") self.memory + PAGE - before_end => _, clobber_abi("C"));
                    libc::_exit(0)
                }
                child => {
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
                    match (libc::WIFSIGNALED(status), libc::WTERMSIG(status)) {
                        (false, _) => End::Fine,
                        (_, libc::SIGILL) => End::Unknown,
                        _ => End::Fault,
                    }
                }
            }
        }
    }
}

fn is_aligned(instruction: &Instruction) -> bool {
    use Mnemonic::{Vmovapd, Vmovaps, Vmovdqa32, Vmovdqa64};
    matches!(instruction.mnemonic(), Vmovaps | Vmovapd | Vmovdqa32 | Vmovdqa64)
}

/// Whether an instruction writes what is selected, but faults as if all of it were.
fn is_not_suppressed(instruction: &Instruction) -> bool {
    use Mnemonic::{
        Vextractf32x4, Vextractf32x8, Vextractf64x2, Vextractf64x4, Vextracti32x4, Vextracti32x8, Vextracti64x2,
        Vextracti64x4,
    };
    matches!(
        instruction.mnemonic(),
        Vextractf32x4
            | Vextractf32x8
            | Vextractf64x2
            | Vextractf64x4
            | Vextracti32x4
            | Vextracti32x8
            | Vextracti64x2
            | Vextracti64x4
    )
}

/// What is wrong with `expected`, by this processor's word.
fn objection(machine: &Machine, instruction: &Instruction, bytes: &[u8], expected: MaskUse) -> Option<String> {
    let size = instruction.memory_size().size();
    let experiments = match expected {
        MaskUse::Whole => vec![(0, 0, End::Fault)],
        MaskUse::Any { elements: 64 } => vec![(0, 0, End::Fine), (0, 1 << 63, End::Fault)],
        MaskUse::Any { elements } => {
            vec![(0, 0, End::Fine), (0, 1 << (elements - 1), End::Fault), (0, 1 << elements, End::Fine)]
        }
        MaskUse::Elements { bytes } | MaskUse::Packed { bytes } => {
            let (last, is_packed) = (1u64 << (size / bytes - 1), matches!(expected, MaskUse::Packed { .. }));
            let alone = if is_packed { End::Fine } else { End::Fault };
            let alone = if size == bytes { End::Fault } else { alone };
            vec![(0, 0, End::Fine), (size - bytes, last - 1, End::Fine), (size - bytes, last, alone)]
        }
    };
    for (before_end, mask, end) in experiments {
        // What has to be aligned lies on one side of the end.
        if before_end != 0 && is_aligned(instruction) {
            continue;
        }
        let found = machine.run(bytes, before_end, mask);
        if found == End::Unknown {
            return None;
        }
        if found != end {
            let code = instruction.code();
            return Some(format!("{code:?}: {expected:?}, but {before_end} before the end with {mask:#x}: {found:?}"));
        }
    }
    None
}

#[test]
fn the_processor_agrees() {
    if !std::is_x86_feature_detected!("avx512bw") {
        // The test harness does not catch what is written in this way.
        let text = b"NOT TESTED: this machine has no AVX-512\n";
        std::io::Write::write_all(&mut std::io::stderr(), text).unwrap();
        return;
    }
    let machine = Machine::new();
    let all = instructions();
    let objections: Vec<String> = all
        .iter()
        .filter(|(instruction, _)| !is_not_suppressed(instruction))
        .filter_map(|(instruction, bytes)| objection(&machine, instruction, bytes, mask_use(instruction)?))
        .collect();
    assert!(objections.is_empty(), "{}:\n{}", objections.len(), objections.join("\n"));
}
