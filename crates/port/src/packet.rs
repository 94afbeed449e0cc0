//! Packets that carry the outcomes of several branches, or a target, as commercial trace units emit
//! them. Unlike messages, packets can be read without the program, and they are emitted when they
//! are full. A [`PacketFormat`] writes and reads packets; a [`PacketEncoder`] and a
//! [`PacketDecoder`] connect it to a trace.

use std::collections::VecDeque;

use filter::traptor::{BranchKind, BranchOutcome, BranchSite};
use predict::Ras;
use replay::control::{FlowDecoder, FlowEncoder, StepEnd, ThreadFlowDecoder};
use trace::{AppPc, ThreadId};

use crate::bits::BitReader;
use crate::chunks::{Chunks, Coding};
use crate::cores::Cores;
use crate::count::Port;
use crate::message::{MessageKind, MessageLog};

/// Items that packets carry, in the execution order of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketItem {
    Outcome(bool),
    Target(u64),
    /// Instructions are counted since the last item.
    Exception {
        instructions: u64,
        target: u64,
    },
}

/// Format of packets. Encoder and decoder have one each.
pub trait PacketFormat {
    /// Entries of the return address stack. A predicted return is encoded as a taken outcome. With
    /// 0, every return has its target encoded.
    const RETURNS: usize;
    fn new(cores: Cores) -> Self;
    fn item(&mut self, port: &mut Port, core: usize, item: PacketItem);
    /// Writes all packets that are not full.
    fn finish(&mut self, port: &mut Port);
    /// Reads the next packet and calls `visit` with its core and items. Returns `None` if there is
    /// no packet, or if it is malformed.
    fn read(&mut self, bits: &mut BitReader<'_>, visit: impl FnMut(usize, PacketItem)) -> Option<()>;
}

/// Returns the encoding of the number of instructions before an exception.
pub(crate) fn instructions() -> Coding {
    Coding::Chunks(Chunks::fixed(8))
}

/// State of a thread that encoder and decoder share.
#[derive(Clone, Debug)]
struct ThreadState {
    returns: Ras,
    /// Instructions since the last item.
    instructions: u64,
}

fn threads(cores: &Cores, returns: usize) -> Vec<ThreadState> {
    let returns = Ras::new(returns).expect("a legal number of returns");
    vec![ThreadState { returns, instructions: 0 }; cores.threads()]
}

/// Encodes executed steps as packets.
#[derive(Clone, Debug)]
pub struct PacketEncoder<P> {
    cores: Cores,
    threads: Vec<ThreadState>,
    core: usize,
    format: P,
    pub port: Port,
}

impl<P: PacketFormat> PacketEncoder<P> {
    #[must_use]
    pub fn new(cores: Cores, port: Port) -> Self {
        let (threads, format) = (threads(&cores, P::RETURNS), P::new(cores.clone()));
        Self { cores, threads, core: 0, format, port }
    }

    /// Writes what remains at the end.
    pub fn finish(&mut self) {
        self.format.finish(&mut self.port);
    }

    fn item(&mut self, item: PacketItem) {
        self.threads[self.core].instructions = 0;
        self.format.item(&mut self.port, self.core, item);
    }
}

impl<P: PacketFormat> FlowEncoder for PacketEncoder<P> {
    fn switch_thread(&mut self, thread: ThreadId) {
        self.core = self.cores.of(thread);
    }

    fn encode_discontinuity(&mut self, target: AppPc) {
        let instructions = self.threads[self.core].instructions;
        self.item(PacketItem::Exception { instructions, target: target.get() });
    }

    #[inline]
    fn encode_step(&mut self, instructions: u64, end: &StepEnd) {
        let thread = &mut self.threads[self.core];
        thread.instructions += instructions;
        let StepEnd::Branch(site, outcome) = *end else { return };
        match (site.kind, outcome) {
            (BranchKind::Call, _) => thread.returns.push(site.fall_through),
            (BranchKind::Return, BranchOutcome::Target(target)) if thread.returns.pop_matches(target) => {
                self.item(PacketItem::Outcome(true))
            }
            (_, BranchOutcome::Taken(taken)) => self.item(PacketItem::Outcome(taken)),
            (kind, BranchOutcome::Target(target)) => {
                if kind == BranchKind::IndirectCall {
                    thread.returns.push(site.fall_through);
                }
                self.item(PacketItem::Target(target));
            }
        }
    }
}

/// The inverse of [`PacketEncoder`]. Each core reads the whole stream by itself and skips the
/// packets of other cores: these may be far ahead and need not be kept.
#[derive(Clone, Debug)]
pub struct PacketDecoder<'b, P> {
    cores: Cores,
    readers: Vec<CoreReader<'b, P>>,
    pub(crate) log: MessageLog,
}

/// Reader of one core's packets.
#[derive(Clone, Debug)]
pub struct CoreReader<'b, P> {
    thread: ThreadState,
    /// Unused items of its last packet.
    items: VecDeque<PacketItem>,
    format: P,
    bits: BitReader<'b>,
    packets: u64,
}

impl<P: PacketFormat> CoreReader<'_, P> {
    /// Returns the next item of `core`.
    fn peek(&mut self, core: usize) -> Option<PacketItem> {
        while self.items.is_empty() {
            let (items, mut is_own) = (&mut self.items, false);
            self.format.read(&mut self.bits, |of, item| {
                if of == core {
                    is_own = true;
                    items.push_back(item);
                }
            })?;
            self.packets += u64::from(is_own);
        }
        self.items.front().copied()
    }
}

