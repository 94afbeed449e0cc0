//! Packets that carry outcomes of several branches, or a target: what commercial trace units send. Unlike messages, packets can be read without
//! knowing the program, and come when they are full, not when something happens.

use std::collections::VecDeque;

use filter::traptor::{Kind, Site, Went};
use mtrace::control::{End, Show, ShowThread, Tell};
use predict::Ras;

use crate::bits::BitReader;
use crate::chunks::{Chunks, Coding};
use crate::cores::Cores;
use crate::count::Port;
use crate::message::{Listing, What};

/// What packets tell, in the order in which it happened to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    Outcome(bool),
    Target(u64),
    /// Instructions are counted from the last item on.
    Exception {
        instructions: u64,
        target: u64,
    },
}

/// A way of making packets, and of reading them; each side has one of its own.
pub trait Packing {
    /// How many returns it remembers: one that is where it should be is told as an outcome, taken. 0: all are told by their targets.
    const RETURNS: usize;
    fn new(cores: Cores) -> Self;
    fn item(&mut self, port: &mut Port, core: usize, item: Item);
    /// Whatever is not full goes out.
    fn finish(&mut self, port: &mut Port);
    /// Reads the next packet, and shows whose it is and what is in it; `None` if there is none, or if it makes no sense.
    fn read(&mut self, bits: &mut BitReader<'_>, show: impl FnMut(usize, Item)) -> Option<()>;
}

/// How instructions before an exception are counted.
pub(crate) fn instructions() -> Coding {
    Coding::Chunks(Chunks::fixed(8))
}

/// What both sides know of a thread.
#[derive(Clone, Debug)]
struct Thread {
    returns: Ras,
    /// Since the last item.
    instructions: u64,
}

fn threads(cores: &Cores, returns: usize) -> Vec<Thread> {
    let returns = Ras::new(returns).expect("a legal number of returns");
    vec![Thread { returns, instructions: 0 }; cores.threads()]
}

/// Makes packets of what is executed.
#[derive(Clone, Debug)]
pub struct PacketTeller<P> {
    cores: Cores,
    threads: Vec<Thread>,
    core: usize,
    packing: P,
    pub port: Port,
}

impl<P: Packing> PacketTeller<P> {
    #[must_use]
    pub fn new(cores: Cores, port: Port) -> Self {
        let (threads, packing) = (threads(&cores, P::RETURNS), P::new(cores.clone()));
        Self { cores, threads, core: 0, packing, port }
    }

    /// Nothing more comes.
    pub fn finish(&mut self) {
        self.packing.finish(&mut self.port);
    }

    fn item(&mut self, item: Item) {
        self.threads[self.core].instructions = 0;
        self.packing.item(&mut self.port, self.core, item);
    }
}

impl<P: Packing> Tell for PacketTeller<P> {
    fn thread(&mut self, thread: u32) {
        self.core = self.cores.of(thread);
    }

    fn elsewhere(&mut self, target: u64) {
        let instructions = self.threads[self.core].instructions;
        self.item(Item::Exception { instructions, target });
    }

    #[inline]
    fn step(&mut self, instructions: u64, end: &End) {
        let thread = &mut self.threads[self.core];
        thread.instructions += instructions;
        let End::Branch(site, went) = *end else { return };
        match (site.kind, went) {
            (Kind::Call, _) => thread.returns.call(site.behind),
            (Kind::Return, Went::To(target)) if thread.returns.ret(target) => self.item(Item::Outcome(true)),
            (_, Went::Taken(taken)) => self.item(Item::Outcome(taken)),
            (kind, Went::To(target)) => {
                if kind == Kind::IndirectCall {
                    thread.returns.call(site.behind);
                }
                self.item(Item::Target(target));
            }
        }
    }
}

/// The mirror image of [`PacketTeller`]. Each core goes through the stream for itself and passes over the packets of others: they may be far ahead of
/// what it waits for, and need not be kept.
#[derive(Clone, Debug)]
pub struct PacketShower<'b, P> {
    cores: Cores,
    readers: Vec<Reader<'b, P>>,
    pub(crate) listing: Listing,
}

/// A core's way through the stream.
#[derive(Clone, Debug)]
pub struct Reader<'b, P> {
    thread: Thread,
    /// Of its last packet, what is not used yet.
    items: VecDeque<Item>,
    packing: P,
    bits: BitReader<'b>,
    packets: u64,
}

