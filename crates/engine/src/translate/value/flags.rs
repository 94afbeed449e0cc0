//! The flags: as the value that `pushf` and `popf` move, and as state that a fault must find.

use iced_x86::{Code, Instruction};

use super::scratch::part;
use super::{RAX, RSP, SourceInstruction};
use crate::tcb;
use crate::translate::Translator;
use crate::translate::operand::wide;

impl Translator<'_, '_> {
    pub(super) fn push_flags(&mut self, source: &SourceInstruction, bytes: usize, first: usize) {
        let scratch = self.take_scratch(source, RSP);
        self.on_engine_stack(|this| {
            this.encode(Ok(Instruction::with(Code::Pushfq)));
            this.encode(Instruction::with1(Code::Pop_r64, wide(scratch)));
        });
        self.record_scratch(first, scratch, bytes);
        self.give_scratch();
        self.map_safe_point(self.pc);
        self.copy_source(source);
    }

    pub(super) fn pop_flags(&mut self, source: &SourceInstruction, bytes: usize, first: usize) {
        let scratch = self.take_scratch(source, RSP);
        self.load_stack(scratch, bytes);
        self.record_scratch(first, scratch, bytes);
        let (push, pop) = match bytes {
            8 => (Code::Push_r64, Code::Popfq),
            _ => (Code::Push_r16, Code::Popfw),
        };
        self.on_engine_stack(|this| {
            this.encode(Instruction::with1(push, part(scratch, bytes)));
            this.encode(Ok(Instruction::with(pop)));
        });
        self.move_stack(bytes as i64);
        self.give_scratch();
    }

    /// Switches to the engine stack for `function`, in which nothing may fault.
    fn on_engine_stack(&mut self, function: impl FnOnce(&mut Self)) {
        self.map_between_safe_points();
        self.out.store_gs(tcb::SCRATCH_THIRD, RSP);
        self.out.load_gs(RSP, tcb::ENGINE_STACK);
        function(self);
        self.out.load_gs(RSP, tcb::SCRATCH_THIRD);
    }

    /// Saves the flags before the instruction, in case its store faults.
    pub(super) fn save_flags(&mut self) {
        self.map_between_safe_points();
        self.out.store_gs(tcb::SCRATCH_THIRD, RAX);
        self.out.bytes(&[0x9f]); // lahf
        self.out.bytes(&[0x0f, 0x90, 0xc0]); // seto al
        self.out.store_gs(tcb::FLAGS, RAX);
        self.out.load_gs(RAX, tcb::SCRATCH_THIRD);
        self.spill.flags = true;
        self.map_safe_point(self.pc);
    }
}