impl<'b, P: PacketFormat + Clone> PacketDecoder<'b, P> {
    #[must_use]
    pub fn new(cores: Cores, bits: BitReader<'b>) -> Self {
        let format = P::new(cores.clone());
        let reader = |thread| CoreReader {
            thread,
            items: VecDeque::new(),
            format: format.clone(),
            bits: bits.clone(),
            packets: 0,
        };
        let readers = threads(&cores, P::RETURNS).into_iter().map(reader).collect();
        Self { cores, readers, log: MessageLog::default() }
    }

    /// Returns the number of packets used, and whether every bit and every item was used.
    #[must_use]
    pub fn end(&self) -> (u64, bool) {
        let mut readers = self.readers.clone();
        let is_used =
            |(core, reader): (usize, &mut CoreReader<'b, P>)| reader.peek(core).is_none() && reader.bits.is_empty();
        let are_used = readers.iter_mut().enumerate().all(is_used);
        (self.readers.iter().map(|reader| reader.packets).sum(), are_used)
    }
}

impl<'b, P: PacketFormat + Clone> FlowDecoder for PacketDecoder<'b, P> {
    type Thread<'s>
        = ThreadPacketDecoder<'s, 'b, P>
    where
        Self: 's;

    fn thread(&mut self, thread: ThreadId) -> ThreadPacketDecoder<'_, 'b, P> {
        let core = self.cores.of(thread);
        ThreadPacketDecoder { core, reader: &mut self.readers[core], log: &mut self.log }
    }
}

/// Packet decoder of one thread.
#[derive(Debug)]
pub struct ThreadPacketDecoder<'s, 'b, P> {
    core: usize,
    reader: &'s mut CoreReader<'b, P>,
    log: &'s mut MessageLog,
}

impl<P: PacketFormat> ThreadPacketDecoder<'_, '_, P> {
    /// Consumes the next item.
    fn advance(&mut self) {
        if let Some(item) = self.reader.items.pop_front() {
            self.log.add(self.core, || MessageKind::Item(item));
        }
        self.reader.thread.instructions = 0;
    }
}

impl<P: PacketFormat> ThreadFlowDecoder for ThreadPacketDecoder<'_, '_, P> {
    fn decode_discontinuity(&mut self) -> Option<AppPc> {
        match self.reader.peek(self.core)? {
            PacketItem::Exception { instructions, target } if instructions == self.reader.thread.instructions => {
                self.advance();
                Some(AppPc::new(target))
            }
            _ => None,
        }
    }

    fn add_instructions(&mut self, count: u64) {
        self.reader.thread.instructions += count;
    }

    fn decode_branch(&mut self, site: &BranchSite) -> Option<BranchOutcome> {
        let returns = &mut self.reader.thread.returns;
        if matches!(site.kind, BranchKind::Call | BranchKind::IndirectCall) {
            returns.push(site.fall_through);
        }
        let expected = if site.kind == BranchKind::Return { returns.pop() } else { None };
        if site.kind == BranchKind::Call {
            return None;
        }
        let outcome = match (site.kind, self.reader.peek(self.core)?) {
            (BranchKind::Conditional, PacketItem::Outcome(taken)) => Some(BranchOutcome::Taken(taken)),
            (BranchKind::Return, PacketItem::Outcome(true)) => expected.map(BranchOutcome::Target),
            (kind, PacketItem::Target(target)) if kind != BranchKind::Conditional => {
                Some(BranchOutcome::Target(target))
            }
            _ => return None,
        };
        self.advance();
        outcome
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;

    use super::*;

    fn item() -> impl Strategy<Value = PacketItem> {
        let address = (any::<u64>(), 0u32..64).prop_map(|(value, shift)| value >> shift);
        (0u8..20, any::<bool>(), address, 0u64..1000).prop_map(|(kind, taken, target, instructions)| match kind {
            0 => PacketItem::Exception { instructions, target },
            1..4 => PacketItem::Target(target),
            _ => PacketItem::Outcome(taken),
        })
    }

    /// Items of three threads are written and read back; cut or changed bits do no harm.
    pub(crate) fn check_items<P: PacketFormat>() {
        let items = proptest::collection::vec((0usize..3, item()), 0..300);
        let run = |(items, cut, changed): (Vec<(usize, PacketItem)>, usize, u8)| {
            let cores = Cores::of_threads(3);
            let (mut port, mut format) = (Port::writing(), P::new(cores.clone()));
            items.iter().for_each(|&(core, item)| format.item(&mut port, core, item));
            format.finish(&mut port);
            let mut bytes = port.finish();
            let (mut bits, mut reading) = (BitReader::new(&bytes, port.bits()), P::new(cores.clone()));
            let mut decoded = [const { Vec::new() }; 3];
            while reading.read(&mut bits, |core, item| decoded[core].push(item)).is_some() {}
            prop_assert!(bits.is_empty());
            for (core, decoded) in decoded.iter().enumerate() {
                let own: Vec<PacketItem> =
                    items.iter().filter(|(own, _)| *own == core).map(|&(_, item)| item).collect();
                prop_assert_eq!(decoded, &own);
            }
            if let Some(byte) = bytes.get_mut(cut) {
                *byte ^= changed;
                let (mut bits, mut reading) = (BitReader::new(&bytes, port.bits() - cut as u64), P::new(cores));
                while reading.read(&mut bits, |_, _| ()).is_some() {}
            }
            Ok(())
        };
        TestRunner::default().run(&(items, 0usize..400, any::<u8>()), run).unwrap();
    }
}
