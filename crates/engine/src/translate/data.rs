//! Recorded data beside the path: the addresses of memory operands.
//!
//! Data lies behind the path's word, at offsets that are known at translation, so each piece costs
//! one store. Translated code does not compute addresses: it stores the registers in them, and a
//! register only once as long as its value stays known (see [`super::symbol`]). The access
//! descriptors say how to compute addresses from registers.

use alloc::vec::Vec;
use iced_x86::{Code, Decoder, Encoder, Instruction, InstructionInfoFactory, Register, UsedRegister};
use wire::code::{self, AccessDescriptor};
use wire::{DATA_NONE, DATA_VALUES};

use super::copy::uses_r15;
use super::operand::{self, Mask, OperandForm};
use super::symbol::{Symbol, Symbols};
use super::value::{self, SourceInstruction};
use super::{BlockEnd, ExitKind, SourceBlock, TranslatedBlock, Translator, Unreadable, pc_of};

/// Fragments end when they have more data than this, or are longer than this in the cache.
const DATA_FULL: usize = 8 << 10;
const CODE_FULL: usize = 40 << 10;
/// Bytes at most that an ordered locked instruction adds behind the superblock.
const OUT_OF_LINE: usize = 640;

/// Bytes between the cursor and the first byte of data.
pub(super) const WORD: u32 = 4;

const R15: u8 = 15;

/// In [`super::MapEntry::data`]: a repeated string instruction has begun, whose progress would
/// follow this data.
pub const IN_STRING: usize = 1 << 15;

/// The data of a fragment, up to the current instruction.
pub(super) struct Data {
    pub(super) mode: u32,
    /// Bytes of data, and how many of them belong to the instructions before the current one.
    pub(super) length: usize,
    pub(super) complete: usize,
    pub(super) symbols: Symbols,
    pub(super) accesses: Vec<AccessDescriptor>,
    /// Registers that the current instruction uses.
    pub(super) used: Vec<UsedRegister>,
    factory: Option<InstructionInfoFactory>,
    encoder: Option<Encoder>,
}

impl Data {
    pub(super) fn new(mode: u32) -> Self {
        Self {
            mode,
            length: 0,
            complete: 0,
            symbols: Symbols::new(),
            accesses: Vec::new(),
            used: Vec::new(),
            factory: (mode != DATA_NONE).then(InstructionInfoFactory::new),
            encoder: None,
        }
    }

    pub(super) fn has_values(&self) -> bool {
        self.mode == DATA_VALUES
    }

    pub(super) fn encoder(&mut self) -> &mut Encoder {
        self.encoder.get_or_insert_with(|| Encoder::new(64))
    }
}

impl Translator<'_, '_> {
    /// Whether the fragment has to end before the next instruction.
    pub(super) fn is_full(&self) -> bool {
        let out_of_line = OUT_OF_LINE * self.owner_misses.len();
        self.data.length > DATA_FULL || self.out.position() - self.start + out_of_line > CODE_FULL
    }

    /// An instruction without transfer, with its data.
    pub(super) fn copy_recorded(&mut self, instruction: &Instruction, decoder: &Decoder, bytes: &[u8]) {
        self.pc = pc_of(instruction);
        self.data.complete = self.data.length;
        self.map_safe_point(self.pc);
        let mut operands = Vec::new();
        self.with_info(
            |this, info| {
                operand::operands(instruction, info, &mut operands);
                this.data.used.clear();
                this.data.used.extend_from_slice(info.used_registers());
            },
            instruction,
        );
        let first = self.data.accesses.len();
        for operand in &operands {
            let access = self.describe_access(operand);
            self.data.accesses.push(access);
        }
        if operand::repeats(instruction) && !self.data.has_values() {
            self.begin_string();
        }
        if operands.is_empty() || !self.data.has_values() {
            self.copy_plain(instruction, decoder, bytes);
        } else {
            self.copy_with_values(&SourceInstruction { instruction, decoder, bytes }, &operands, first);
        }
        self.with_info(|this, info| this.data.symbols.execute(instruction, info), instruction);
        if operand::repeats(instruction) {
            self.end_string(first, &operands);
        }
        if self.data.has_values() {
            self.learn_loaded(instruction, first);
        }
    }

    /// Calls `function` with what iced knows about an instruction.
    fn with_info(&mut self, function: impl FnOnce(&mut Self, &iced_x86::InstructionInfo), instruction: &Instruction) {
        if let Some(mut factory) = self.data.factory.take() {
            function(self, factory.info(instruction));
            self.data.factory = Some(factory);
        }
    }

