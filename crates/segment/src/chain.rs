//! Chains of data dependences on a path of instructions. The longest chain is the minimum number of
//! cycles of the path if every instruction takes one cycle; instructions divided by it is the
//! parallelism (ILP) of the path.
//!
//! - Only true dependences count: a read of what was written before. Registers and flags are
//!   renamed; [`effects`] says what an instruction reads and writes. Values from before the path
//!   are available at once: an instruction that needs nothing of the path is a chain of one.
//! - Control dependences do not count, because the path is a predicted one. A branch still needs
//!   the flags or the register that it reads.
//! - A load needs the earlier stores that it gets bytes from. An address is identified by its
//!   expression and the versions of its registers. Different expressions count as different
//!   locations, as if aliases were always predicted correctly. A constant added to a register
//!   (`add`, `sub`, `inc`, `dec`, `lea`, `mov`) makes no new version, but an offset to the old one:
//!   a value that is pushed at one depth of the stack is found at another.
//! - A constant added to the stack pointer itself takes no time, because processors track it
//!   separately: `push`, `pop`, `call` and `ret` form no chain through `rsp`. `call` stores its
//!   return address, and `ret` loads it.
//! - An instruction is one link, whatever it does: all its results are available one cycle after
//!   all its inputs. This also holds for `add [rdi], eax` and for `rep movsb`, of which only the
//!   first element counts as a memory location.

mod stores;

use std::ops::Range;

use effects::{Analyser, Effects, Increment, MemoryOperand, Register};
use trace::{BlockIndex, Blocks};

use stores::{AddressBase, MemoryLocation, Stores};

/// Computes the lengths of chains of data dependences.
#[derive(Debug)]
pub struct DependenceChains<'b> {
    code: CodeEffects<'b>,
    path: PathState,
}

impl<'b> DependenceChains<'b> {
    #[must_use]
    pub fn new(blocks: &'b Blocks) -> Self {
        Self { code: CodeEffects::new(blocks), path: PathState::new() }
    }

    /// Returns the length of the longest chain of instructions, each of which needs a result of the
    /// previous one. The path is a sequence of instructions, each given by its block and its index
    /// in the block. Returns 0 for an empty path. An instruction outside the blocks only counts as
    /// executed.
    pub fn longest(&mut self, path: impl Iterator<Item = (BlockIndex, u32)>) -> u32 {
        self.path.clear();
        path.map(|(block, index)| self.path.execute(self.code.effects(block, index))).max().unwrap_or(0)
    }
}

/// Effects of instructions, decoded block by block on first use.
#[derive(Debug)]
struct CodeEffects<'b> {
    blocks: &'b Blocks,
    analyser: Analyser,
    effects: Vec<Effects>,
    /// Range of a block's effects; empty if not decoded yet.
    known: Vec<Range<usize>>,
}

impl<'b> CodeEffects<'b> {
    fn new(blocks: &'b Blocks) -> Self {
        Self { blocks, analyser: Analyser::new(), effects: Vec::new(), known: vec![0..0; blocks.len()] }
    }

    #[inline]
    fn effects(&mut self, block: BlockIndex, index: u32) -> &Effects {
        const NOTHING: &Effects = &Effects::NONE;
        if self.known.get(block.0 as usize).is_some_and(Range::is_empty) {
            self.decode_block(block);
        }
        let range = self.known.get(block.0 as usize).cloned().unwrap_or_default();
        self.effects[range].get(index as usize).unwrap_or(NOTHING)
    }

    #[cold]
    fn decode_block(&mut self, index: BlockIndex) {
        let Some(block) = self.blocks.get(index) else { return };
        let first = self.effects.len();
        for instruction in block.instructions() {
            let decoded = isa::decoder(instruction.address, instruction.bytes).decode();
            self.effects.push(self.analyser.analyse(&decoded));
        }
        self.known[index.0 as usize] = first..self.effects.len();
    }
}

/// Symbolic value of a register: the result of some instruction (`version`) plus an offset.
#[derive(Clone, Copy, Debug)]
struct RegisterValue {
    version: u32,
    offset: i64,
}

impl RegisterValue {
    const ZERO: Self = Self { version: 0, offset: 0 };

    fn plus(self, offset: i64) -> Self {
        Self { offset: self.offset.wrapping_add(offset), ..self }
    }
}

/// State after the instructions of a path so far.
#[derive(Debug)]
struct PathState {
    /// For each register, the length of the chain that produced its value.
    depths: [u32; Register::COUNT],
    values: [RegisterValue; Register::COUNT],
    /// The latest version of any value.
    version: u32,
    stores: Stores,
}

impl PathState {
    fn new() -> Self {
        let mut path = Self {
            depths: [0; Register::COUNT],
            values: [RegisterValue::ZERO; Register::COUNT],
            version: 0,
            stores: Stores::default(),
        };
        path.clear();
        path
    }

    fn clear(&mut self) {
        self.depths.fill(0);
        self.stores.clear();
        self.version = 0;
        for value in &mut self.values {
            self.version += 1;
            *value = RegisterValue { version: self.version, offset: 0 };
        }
    }

    /// Executes an instruction. Returns the length of the longest chain that ends with it.
    #[inline]
    fn execute(&mut self, effects: &Effects) -> u32 {
        let in_registers = effects.reads.iter().map(|register| self.depths[register.index()]);
        let in_memory =
            effects.memory().filter(|memory| memory.reads()).map(|memory| self.stores.load(self.location(memory)));
        let depth = 1 + in_registers.chain(in_memory).max().unwrap_or(0);
        for memory in effects.memory().filter(|memory| memory.writes()) {
            self.stores.store(self.location(memory), memory.is_certain, depth);
        }
        self.write(effects, depth);
        depth
    }

    #[inline]
    fn write(&mut self, effects: &Effects, depth: u32) {
        let stepped = effects.increment.map(|step| (step, self.value(Some(step.from)).plus(step.by.into())));
        let stack_depth = self.depths[Register::RSP.index()];
        for register in effects.writes.iter() {
            self.version += 1;
            self.depths[register.index()] = depth;
            self.values[register.index()] = RegisterValue { version: self.version, offset: 0 };
        }
        if let Some((step, value)) = stepped {
            self.values[step.to.index()] = value;
            if is_stack_adjustment(step) {
                self.depths[Register::RSP.index()] = stack_depth;
            }
        }
    }

    #[inline]
    fn location(&self, memory: &MemoryOperand) -> MemoryLocation {
        let (base, index) = (self.value(memory.base), self.value(memory.index));
        let base_key =
            AddressBase { base: base.version, index: index.version, scale: memory.scale, segment: memory.segment };
        let scaled = index.offset.wrapping_mul(memory.scale.into());
        let address = memory.displacement.wrapping_add(base.offset).wrapping_add(scaled);
        MemoryLocation { base_key, address, size: memory.size }
    }

    #[inline]
    fn value(&self, register: Option<Register>) -> RegisterValue {
        register.map_or(RegisterValue::ZERO, |register| self.values[register.index()])
    }
}

/// Returns whether the step adjusts the stack pointer, which a processor does without extra
/// latency.
fn is_stack_adjustment(step: Increment) -> bool {
    step.to == Register::RSP && step.from == Register::RSP
}
