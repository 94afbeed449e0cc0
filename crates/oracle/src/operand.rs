//! Which accesses to memory an instruction makes, computed from the registers before it is
//! executed.
//!
//! Knows the instruction set: plain operands as the decoder describes them, and everything that
//! does not fit that description. An instruction that it does not know is an error. The reads of an
//! instruction come before its writes.
//!
//! Under a mask, an element of memory is accessed if it is selected. Instructions that do not use
//! memory element by element (permutations, packing, shift counts …) do not suppress faults either;
//! they read their whole operand, whatever the mask. A broadcast value is read once, if any element
//! is selected.

use std::cell::OnceCell;

use iced_x86::{Code, Instruction, InstructionInfoFactory, MemorySize, Mnemonic, OpAccess, OpKind, Register};
use libc::user_regs_struct;

use crate::Error;
use crate::access::PlannedAccess;
use crate::tracee::Tracee;
use crate::vector::{self, ExtendedState};

/// The registers of a thread before an instruction.
pub struct ThreadRegisters<'a> {
    tracee: Tracee,
    registers: &'a user_regs_struct,
    extended: OnceCell<ExtendedState>,
}

impl<'a> ThreadRegisters<'a> {
    pub fn new(tracee: Tracee, registers: &'a user_regs_struct) -> Self {
        Self { tracee, registers, extended: OnceCell::new() }
    }

    /// Fetches the extended state when an instruction needs it, which is seldom.
    fn extended(&self) -> Result<&ExtendedState, Error> {
        if let Some(extended) = self.extended.get() {
            return Ok(extended);
        }
        let extended = ExtendedState::new(self.tracee.extended_state()?);
        Ok(self.extended.get_or_init(|| extended))
    }

    /// Returns a general register, or the base of a segment.
    fn general(&self, register: Register) -> Option<u64> {
        let registers = self.registers;
        let whole = match register.full_register() {
            Register::RAX => registers.rax,
            Register::RCX => registers.rcx,
            Register::RDX => registers.rdx,
            Register::RBX => registers.rbx,
            Register::RSP => registers.rsp,
            Register::RBP => registers.rbp,
            Register::RSI => registers.rsi,
            Register::RDI => registers.rdi,
            Register::R8 => registers.r8,
            Register::R9 => registers.r9,
            Register::R10 => registers.r10,
            Register::R11 => registers.r11,
            Register::R12 => registers.r12,
            Register::R13 => registers.r13,
            Register::R14 => registers.r14,
            Register::R15 => registers.r15,
            Register::FS => return Some(registers.fs_base),
            Register::GS => return Some(registers.gs_base),
            Register::CS | Register::DS | Register::ES | Register::SS => return Some(0),
            _ => return None,
        };
        Some(match register.size() {
            1 if register >= Register::AH && register <= Register::BH => whole >> 8 & 0xff,
            1 => whole & 0xff,
            2 => whole & 0xffff,
            4 => whole & 0xffff_ffff,
            _ => whole,
        })
    }

    fn vector(&self, register: Register) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.extended()?.vector(register))
    }
}

/// Returns the accesses of `instruction`, in order, or of one iteration if it is repeated.
pub fn accesses(
    instruction: &Instruction,
    factory: &mut InstructionInfoFactory,
    state: &ThreadRegisters,
) -> Result<Vec<PlannedAccess>, Error> {
    let info = factory.info(instruction);
    if info.used_memory().is_empty() || makes_no_access(instruction.mnemonic()) {
        return Ok(Vec::new());
    }
    let own_access = memory_operand(instruction).map(|operand| info.op_access(operand));
    let operands = Operands { instruction, state, own_access, used_count: info.used_memory().len() };
    operands.accesses()
}

/// Returns whether an instruction names memory but does not access it.
fn makes_no_access(mnemonic: Mnemonic) -> bool {
    use Mnemonic::{
        Cldemote, Clflush, Clflushopt, Clwb, Lea, Nop, Prefetch, Prefetchit0, Prefetchit1, Prefetchnta, Prefetcht0,
        Prefetcht1, Prefetcht2, Prefetchw, Prefetchwt1,
    };
    matches!(
        mnemonic,
        Lea | Nop
            | Clflush
            | Clflushopt
            | Clwb
            | Cldemote
            | Prefetch
            | Prefetchw
            | Prefetchwt1
            | Prefetchnta
            | Prefetcht0
            | Prefetcht1
            | Prefetcht2
            | Prefetchit0
            | Prefetchit1
    )
}

