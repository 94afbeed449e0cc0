//! Random programs: blocks of straight-line code with every kind of transfer between them, which
//! always come to an end.

use proptest::prelude::*;

/// Where a program's parts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub code: u64,
    pub data: u64,
    pub cache: u64,
}

/// All in the low two gigabytes.
pub const LOW: Layout = Layout { code: 0x5000_0000, data: 0x5100_0000, cache: 0x5800_0000 };
/// The data is beyond the reach of the cache.
pub const FAR: Layout = Layout { code: 0x2000_0000_0000, data: 0x2000_4000_0000, cache: 0x1fff_a000_0000 };

pub const DATA_BYTES: u64 = 4096;
/// Targets of indirect transfers are kept behind the data.
const POINTERS: u64 = DATA_BYTES;
/// In the region of the data.
pub const STACK_TOP: u64 = 0x2_0000;
pub const STACK_BYTES: u64 = 0x4000;
pub const REGION_BYTES: u64 = 0x10_0000;
/// Where in the code the program ends.
pub const END: u64 = 0xf000;

/// One or a few instructions that need nothing and only change registers, flags and data.
#[derive(Clone, Debug)]
pub enum Op {
    /// `op rm64, r64` (or 32 bits) with this opcode.
    Registers {
        opcode: u8,
        wide: bool,
        rm: u8,
        reg: u8,
    },
    /// `add, or, adc, sbb, and, sub, xor, cmp rm64, imm8`.
    Immediate {
        which: u8,
        rm: u8,
        value: u8,
    },
    /// `rol, ror, rcl, rcr, shl, shr, sar rm64, imm8`.
    Shift {
        which: u8,
        rm: u8,
        count: u8,
    },
    /// `inc`, `dec`, `not`, `neg` and `mul`, by opcode and extension.
    Unary {
        opcode: u8,
        extension: u8,
        rm: u8,
    },
    SetIf {
        condition: u8,
        rm: u8,
    },
    MoveIf {
        condition: u8,
        rm: u8,
        reg: u8,
    },
    Constant {
        register: u8,
        value: u64,
    },
    LoadAddress {
        register: u8,
        base: u8,
        index: u8,
        displacement: i8,
    },
    /// `op [rip + data], r64` or the other way round.
    Data {
        opcode: u8,
        register: u8,
        offset: u16,
    },
    DataImmediate {
        which: u8,
        offset: u16,
        value: u8,
    },
    /// `lea base, [rip + data]`, then `op` with `[base + displacement]`.
    Pointer {
        opcode: u8,
        base: u8,
        register: u8,
        offset: u16,
        displacement: i8,
    },
    PushPop {
        from: u8,
        to: u8,
    },
    /// `pushfq`, then `pop`.
    FlagsTo {
        register: u8,
    },
    Vector {
        from: u8,
        to: u8,
    },
    /// `rep stosb` into the data.
    Fill {
        offset: u16,
        count: u8,
    },
    /// A locked instruction of 1, 2, 4 or 8 bytes, on one of a few places, some of them not
    /// aligned, relative to rip or by way of a register.
    Locked {
        form: Form,
        size: u8,
        register: u8,
        base: Option<u8>,
        place: u8,
    },
    Fence,
    Byte(u8),
}

/// A locked instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    ExchangeAdd,
    Exchange,
    /// With what is there in rax, or not.
    CompareExchange(bool),
    /// `add, or, adc, sbb, and, sub, xor` with a register or an immediate.
    Register(u8),
    Immediate(u8, u8),
    /// `inc`, `dec`, `not` and `neg`.
    Increment,
    Decrement,
    Not,
    Negate,
    /// `bts`, `btr`, `btc` with an immediate, or a register with this number of a bit.
    Bit(u8),
    BitRegister(u8, u8),
    /// `cmpxchg8b` or `cmpxchg16b`.
    Pair,
}