impl<P: Packing> Reader<'_, P> {
    /// The next item of `core`.
    fn peek(&mut self, core: usize) -> Option<Item> {
        while self.items.is_empty() {
            let (items, mut is_own) = (&mut self.items, false);
            self.packing.read(&mut self.bits, |of, item| {
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

impl<'b, P: Packing + Clone> PacketShower<'b, P> {
    #[must_use]
    pub fn new(cores: Cores, bits: BitReader<'b>) -> Self {
        let packing = P::new(cores.clone());
        let reader = |thread| Reader {
            thread,
            items: VecDeque::new(),
            packing: packing.clone(),
            bits: bits.clone(),
            packets: 0,
        };
        let readers = threads(&cores, P::RETURNS).into_iter().map(reader).collect();
        Self { cores, readers, listing: Listing::default() }
    }

    /// How many packets were used, and whether every bit and every item was.
    #[must_use]
    pub fn end(&self) -> (u64, bool) {
        let mut readers = self.readers.clone();
        let is_used =
            |(core, reader): (usize, &mut Reader<'b, P>)| reader.peek(core).is_none() && reader.bits.is_empty();
        let are_used = readers.iter_mut().enumerate().all(is_used);
        (self.readers.iter().map(|reader| reader.packets).sum(), are_used)
    }
}

impl<'b, P: Packing + Clone> Show for PacketShower<'b, P> {
    type Thread<'s>
        = PacketsOf<'s, 'b, P>
    where
        Self: 's;

    fn thread(&mut self, thread: u32) -> PacketsOf<'_, 'b, P> {
        let core = self.cores.of(thread);
        PacketsOf { core, reader: &mut self.readers[core], listing: &mut self.listing }
    }
}

/// What is shown of a thread.
#[derive(Debug)]
pub struct PacketsOf<'s, 'b, P> {
    core: usize,
    reader: &'s mut Reader<'b, P>,
    listing: &'s mut Listing,
}

impl<P: Packing> PacketsOf<'_, '_, P> {
    /// Takes the next item.
    fn advance(&mut self) {
        if let Some(item) = self.reader.items.pop_front() {
            self.listing.add(self.core, || What::Item(item));
        }
        self.reader.thread.instructions = 0;
    }
}

impl<P: Packing> ShowThread for PacketsOf<'_, '_, P> {
    fn elsewhere(&mut self) -> Option<u64> {
        match self.reader.peek(self.core)? {
            Item::Exception { instructions, target } if instructions == self.reader.thread.instructions => {
                self.advance();
                Some(target)
            }
            _ => None,
        }
    }

    fn instructions(&mut self, count: u64) {
        self.reader.thread.instructions += count;
    }

    fn branch(&mut self, site: &Site) -> Option<Went> {
        let returns = &mut self.reader.thread.returns;
        if matches!(site.kind, Kind::Call | Kind::IndirectCall) {
            returns.call(site.behind);
        }
        let expected = if site.kind == Kind::Return { returns.pop() } else { None };
        if site.kind == Kind::Call {
            return None;
        }
        let went = match (site.kind, self.reader.peek(self.core)?) {
            (Kind::Conditional, Item::Outcome(taken)) => Some(Went::Taken(taken)),
            (Kind::Return, Item::Outcome(true)) => expected.map(Went::To),
            (kind, Item::Target(target)) if kind != Kind::Conditional => Some(Went::To(target)),
            _ => return None,
        };
        self.advance();
        went
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;

    use super::*;

    fn item() -> impl Strategy<Value = Item> {
        let address = (any::<u64>(), 0u32..64).prop_map(|(value, shift)| value >> shift);
        (0u8..20, any::<bool>(), address, 0u64..1000).prop_map(|(kind, taken, target, instructions)| match kind {
            0 => Item::Exception { instructions, target },
            1..4 => Item::Target(target),
            _ => Item::Outcome(taken),
        })
    }

    /// Items of three threads, packed and unpacked; and what was cut or changed does no harm.
    pub(crate) fn check_items<P: Packing>() {
        let items = proptest::collection::vec((0usize..3, item()), 0..300);
        let run = |(items, cut, changed): (Vec<(usize, Item)>, usize, u8)| {
            let cores = Cores::new(0..3, None).unwrap();
            let (mut port, mut packing) = (Port::writing(), P::new(cores.clone()));
            items.iter().for_each(|&(core, item)| packing.item(&mut port, core, item));
            packing.finish(&mut port);
            let mut bytes = port.finish();
            let (mut bits, mut reading) = (BitReader::new(&bytes, port.bits()), P::new(cores.clone()));
            let mut shown = [const { Vec::new() }; 3];
            while reading.read(&mut bits, |core, item| shown[core].push(item)).is_some() {}
            prop_assert!(bits.is_empty());
            for (core, shown) in shown.iter().enumerate() {
                let own: Vec<Item> = items.iter().filter(|(own, _)| *own == core).map(|&(_, item)| item).collect();
                prop_assert_eq!(shown, &own);
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
