//! Locked instructions of several threads: a timestamp follows only if another thread may have
//! synchronised on the same word since this one did. See "Order between threads" in docs/engine.md,
//! and `crate::owners`.
//!
//! Before the instruction, the thread checks that the entry of its operand holds its tag. If not,
//! it exchanges the entry for its pending tag (out of line). After the instruction it checks again,
//! and compares the value that the instruction has read with the value that its own last locked
//! instruction has written. If any check fails, it exits the fragment, records a timestamp, and
//! turns a pending tag into its tag.
//!
//! This code uses rcx, rdx and rsi. It keeps nothing in registers during the instruction, and does
//! not change flags.

use entity::AppPc;
use iced_x86::{Code, Decoder, Instruction, InstructionInfoFactory, MemoryOperand, Mnemonic, OpKind, Register};
use wire::code::TERMINATOR_DIRECT;

use super::operand::{general, wide};
use super::value::{SourceInstruction, is_high_byte, memory};
use super::{BlockEnd, ExitKind, SideTarget, SourceBlock, TranslatedBlock, Translator, pc_of};
use crate::cache_pc::CachePc;
use crate::{owners, tcb};

const RCX: u8 = 1;
const RDX: u8 = 2;
const RSI: u8 = 6;

/// The class of a locked instruction, by how its old value is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockedClass {
    /// `cmpxchg`, `xchg` and `xadd` with this register: the old value is in a register afterwards.
    CompareExchange(Register),
    Exchange(Register),
    ExchangeAdd(Register),
    /// Replaced by `xadd` and arithmetic on a register: see `value::arithmetic`.
    Arithmetic,
    /// A fence that does not change its word of the stack.
    StackFence,
    /// `mfence`.
    Fence,
    /// The old value is not known.
    Other,
}

/// Whether a locked instruction can be replaced by `xadd` with a register.
pub(super) fn is_arithmetic(instruction: &Instruction) -> bool {
    let has_high_byte = instruction.op_count() > 1
        && instruction.op1_kind() == OpKind::Register
        && is_high_byte(instruction.op1_register());
    let adds = match instruction.mnemonic() {
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::Inc | Mnemonic::Dec => true,
        Mnemonic::Or => instruction.op1_kind() != OpKind::Register && instruction.immediate(1) == 0,
        _ => false,
    };
    instruction.has_lock_prefix() && instruction.op0_kind() == OpKind::Memory && adds && !has_high_byte
}

pub(super) fn classify(instruction: &Instruction) -> LockedClass {
    if instruction.mnemonic() == Mnemonic::Mfence {
        return LockedClass::Fence;
    }
    let register = match (instruction.op0_kind(), instruction.op1_kind()) {
        (OpKind::Register, _) => instruction.op0_register(),
        (_, OpKind::Register) if instruction.op_count() > 1 => instruction.op1_register(),
        _ => Register::None,
    };
    if instruction.segment_prefix() == Register::GS {
        // The instruction gets another operand: see `segment`.
        return LockedClass::Other;
    }
    let is_plain = register != Register::None && !is_high_byte(register);
    match instruction.mnemonic() {
        Mnemonic::Cmpxchg if is_plain => LockedClass::CompareExchange(register),
        Mnemonic::Xchg if is_plain => LockedClass::Exchange(register),
        Mnemonic::Xadd if is_plain => LockedClass::ExchangeAdd(register),
        Mnemonic::Add | Mnemonic::Or if is_stack_fence(instruction) => LockedClass::StackFence,
        _ if is_arithmetic(instruction) => LockedClass::Arithmetic,
        _ => LockedClass::Other,
    }
}

/// `lock or [rsp + n], 0` and its like, by which compilers make fences.
fn is_stack_fence(instruction: &Instruction) -> bool {
    is_arithmetic(instruction)
        && instruction.op1_kind() != OpKind::Register
        && instruction.immediate(1) == 0
        && instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None
}

/// Out-of-line code for a locked instruction whose entry is not the thread's: where it comes from,
/// and where it returns.
pub(super) struct OwnerMiss {
    site: usize,
    back: CachePc,
    bytes: usize,
    has_app_r15: bool,
}

