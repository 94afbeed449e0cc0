//! Chains of data dependences on a path of instructions: the longest one says how many cycles the path takes at least if every instruction takes
//! one, and instructions / longest is the parallelism (ILP) of the path.
//!
//! - Only true dependences count, a read of what was written before. Registers and flags are renamed; see [`isa::effects`] for what reads and
//!   writes what. What comes from before the path is there at once: an instruction that needs nothing of the path is a chain of one.
//! - Control dependences do not count, as the path is a predicted one. A branch still needs the flags or the register that it looks at.
//! - A load needs the stores before it that it gets bytes from. An address is told by its expression and the versions of the registers in it, and
//!   different expressions are different places, as if aliases were always predicted well. A constant added to a register (`add`, `sub`, `inc`, `dec`,
//!   `lea`, `mov`) makes no new version, but an offset to the old one: a value that is pushed at one depth of the stack is found at another.
//! - A constant added to the stack pointer itself takes no time, because processors do it beside everything else: `push`, `pop`, `call` and `ret` are
//!   no chain by what they do to `rsp`. `call` stores where it returns to, and `ret` loads it.
//! - An instruction is one link, whatever it does: all it writes is there one cycle after all it reads. That holds for `add [rdi], eax` and for `rep
//!   movsb`, of which only the first element counts as a place in memory.

mod stores;

use std::ops::Range;

use isa::effects::{Effects, Memory, Reader, Register, RegisterIncrement};
use trace::{BlockIndex, Blocks};

use stores::{Origin, Place, Stores};

/// Lengths of chains of data dependences.
#[derive(Debug)]
pub struct Chains<'b> {
    code: Code<'b>,
    path: Path,
}

impl<'b> Chains<'b> {
    #[must_use]
    pub fn new(blocks: &'b Blocks) -> Self {
        Self { code: Code::new(blocks), path: Path::new() }
    }

    /// The longest chain of instructions, each of which needs a result of the one before it, on a path of instructions told by their block and their
    /// place in it; 0 if there are none. Of what is no instruction of the blocks it is known only that it was executed.
    pub fn longest(&mut self, path: impl Iterator<Item = (BlockIndex, u32)>) -> u32 {
        self.path.clear();
        path.map(|(block, place)| self.path.execute(self.code.effects(block, place))).max().unwrap_or(0)
    }
}

/// The effects of instructions, found out block by block when they are needed.
#[derive(Debug)]
struct Code<'b> {
    blocks: &'b Blocks,
    reader: Reader,
    effects: Vec<Effects>,
    /// Where the effects of a block are; empty if they are not known yet.
    known: Vec<Range<usize>>,
}

impl<'b> Code<'b> {
    fn new(blocks: &'b Blocks) -> Self {
        Self { blocks, reader: Reader::new(), effects: Vec::new(), known: vec![0..0; blocks.len()] }
    }

    #[inline]
    fn effects(&mut self, block: BlockIndex, place: u32) -> &Effects {
        const NOTHING: &Effects = &Effects::NONE;
        if self.known.get(block.0 as usize).is_some_and(Range::is_empty) {
            self.learn(block);
        }
        let range = self.known.get(block.0 as usize).cloned().unwrap_or_default();
        self.effects[range].get(place as usize).unwrap_or(NOTHING)
    }

    #[cold]
    fn learn(&mut self, index: BlockIndex) {
        let Some(block) = self.blocks.get(index) else { return };
        let first = self.effects.len();
        for instruction in block.instructions() {
            let decoded = isa::decoder(instruction.address, instruction.bytes).decode();
            self.effects.push(self.reader.effects(&decoded));
        }
        self.known[index.0 as usize] = first..self.effects.len();
    }
}

/// What is known of a register's value: it is what some instruction has made, plus an offset.
#[derive(Clone, Copy, Debug)]
struct Value {
    version: u32,
    offset: i64,
}

impl Value {
    const ZERO: Self = Self { version: 0, offset: 0 };

    fn plus(self, offset: i64) -> Self {
        Self { offset: self.offset.wrapping_add(offset), ..self }
    }
}

/// What the instructions of a path have left so far.
#[derive(Debug)]
struct Path {
    /// By register: how long the chain is that its value comes out of.
    depths: [u32; Register::COUNT],
    values: [Value; Register::COUNT],
    /// The latest of all values.
    version: u32,
    stores: Stores,
}

impl Path {
    fn new() -> Self {
        let mut path = Self {
            depths: [0; Register::COUNT],
            values: [Value::ZERO; Register::COUNT],
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
            *value = Value { version: self.version, offset: 0 };
        }
    }

    /// Executes an instruction and gives the length of the longest chain that ends with it.
    #[inline]
    fn execute(&mut self, effects: &Effects) -> u32 {
        let in_registers = effects.reads.iter().map(|register| self.depths[register.index()]);
        let in_memory =
            effects.memory().filter(|memory| memory.reads()).map(|memory| self.stores.load(self.place(memory)));
        let depth = 1 + in_registers.chain(in_memory).max().unwrap_or(0);
        for memory in effects.memory().filter(|memory| memory.writes()) {
            self.stores.store(self.place(memory), memory.is_certain, depth);
        }
        self.write(effects, depth);
        depth
    }

    #[inline]
    fn write(&mut self, effects: &Effects, depth: u32) {
        let stepped = effects.step.map(|step| (step, self.value(Some(step.from)).plus(step.by.into())));
        let stack_depth = self.depths[Register::RSP.index()];
        for register in effects.writes.iter() {
            self.version += 1;
            self.depths[register.index()] = depth;
            self.values[register.index()] = Value { version: self.version, offset: 0 };
        }
        if let Some((step, value)) = stepped {
            self.values[step.to.index()] = value;
            if is_beside(step) {
                self.depths[Register::RSP.index()] = stack_depth;
            }
        }
    }

    #[inline]
    fn place(&self, memory: &Memory) -> Place {
        let (base, index) = (self.value(memory.base), self.value(memory.index));
        let origin = Origin { base: base.version, index: index.version, scale: memory.scale, segment: memory.segment };
        let scaled = index.offset.wrapping_mul(memory.scale.into());
        let address = memory.displacement.wrapping_add(base.offset).wrapping_add(scaled);
        Place { origin, address, size: memory.size }
    }

    #[inline]
    fn value(&self, register: Option<Register>) -> Value {
        register.map_or(Value::ZERO, |register| self.values[register.index()])
    }
}

/// Whether a processor adds the constant without an instruction of its own.
fn is_beside(step: RegisterIncrement) -> bool {
    step.to == Register::RSP && step.from == Register::RSP
}
