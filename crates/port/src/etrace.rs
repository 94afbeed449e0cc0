//! Packets after E-Trace (Efficient Trace for RISC-V, version 2): maps of up to 31 outcomes, and
//! addresses as differences in whole bytes. The optional modes are not used.
//!
//! A packet has its length in bytes (5 bits) and a format (2 bits). Format 1 is a map and an
//! address, or a full map alone. Format 2 is an address. Format 3 is an exception, or a map that
//! nothing follows.
//!
//! Differences: a thread index comes first, a difference counts bytes, and an exception is followed
//! by the number of instructions since the last branch: an address alone does not say how often a
//! loop without branches has iterated.

use crate::bits::BitReader;
use crate::cores::Cores;
use crate::count::{Field, Port};
use crate::packet::{PacketFormat, PacketItem, instructions};

const LENGTH_BITS: u32 = 5;
const FORMAT_BITS: u32 = 2;
const COUNT_BITS: u32 = 5;
const MAP_MAX: u32 = 31;

const FORMAT_MAP: u64 = 1;
const FORMAT_ADDRESS: u64 = 2;
const FORMAT_OTHER: u64 = 3;
/// Subformats of format 3.
const EXCEPTION: u64 = 0;
const REST: u64 = 1;

/// Returns the bits of a map with `count` outcomes; there are five sizes.
fn map_bits(count: u32) -> u32 {
    match count {
        0 => 0,
        1 => 1,
        2..=3 => 3,
        4..=7 => 7,
        8..=15 => 15,
        _ => MAP_MAX,
    }
}

/// Returns the bits that a number needs, including its sign.
fn signed_bits(value: i64) -> u32 {
    65 - (value ^ value >> 63).leading_zeros()
}

/// Outcomes that are not written yet, the latest in the lowest bit, and the last address.
#[derive(Clone, Copy, Debug, Default)]
struct ThreadState {
    map: u64,
    count: u32,
    address: u64,
}

impl ThreadState {
    fn difference(&mut self, address: u64) -> i64 {
        address.wrapping_sub(std::mem::replace(&mut self.address, address)) as i64
    }

    fn clear(&mut self) {
        (self.map, self.count) = (0, 0);
    }
}

#[derive(Clone, Debug)]
pub struct Etrace {
    cores: Cores,
    threads: Vec<ThreadState>,
}

impl Etrace {
    /// Writes a packet: the header fields `head` with their sizes, then the map, then an address.
    fn packet(&mut self, port: &mut Port, core: usize, head: &[(u64, u32)], address: Option<u64>) {
        let thread = &mut self.threads[core];
        let difference = address.map(|address| thread.difference(address));
        let map = map_bits(thread.count);
        let used = head.iter().map(|&(_, bits)| bits).sum::<u32>() + map;
        let bytes = (used + difference.map_or(0, signed_bits)).div_ceil(8);
        port.messages += 1;
        self.cores.write(port, core);
        port.put(Field::Header, bytes.into(), LENGTH_BITS);
        head.iter().for_each(|&(value, bits)| port.put(Field::Header, value, bits));
        port.put(Field::Map, thread.map, map);
        // The address's sign, or zeros, fill the last byte.
        match difference {
            Some(difference) => write_difference(port, difference, bytes * 8 - used),
            None => port.put(Field::Header, 0, bytes * 8 - used),
        }
        thread.clear();
    }
}

impl PacketFormat for Etrace {
    const RETURNS: usize = 0;

    fn new(cores: Cores) -> Self {
        let threads = vec![ThreadState::default(); cores.threads()];
        Self { cores, threads }
    }

    fn item(&mut self, port: &mut Port, core: usize, item: PacketItem) {
        let thread = &mut self.threads[core];
        let count = u64::from(thread.count);
        match item {
            PacketItem::Outcome(taken) => {
                // As in the specification, a bit is set if the branch was not taken.
                thread.map = thread.map << 1 | u64::from(!taken);
                thread.count += 1;
                if thread.count == MAP_MAX {
                    self.packet(port, core, &[(FORMAT_MAP, FORMAT_BITS), (0, COUNT_BITS)], None);
                }
            }
            PacketItem::Target(target) if count == 0 => {
                self.packet(port, core, &[(FORMAT_ADDRESS, FORMAT_BITS)], Some(target));
            }
            PacketItem::Target(target) => {
                self.packet(port, core, &[(FORMAT_MAP, FORMAT_BITS), (count, COUNT_BITS)], Some(target));
            }
            PacketItem::Exception { instructions: number, target } => {
                let head = [(FORMAT_OTHER, FORMAT_BITS), (EXCEPTION, 1), (count, COUNT_BITS)];
                self.packet(port, core, &head, Some(target));
                instructions().write(port, Field::ICnt, number);
            }
        }
    }

