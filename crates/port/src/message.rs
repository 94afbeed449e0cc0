//! Messages of control flow as bits: the thread, a count, and the target of an indirect branch as a
//! difference to the previous target (Tewar 2015, Figures 4.4 and 4.5). mcfNX_b counts
//! instructions; mcfTR_b and mcfTR_e count branches. Otherwise they are the same.
//!
//! A message does not say whether a target follows: the reader has the program and knows the branch
//! that the count leads to. An exception has the count 0, which no branch has, then the number of
//! instructions since the last message, and the address where execution continued.
//!
//! A [`FlowWriter`] writes messages to a port, and a [`FlowReader`] reads them back.

use filter::traptor::{BranchCorrection, BranchMessage, BranchMessageSource};
use replay::MessageSources;
use trace::ThreadId;

use crate::bits::BitReader;
use crate::chunks::{Chunks, Coding};
use crate::cores::Cores;
use crate::count::{Field, Port};
use crate::packet::PacketItem;

/// Encoding of an exception's target, which Tewar 2015 leaves open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExceptionTarget {
    /// As a difference, like the target of a branch.
    #[default]
    Difference,
    /// As a full address of 64 bits.
    Full,
}

/// Encodings of the fields.
#[derive(Clone, Debug)]
pub struct FlowCodings {
    /// Field of the count: [`Field::Sl`] or [`Field::BCnt`].
    pub counted: Field,
    pub count: Coding,
    pub instructions: Coding,
    pub target: Coding,
    pub exception_target: ExceptionTarget,
}

impl FlowCodings {
    /// Counts in chunks of 8 bits, targets in chunks of 32.
    #[must_use]
    pub fn fixed(counted: Field) -> Self {
        let [count, instructions] = [Coding::Chunks(Chunks::fixed(8)), Coding::Chunks(Chunks::fixed(8))];
        let target = Coding::Chunks(Chunks::fixed(32));
        Self { counted, count, instructions, target, exception_target: ExceptionTarget::Difference }
    }
}

/// State that writer and reader share: encodings, and the last target of each core.
#[derive(Clone, Debug)]
struct Codec {
    cores: Cores,
    codings: FlowCodings,
    targets: Vec<u64>,
}

impl Codec {
    fn new(cores: Cores, codings: FlowCodings) -> Self {
        let targets = vec![0; cores.threads()];
        Self { cores, codings, targets }
    }

    /// `field` is [`Field::DiffTA`] or [`Field::Eta`].
    fn write_target(&mut self, port: &mut Port, core: usize, target: u64, field: Field) {
        let difference = target.wrapping_sub(std::mem::replace(&mut self.targets[core], target)) as i64;
        port.put(if field == Field::Eta { field } else { Field::Sign }, u64::from(difference < 0), 1);
        self.codings.target.write(port, field, difference.unsigned_abs());
    }

    fn read_target(&mut self, bits: &mut BitReader<'_>, core: usize) -> Option<u64> {
        let negative = bits.get(1)? == 1;
        let size = self.codings.target.read(bits)?;
        let last = self.targets.get_mut(core)?;
        *last = if negative { last.wrapping_sub(size) } else { last.wrapping_add(size) };
        Some(*last)
    }

    fn read_head(&mut self, bits: &mut BitReader<'_>) -> Option<MessageHead> {
        let core = self.cores.read(bits)?;
        let count = self.codings.count.read(bits)?;
        if count > 0 {
            return Some(MessageHead::Branch { core, count });
        }
        let instructions = self.codings.instructions.read(bits)?;
        let target = match self.codings.exception_target {
            ExceptionTarget::Difference => self.read_target(bits, core)?,
            ExceptionTarget::Full => bits.get(64)?,
        };
        Some(MessageHead::Exception { core, instructions, target })
    }
}

/// Writes messages to a port.
#[derive(Clone, Debug)]
pub struct FlowWriter {
    codec: Codec,
    pub port: Port,
}