/// Returns the number of the explicit memory operand; there is never a second one.
fn memory_operand(instruction: &Instruction) -> Option<u32> {
    (0..instruction.op_count()).find(|&operand| instruction.op_kind(operand) == OpKind::Memory)
}

struct Operands<'a> {
    instruction: &'a Instruction,
    state: &'a ThreadRegisters<'a>,
    /// What the decoder says is done with the explicit memory operand.
    own_access: Option<OpAccess>,
    /// How many accesses the decoder says there are.
    used_count: usize,
}

impl Operands<'_> {
    fn accesses(&self) -> Result<Vec<PlannedAccess>, Error> {
        use Mnemonic::{
            Bt, Btc, Btr, Bts, Call, Clzero, Cmpxchg, Cmpxchg8b, Cmpxchg16b, Enter, Jmp, Leave, Maskmovdqu, Maskmovq,
            Movdir64b, Pop, Popf, Popfq, Push, Pushf, Pushfq, Ret, Vmaskmovdqu, Vmaskmovpd, Vmaskmovps, Vpmaskmovd,
            Vpmaskmovq, Xrstor, Xrstor64, Xsave, Xsave64, Xsavec, Xsavec64, Xsaveopt, Xsaveopt64,
        };
        let instruction = self.instruction;
        if instruction.is_string_instruction() {
            return self.string();
        }
        if instruction.is_vsib() {
            return self.indexed();
        }
        match instruction.mnemonic() {
            Push | Pushf | Pushfq => self.push(),
            Pop | Popf | Popfq => self.pop(),
            Call => self.call(),
            Jmp if instruction.code() == Code::Jmp_rm64 => self.plain(),
            Jmp => Err(self.unknown("a far jump")),
            Ret if matches!(instruction.code(), Code::Retnq | Code::Retnq_imm16) => {
                Ok(vec![PlannedAccess::read(self.state.registers.rsp, 8)])
            }
            Enter => self.enter(),
            Leave if instruction.code() == Code::Leaveq => Ok(vec![PlannedAccess::read(self.state.registers.rbp, 8)]),
            Bt | Btc | Btr | Bts if instruction.op1_kind() == OpKind::Register => self.bit(),
            Cmpxchg | Cmpxchg8b | Cmpxchg16b => self.read_and_written(),
            mnemonic if is_conditional_move(mnemonic) => Ok(vec![PlannedAccess::read(self.address()?, self.size()?)]),
            Vmaskmovps | Vmaskmovpd | Vpmaskmovd | Vpmaskmovq => self.masked_by_signs(),
            Maskmovq | Maskmovdqu | Vmaskmovdqu => self.masked_bytes(),
            _ if matches!(mask_use(instruction), Some(MaskUse::Packed { .. })) => self.side_by_side(),
            Xsave | Xsave64 | Xsaveopt | Xsaveopt64 => {
                Ok(vec![PlannedAccess::write(self.address()?, vector::standard_bytes(self.requested()))])
            }
            Xsavec | Xsavec64 => {
                Ok(vec![PlannedAccess::write(self.address()?, vector::compacted_bytes(self.requested()))])
            }
            Xrstor | Xrstor64 => self.restore(),
            Movdir64b => self.direct_store(),
            Clzero => Ok(vec![PlannedAccess::write(self.state.registers.rax & !63, 64)]),
            _ if self.has_mask() => self.masked(),
            _ => self.plain(),
        }
    }

    /// One memory operand and nothing else, as the decoder describes it.
    fn plain(&self) -> Result<Vec<PlannedAccess>, Error> {
        if self.used_count != 1 {
            return Err(self.unknown("more accesses than operands"));
        }
        let (address, size) = (self.address()?, self.size()?);
        match self.own_access {
            Some(OpAccess::Read) => Ok(vec![PlannedAccess::read(address, size)]),
            Some(OpAccess::Write) => Ok(vec![PlannedAccess::write(address, size)]),
            Some(OpAccess::ReadWrite) => self.read_and_written(),
            _ => Err(self.unknown("an operand that is not always accessed")),
        }
    }

    fn read_and_written(&self) -> Result<Vec<PlannedAccess>, Error> {
        let (address, size) = (self.address()?, self.size()?);
        Ok(vec![PlannedAccess::read(address, size), PlannedAccess::write(address, size)])
    }

    fn stack_bytes(&self) -> u64 {
        u64::from(self.instruction.stack_pointer_increment().unsigned_abs())
    }

    fn push(&self) -> Result<Vec<PlannedAccess>, Error> {
        let size = self.stack_bytes();
        let write = PlannedAccess::write(self.state.registers.rsp.wrapping_sub(size), size as usize);
        Ok(match memory_operand(self.instruction) {
            Some(_) => vec![PlannedAccess::read(self.address()?, self.size()?), write],
            None => vec![write],
        })
    }

    /// An address relative to rsp is computed after rsp has been incremented.
    fn pop(&self) -> Result<Vec<PlannedAccess>, Error> {
        let size = self.stack_bytes();
        let read = PlannedAccess::read(self.state.registers.rsp, size as usize);
        if memory_operand(self.instruction).is_none() {
            return Ok(vec![read]);
        }
        let after = user_regs_struct { rsp: self.state.registers.rsp.wrapping_add(size), ..*self.state.registers };
        let state = ThreadRegisters::new(self.state.tracee, &after);
        let address = Operands { state: &state, ..*self }.address()?;
        Ok(vec![read, PlannedAccess::write(address, self.size()?)])
    }

    fn call(&self) -> Result<Vec<PlannedAccess>, Error> {
        let write = PlannedAccess::write(self.state.registers.rsp.wrapping_sub(8), 8);
        match self.instruction.code() {
            Code::Call_rel32_64 => Ok(vec![write]),
            Code::Call_rm64 if memory_operand(self.instruction).is_some() => {
                Ok(vec![PlannedAccess::read(self.address()?, 8), write])
            }
            Code::Call_rm64 => Ok(vec![write]),
            _ => Err(self.unknown("a far call")),
        }
    }

    /// With a nesting level, the frame pointers of the enclosing procedures are copied and the new
    /// one is added.
    fn enter(&self) -> Result<Vec<PlannedAccess>, Error> {
        if self.instruction.code() != Code::Enterq_imm16_imm8 {
            return Err(self.unknown("a stack of another width"));
        }
        let (rsp, rbp) = (self.state.registers.rsp, self.state.registers.rbp);
        let level = u64::from(self.instruction.immediate8_2nd() % 32);
        let copied = (1..level).map(|number| PlannedAccess::read(rbp.wrapping_sub(8 * number), 8));
        let pushed = (1..=level + 1).map(|number| PlannedAccess::write(rsp.wrapping_sub(8 * number), 8));
        Ok(copied.chain(pushed).collect())
    }

    /// The bit's number is signed and may lie outside of the operand that is named.
    fn bit(&self) -> Result<Vec<PlannedAccess>, Error> {
        let size = self.size()?;
        let number = self.register(self.instruction.op1_register())?;
        let unused = 64 - 8 * size as u32;
        let operand = (number << unused).cast_signed() >> unused >> (8 * size).ilog2();
        let address = self.address()?.wrapping_add_signed(operand * size as i64);
        let read = PlannedAccess::read(address, size);
        let only_reads = self.instruction.mnemonic() == Mnemonic::Bt;
        Ok(if only_reads { vec![read] } else { vec![read, PlannedAccess::write(address, size)] })
    }

    /// One iteration.
    fn string(&self) -> Result<Vec<PlannedAccess>, Error> {
        let instruction = self.instruction;
        let is_repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
        if is_repeated && self.count()? == 0 {
            return Ok(Vec::new());
        }
        let size = self.size()?;
        let operand = |operand: u32, writes: bool| {
            let address = self.address_of(operand, 0)?;
            Ok(PlannedAccess { address, size, writes, value: None })
        };
        use Mnemonic::{
            Cmpsb, Cmpsd, Cmpsq, Cmpsw, Lodsb, Lodsd, Lodsq, Lodsw, Movsb, Movsd, Movsq, Movsw, Scasb, Scasd, Scasq,
            Scasw, Stosb, Stosd, Stosq, Stosw,
        };
        match instruction.mnemonic() {
            Movsb | Movsw | Movsd | Movsq => Ok(vec![operand(1, false)?, operand(0, true)?]),
            Cmpsb | Cmpsw | Cmpsd | Cmpsq => Ok(vec![operand(0, false)?, operand(1, false)?]),
            Stosb | Stosw | Stosd | Stosq => Ok(vec![operand(0, true)?]),
            Lodsb | Lodsw | Lodsd | Lodsq | Scasb | Scasw | Scasd | Scasq => Ok(vec![operand(1, false)?]),
            _ => Err(self.unknown("a string instruction of another kind")),
        }
    }

    /// What a repeated instruction counts down: rcx, or ecx if addresses have 32 bits.
    fn count(&self) -> Result<u64, Error> {
        use OpKind::{MemoryESEDI, MemoryESRDI, MemorySegEDI, MemorySegESI, MemorySegRDI, MemorySegRSI};
        let kinds = [self.instruction.op0_kind(), self.instruction.op1_kind()];
        if kinds.iter().any(|kind| matches!(kind, MemorySegRSI | MemorySegRDI | MemoryESRDI)) {
            Ok(self.state.registers.rcx)
        } else if kinds.iter().any(|kind| matches!(kind, MemorySegESI | MemorySegEDI | MemoryESEDI)) {
            Ok(self.state.registers.rcx & 0xffff_ffff)
        } else {
            Err(self.unknown("no counter"))
        }
    }

    /// Gathers and scatters.
    fn indexed(&self) -> Result<Vec<PlannedAccess>, Error> {
        let instruction = self.instruction;
        let Some(operand) = memory_operand(instruction) else { return Err(self.unknown("no operand")) };
        if !(1..=2).contains(&instruction.op_count()) && !self.is_gather_of_avx2() {
            return Err(self.unknown("indexes without a register of elements"));
        }
        if instruction.op_count() == 1 {
            return Ok(Vec::new()); // a prefetch
        }
        let size = self.size()?;
        let elements = instruction.op_register(1 - operand);
        let index_bytes = if instruction.vsib().unwrap_or(false) { 8 } else { 4 };
        let count = (elements.size() / size).min(instruction.memory_index().size() / index_bytes);
        let selected = if self.is_gather_of_avx2() {
            signs(&self.vector(instruction.op2_register())?, size)
        } else {
            self.mask()?
        };
        let writes = operand == 0;
        let values = self.vector(elements)?;
        let mut accesses = Vec::new();
        for element in (0..count).filter(|element| selected >> element & 1 != 0) {
            let address = self.address_of(operand, element)?;
            accesses.push(match writes {
                true => PlannedAccess::write_of(address, values[element * size..][..size].to_vec()),
                false => PlannedAccess::read(address, size),
            });
        }
        Ok(accesses)
    }

    /// Their mask is a vector.
    fn is_gather_of_avx2(&self) -> bool {
        self.instruction.op_count() == 3 && self.instruction.op2_register().is_vector_register()
    }

    /// The mask is the second operand, the top bit of each of its elements.
    fn masked_by_signs(&self) -> Result<Vec<PlannedAccess>, Error> {
        let mask = self.vector(self.instruction.op1_register())?;
        let element = self.instruction.memory_size().element_size();
        self.elements(signs(&mask, element), element, self.address()?, memory_operand(self.instruction) == Some(0))
    }

    /// The mask is the third operand, the first is implicitly at rdi.
    fn masked_bytes(&self) -> Result<Vec<PlannedAccess>, Error> {
        let mask = self.vector(self.instruction.op2_register())?;
        self.elements(signs(&mask, 1), 1, self.address_of(0, 0)?, true)
    }

    fn has_mask(&self) -> bool {
        self.instruction.op_mask() != Register::None
    }

    /// An operand under a mask register.
    fn masked(&self) -> Result<Vec<PlannedAccess>, Error> {
        let instruction = self.instruction;
        let Some(operand) = memory_operand(instruction) else { return Err(self.unknown("a mask without operand")) };
        let (address, size) = (self.address()?, self.size()?);
        match mask_use(instruction) {
            Some(MaskUse::Elements { bytes }) => self.elements(self.mask()?, bytes, address, operand == 0),
            Some(MaskUse::Any { elements }) if self.mask()? & low_bits(elements) == 0 => Ok(Vec::new()),
            _ => Ok(vec![PlannedAccess::read(address, size)]),
        }
    }

    /// Elements of an operand that are selected.
    fn elements(&self, selected: u64, element: usize, address: u64, writes: bool) -> Result<Vec<PlannedAccess>, Error> {
        let count = self.size()? / element;
        let places = (0..count).filter(|place| selected >> place & 1 != 0);
        let at = |place: usize| address.wrapping_add((place * element) as u64);
        Ok(places.map(|place| PlannedAccess { address: at(place), size: element, writes, value: None }).collect())
    }

    /// Compression and expansion: as many elements as are selected, without gaps.
    fn side_by_side(&self) -> Result<Vec<PlannedAccess>, Error> {
        let element = self.instruction.memory_size().element_size();
        let count = (self.mask()? & low_bits(self.size()? / element)).count_ones() as usize;
        self.elements(low_bits(count), element, self.address()?, memory_operand(self.instruction) == Some(0))
    }

    fn requested(&self) -> u64 {
        let registers = self.state.registers;
        vector::requested(registers.rdx << 32 | registers.rax & 0xffff_ffff)
    }

    /// The area itself says whether it is compacted.
    fn restore(&self) -> Result<Vec<PlannedAccess>, Error> {
        let address = self.address()?;
        let mut header = PlannedAccess::read(address.wrapping_add(vector::COMPACTION_OFFSET), 8);
        header.read_value(self.state.tracee);
        let layout =
            header.value.map_or(0, |bytes| bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)));
        let size = if layout & vector::IS_COMPACTED != 0 {
            vector::compacted_bytes(layout & !vector::IS_COMPACTED)
        } else {
            vector::standard_bytes(self.requested())
        };
        Ok(vec![PlannedAccess::read(address, size)])
    }

    /// Its destination is the address in a register.
    fn direct_store(&self) -> Result<Vec<PlannedAccess>, Error> {
        let destination = self.register(self.instruction.op0_register())?;
        Ok(vec![PlannedAccess::read(self.address()?, 64), PlannedAccess::write(destination, 64)])
    }

    /// The address of the explicit memory operand.
    fn address(&self) -> Result<u64, Error> {
        match memory_operand(self.instruction) {
            Some(operand) => self.address_of(operand, 0),
            None => Err(self.unknown("an implicit operand")),
        }
    }

    fn address_of(&self, operand: u32, element: usize) -> Result<u64, Error> {
        let index = match self.instruction.is_vsib() {
            true => Some(self.vector(self.instruction.memory_index())?),
            false => None,
        };
        let value = |register: Register, element: usize, size: usize| match &index {
            Some(bytes) if register.is_vector_register() => {
                let bytes = bytes.get(element * size..(element + 1) * size)?;
                Some(bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)))
            }
            _ => self.state.general(register),
        };
        let address = self.instruction.virtual_address(operand, element, value);
        address.ok_or_else(|| self.unknown("an address of unknown parts"))
    }

    /// Bytes of the memory operand.
    fn size(&self) -> Result<usize, Error> {
        match self.instruction.memory_size().size() {
            0 => Err(self.unknown("an operand of unknown size")),
            size => Ok(size),
        }
    }

    fn register(&self, register: Register) -> Result<u64, Error> {
        self.state.general(register).ok_or_else(|| self.unknown("an operand that is no general register"))
    }

    fn vector(&self, register: Register) -> Result<Vec<u8>, Error> {
        self.state.vector(register)?.ok_or_else(|| self.unknown("an operand that is no vector register"))
    }

    /// The bits of the mask register; k0 stands for all.
    fn mask(&self) -> Result<u64, Error> {
        match self.instruction.op_mask() {
            Register::None => Ok(u64::MAX),
            register => Ok(self.state.extended()?.mask(register)),
        }
    }

    fn unknown(&self, why: &'static str) -> Error {
        Error::Operand { pc: self.instruction.ip(), code: format!("{:?}", self.instruction.code()), why }
    }
}