impl Translator<'_, '_> {
    /// Translates a locked instruction. `None` if the block continues behind it.
    pub(super) fn copy_locked(
        &mut self,
        instruction: &Instruction,
        decoder: &Decoder,
        bytes: &[u8],
        block: &SourceBlock,
    ) -> Option<BlockEnd> {
        let locked = classify(instruction);
        if locked == LockedClass::StackFence {
            self.copy(instruction, decoder, bytes);
            return None;
        }
        self.begin_locked(instruction, locked);
        match locked {
            LockedClass::Fence => {}
            LockedClass::Other => self.disown(instruction),
            _ => self.check_before(instruction, locked),
        }
        self.locked = Some(locked);
        self.copy(instruction, decoder, bytes);
        self.locked = None;
        if matches!(locked, LockedClass::Fence | LockedClass::Other) {
            self.end_locked(decoder, block.address);
            return Some(BlockEnd::Stop);
        }
        let length = decoder.position();
        self.check_after(instruction, locked, block.address + length as u64);
        Some(self.cut(block, length))
    }

    /// Prepares a locked instruction: the application's registers must be in place for its address
    /// and for itself.
    fn begin_locked(&mut self, instruction: &Instruction, locked: LockedClass) {
        self.pc = pc_of(instruction);
        self.data.complete = self.data.length;
        self.map_safe_point(self.pc);
        self.require_app_r15_for(instruction);
        if locked == LockedClass::Arithmetic {
            // The choice of scratch registers depends on it, also if no data is recorded.
            let mut factory = InstructionInfoFactory::new();
            self.data.used.clear();
            self.data.used.extend_from_slice(factory.info(instruction).used_registers());
        }
    }

    fn spill_three(&mut self) {
        self.out.spill_scratch();
        self.out.store_gs(tcb::SCRATCH_THIRD, RSI);
    }

    fn reload_three(&mut self) {
        self.out.reload_scratch();
        self.out.load_gs(RSI, tcb::SCRATCH_THIRD);
    }

    /// Loads the address of the operand into rcx. rcx, rdx and rsi have been spilled, but still
    /// hold the application's values.
    fn load_address(&mut self, instruction: &Instruction) {
        if instruction.is_ip_rel_memory_operand() {
            self.out.load_constant(RCX, instruction.ip_rel_memory_address());
        } else {
            let mut place = memory(instruction, 0);
            place.segment_prefix = Register::None;
            self.encode(Instruction::with2(Code::Lea_r64_m, Register::RCX, place));
        }
        if instruction.memory_segment() == Register::FS {
            self.out.bytes(&[0xf3, 0x48, 0x0f, 0xae, 0xc2]); // rdfsbase rdx
            self.out.bytes(&[0x48, 0x8d, 0x0c, 0x11]); // lea rcx, [rcx + rdx]
        }
        if instruction.memory_segment() == Register::GS {
            self.out.load_gs(RDX, tcb::GS_BASE);
            self.out.bytes(&[0x48, 0x8d, 0x0c, 0x11]); // lea rcx, [rcx + rdx]
        }
        let is_bit = matches!(instruction.mnemonic(), Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc);
        if is_bit && instruction.op1_kind() == OpKind::Register {
            self.add_bit_offset(instruction);
        }
    }

    /// Adds the offset of a bit test with a register, which reaches beyond its operand.
    fn add_bit_offset(&mut self, instruction: &Instruction) {
        let Some(number) = general(instruction.op1_register()) else { return };
        match number {
            RCX => self.out.load_gs(RDX, tcb::SCRATCH_RCX),
            RDX => self.out.load_gs(RDX, tcb::SCRATCH_RDX),
            _ => self.encode(Instruction::with2(Code::Mov_r64_rm64, Register::RDX, wide(number))),
        }
        let (extend, shift, scale) = match instruction.op1_register().size() {
            2 => (Some((Code::Movsx_r64_rm16, Register::DX)), 4, 2),
            4 => (Some((Code::Movsxd_r64_rm32, Register::EDX)), 5, 4),
            _ => (None, 6, 8),
        };
        if let Some((code, part)) = extend {
            self.encode(Instruction::with2(code, Register::RDX, part));
        }
        self.encode(Instruction::with2(Code::Mov_r32_imm32, Register::ESI, shift));
        self.encode(Instruction::with3(Code::VEX_Sarx_r64_rm64_r64, Register::RDX, Register::RDX, Register::RSI));
        let sum = MemoryOperand::new(Register::RCX, Register::RDX, scale, 0, 0, false, Register::None);
        self.encode(Instruction::with2(Code::Lea_r64_m, Register::RCX, sum));
    }