impl FlowWriter {
    #[must_use]
    pub fn new(cores: Cores, codings: FlowCodings, port: Port) -> Self {
        Self { codec: Codec::new(cores, codings), port }
    }

    /// Writes a message of the thread on `core`.
    pub fn write(&mut self, core: usize, message: BranchMessage) {
        let Self { codec, port } = self;
        port.messages += 1;
        codec.cores.write(port, core);
        match message {
            BranchMessage::Outcome { branches } => codec.codings.count.write(port, codec.codings.counted, branches),
            BranchMessage::Target { branches, target } => {
                codec.codings.count.write(port, codec.codings.counted, branches);
                codec.write_target(port, core, target, Field::DiffTA);
            }
            BranchMessage::Exception { instructions, target } => {
                codec.codings.count.write(port, codec.codings.counted, 0);
                codec.codings.instructions.write(port, Field::ICnt, instructions);
                match codec.codings.exception_target {
                    ExceptionTarget::Difference => codec.write_target(port, core, target, Field::Eta),
                    ExceptionTarget::Full => port.put(Field::Eta, target, 64),
                }
            }
        }
    }
}

/// A decoded message and its core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedMessage {
    pub core: usize,
    pub kind: MessageKind,
}

/// Content of a decoded message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// SL or bCnt, and the target if the branch is indirect.
    Branch {
        count: u64,
        target: Option<u64>,
    },
    Exception {
        instructions: u64,
        target: u64,
    },
    Load {
        hits: u64,
        value: Vec<u8>,
    },
    /// One item of a packet.
    Item(PacketItem),
}

/// An optional list of decoded messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct MessageLog(Option<Vec<DecodedMessage>>);

impl MessageLog {
    pub(crate) fn begin(&mut self) {
        self.0 = Some(Vec::new());
    }

    #[inline]
    pub(crate) fn add(&mut self, core: usize, kind: impl FnOnce() -> MessageKind) {
        if let Some(list) = &mut self.0 {
            list.push(DecodedMessage { core, kind: kind() });
        }
    }

    /// Takes the messages since the last call.
    pub(crate) fn take(&mut self) -> Vec<DecodedMessage> {
        self.0.as_mut().map_or(Vec::new(), std::mem::take)
    }
}

/// The part of a message that can be read without knowing the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageHead {
    Branch { core: usize, count: u64 },
    Exception { core: usize, instructions: u64, target: u64 },
}

/// A stream of messages. The head of the next message is read ahead.
#[derive(Clone, Debug)]
pub(crate) struct MessageStream<'b, MessageHead> {
    pub bits: BitReader<'b>,
    pub head: Option<MessageHead>,
    /// Bits were found that are not a message.
    pub is_broken: bool,
    /// Number of messages read.
    pub messages: u64,
    pub log: MessageLog,
}

impl<'b, MessageHead> MessageStream<'b, MessageHead> {
    pub fn new(bits: BitReader<'b>, read: impl FnOnce(&mut BitReader<'b>) -> Option<MessageHead>) -> Self {
        let mut stream = Self { bits, head: None, is_broken: false, messages: 0, log: MessageLog::default() };
        stream.read_head(read);
        stream
    }

    /// Ends the current message and reads the head of the next one.
    pub fn advance(&mut self, read: impl FnOnce(&mut BitReader<'b>) -> Option<MessageHead>) {
        self.messages += 1;
        self.read_head(read);
    }

    fn read_head(&mut self, read: impl FnOnce(&mut BitReader<'b>) -> Option<MessageHead>) {
        self.head = None;
        if !self.bits.is_empty() {
            self.head = read(&mut self.bits);
            self.is_broken |= self.head.is_none();
        }
    }

    /// Returns whether every bit was used.
    pub fn is_exhausted(&self) -> bool {
        self.head.is_none() && self.bits.is_empty() && !self.is_broken
    }
}

/// Reads messages back, each when it is due. They come in execution order.
#[derive(Clone, Debug)]
pub struct FlowReader<'b> {
    codec: Codec,
    pub(crate) stream: MessageStream<'b, MessageHead>,
    /// Core of the current thread.
    core: usize,
}

