//! Packets after Intel Processor Trace (Intel SDM, volume 3, chapter on Intel PT): a byte with up
//! to six outcomes (TNT), and targets (TIP) without the bytes that equal those of the last target.
//! A predicted return is a taken outcome.
//!
//! Differences: a thread index precedes each packet, because all threads share a port. An
//! interruption carries the number of instructions since the last branch instead of an address: an
//! address does not say how often a loop without branches has iterated. There are no packets for
//! synchronisation and time.

use crate::bits::BitReader;
use crate::cores::Cores;
use crate::count::{Field, Port};
use crate::packet::{PacketFormat, PacketItem, instructions};

const OUTCOMES_MAX: u32 = 6;
const OPCODE_BITS: u32 = 5;
/// Opcodes of a target, and of what precedes a target that no branch led to.
const TIP: u64 = 0b01101;
const FUP: u64 = 0b11101;

/// Kinds of targets: code in the packet header, and number of bytes.
const KINDS: [(u64, u32); 4] = [(1, 2), (2, 4), (3, 6), (6, 8)];

/// Returns the shortest kind of target for a reader that knows `last`.
fn kind(target: u64, last: u64) -> (u64, u32) {
    let is_extended = (target as i64) << 16 >> 16 == target as i64;
    match target ^ last {
        changed if changed >> 16 == 0 => KINDS[0],
        changed if changed >> 32 == 0 => KINDS[1],
        _ if is_extended => KINDS[2],
        _ => KINDS[3],
    }
}

/// Returns the target that `value` of `bytes` bytes stands for, given the target `last`.
fn target(value: u64, bytes: u32, last: u64) -> u64 {
    match bytes {
        2 | 4 => last >> (8 * bytes) << (8 * bytes) | value,
        6 => ((value << 16) as i64 >> 16) as u64,
        _ => value,
    }
}

/// Outcomes that are not written yet, the latest in the lowest bit, and the last target.
#[derive(Clone, Copy, Debug, Default)]
struct ThreadState {
    outcomes: u64,
    count: u32,
    target: u64,
}

#[derive(Clone, Debug)]
pub struct Pt {
    cores: Cores,
    threads: Vec<ThreadState>,
}

impl Pt {
    /// Writes the byte of outcomes: zeros, a one, the outcomes, a zero.
    fn flush(&mut self, port: &mut Port, core: usize) {
        let ThreadState { outcomes, count, .. } = &mut self.threads[core];
        if *count > 0 {
            port.messages += 1;
            self.cores.write(port, core);
            port.put(Field::Header, 1, 7 - *count);
            port.put(Field::Map, *outcomes, *count);
            port.put(Field::Header, 0, 1);
            (*outcomes, *count) = (0, 0);
        }
    }

    fn target(&mut self, port: &mut Port, core: usize, target: u64) {
        let last = std::mem::replace(&mut self.threads[core].target, target);
        let (name, bytes) = kind(target, last);
        port.put(Field::Header, name << OPCODE_BITS | TIP, 8);
        port.put_bytes(Field::DiffTA, &target.to_le_bytes()[..bytes as usize]);
    }

    /// Reads a target whose header is `byte`.
    fn read_target(&mut self, bits: &mut BitReader<'_>, core: usize, byte: u64) -> Option<u64> {
        let &(_, bytes) = KINDS.iter().find(|&&(name, _)| name << OPCODE_BITS | TIP == byte)?;
        let mut value = 0;
        for index in 0..bytes {
            value |= bits.get(8)? << (8 * index);
        }
        let last = &mut self.threads.get_mut(core)?.target;
        *last = target(value, bytes, *last);
        Some(*last)
    }
}

impl PacketFormat for Pt {
    const RETURNS: usize = 64;

    fn new(cores: Cores) -> Self {
        let threads = vec![ThreadState::default(); cores.threads()];
        Self { cores, threads }
    }

    fn item(&mut self, port: &mut Port, core: usize, item: PacketItem) {
        if let PacketItem::Outcome(taken) = item {
            let thread = &mut self.threads[core];
            thread.outcomes = thread.outcomes << 1 | u64::from(taken);
            thread.count += 1;
            if thread.count == OUTCOMES_MAX {
                self.flush(port, core);
            }
            return;
        }
        self.flush(port, core);
        port.messages += 1;
        self.cores.write(port, core);
        match item {
            PacketItem::Exception { instructions: number, target } => {
                port.put(Field::Header, FUP, 8);
                instructions().write(port, Field::ICnt, number);
                self.target(port, core, target);
            }
            PacketItem::Target(target) => self.target(port, core, target),
            PacketItem::Outcome(_) => {}
        }
    }

    fn finish(&mut self, port: &mut Port) {
        (0..self.threads.len()).for_each(|core| self.flush(port, core));
    }

    fn read(&mut self, bits: &mut BitReader<'_>, mut visit: impl FnMut(usize, PacketItem)) -> Option<()> {
        let core = self.cores.read(bits)?;
        let byte = bits.get(8)?;
        if byte & 1 == 0 {
            let stop = byte.checked_ilog2()?;
            (1..stop).rev().for_each(|index| visit(core, PacketItem::Outcome(byte >> index & 1 == 1)));
        } else if byte == FUP {
            let instructions = instructions().read(bits)?;
            let byte = bits.get(8)?;
            let target = self.read_target(bits, core, byte)?;
            visit(core, PacketItem::Exception { instructions, target });
        } else {
            let target = self.read_target(bits, core, byte)?;
            visit(core, PacketItem::Target(target));
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::check_items;

    /// As in the manual: a short TNT packet, a TIP packet of which two bytes have changed.
    #[test]
    fn by_hand() {
        let mut port = Port::writing();
        let mut pt = Pt::new(Cores::of_threads(1));
        for item in [
            PacketItem::Target(0x40_1000),
            PacketItem::Outcome(true),
            PacketItem::Outcome(false),
            PacketItem::Target(0x40_20f0),
        ] {
            pt.item(&mut port, 0, item);
        }
        pt.finish(&mut port);
        assert_eq!(port.finish(), [0x4d, 0x00, 0x10, 0x40, 0x00, 0b0000_1100, 0x2d, 0xf0, 0x20]);
    }

    #[test]
    fn items_come_back() {
        check_items::<Pt>();
    }
}