/// How a block ends; targets are blocks further on, or the end.
#[derive(Clone, Debug)]
pub enum Transfer {
    Jump(u8),
    Branch {
        condition: u8,
        target: u8,
    },
    /// `jrcxz` over a long jump to the target.
    BranchOnCount(u8),
    /// `loop` to itself, a few times.
    Loop(u8),
    Call(u8),
    Return,
    ReturnDropping,
    JumpRegister {
        register: u8,
        target: u8,
    },
    CallRegister {
        register: u8,
        target: u8,
    },
    JumpMemory(u8),
    CallMemory(u8),
    CallOnStack(u8),
}

#[derive(Clone, Debug)]
pub struct Block {
    pub ops: Vec<Op>,
    pub transfer: Transfer,
}

#[derive(Clone, Debug)]
pub struct Program {
    pub blocks: Vec<Block>,
    pub general: [u64; 16],
    pub flags: u64,
    pub seed: u64,
}

/// Every register but rsp, r15 often.
fn register() -> impl Strategy<Value = u8> {
    prop_oneof![3 => (0u8..15).prop_map(|number| if number >= 4 { number + 1 } else { number }), 1 => Just(15)]
}

fn offset() -> impl Strategy<Value = u16> {
    (16u16..(DATA_BYTES / 8) as u16 - 32).prop_map(|number| number * 8)
}