    /// Computes the entry's index in rsi from the address in rcx, as `owners::index` does. Changes
    /// rdx.
    fn load_index(&mut self) {
        self.out.bytes(&[0xc4, 0xe3, 0xfb, 0xf0, 0xd1, 3]); // rorx rdx, rcx, 3
        self.out.bytes(&[0xbe, 0, 0, 0, 0]); // mov esi, 0
        self.out.bytes(&[0xf2, 0x0f, 0x38, 0xf1, 0xf2]); // crc32 esi, edx
        self.out.bytes(&[0x0f, 0xb7, 0xf6]); // movzx esi, si
    }

    /// Clears the entry with the index in rsi. Changes rdx and rsi.
    fn disown_entry(&mut self) {
        self.out.load_gs(RDX, tcb::OWNERS);
        self.out.bytes(&[0x48, 0x8d, 0x14, 0xf2]); // lea rdx, [rdx + rsi * 8]
        self.out.bytes(&[0xbe, 0, 0, 0, 0]); // mov esi, 0
        self.out.bytes(&[0x48, 0x87, 0x32]); // xchg [rdx], rsi
    }

    /// Clears the entries of the operand at the address in rcx. Changes rcx, rdx and rsi.
    fn disown_operand(&mut self, bytes: usize) {
        self.load_index();
        self.disown_entry();
        if bytes > 1 {
            self.out.bytes(&[0x48, 0x8d, 0x49, bytes as u8 - 1]); // lea rcx, [rcx + bytes - 1]
            self.load_index();
            self.disown_entry();
        }
    }

    /// Clears the entries of an instruction that a timestamp follows in any case.
    fn disown(&mut self, instruction: &Instruction) {
        self.map_between_safe_points();
        self.spill_three();
        self.load_address(instruction);
        self.disown_operand(instruction.memory_size().size());
        self.reload_three();
        self.map_safe_point(self.pc);
    }

    /// Checks before the instruction whether the entry is the thread's.
    fn check_before(&mut self, instruction: &Instruction, locked: LockedClass) {
        let bytes = instruction.memory_size().size();
        self.map_between_safe_points();
        self.spill_three();
        self.load_address(instruction);
        self.load_index();
        self.out.store_gs(tcb::ORDER_INDEX, RSI);
        self.out.load_gs(RDX, key(bytes));
        self.out.bytes(&[0x48, 0x8d, 0x0c, 0x11]); // lea rcx, [rcx + rdx]
        self.out.store_gs(tcb::ORDER_TAG, RCX);
        self.load_owner();
        self.out.bytes(&[0x48, 0x8d, 0x4c, 0x11, 1]); // lea rcx, [rcx + rdx + 1]
        self.out.bytes(&[0xe3, 5]); // jrcxz over the next instruction
        let site = self.out.jump_ahead();
        let back = self.out.here();
        self.owner_misses.push(OwnerMiss { site, back, bytes, has_app_r15: self.has_app_r15 });
        self.reload_three();
        if let LockedClass::Exchange(register) | LockedClass::ExchangeAdd(register) = locked
            && let Some(number) = general(register)
        {
            self.out.store_gs(tcb::ORDER_LEFT, number);
        }
        self.map_safe_point(self.pc);
    }

    /// `mov` from a register of the application, which may be r15, to rcx or rdx.
    fn move_app_register(&mut self, to: u8, from: Register) {
        match general(from) {
            Some(15) if !self.has_app_r15 => self.out.load_gs(to, tcb::APP_R15),
            Some(number) => self.encode(Instruction::with2(Code::Mov_r64_rm64, wide(to), wide(number))),
            None => self.failed = true,
        }
    }

    /// Loads the entry with the index in rsi into rdx.
    fn load_owner(&mut self) {
        self.out.load_gs(RDX, tcb::OWNERS);
        self.out.bytes(&[0x48, 0x8b, 0x14, 0xf2]); // mov rdx, [rdx + rsi * 8]
    }