/// What a mask register decides about the memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaskUse {
    /// Nothing: the operand is accessed as a whole.
    Whole,
    /// The operand is read if any of its elements is selected.
    Any { elements: usize },
    /// Each selected element of `bytes` bytes is accessed.
    Elements { bytes: usize },
    /// As many elements as are selected are accessed, side by side.
    Packed { bytes: usize },
}

/// What the mask of an instruction decides about its memory operand; `None` without a mask or an
/// operand.
#[must_use]
pub fn mask_use(instruction: &Instruction) -> Option<MaskUse> {
    use Mnemonic::{
        Vcompresspd, Vcompressps, Vexpandpd, Vexpandps, Vpcompressb, Vpcompressd, Vpcompressq, Vpcompressw, Vpexpandb,
        Vpexpandd, Vpexpandq, Vpexpandw,
    };
    let operand = memory_operand(instruction)?;
    if instruction.op_mask() == Register::None {
        return None;
    }
    let packs = matches!(
        instruction.mnemonic(),
        Vcompressps
            | Vcompresspd
            | Vpcompressb
            | Vpcompressw
            | Vpcompressd
            | Vpcompressq
            | Vexpandps
            | Vexpandpd
            | Vpexpandb
            | Vpexpandw
            | Vpexpandd
            | Vpexpandq
    );
    if packs {
        return Some(MaskUse::Packed { bytes: instruction.memory_size().element_size() });
    }
    if takes_memory_as_a_whole(instruction, operand) {
        return Some(MaskUse::Whole);
    }
    Some(match broadcast_count(instruction) {
        Some(elements) => MaskUse::Any { elements },
        None => MaskUse::Elements { bytes: masked_bytes(instruction) },
    })
}