impl<'b> FlowReader<'b> {
    #[must_use]
    pub fn new(cores: Cores, codings: FlowCodings, bits: BitReader<'b>) -> Self {
        let mut codec = Codec::new(cores, codings);
        let stream = MessageStream::new(bits, |bits| codec.read_head(bits));
        Self { codec, stream, core: 0 }
    }

    fn advance(&mut self) {
        let Self { codec, stream, .. } = self;
        stream.advance(|bits| codec.read_head(bits));
    }
}

impl BranchMessageSource for FlowReader<'_> {
    fn take_branch(&mut self, number: u64, is_indirect: bool) -> Option<BranchCorrection> {
        match self.stream.head? {
            MessageHead::Branch { core, count } if core == self.core && count == number => {}
            _ => return None,
        }
        let correction = if is_indirect {
            self.codec.read_target(&mut self.stream.bits, self.core).map(BranchCorrection::Target)
        } else {
            Some(BranchCorrection::Mispredicted)
        };
        self.stream.is_broken |= correction.is_none();
        let target = match correction {
            Some(BranchCorrection::Target(target)) => Some(target),
            _ => None,
        };
        self.stream.log.add(self.core, || MessageKind::Branch { count: number, target });
        self.advance();
        correction
    }

    fn take_exception(&mut self, number: u64) -> Option<u64> {
        match self.stream.head? {
            MessageHead::Exception { core, instructions, target } if core == self.core && instructions == number => {
                self.stream.log.add(core, || MessageKind::Exception { instructions, target });
                self.advance();
                Some(target)
            }
            _ => None,
        }
    }
}

