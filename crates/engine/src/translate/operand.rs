//! The memory operands of an instruction, implicit ones included, in the order in which they count
//! as accesses: reads first.

use alloc::vec::Vec;
use iced_x86::{
    CodeSize, Instruction, InstructionInfo, InstructionInfoFactory, MemorySize, Mnemonic, OpAccess, OpKind, Register,
    UsedMemory,
};
use wire::code;

/// What selects the elements of a vector operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    None,
    /// Bits of a mask register.
    Bits(Register),
    /// Top bits of the elements of a vector register.
    Signs(Register),
}

/// One memory operand, read or written. An operand that is both appears twice.
#[derive(Clone, Copy, Debug)]
pub struct OperandForm {
    /// One of `wire::code`'s kinds.
    pub kind: u8,
    pub writes: bool,
    /// Bytes of one element.
    pub size: u16,
    /// Elements.
    pub count: u8,
    /// General registers, by number.
    pub base: Option<u8>,
    pub index: Option<u8>,
    /// 0 to 3.
    pub scale: u8,
    pub displacement: i64,
    pub fs: bool,
    pub gs: bool,
    pub short: bool,
    pub mask: Mask,
    /// The vector of indices of a gather or scatter.
    pub indices: Register,
    pub index_bytes: u8,
    /// The register with the number of a bit.
    pub bit: Option<u8>,
}

impl OperandForm {
    /// Bytes of all elements.
    pub fn bytes(&self) -> u16 {
        self.size * u16::from(self.count.max(1))
    }
}

/// Number of a general register, of any width; `None` for others.
pub fn general(register: Register) -> Option<u8> {
    let full = register.full_register();
    (Register::RAX..=Register::R15).contains(&full).then(|| full as u8 - Register::RAX as u8)
}

/// The general register of eight bytes with this number.
pub fn wide(number: u8) -> Register {
    Register::RAX + u32::from(number)
}

/// Whether a string instruction repeats.
pub fn repeats(instruction: &Instruction) -> bool {
    instruction.is_string_instruction() && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
}

/// Instructions that name memory without accessing it.
fn is_hint(mnemonic: Mnemonic) -> bool {
    use Mnemonic::{
        Cldemote, Clflush, Clflushopt, Clwb, Lea, Nop, Prefetch, Prefetchit0, Prefetchit1, Prefetchnta, Prefetcht0,
        Prefetcht1, Prefetcht2, Prefetchw, Prefetchwt1,
    };
    matches!(
        mnemonic,
        Cldemote
            | Clflush
            | Clflushopt
            | Clwb
            | Lea
            | Nop
            | Prefetch
            | Prefetchit0
            | Prefetchit1
            | Prefetchnta
            | Prefetcht0
            | Prefetcht1
            | Prefetcht2
            | Prefetchw
            | Prefetchwt1
    )
}

/// The explicit memory operand of an instruction under a mask register, as it is recorded.
pub fn masked(instruction: &Instruction) -> Option<OperandForm> {
    let mut found = Vec::new();
    operands(instruction, InstructionInfoFactory::new().info(instruction), &mut found);
    found.into_iter().next().filter(|_| instruction.op_mask() != Register::None)
}

/// Appends the operands of `instruction` to `operands`.
pub fn operands(instruction: &Instruction, info: &InstructionInfo, operands: &mut Vec<OperandForm>) {
    if is_hint(instruction.mnemonic()) {
        return;
    }
    for writes in [false, true] {
        for memory in info.used_memory() {
            let happens = match memory.access() {
                OpAccess::Read | OpAccess::CondRead => !writes,
                OpAccess::Write | OpAccess::CondWrite => writes,
                OpAccess::ReadWrite | OpAccess::ReadCondWrite => true,
                OpAccess::None | OpAccess::NoMemAccess => false,
            };
            if happens {
                operands.push(operand(instruction, memory, writes));
            }
        }
    }
}