    /// Checks after the instruction whether the entry is still the thread's, and whether the old
    /// value is the one that the thread had written.
    fn check_after(&mut self, instruction: &Instruction, locked: LockedClass, next: AppPc) {
        let bytes = instruction.memory_size().size();
        self.map_between_safe_points();
        self.spill_three();
        self.load_old_and_left(locked);
        self.out.bytes(&[0x48, 0xf7, 0xd1]); // not rcx
        self.out.store_gs(tcb::ORDER_OLD, RCX);
        self.out.load_gs(RSI, tcb::ORDER_INDEX);
        // Exchanges the value written before with the value written now.
        self.out.store_gs(tcb::ORDER_LEFT, RDX);
        self.out.bytes(&[0x65, 0x48, 0x8b, 0x0c, 0xf5]); // mov rcx, gs:[rsi * 8 + values]
        self.out.bytes(&tcb::ORDER_VALUES.to_le_bytes());
        self.out.bytes(&[0x65, 0x48, 0x89, 0x14, 0xf5]); // mov gs:[rsi * 8 + values], rdx
        self.out.bytes(&tcb::ORDER_VALUES.to_le_bytes());
        self.out.store_gs(tcb::ORDER_LEFT, RCX);
        self.load_owner();
        self.out.load_gs(RCX, tcb::ORDER_TAG);
        self.out.bytes(&[0x48, 0x8d, 0x4c, 0x11, 1]); // lea rcx, [rcx + rdx + 1]
        self.out.bytes(&[0xe3, 5]); // jrcxz over the next instruction
        let exit_jump = self.out.here();
        let site = self.out.jump_ahead();
        self.side_exit(site, SideTarget::Timed { target: next });
        self.out.load_gs(RCX, tcb::ORDER_OLD);
        self.out.load_gs(RDX, tcb::ORDER_LEFT);
        self.subtract(bytes);
        self.out.bytes(&[0xe3, 5]); // jrcxz over the next instruction
        self.out.jump(exit_jump);
        self.reload_three();
    }

    /// Loads the value before the instruction into rcx and the value after it into rdx. All
    /// registers are the application's before.
    fn load_old_and_left(&mut self, locked: LockedClass) {
        match locked {
            LockedClass::CompareExchange(register) => {
                self.move_app_register(RDX, register);
                self.encode(Instruction::with2(Code::Cmovne_r64_rm64, Register::RDX, Register::RAX));
                self.move_app_register(RCX, Register::RAX);
            }
            LockedClass::Exchange(register) | LockedClass::ExchangeAdd(register) => {
                self.move_app_register(RCX, register);
                self.out.load_gs(RDX, tcb::ORDER_LEFT);
                if matches!(locked, LockedClass::ExchangeAdd(_)) {
                    self.out.bytes(&[0x48, 0x8d, 0x14, 0x11]); // lea rdx, [rcx + rdx]
                }
            }
            _ => {
                self.out.load_gs(RCX, tcb::ORDER_OLD);
                self.out.load_gs(RDX, tcb::ORDER_LEFT);
            }
        }
    }

    /// Computes in rcx the difference, in so many bytes, of rdx and the value whose complement is
    /// in rcx.
    fn subtract(&mut self, bytes: usize) {
        if bytes == 8 {
            self.out.bytes(&[0x48]);
        }
        self.out.bytes(&[0x8d, 0x4c, 0x11, 1]); // lea ecx, [rcx + rdx + 1]
        match bytes {
            1 => self.out.bytes(&[0x0f, 0xb6, 0xc9]), // movzx ecx, cl
            2 => self.out.bytes(&[0x0f, 0xb7, 0xc9]), // movzx ecx, cx
            _ => {}
        }
    }

    /// Emits the out-of-line code: the entry with the index in rsi is not the thread's.
    pub(super) fn emit_owner_miss(&mut self, miss: &OwnerMiss) {
        self.map_between_safe_points();
        self.out.land(miss.site);
        self.has_app_r15 = miss.has_app_r15;
        // Only an aligned operand in the lower half of memory gets a tag: see
        // `owners::HIGH_ADDRESS`.
        self.load_address_of_tag(miss.bytes);
        self.out.load_constant(RDX, owners::HIGH_ADDRESS | (miss.bytes as u64 - 1));
        self.out.bytes(&[0xc4, 0xe2, 0xf2, 0xf5, 0xca]); // pext rcx, rcx, rdx
        self.out.bytes(&[0xe3, 5]); // jrcxz over the next instruction
        let site = self.out.jump_ahead();
        self.out.load_gs(RCX, tcb::ORDER_TAG);
        self.out.load_constant(RDX, owners::PENDING);
        self.out.bytes(&[0x48, 0x8d, 0x14, 0x11]); // lea rdx, [rcx + rdx]
        self.out.bytes(&[0x48, 0xf7, 0xd2]); // not rdx
        self.exchange_entry();
        self.out.jump(miss.back);
        self.out.land(site);
        self.load_address_of_tag(miss.bytes);
        self.disown_operand(miss.bytes);
        self.out.load_constant(RCX, owners::NO_TAG);
        self.out.store_gs(tcb::ORDER_TAG, RCX);
        self.out.jump(miss.back);
    }