impl MessageSources for FlowReader<'_> {
    type Messages = Self;

    #[inline]
    fn of(&mut self, thread: ThreadId) -> &mut Self {
        self.core = self.codec.cores.of(thread);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8], bits: u64) -> String {
        let all: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
        all[..bits as usize].to_owned()
    }

    fn written(threads: u32, codings: FlowCodings, messages: &[(usize, BranchMessage)]) -> (String, Port) {
        let mut writer = FlowWriter::new(Cores::of_threads(threads), codings, Port::writing());
        messages.iter().for_each(|&(core, message)| writer.write(core, message));
        let bytes = writer.port.finish();
        (text(&bytes, writer.port.bits()), writer.port)
    }

    fn variable() -> FlowCodings {
        let coding = |first, next| Coding::Chunks(Chunks::new(first, next).unwrap());
        FlowCodings {
            count: coding(4, 2),
            instructions: coding(4, 2),
            target: coding(3, 5),
            ..FlowCodings::fixed(Field::BCnt)
        }
    }

    /// Worked out on paper: Ti (2 bits for 4 threads), bCnt in (4,2), sign, |diffTA| in (3,5).
    #[test]
    fn mcftr_e_by_hand() {
        let messages = [
            (0, BranchMessage::Outcome { branches: 3 }),
            (2, BranchMessage::Target { branches: 17, target: 0x1a }),
            (2, BranchMessage::Target { branches: 1, target: 0x19 }),
            (3, BranchMessage::Exception { instructions: 5, target: 2 }),
        ];
        let (stream, port) = written(4, variable(), &messages);
        let expected = ["00 0011 0", "10 0001 1 01 0 0 010 1 00011 0", "10 0001 0 1 001 0", "11 0000 0 0101 0 0 010 0"];
        assert_eq!(stream, expected.concat().replace(' ', ""));
        let fields =
            [Field::Ti, Field::BCnt, Field::Sign, Field::DiffTA, Field::ICnt, Field::Eta].map(|field| port.of(field));
        assert_eq!(fields, [8, 23, 2, 14, 5, 5]);
        assert_eq!((port.messages, port.bits()), (4, stream.len() as u64));
    }

    /// Worked out on paper: no thread, SL in 8 bits, sign, |diffTA| in 32 bits.
    #[test]
    fn mcfnx_b_by_hand() {
        let messages = [
            (0, BranchMessage::Outcome { branches: 15 }),
            (0, BranchMessage::Outcome { branches: 300 }),
            (0, BranchMessage::Target { branches: 5, target: 0x80488e9 }),
            (0, BranchMessage::Target { branches: 5, target: 0x1_0000_0000 }),
        ];
        let (stream, port) = written(1, FlowCodings::fixed(Field::Sl), &messages);
        let expected = [
            "00001111 0",
            "00101100 1 00000001 0",
            "00000101 0 0 00001000000001001000100011101001 0",
            "00000101 0 0 11110111111110110111011100010111 0",
        ];
        assert_eq!(stream, expected.concat().replace(' ', ""));
        assert_eq!([Field::Sl, Field::Sign, Field::DiffTA, Field::Ti].map(|field| port.of(field)), [45, 2, 66, 0]);
    }

    #[test]
    fn an_exception_target_can_be_written_as_a_whole() {
        let codings = FlowCodings { exception_target: ExceptionTarget::Full, ..variable() };
        let (_, port) = written(1, codings, &[(0, BranchMessage::Exception { instructions: 1, target: 7 })]);
        assert_eq!((port.of(Field::Eta), port.bits()), (64, 74));
    }

    #[test]
    fn a_reader_must_know_the_branches() {
        let cores = Cores::of_threads(2);
        let mut writer = FlowWriter::new(cores.clone(), variable(), Port::writing());
        writer.write(1, BranchMessage::Target { branches: 2, target: 0xffff_8000_0000_0000 });
        writer.write(0, BranchMessage::Outcome { branches: 1 });
        writer.write(1, BranchMessage::Exception { instructions: 9, target: 3 });
        let bytes = writer.port.finish();
        let mut reader = FlowReader::new(cores, variable(), BitReader::new(&bytes, writer.port.bits()));
        assert_eq!(reader.of(ThreadId::new(0)).take_branch(1, false), None);
        assert_eq!(
            (reader.of(ThreadId::new(1)).take_branch(1, true), reader.of(ThreadId::new(1)).take_exception(9)),
            (None, None)
        );
        assert_eq!(
            reader.of(ThreadId::new(1)).take_branch(2, true),
            Some(BranchCorrection::Target(0xffff_8000_0000_0000))
        );
        assert_eq!(reader.of(ThreadId::new(0)).take_branch(1, false), Some(BranchCorrection::Mispredicted));
        assert_eq!((reader.of(ThreadId::new(1)).take_exception(8), reader.stream.is_exhausted()), (None, false));
        assert_eq!((reader.of(ThreadId::new(1)).take_exception(9), reader.stream.is_exhausted()), (Some(3), true));
        assert_eq!(reader.stream.messages, 3);
    }

    /// Any number of bits after the last message is noticed.
    #[test]
    fn surplus_bits() {
        let cores = Cores::of_threads(4);
        let mut writer = FlowWriter::new(cores.clone(), variable(), Port::writing());
        writer.write(1, BranchMessage::Outcome { branches: 9 });
        let mut bytes = writer.port.finish();
        bytes.extend([0; 16]);
        for surplus in 0..100 {
            let bits = BitReader::new(&bytes, writer.port.bits() + surplus);
            let mut reader = FlowReader::new(cores.clone(), variable(), bits);
            assert_eq!(reader.of(ThreadId::new(1)).take_branch(9, false), Some(BranchCorrection::Mispredicted));
            assert_eq!(reader.stream.is_exhausted(), surplus == 0, "{surplus}");
        }
    }
}