fn operand(instruction: &Instruction, memory: &UsedMemory, writes: bool) -> OperandForm {
    let size = match memory.memory_size() {
        // Of repeated strings.
        MemorySize::Unknown => instruction.memory_size(),
        size => size,
    };
    let mut operand = OperandForm {
        kind: code::PLAIN,
        writes,
        size: size.size() as u16,
        count: 1,
        base: general(memory.base()),
        index: general(memory.index()),
        scale: memory.scale().trailing_zeros() as u8,
        displacement: memory.displacement() as i64,
        fs: memory.segment() == Register::FS,
        gs: memory.segment() == Register::GS,
        short: memory.address_size() == CodeSize::Code32,
        mask: Mask::None,
        indices: Register::None,
        index_bytes: 0,
        bit: None,
    };
    match instruction.mnemonic() {
        Mnemonic::Bt | Mnemonic::Btc | Mnemonic::Btr | Mnemonic::Bts if instruction.op1_kind() == OpKind::Register => {
            operand.kind = code::BIT;
            operand.bit = general(instruction.op1_register());
            operand.count = operand.size as u8;
        }
        Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu | Mnemonic::Maskmovq => {
            operand.kind = code::MASKED;
            operand.size = 1;
            operand.count = if instruction.mnemonic() == Mnemonic::Maskmovq { 8 } else { 16 };
            operand.mask = Mask::Signs(instruction.op2_register());
        }
        Mnemonic::Vmaskmovps | Mnemonic::Vmaskmovpd | Mnemonic::Vpmaskmovd | Mnemonic::Vpmaskmovq => {
            operand.kind = code::MASKED;
            operand.size = size.element_size() as u16;
            operand.count = (size.size() / size.element_size()) as u8;
            operand.mask = Mask::Signs(instruction.op1_register());
        }
        _ if instruction.is_vsib() => index_elements(instruction, &mut operand),
        _ if repeats(instruction) => operand.kind = code::STRING,
        _ if instruction.op_mask() == Register::None || !is_elementwise(instruction) => {}
        _ if broadcast_elements(instruction).is_some() => {
            operand.kind = code::ANY;
            operand.count = broadcast_elements(instruction).unwrap_or(1);
            operand.mask = Mask::Bits(instruction.op_mask());
        }
        _ => {
            let packs = matches!(
                instruction.mnemonic(),
                Mnemonic::Vpcompressb
                    | Mnemonic::Vpcompressw
                    | Mnemonic::Vpcompressd
                    | Mnemonic::Vpcompressq
                    | Mnemonic::Vcompressps
                    | Mnemonic::Vcompresspd
                    | Mnemonic::Vpexpandb
                    | Mnemonic::Vpexpandw
                    | Mnemonic::Vpexpandd
                    | Mnemonic::Vpexpandq
                    | Mnemonic::Vexpandps
                    | Mnemonic::Vexpandpd
            );
            let element = selected_bytes(instruction, size);
            operand.kind = if packs { code::PACKED } else { code::MASKED };
            operand.size = element as u16;
            operand.count = (size.size() / element) as u8;
            operand.mask = Mask::Bits(instruction.op_mask());
        }
    }
    operand
}

/// Bytes of memory that one bit of the mask selects: of some instructions, several elements go
/// together.
fn selected_bytes(instruction: &Instruction, size: MemorySize) -> usize {
    use Mnemonic::{
        Vdpbf16ps, Vfcmaddcph, Vfcmaddcsh, Vfcmulcph, Vfcmulcsh, Vfmaddcph, Vfmaddcsh, Vfmulcph, Vfmulcsh, Vpdpbusd,
        Vpdpbusds, Vpdpwssd, Vpdpwssds, Vpmuldq, Vpmuludq,
    };
    match instruction.mnemonic() {
        Vpmuludq | Vpmuldq => 8,
        Vpdpbusd | Vpdpbusds | Vpdpwssd | Vpdpwssds | Vdpbf16ps => 4,
        Vfmaddcph | Vfcmaddcph | Vfmulcph | Vfcmulcph | Vfmaddcsh | Vfcmaddcsh | Vfmulcsh | Vfcmulcsh => 4,
        _ => size.element_size(),
    }
}

/// Elements that are made of the one in memory; `None` if the instruction does nothing of that
/// kind.
fn broadcast_elements(instruction: &Instruction) -> Option<u8> {
    use Mnemonic::{
        Vbroadcastf32x2, Vbroadcastf32x4, Vbroadcastf32x8, Vbroadcastf64x2, Vbroadcastf64x4, Vbroadcasti32x2,
        Vbroadcasti32x4, Vbroadcasti32x8, Vbroadcasti64x2, Vbroadcasti64x4, Vbroadcastsd, Vbroadcastss, Vpbroadcastb,
        Vpbroadcastd, Vpbroadcastq, Vpbroadcastw,
    };
    let size = instruction.memory_size();
    if instruction.is_broadcast() {
        return Some((broadcast_bytes(size) / size.size()) as u8);
    }
    let is_all_that_it_does = matches!(
        instruction.mnemonic(),
        Vbroadcastf32x2
            | Vbroadcastf32x4
            | Vbroadcastf32x8
            | Vbroadcastf64x2
            | Vbroadcastf64x4
            | Vbroadcasti32x2
            | Vbroadcasti32x4
            | Vbroadcasti32x8
            | Vbroadcasti64x2
            | Vbroadcasti64x4
            | Vbroadcastsd
            | Vbroadcastss
            | Vpbroadcastb
            | Vpbroadcastd
            | Vpbroadcastq
            | Vpbroadcastw
    );
    is_all_that_it_does.then(|| (instruction.op0_register().size() / size.element_size()) as u8)
}

/// Bytes of the vector that a broadcast element stands for. The sizes are in order.
fn broadcast_bytes(size: MemorySize) -> usize {
    match size {
        size if size >= MemorySize::Broadcast512_Int16 => 64,
        size if size >= MemorySize::Broadcast256_Int16 => 32,
        size if size >= MemorySize::Broadcast128_Int16 => 16,
        size if size >= MemorySize::Broadcast64_UInt32 => 8,
        _ => 4,
    }
}