    /// Computes the operand's address in rcx from the tag. Changes rdx.
    fn load_address_of_tag(&mut self, bytes: usize) {
        self.out.load_gs(RCX, tcb::ORDER_TAG);
        self.out.load_gs(RDX, key(bytes));
        self.out.bytes(&[0x48, 0xf7, 0xd2]); // not rdx
        self.out.bytes(&[0x48, 0x8d, 0x4c, 0x11, 1]); // lea rcx, [rcx + rdx + 1]
    }

    /// Exchanges rdx with the entry with the index in rsi. Changes rcx.
    fn exchange_entry(&mut self) {
        self.out.load_gs(RCX, tcb::OWNERS);
        self.out.bytes(&[0x48, 0x87, 0x14, 0xf1]); // xchg [rcx + rsi * 8], rdx
    }

    /// Exits after a locked instruction that may follow another thread's: records a timestamp, and
    /// turns a pending tag into a tag.
    pub(super) fn exit_timed(&mut self, blocks: u16, target: AppPc) {
        self.reload_three();
        self.require_cursor();
        self.map_between_safe_points();
        let stub = self.options.stub(self.result.exits.len());
        self.record_exit(ExitKind::Direct, target, blocks, TERMINATOR_DIRECT);
        self.out.record_time();
        self.spill_three();
        self.out.load_gs(RSI, tcb::ORDER_INDEX);
        self.load_owner();
        let not_pending = self.jump_unless_pending();
        self.out.load_gs(RDX, tcb::ORDER_TAG);
        self.out.bytes(&[0x48, 0xf7, 0xd2]); // not rdx
        self.exchange_entry();
        // If another thread has exchanged the entry meanwhile, its entry must not look like this
        // thread's.
        let taken = self.jump_unless_pending();
        let end = self.out.jump_ahead();
        self.out.land(taken);
        self.disown_entry();
        self.out.land(not_pending);
        self.out.land(end);
        self.reload_three();
        self.jump_linkable(stub);
    }

    /// Jumps to where the caller lands the result, unless the entry in rdx is the thread's pending
    /// tag. Changes rcx and rdx.
    fn jump_unless_pending(&mut self) -> usize {
        self.out.load_gs(RCX, tcb::ORDER_TAG);
        self.out.bytes(&[0x48, 0x8d, 0x4c, 0x11, 1]); // lea rcx, [rcx + rdx + 1]
        self.out.load_constant(RDX, owners::PENDING);
        self.out.bytes(&[0x48, 0x8d, 0x0c, 0x11]); // lea rcx, [rcx + rdx]
        self.out.bytes(&[0xe3, 5]); // jrcxz over the next instruction
        self.out.jump_ahead()
    }

    /// Ends the superblock after a locked instruction, with a timestamp.
    pub(super) fn end_locked(&mut self, decoder: &Decoder, start: AppPc) {
        let length = decoder.position();
        let next = start + length as u64;
        self.result.blocks.push(TranslatedBlock { length: length as u32, taken: false });
        self.data.complete = self.data.length;
        self.map_safe_point(next);
        self.require_cursor();
        self.map_between_safe_points();
        let stub = self.options.stub(self.result.exits.len());
        self.record_exit(ExitKind::Direct, next, self.blocks(), TERMINATOR_DIRECT);
        self.out.record_time();
        self.jump_linkable(stub);
    }

    /// Whether the current instruction is replaced by `xadd`.
    pub(super) fn is_locked_arithmetic(&self) -> bool {
        self.locked == Some(LockedClass::Arithmetic)
    }

    /// Replaces a locked instruction by `xadd`, where no values are recorded.
    pub(super) fn copy_arithmetic(&mut self, source: &SourceInstruction) {
        self.locked_arithmetic(source, None);
    }
}

/// Offset of the key for operands of this size.
fn key(bytes: usize) -> u32 {
    tcb::ORDER_KEYS + 8 * bytes.trailing_zeros()
}