    fn finish(&mut self, port: &mut Port) {
        for core in 0..self.threads.len() {
            let count = self.threads[core].count;
            if count > 0 {
                let head = [(FORMAT_OTHER, FORMAT_BITS), (REST, 1), (count.into(), COUNT_BITS)];
                self.packet(port, core, &head, None);
            }
        }
    }

    fn read(&mut self, bits: &mut BitReader<'_>, mut visit: impl FnMut(usize, PacketItem)) -> Option<()> {
        let core = self.cores.read(bits)?;
        let length = 8 * bits.get(LENGTH_BITS)? as u32;
        let format = bits.get(FORMAT_BITS)?;
        let kind = if format == FORMAT_OTHER { Some(bits.get(1)?) } else { None };
        let count_bits = if format == FORMAT_ADDRESS { 0 } else { COUNT_BITS };
        let count = bits.get(count_bits)? as u32;
        let is_full = format == FORMAT_MAP && count == 0;
        let count = if is_full { MAP_MAX } else { count };
        read_map(bits, count, |taken| visit(core, PacketItem::Outcome(taken)))?;
        let head = FORMAT_BITS + u32::from(kind.is_some()) + count_bits;
        let left = length.checked_sub(head + map_bits(count))?;
        if is_full || kind == Some(REST) {
            bits.get(left)?;
            return Some(());
        }
        let address = &mut self.threads.get_mut(core)?.address;
        *address = address.wrapping_add(read_difference(bits, left)?);
        let target = *address;
        if kind == Some(EXCEPTION) {
            let instructions = instructions().read(bits)?;
            visit(core, PacketItem::Exception { instructions, target });
        } else {
            visit(core, PacketItem::Target(target));
        }
        Some(())
    }
}

fn read_map(bits: &mut BitReader<'_>, count: u32, visit: impl FnMut(bool)) -> Option<()> {
    let map = bits.get(map_bits(count))?;
    (0..count).rev().map(|index| map >> index & 1 == 0).for_each(visit);
    Some(())
}

/// Writes a difference into the last `count` bits of a packet, which may be more than 64.
fn write_difference(port: &mut Port, difference: i64, count: u32) {
    port.put(Field::DiffTA, (difference >> 63) as u64, count.saturating_sub(64));
    port.put(Field::DiffTA, difference as u64, count.min(64));
}

fn read_difference(bits: &mut BitReader<'_>, count: u32) -> Option<u64> {
    bits.get(count.saturating_sub(64))?;
    let unused = 64u32.saturating_sub(count);
    let shifted = bits.get(count.min(64))?.checked_shl(unused)? as i64;
    Some((shifted >> unused) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::tests::check_items;

    #[test]
    fn by_hand() {
        let mut port = Port::writing();
        let mut etrace = Etrace::new(Cores::of_threads(1));
        for item in
            [PacketItem::Outcome(true), PacketItem::Outcome(false), PacketItem::Target(0x10), PacketItem::Target(0x8)]
        {
            etrace.item(&mut port, 0, item);
        }
        etrace.finish(&mut port);
        // Two bytes: format 1, two outcomes in a map of three, +16. One byte: format 2, -8.
        let expected = "00010 01 00010 001 010000  00001 10 111000".replace(' ', "");
        let text: String = port.finish().iter().map(|byte| format!("{byte:08b}")).collect();
        assert_eq!(&text[..port.bits() as usize], expected);
    }

    #[test]
    fn signed_sizes() {
        assert_eq!([0, -1, 1, -2, 127, 128, -128, i64::MAX, i64::MIN].map(signed_bits), [1, 1, 2, 2, 8, 9, 8, 64, 64]);
    }

    #[test]
    fn items_come_back() {
        check_items::<Etrace>();
    }
}