fn form() -> impl Strategy<Value = Form> {
    let simple = [Form::Increment, Form::Decrement, Form::Not, Form::Negate, Form::Pair];
    prop_oneof![
        3 => prop::sample::select(&[Form::ExchangeAdd, Form::Exchange][..]),
        2 => any::<bool>().prop_map(Form::CompareExchange),
        2 => (0u8..7).prop_map(Form::Register),
        2 => (0u8..7, prop_oneof![Just(0u8), any::<u8>()]).prop_map(|(which, value)| Form::Immediate(which, value)),
        3 => prop::sample::select(simple.to_vec()),
        1 => (5u8..8).prop_map(Form::Bit),
        1 => (5u8..8, 0u8..250).prop_map(|(which, bit)| Form::BitRegister(which, bit)),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let opcode =
        prop::sample::select(&[0x01u8, 0x09, 0x11, 0x19, 0x21, 0x29, 0x31, 0x39, 0x85, 0x89, 0x87, 0x03, 0x3b][..]);
    let moves = prop::sample::select(&[0x01u8, 0x11, 0x29, 0x31, 0x39, 0x89, 0x8b, 0x03, 0x3b][..]);
    let unary = prop::sample::select(&[(0xffu8, 0u8), (0xff, 1), (0xf7, 2), (0xf7, 3), (0xf7, 4)][..]);
    let byte = prop::sample::select(&[0x90u8, 0xf5, 0xf8, 0xf9, 0xfc, 0xfd, 0x9e, 0x9f, 0x98, 0x99][..]);
    prop_oneof![
        4 => (opcode, any::<bool>(), register(), register())
            .prop_map(|(opcode, wide, rm, reg)| Op::Registers { opcode, wide, rm, reg }),
        2 => (0u8..8, register(), any::<u8>()).prop_map(|(which, rm, value)| Op::Immediate { which, rm, value }),
        1 => (0u8..6, register(), 0u8..70).prop_map(|(which, rm, count)| Op::Shift { which, rm, count }),
        2 => (unary, register()).prop_map(|((opcode, extension), rm)| Op::Unary { opcode, extension, rm }),
        1 => (0u8..16, register()).prop_map(|(condition, rm)| Op::SetIf { condition, rm }),
        1 => (0u8..16, register(), register()).prop_map(|(condition, rm, reg)| Op::MoveIf { condition, rm, reg }),
        1 => (register(), any::<u64>()).prop_map(|(register, value)| Op::Constant { register, value }),
        1 => (register(), register(), register(), any::<i8>())
            .prop_map(|(register, base, index, displacement)| Op::LoadAddress { register, base, index, displacement }),
        2 => (moves.clone(), register(), offset())
            .prop_map(|(opcode, register, offset)| Op::Data { opcode, register, offset }),
        1 => (0u8..8, offset(), any::<u8>())
            .prop_map(|(which, offset, value)| Op::DataImmediate { which, offset, value }),
        2 => (moves, register(), register(), offset(), -100i8..100).prop_map(
            |(opcode, base, register, offset, displacement)| {
                Op::Pointer { opcode, base, register, offset, displacement }
            }
        ),
        1 => (register(), register()).prop_map(|(from, to)| Op::PushPop { from, to }),
        1 => register().prop_map(|register| Op::FlagsTo { register }),
        1 => (register(), register()).prop_map(|(from, to)| Op::Vector { from, to }),
        1 => (offset(), 0u8..20).prop_map(|(offset, count)| Op::Fill { offset, count }),
        5 => (form(), 0u8..4, register(), prop::option::of(register()), 0u8..8)
            .prop_map(|(form, size, register, base, place)| Op::Locked { form, size, register, base, place }),
        1 => Just(Op::Fence),
        2 => byte.prop_map(Op::Byte),
    ]
}

fn transfer() -> impl Strategy<Value = Transfer> {
    let ahead = 0u8..4;
    prop_oneof![
        2 => ahead.clone().prop_map(Transfer::Jump),
        4 => (0u8..16, ahead.clone()).prop_map(|(condition, target)| Transfer::Branch { condition, target }),
        1 => ahead.clone().prop_map(Transfer::BranchOnCount),
        1 => (1u8..6).prop_map(Transfer::Loop),
        2 => ahead.clone().prop_map(Transfer::Call),
        2 => Just(Transfer::Return),
        1 => Just(Transfer::ReturnDropping),
        1 => (register(), ahead.clone()).prop_map(|(register, target)| Transfer::JumpRegister { register, target }),
        1 => (register(), ahead.clone()).prop_map(|(register, target)| Transfer::CallRegister { register, target }),
        1 => ahead.clone().prop_map(Transfer::JumpMemory),
        1 => ahead.clone().prop_map(Transfer::CallMemory),
        1 => ahead.prop_map(Transfer::CallOnStack),
    ]
}

pub fn program() -> impl Strategy<Value = Program> {
    let block = (prop::collection::vec(op(), 0..6), transfer()).prop_map(|(ops, transfer)| Block { ops, transfer });
    (prop::collection::vec(block, 1..9), any::<[u64; 16]>(), any::<u64>(), any::<u64>())
        .prop_map(|(blocks, general, flags, seed)| Program { blocks, general, flags, seed })
}

/// Machine code of a program.
pub struct Code {
    pub bytes: Vec<u8>,
    /// Contents of the places that indirect transfers read their targets from.
    pub pointers: Vec<(u64, u64)>,
}

struct Assembler {
    layout: Layout,
    bytes: Vec<u8>,
    /// Displacements that lead to the beginning of a block.
    fixups: Vec<(usize, usize)>,
    pointers: Vec<usize>,
}

impl Form {
    /// Whether the engine executes it if values are recorded.
    fn is_emulated(self) -> bool {
        match self {
            Self::ExchangeAdd | Self::Exchange | Self::CompareExchange(_) | Self::Pair => false,
            Self::Increment | Self::Decrement | Self::Register(0 | 5) | Self::Immediate(0 | 5, _) => false,
            Self::Immediate(1, value) => value != 0,
            _ => true,
        }
    }
}

impl Program {
    /// The program without what would be executed by the engine, for which there is none here.
    pub fn for_data(&self, data: u32) -> Self {
        let mut program = self.clone();
        if data == wire::DATA_VALUES {
            for block in &mut program.blocks {
                block.ops.retain(|op| !matches!(op, Op::Locked { form, .. } if form.is_emulated()));
            }
        }
        program
    }

    pub fn assemble(&self, layout: Layout) -> Code {
        let mut assembler = Assembler { layout, bytes: Vec::new(), fixups: Vec::new(), pointers: Vec::new() };
        let mut starts = Vec::new();
        for (index, block) in self.blocks.iter().enumerate() {
            starts.push(assembler.bytes.len() as u64);
            block.ops.iter().for_each(|op| assembler.op(op));
            assembler.transfer(&block.transfer, index);
        }
        // Behind the last block, and where targets beyond it lead.
        let last = assembler.bytes.len() as u64;
        assembler.bytes.extend([0xe9]);
        assembler.bytes.extend(((END - last - 5) as u32).to_le_bytes());
        let start = |block: usize| starts.get(block).copied().unwrap_or(last);
        for (position, block) in &assembler.fixups {
            let displacement = (start(*block) as i64 - *position as i64 - 4) as i32;
            assembler.bytes[*position..position + 4].copy_from_slice(&displacement.to_le_bytes());
        }
        let places = (0..).map(|index| layout.data + POINTERS + 8 * index);
        let pointers =
            places.zip(&assembler.pointers).map(|(place, block)| (place, layout.code + start(*block))).collect();
        Code { bytes: assembler.bytes, pointers }
    }
}

impl Assembler {
    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// REX.W (if wide), opcode and a register operand.
    fn two_registers(&mut self, wide: bool, opcode: &[u8], rm: u8, reg: u8) {
        self.bytes(&[0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | rm >> 3]);
        self.bytes(opcode);
        self.bytes(&[0xc0 | (reg & 7) << 3 | rm & 7]);
    }

    /// REX.W, opcode, `[rip + data]`; `after` bytes of immediate follow.
    fn data(&mut self, opcode: &[u8], reg: u8, place: u64, after: u64) {
        self.bytes(&[0x48 | (reg >> 3) << 2]);
        self.bytes(opcode);
        self.bytes(&[(reg & 7) << 3 | 5]);
        self.rip_relative(place, after);
    }

    fn rip_relative(&mut self, place: u64, after: u64) {
        let end = self.layout.code + self.bytes.len() as u64 + 4 + after;
        let displacement = (self.layout.data + place).wrapping_sub(end) as u32;
        self.bytes(&displacement.to_le_bytes());
    }

    fn op(&mut self, op: &Op) {
        match *op {
            Op::Registers { opcode, wide, rm, reg } => self.two_registers(wide, &[opcode], rm, reg),
            Op::Immediate { which, rm, value } => {
                self.two_registers(true, &[0x83], rm, which);
                self.bytes(&[value]);
            }
            Op::Shift { which, rm, count } => {
                self.two_registers(true, &[0xc1], rm, which);
                self.bytes(&[count]);
            }
            Op::Unary { opcode, extension, rm } => self.two_registers(true, &[opcode], rm, extension),
            Op::SetIf { condition, rm } => self.two_registers(false, &[0x0f, 0x90 | condition], rm, 0),
            Op::MoveIf { condition, rm, reg } => self.two_registers(true, &[0x0f, 0x40 | condition], rm, reg),
            Op::Constant { register, value } => {
                self.bytes(&[0x48 | register >> 3, 0xb8 | register & 7]);
                self.bytes(&value.to_le_bytes());
            }
            Op::LoadAddress { register, base, index, displacement } => {
                let rex = 0x48 | (register >> 3) << 2 | (index >> 3) << 1 | base >> 3;
                let sib = 0x80 | (index & 7) << 3 | base & 7;
                self.bytes(&[rex, 0x8d, 0x44 | (register & 7) << 3, sib, displacement as u8]);
            }
            Op::Data { opcode, register, offset } => self.data(&[opcode], register, offset.into(), 0),
            Op::DataImmediate { which, offset, value } => {
                self.data(&[0x83], which, offset.into(), 1);
                self.bytes(&[value]);
            }
            Op::Pointer { opcode, base, register, offset, displacement } => {
                self.data(&[0x8d], base, offset.into(), 0);
                let rex = 0x48 | (register >> 3) << 2 | base >> 3;
                self.bytes(&[rex, opcode, 0x40 | (register & 7) << 3 | base & 7]);
                if base & 7 == 4 {
                    self.bytes(&[0x24]);
                }
                self.bytes(&[displacement as u8]);
            }
            Op::PushPop { from, to } => self.bytes(&[0x40 | from >> 3, 0x50 | from & 7, 0x40 | to >> 3, 0x58 | to & 7]),
            Op::FlagsTo { register } => self.bytes(&[0x9c, 0x40 | register >> 3, 0x58 | register & 7]),
            Op::Vector { from, to } => {
                self.bytes(&[0x66]);
                self.two_registers(true, &[0x0f, 0x6e], from, 3);
                self.bytes(&[0x66]);
                self.two_registers(true, &[0x0f, 0x7e], to, 3);
            }
            Op::Fill { offset, count } => {
                self.bytes(&[0xfc]);
                self.data(&[0x8d], 7, offset.into(), 0);
                self.bytes(&[0xb9]);
                self.bytes(&u32::from(count).to_le_bytes());
                self.bytes(&[0xf3, 0xaa]);
            }
            Op::Locked { form, size, register, base, place } => self.locked(form, size, register, base, place),
            Op::Fence => {
                self.bytes(&[0x0f, 0xae, 0xf0, 0xf0, 0x83, 0x0c, 0x24, 0, 0xf0, 0x48, 0x83, 0x44, 0x24, 0xf8, 0])
            }
            Op::Byte(byte) => self.bytes(&[byte]),
        }
    }

    fn locked(&mut self, form: Form, size: u8, register: u8, base: Option<u8>, place: u8) {
        let place = [0x200, 0x208, 0x20c, 0x210, 0x221, 0x23e, 0x240, 0x242][usize::from(place)];
        // A pair has to be aligned, a bit test has no form of one byte, and the number of a bit
        // needs a register of its own.
        let (size, place) = match form {
            Form::Pair => (size.max(2), 0x240),
            Form::Bit(_) | Form::BitRegister(..) => (size.max(1), place),
            _ => (size, place),
        };
        let base = base.filter(|base| !matches!(form, Form::BitRegister(..)) || *base != register);
        if let Some(base) = base {
            self.data(&[0x8d], base, place, 0);
        }
        if let Form::CompareExchange(true) = form {
            self.data(&[0x8b], 0, place, 0);
        }
        if let Form::BitRegister(_, bit) = form {
            self.bytes(&[0x40 | register >> 3, 0xb8 | register & 7, bit, 0, 0, 0]);
        }
        // rax may have been the base.
        let base = base.filter(|base| !matches!(form, Form::CompareExchange(true)) || *base != 0);
        let wide = u8::from(size > 0);
        let (opcode, reg, immediate): (Vec<u8>, u8, Option<u8>) = match form {
            Form::ExchangeAdd => (vec![0x0f, 0xc0 | wide], register, None),
            Form::Exchange => (vec![0x86 | wide], register, None),
            Form::CompareExchange(_) => (vec![0x0f, 0xb0 | wide], register, None),
            Form::Register(which) => (vec![which << 3 | wide], register, None),
            Form::Immediate(which, value) => (vec![if size > 0 { 0x83 } else { 0x80 }], which, Some(value)),
            Form::Increment => (vec![0xfe | wide], 0, None),
            Form::Decrement => (vec![0xfe | wide], 1, None),
            Form::Not => (vec![0xf6 | wide], 2, None),
            Form::Negate => (vec![0xf6 | wide], 3, None),
            Form::Bit(which) => (vec![0x0f, 0xba], which, Some(11)),
            Form::BitRegister(which, _) => (vec![0x0f, 0x83 | which << 3], register, None),
            Form::Pair => (vec![0x0f, 0xc7], 1, None),
        };
        if size == 1 {
            self.bytes(&[0x66]);
        }
        self.bytes(&[0xf0]);
        let rex = 0x40 | u8::from(size == 3) << 3 | (reg >> 3) << 2;
        match base {
            Some(base) => {
                self.bytes(&[rex | base >> 3]);
                self.bytes(&opcode);
                self.bytes(&[0x40 | (reg & 7) << 3 | base & 7]);
                if base & 7 == 4 {
                    self.bytes(&[0x24]);
                }
                self.bytes(&[0]);
            }
            None => {
                self.bytes(&[rex]);
                self.bytes(&opcode);
                self.bytes(&[(reg & 7) << 3 | 5]);
                self.rip_relative(place, immediate.map_or(0, |_| 1));
            }
        }
        self.bytes(immediate.as_slice());
    }

    fn displacement_to(&mut self, block: usize) {
        self.fixups.push((self.bytes.len(), block));
        self.bytes(&[0; 4]);
    }

    /// `lea register, [rip + block]`.
    fn address_of_block(&mut self, register: u8, block: usize) {
        self.bytes(&[0x48 | (register >> 3) << 2, 0x8d, (register & 7) << 3 | 5]);
        self.displacement_to(block);
    }

    /// A place with the address of a block in it.
    fn pointer(&mut self, block: usize) -> u64 {
        self.pointers.push(block);
        POINTERS + 8 * (self.pointers.len() as u64 - 1)
    }

    fn transfer(&mut self, transfer: &Transfer, index: usize) {
        let ahead = |distance: u8| index + 1 + usize::from(distance);
        match *transfer {
            Transfer::Jump(target) => {
                self.bytes(&[0xe9]);
                self.displacement_to(ahead(target));
            }
            Transfer::Branch { condition, target } => {
                self.bytes(&[0x0f, 0x80 | condition]);
                self.displacement_to(ahead(target));
            }
            Transfer::BranchOnCount(target) => {
                self.bytes(&[0xe3, 5, 0xe9]);
                self.displacement_to(ahead(target));
            }
            Transfer::Loop(count) => {
                self.bytes(&[0xb9]);
                self.bytes(&u32::from(count).to_le_bytes());
                self.bytes(&[0xeb, 0, 0x48, 0xff, 0xc0, 0xe2, 0xfb]);
            }
            Transfer::Call(target) => {
                self.bytes(&[0xe8]);
                self.displacement_to(ahead(target));
            }
            Transfer::Return => self.bytes(&[0xc3]),
            Transfer::ReturnDropping => self.bytes(&[0xc2, 8, 0]),
            Transfer::JumpRegister { register, target } => {
                self.address_of_block(register, ahead(target));
                self.bytes(&[0x40 | register >> 3, 0xff, 0xe0 | register & 7]);
            }
            Transfer::CallRegister { register, target } => {
                self.address_of_block(register, ahead(target));
                self.bytes(&[0x40 | register >> 3, 0xff, 0xd0 | register & 7]);
            }
            Transfer::JumpMemory(target) => {
                let place = self.pointer(ahead(target));
                self.bytes(&[0xff, 0x25]);
                self.rip_relative(place, 0);
            }
            Transfer::CallMemory(target) => {
                let place = self.pointer(ahead(target));
                self.bytes(&[0xff, 0x15]);
                self.rip_relative(place, 0);
            }
            Transfer::CallOnStack(target) => {
                // push the target, call [rsp]; the place stays on the stack, as something that a
                // return can go to
                let place = self.pointer(ahead(target));
                self.bytes(&[0xff, 0x35]);
                self.rip_relative(place, 0);
                self.bytes(&[0xff, 0x14, 0x24]);
            }
        }
    }
}