fn low_bits(count: usize) -> u64 {
    1u64.checked_shl(count as u32).map_or(u64::MAX, |bit| bit - 1)
}

/// The top bits of the elements of a vector.
fn signs(vector: &[u8], element: usize) -> u64 {
    let tops = vector.chunks(element).map(|bytes| bytes.last().is_some_and(|byte| byte & 0x80 != 0));
    tops.enumerate().fold(0, |bits, (place, top)| bits | u64::from(top) << place)
}

/// They load in any case, only the move depends on the condition.
fn is_conditional_move(mnemonic: Mnemonic) -> bool {
    use Mnemonic::{
        Cmova, Cmovae, Cmovb, Cmovbe, Cmove, Cmovg, Cmovge, Cmovl, Cmovle, Cmovne, Cmovno, Cmovnp, Cmovns, Cmovo,
        Cmovp, Cmovs,
    };
    matches!(
        mnemonic,
        Cmova
            | Cmovae
            | Cmovb
            | Cmovbe
            | Cmove
            | Cmovg
            | Cmovge
            | Cmovl
            | Cmovle
            | Cmovne
            | Cmovno
            | Cmovnp
            | Cmovns
            | Cmovo
            | Cmovp
            | Cmovs
    )
}

/// How many elements an element of memory is copied to, if that is what happens to it.
fn broadcast_count(instruction: &Instruction) -> Option<usize> {
    use Mnemonic::{
        Vbroadcastf32x2, Vbroadcastf32x4, Vbroadcastf32x8, Vbroadcastf64x2, Vbroadcastf64x4, Vbroadcasti32x2,
        Vbroadcasti32x4, Vbroadcasti32x8, Vbroadcasti64x2, Vbroadcasti64x4, Vbroadcastsd, Vbroadcastss, Vpbroadcastb,
        Vpbroadcastd, Vpbroadcastq, Vpbroadcastw,
    };
    let size = instruction.memory_size();
    if instruction.is_broadcast() {
        return Some(broadcast_bytes(size) / size.size());
    }
    let is_broadcast = matches!(
        instruction.mnemonic(),
        Vbroadcastss
            | Vbroadcastsd
            | Vbroadcastf32x2
            | Vbroadcastf32x4
            | Vbroadcastf32x8
            | Vbroadcastf64x2
            | Vbroadcastf64x4
            | Vbroadcasti32x2
            | Vbroadcasti32x4
            | Vbroadcasti32x8
            | Vbroadcasti64x2
            | Vbroadcasti64x4
            | Vpbroadcastb
            | Vpbroadcastw
            | Vpbroadcastd
            | Vpbroadcastq
    );
    is_broadcast.then(|| instruction.op0_register().size() / size.element_size())
}

