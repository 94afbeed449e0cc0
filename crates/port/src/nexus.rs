//! mcfNX_b: control flow as Nexus traces it, by the length of each stream of instructions (Tewar
//! 2015, sections 2.1 and 4.2.1). A [`NexusEncoder`] writes a message at the end of each stream; a
//! [`NexusDecoder`] is its inverse.

use filter::traptor::{BranchCorrection, BranchKind, BranchMessage, BranchMessageSource, BranchOutcome, BranchSite};
use replay::MessageSources;
use replay::control::{FlowDecoder, FlowEncoder, StepEnd, ThreadFlowDecoder};
use trace::{AppPc, ThreadId};

use crate::cores::Cores;
use crate::message::{FlowReader, FlowWriter};

/// Which branches end a stream of instructions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Streams {
    /// All taken branches, as in Figure 2.1 and in the measured tables.
    #[default]
    All,
    /// Branches that cannot be inferred, as in section 4.2.1: taken conditional branches and
    /// indirect branches. Direct jumps and calls emit no message.
    Uninferable,
}

/// Instructions of each thread since its last message, and the current thread.
#[derive(Clone, Debug)]
struct StreamLengths {
    cores: Cores,
    lengths: Vec<u64>,
    core: usize,
}

impl StreamLengths {
    fn new(cores: Cores) -> Self {
        let lengths = vec![0; cores.threads()];
        Self { cores, lengths, core: 0 }
    }

    #[inline]
    fn own(&mut self) -> &mut u64 {
        &mut self.lengths[self.core]
    }
}

/// Encodes executed steps as messages.
#[derive(Clone, Debug)]
pub struct NexusEncoder {
    streams: Streams,
    lengths: StreamLengths,
    pub writer: FlowWriter,
}

impl NexusEncoder {
    #[must_use]
    pub fn new(cores: Cores, streams: Streams, writer: FlowWriter) -> Self {
        Self { streams, lengths: StreamLengths::new(cores), writer }
    }
}

impl FlowEncoder for NexusEncoder {
    fn switch_thread(&mut self, thread: ThreadId) {
        self.lengths.core = self.lengths.cores.of(thread);
    }

    fn encode_discontinuity(&mut self, target: AppPc) {
        let instructions = std::mem::take(self.lengths.own());
        self.writer.write(self.lengths.core, BranchMessage::Exception { instructions, target: target.get() });
    }

    #[inline]
    fn encode_step(&mut self, instructions: u64, end: &StepEnd) {
        *self.lengths.own() += instructions;
        let branches = *self.lengths.own();
        let encodes_all = self.streams == Streams::All;
        let message = match *end {
            StepEnd::Branch(_, BranchOutcome::Taken(true)) => BranchMessage::Outcome { branches },
            StepEnd::Branch(BranchSite { kind: BranchKind::Call, .. }, _) | StepEnd::Jump if encodes_all => {
                BranchMessage::Outcome { branches }
            }
            StepEnd::Branch(BranchSite { kind, .. }, BranchOutcome::Target(target)) if kind != BranchKind::Call => {
                BranchMessage::Target { branches, target }
            }
            _ => return,
        };
        *self.lengths.own() = 0;
        self.writer.write(self.lengths.core, message);
    }
}

/// The inverse of [`NexusEncoder`].
#[derive(Clone, Debug)]
pub struct NexusDecoder<'b> {
    streams: Streams,
    lengths: StreamLengths,
    pub reader: FlowReader<'b>,
}

impl<'b> NexusDecoder<'b> {
    #[must_use]
    pub fn new(cores: Cores, streams: Streams, reader: FlowReader<'b>) -> Self {
        Self { streams, lengths: StreamLengths::new(cores), reader }
    }
}

impl<'b> FlowDecoder for NexusDecoder<'b> {
    type Thread<'s>
        = ThreadNexusDecoder<'s, 'b>
    where
        Self: 's;