    /// Adds the access descriptors of a transfer; returns the index of the first. The value that a
    /// call pushes is a constant.
    pub(super) fn describe_transfer(&mut self, instruction: &Instruction) -> usize {
        let first = self.data.accesses.len();
        if self.data.mode == DATA_NONE {
            return first;
        }
        self.pc = pc_of(instruction);
        self.data.complete = self.data.length;
        let mut operands = Vec::new();
        self.with_info(|_, info| operand::operands(instruction, info, &mut operands), instruction);
        for operand in &operands {
            // The address of an operand relative to gs is filled in later.
            let without = OperandForm { base: None, index: None, displacement: 0, short: false, ..*operand };
            let mut access = self.describe_access(if operand.gs { &without } else { operand });
            if operand.writes && self.data.has_values() {
                access.value = code::CONSTANT;
                access.constant = instruction.next_ip();
            }
            self.data.accesses.push(access);
        }
        self.map_safe_point(self.pc);
        let immediate = match instruction.code() {
            Code::Retnq_imm16 => i64::from(instruction.immediate16()),
            _ => 0,
        };
        self.data.symbols.move_stack(i64::from(instruction.stack_pointer_increment()) + immediate);
        first
    }

    /// Records the target of an indirect transfer, in rcx, as the value of an access.
    pub(super) fn record_target(&mut self, access: usize) {
        const RCX: u8 = 1;
        if self.data.has_values() {
            let offset = self.allocate(8);
            self.data.accesses[access].value = offset;
            self.store_general(offset, RCX);
        }
    }

    /// Whether the engine has to emulate an instruction, to execute it or to record its data.
    pub(super) fn is_for_the_engine(&self, instruction: &Instruction) -> bool {
        if super::segment::is_for_the_engine(instruction) {
            return true;
        }
        match self.data.mode {
            DATA_NONE => false,
            DATA_VALUES => crate::emulate::is_known(instruction) || value::is_emulated(instruction),
            _ => crate::emulate::is_known(instruction),
        }
    }

    /// Ends with a block of one instruction, which the engine emulates.
    pub(super) fn end_emulated(
        &mut self,
        instruction: &Instruction,
        block: &SourceBlock,
        start: usize,
    ) -> Result<BlockEnd, Unreadable> {
        if start > 0 {
            return Ok(self.cut(block, start));
        }
        if self.block > 0 {
            // The superblock was to end before it; the code has changed since.
            return Err(Unreadable);
        }
        self.result.blocks.push(TranslatedBlock { length: instruction.len() as u32, taken: false });
        self.result.has_locked |= isa::is_locked(instruction);
        self.map_safe_point(pc_of(instruction));
        let path = self.next_path();
        self.record_exit(ExitKind::Emulated, pc_of(instruction), 1, code::TERMINATOR_DIRECT);
        self.out.exit_stub(path.get());
        Ok(BlockEnd::Stop)
    }

    /// Allocates data and returns its offset.
    pub(super) fn allocate(&mut self, bytes: usize) -> u16 {
        let offset = self.data.length;
        self.data.length += bytes.next_multiple_of(4);
        offset as u16
    }

    /// Makes the access descriptor of an operand, and stores the registers that are not known yet.
    pub(super) fn describe_access(&mut self, operand: &OperandForm) -> AccessDescriptor {
        let mut access = AccessDescriptor {
            block: u16::from(self.block),
            offset: (self.pc - self.block_address) as u16,
            size: operand.size,
            kind: operand.kind,
            flags: operand.scale,
            value: code::NO_VALUE,
            count: operand.count,
            index_bytes: operand.index_bytes,
            displacement: operand.displacement,
            ..AccessDescriptor::default()
        };
        let flags = [(operand.writes, code::WRITES), (operand.fs, code::HAS_FS), (operand.short, code::IS_SHORT)];
        for (_, flag) in flags.into_iter().filter(|(set, _)| *set) {
            access.flags |= flag;
        }
        if let Some(base) = operand.base {
            match self.known(base) {
                Symbol::Slot { offset, add } => {
                    access.base = offset;
                    access.flags |= code::HAS_BASE;
                    access.displacement = access.displacement.wrapping_add(add);
                }
                Symbol::Constant(value) => access.displacement = access.displacement.wrapping_add(value as i64),
                Symbol::Unknown | Symbol::Low { .. } => {}
            }
        }
        if let Some(index) = operand.index {
            let scaled = |value: i64| value.wrapping_shl(u32::from(operand.scale));
            match self.known(index) {
                Symbol::Slot { offset, add } => {
                    access.index = offset;
                    access.flags |= code::HAS_INDEX;
                    access.displacement = access.displacement.wrapping_add(scaled(add));
                }
                Symbol::Constant(value) => {
                    access.displacement = access.displacement.wrapping_add(scaled(value as i64));
                }
                Symbol::Unknown | Symbol::Low { .. } => {}
            }
        }
        match operand.kind {
            code::STRING => access.index = self.stored(1),
            code::BIT => access.mask = operand.bit.map_or(0, |register| self.stored(register)),
            code::INDEXED => access.index = self.store_vector(operand.indices, operand.indices.size()),
            _ => {}
        }
        match operand.mask {
            Mask::None => {}
            Mask::Bits(register) => {
                access.mask = self.store_mask(register, operand.count);
                access.mask_kind = code::MASK_BITS;
            }
            Mask::Signs(register) => {
                access.mask = self.store_vector(register, register.size());
                access.mask_kind = code::MASK_SIGNS;
            }
        }
        access
    }