/// The bytes of the vector that a broadcast element stands for. Only the name shows that.
fn broadcast_bytes(size: MemorySize) -> usize {
    let name = format!("{size:?}");
    let digits: String = name.trim_start_matches("Broadcast").chars().take_while(char::is_ascii_digit).collect();
    digits.parse::<usize>().map_or(0, |bits| bits / 8)
}

/// Bytes of memory that one bit of the mask stands for: several elements in dot products and
/// widening multiplications.
fn masked_bytes(instruction: &Instruction) -> usize {
    use Mnemonic::{
        Vdpbf16ps, Vfcmaddcph, Vfcmaddcsh, Vfcmulcph, Vfcmulcsh, Vfmaddcph, Vfmaddcsh, Vfmulcph, Vfmulcsh, Vpdpbusd,
        Vpdpbusds, Vpdpwssd, Vpdpwssds, Vpmuldq, Vpmuludq,
    };
    match instruction.mnemonic() {
        Vpmuldq | Vpmuludq => 8,
        Vpdpbusd | Vpdpbusds | Vpdpwssd | Vpdpwssds | Vdpbf16ps => 4,
        Vfmaddcph | Vfcmaddcph | Vfmulcph | Vfcmulcph | Vfmaddcsh | Vfcmaddcsh | Vfmulcsh | Vfcmulcsh => 4,
        _ => instruction.memory_size().element_size(),
    }
}