/// A gather or scatter.
fn index_elements(instruction: &Instruction, operand: &mut OperandForm) {
    let vector = instruction.memory_index();
    let data = (0..instruction.op_count()).find(|&at| instruction.op_kind(at) == OpKind::Register);
    let data = data.map_or(0, |at| instruction.op_register(at).size());
    operand.kind = code::INDEXED;
    operand.index = None;
    operand.indices = vector;
    operand.index_bytes = if instruction.is_vsib64() { 8 } else { 4 };
    operand.size = instruction.memory_size().element_size() as u16;
    let indices = vector.size() / usize::from(operand.index_bytes);
    operand.count = indices.min(data / usize::from(operand.size).max(1)) as u8;
    operand.scale = instruction.memory_index_scale().trailing_zeros() as u8;
    operand.mask = match instruction.op_mask() {
        Register::None => Mask::Signs(instruction.op2_register()),
        mask => Mask::Bits(mask),
    };
}

/// Whether the mask of the instruction selects elements of its memory operand. Where elements
/// change places on the way, all of the operand is read whatever the mask.
pub fn is_elementwise(instruction: &Instruction) -> bool {
    use Mnemonic::{
        Valignd, Valignq, Vcvtne2ps2bf16, Vdbpsadbw, Vgf2p8affineinvqb, Vgf2p8affineqb, Vinsertf32x4, Vinsertf32x8,
        Vinsertf64x2, Vinsertf64x4, Vinserti32x4, Vinserti32x8, Vinserti64x2, Vinserti64x4, Vmovddup, Vmovshdup,
        Vmovsldup, Vpackssdw, Vpacksswb, Vpackusdw, Vpackuswb, Vpalignr, Vpconflictd, Vpconflictq, Vpermb, Vpermd,
        Vpermi2b, Vpermi2d, Vpermi2pd, Vpermi2ps, Vpermi2q, Vpermi2w, Vpermilpd, Vpermilps, Vpermpd, Vpermps, Vpermq,
        Vpermt2b, Vpermt2d, Vpermt2pd, Vpermt2ps, Vpermt2q, Vpermt2w, Vpermw, Vpmaddubsw, Vpmaddwd, Vpmultishiftqb,
        Vpshufb, Vpshufd, Vpshufhw, Vpshuflw, Vpslld, Vpsllq, Vpsllw, Vpsrad, Vpsraq, Vpsraw, Vpsrld, Vpsrlq, Vpsrlw,
        Vpunpckhbw, Vpunpckhdq, Vpunpckhqdq, Vpunpckhwd, Vpunpcklbw, Vpunpckldq, Vpunpcklqdq, Vpunpcklwd, Vshuff32x4,
        Vshuff64x2, Vshufi32x4, Vshufi64x2, Vshufpd, Vshufps, Vunpckhpd, Vunpckhps, Vunpcklpd, Vunpcklps,
    };
    let shifts = matches!(
        instruction.mnemonic(),
        Vpslld | Vpsllq | Vpsllw | Vpsrad | Vpsraq | Vpsraw | Vpsrld | Vpsrlq | Vpsrlw
    );
    if shifts {
        // Either what is shifted is in memory, or how far.
        return instruction.op1_kind() == OpKind::Memory;
    }
    !matches!(
        instruction.mnemonic(),
        Valignd
            | Valignq
            | Vcvtne2ps2bf16
            | Vdbpsadbw
            | Vgf2p8affineinvqb
            | Vgf2p8affineqb
            | Vinsertf32x4
            | Vinsertf32x8
            | Vinsertf64x2
            | Vinsertf64x4
            | Vinserti32x4
            | Vinserti32x8
            | Vinserti64x2
            | Vinserti64x4
            | Vmovddup
            | Vmovshdup
            | Vmovsldup
            | Vpackssdw
            | Vpacksswb
            | Vpackusdw
            | Vpackuswb
            | Vpalignr
            | Vpermb
            | Vpermd
            | Vpermi2b
            | Vpermi2d
            | Vpermi2pd
            | Vpermi2ps
            | Vpermi2q
            | Vpermi2w
            | Vpermilpd
            | Vpermilps
            | Vpermpd
            | Vpermps
            | Vpermq
            | Vpermt2b
            | Vpermt2d
            | Vpermt2pd
            | Vpermt2ps
            | Vpermt2q
            | Vpermt2w
            | Vpermw
            | Vpconflictd
            | Vpconflictq
            | Vpmaddubsw
            | Vpmaddwd
            | Vpmultishiftqb
            | Vpshufb
            | Vpshufd
            | Vpshufhw
            | Vpshuflw
            | Vpunpckhbw
            | Vpunpckhdq
            | Vpunpckhqdq
            | Vpunpckhwd
            | Vpunpcklbw
            | Vpunpckldq
            | Vpunpcklqdq
            | Vpunpcklwd
            | Vshuff32x4
            | Vshuff64x2
            | Vshufi32x4
            | Vshufi64x2
            | Vshufpd
            | Vshufps
            | Vunpckhpd
            | Vunpckhps
            | Vunpcklpd
            | Vunpcklps
    )
}