    /// Records the stack pointer before the first instruction of a block.
    pub(super) fn record_stack_pointer(&mut self) {
        const RSP: u8 = 4;
        if self.data.mode == DATA_NONE {
            return;
        }
        self.pc = self.block_address;
        self.data.complete = self.data.length;
        self.map_safe_point(self.pc);
        let (base, displacement) = match self.known(RSP) {
            Symbol::Slot { offset, add } => (offset, add),
            Symbol::Constant(_) | Symbol::Unknown | Symbol::Low { .. } => (self.stored(RSP), 0),
        };
        self.data.accesses.push(AccessDescriptor {
            block: u16::from(self.block),
            size: 8,
            kind: code::STACK_POINTER,
            flags: code::HAS_BASE,
            base,
            value: code::NO_VALUE,
            displacement,
            ..AccessDescriptor::default()
        });
    }

    /// The symbol of a register, which is stored if its value is not known.
    fn known(&mut self, register: u8) -> Symbol {
        match self.data.symbols.get(register) {
            Symbol::Unknown | Symbol::Low { .. } => {
                let offset = self.allocate(8);
                self.store_general(offset, register);
                let symbol = Symbol::Slot { offset, add: 0 };
                self.data.symbols.set(register, symbol);
                symbol
            }
            symbol => symbol,
        }
    }

    /// The offset of a register's exact value, which is stored if necessary.
    fn stored(&mut self, register: u8) -> u16 {
        if let Symbol::Slot { offset, add: 0 } = self.data.symbols.get(register) {
            return offset;
        }
        let offset = self.allocate(8);
        self.store_general(offset, register);
        self.data.symbols.set(register, Symbol::Slot { offset, add: 0 });
        offset
    }

    /// Stores a general register of the application as data.
    pub(super) fn store_general(&mut self, offset: u16, register: u8) {
        self.require_cursor_mapped();
        if register != R15 {
            return self.out.store_data(u32::from(offset) + WORD, 8, register);
        }
        // The application's r15 lives in the thread's state.
        self.store_app_r15(offset, 8);
    }

    /// Switches r15 to the cursor before a store of data.
    pub(super) fn require_cursor_mapped(&mut self) {
        if self.has_app_r15 {
            self.require_cursor();
            self.map_again();
        }
    }

    /// Switches r15 to the application's value, if the instruction uses it.
    pub(super) fn require_app_r15_for(&mut self, instruction: &Instruction) {
        if uses_r15(instruction) && !self.has_app_r15 {
            self.require_app_r15();
            self.map_again();
        }
    }

    /// Adds a map entry after r15 has changed: a safe point before the current instruction, unless
    /// the code is between safe points.
    pub(super) fn map_again(&mut self) {
        if self.is_between_safe_points {
            self.map_between_safe_points();
        } else {
            self.map_safe_point(self.pc);
        }
    }

    fn store_vector(&mut self, register: Register, bytes: usize) -> u16 {
        let offset = self.allocate(bytes);
        self.require_cursor_mapped();
        self.out.store_data_vector(u32::from(offset) + WORD, bytes, register);
        offset
    }

    fn store_mask(&mut self, register: Register, count: u8) -> u16 {
        let offset = self.allocate(8);
        self.require_cursor_mapped();
        self.out.store_data_mask(u32::from(offset) + WORD, count > 16, register);
        offset
    }

    /// Stores a register, of any kind and of its own size or less, as data.
    pub(super) fn store_value(&mut self, offset: u16, register: Register, bytes: usize) {
        if register.is_gpr() {
            return self.store_general_part(offset, register, bytes);
        }
        self.require_cursor_mapped();
        if register.is_k() {
            self.out.store_data_mask(u32::from(offset) + WORD, bytes > 2, register);
        } else {
            self.out.store_data_vector(u32::from(offset) + WORD, bytes, register);
        }
    }

    /// Marks the beginning of a repeated string instruction, all of whose data but its progress is
    /// stored. If a signal interrupts it, the handler adds the progress.
    pub(super) fn begin_string(&mut self) {
        self.data.complete = self.data.length | IN_STRING;
        self.map_safe_point(self.pc);
    }

    /// Stores the progress of a repeated string instruction after its end.
    fn end_string(&mut self, first: usize, operands: &[OperandForm]) {
        const RCX: u8 = 1;
        self.data.complete = self.data.length;
        self.map_between_safe_points();
        for (index, operand) in operands.iter().enumerate() {
            let Some(register) = operand.base else { continue };
            let pair = self.allocate(16);
            self.store_general(pair, RCX);
            self.store_general(pair + 8, register);
            self.data.accesses[first + index].mask = pair;
            self.data.symbols.set(RCX, Symbol::Slot { offset: pair, add: 0 });
            self.data.symbols.set(register, Symbol::Slot { offset: pair + 8, add: 0 });
        }
    }
}