    fn thread(&mut self, thread: ThreadId) -> ThreadNexusDecoder<'_, 'b> {
        self.lengths.core = self.lengths.cores.of(thread);
        let Self { streams, lengths, reader } = self;
        ThreadNexusDecoder { streams: *streams, length: lengths.own(), reader: reader.of(thread) }
    }
}

/// Nexus decoder of one thread.
#[derive(Debug)]
pub struct ThreadNexusDecoder<'s, 'b> {
    streams: Streams,
    length: &'s mut u64,
    reader: &'s mut FlowReader<'b>,
}

impl ThreadNexusDecoder<'_, '_> {
    /// Takes the message about the current branch, if there is one.
    fn take_correction(&mut self, is_indirect: bool) -> Option<BranchCorrection> {
        let correction = self.reader.take_branch(*self.length, is_indirect)?;
        *self.length = 0;
        Some(correction)
    }
}

impl ThreadFlowDecoder for ThreadNexusDecoder<'_, '_> {
    fn decode_discontinuity(&mut self) -> Option<AppPc> {
        let target = self.reader.take_exception(*self.length)?;
        *self.length = 0;
        Some(AppPc::new(target))
    }

    fn add_instructions(&mut self, count: u64) {
        *self.length += count;
    }

    fn decode_jump(&mut self) {
        if self.streams == Streams::All {
            self.take_correction(false);
        }
    }

    fn decode_branch(&mut self, site: &BranchSite) -> Option<BranchOutcome> {
        match site.kind {
            BranchKind::Call => {
                self.decode_jump();
                None
            }
            BranchKind::Conditional => Some(BranchOutcome::Taken(self.take_correction(false).is_some())),
            BranchKind::IndirectCall | BranchKind::IndirectJump | BranchKind::Return => {
                match self.take_correction(true)? {
                    BranchCorrection::Target(target) => Some(BranchOutcome::Target(target)),
                    BranchCorrection::Mispredicted => None,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::count::{Field, Port};
    use crate::message::FlowCodings;

    fn site(kind: BranchKind) -> BranchSite {
        BranchSite { kind, address: 0x80488db, fall_through: 0x80488dd }
    }

    /// Tewar 2015, Figure 2.1: four iterations of a loop, a jump and a return, in two threads.
    /// Streams A, B, B, C, D have 15, 14, 14, 15 and 5 instructions.
    fn figure_2_1(streams: Streams) -> String {
        let cores = Cores::of_threads(2);
        let writer = FlowWriter::new(cores.clone(), FlowCodings::fixed(Field::Sl), Port::writing());
        let mut encoder = NexusEncoder::new(cores, streams, writer);
        let (taken, through) = (BranchOutcome::Taken(true), BranchOutcome::Taken(false));
        for thread in [0, 1].map(ThreadId::new) {
            encoder.switch_thread(thread);
            for (instructions, outcome) in [(15, taken), (14, taken), (14, taken), (14, through)] {
                encoder.encode_step(instructions, &StepEnd::Branch(site(BranchKind::Conditional), outcome));
            }
            encoder.encode_step(1, &StepEnd::Jump);
            encoder.encode_step(5, &StepEnd::Branch(site(BranchKind::Return), BranchOutcome::Target(3)));
        }
        let port = &mut encoder.writer.port;
        let text: String = port.finish().iter().map(|byte| format!("{byte:08b}")).collect();
        text[..port.bits() as usize].to_owned()
    }

    /// A thread index, lengths in one chunk each, and a target after the last.
    fn stream(lengths: &[u64]) -> String {
        let target = format!("0{:032b}0", 3);
        let own = |thread: u32| {
            let messages: String = lengths.iter().map(|length| format!("{thread}{length:08b}0")).collect();
            messages + &target
        };
        own(0) + &own(1)
    }

    #[test]
    fn tewar_figure_2_1() {
        assert_eq!(figure_2_1(Streams::All), stream(&[15, 14, 14, 15, 5]));
        assert_eq!(figure_2_1(Streams::Uninferable), stream(&[15, 14, 14, 20]));
    }
}