/// Elements of the result do not come from the elements of memory at the same place: exception
/// classes E4NF, E5NF and E6NF of the manual. They read all of it, whatever the mask.
fn takes_memory_as_a_whole(instruction: &Instruction, operand: u32) -> bool {
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
    match instruction.mnemonic() {
        // The count of a shift; with an immediate count, memory is what is shifted.
        Vpsllw | Vpslld | Vpsllq | Vpsrlw | Vpsrld | Vpsrlq | Vpsraw | Vpsrad | Vpsraq => operand == 2,
        Valignd | Valignq | Vpalignr | Vpshufb | Vpshufd | Vpshufhw | Vpshuflw | Vshufpd | Vshufps | Vshuff32x4
        | Vshuff64x2 | Vshufi32x4 | Vshufi64x2 | Vpermb | Vpermw | Vpermd | Vpermq | Vpermps | Vpermpd | Vpermilps
        | Vpermilpd | Vpermi2b | Vpermi2w | Vpermi2d | Vpermi2q | Vpermi2ps | Vpermi2pd | Vpermt2b | Vpermt2w
        | Vpermt2d | Vpermt2q | Vpermt2ps | Vpermt2pd | Vpunpcklbw | Vpunpcklwd | Vpunpckldq | Vpunpcklqdq
        | Vpunpckhbw | Vpunpckhwd | Vpunpckhdq | Vpunpckhqdq | Vunpcklps | Vunpcklpd | Vunpckhps | Vunpckhpd
        | Vpacksswb | Vpackssdw | Vpackuswb | Vpackusdw | Vmovddup | Vmovshdup | Vmovsldup | Vpmaddwd | Vpmaddubsw
        | Vdbpsadbw | Vpmultishiftqb | Vpconflictd | Vpconflictq | Vgf2p8affineqb | Vgf2p8affineinvqb
        | Vcvtne2ps2bf16 | Vinsertf32x4 | Vinsertf32x8 | Vinsertf64x2 | Vinsertf64x4 | Vinserti32x4 | Vinserti32x8
        | Vinserti64x2 | Vinserti64x4 => true,
        _ => false,
    }
}
