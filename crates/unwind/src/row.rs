//! The rules of an address: how to find the frame of its function, and the registers of the caller.
//!
//! [`read`] compiles them from the call frame information. Nearly all addresses have rules of one
//! form, for which [`SimpleRow`] is small and fast. The others keep theirs as they were read.

#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::sync::Arc;

use gimli::{
    CfaRule, Encoding, FrameDescriptionEntry, RegisterRule, UnwindContext, UnwindSection, UnwindTableRow, X86_64,
};
use symbols::{FrameEntry, FrameSection, FrameTable};

use crate::registers::{PRESERVED, RETURN_ADDRESS};

/// The rules of an address.
#[derive(Debug, Clone)]
pub enum Row {
    Simple(SimpleRow),
    General(Arc<GeneralRow>),
    /// The address has no call frame information.
    Missing,
}

/// The frame is relative to a register, the return address is where a call leaves it, and the
/// preserved registers are on the stack or unchanged.
#[derive(Debug, Clone, Copy)]
pub struct SimpleRow {
    pub cfa_register: u8,
    pub cfa_offset: i32,
    /// Where each preserved register is, in words from the CFA; [`UNCHANGED`] if it has its value.
    pub saved: [i16; PRESERVED.len()],
}

pub const UNCHANGED: i16 = i16::MIN;

/// Where a call leaves the return address, from the CFA.
pub const RETURN_OFFSET: i64 = -8;

/// Any rules, and the file that has their expressions.
#[derive(Debug)]
pub struct GeneralRow {
    pub table: Arc<FrameTable>,
    pub encoding: Encoding,
    pub cfa: CfaRule<usize>,
    pub rules: Vec<(u16, RegisterRule<usize>)>,
    pub return_address: RegisterRule<usize>,
    /// Whether the caller is code that a signal has interrupted.
    pub is_signal: bool,
}

/// Reads the row of a linked address. `is_return_address` says that the instruction before it is
/// the one that counts, because it made the call.
pub fn read(table: &Arc<FrameTable>, context: &mut UnwindContext<usize>, address: u64, is_return_address: bool) -> Row {
    find(table, context, address, is_return_address).unwrap_or(Row::Missing)
}

fn find(
    table: &Arc<FrameTable>,
    context: &mut UnwindContext<usize>,
    address: u64,
    is_return_address: bool,
) -> Option<Row> {
    // The kernel "returns" from the handler to the first instruction of the trampoline.
    if is_return_address
        && let Some(entry) = table.entry_at(address).filter(|entry| entry.start == address)
        && let Some(row) = read_entry(table, context, entry, address).filter(is_signal)
    {
        return Some(row);
    }
    let address = address.checked_sub(u64::from(is_return_address))?;
    read_entry(table, context, table.entry_at(address)?, address)
}

fn is_signal(row: &Row) -> bool {
    matches!(row, Row::General(row) if row.is_signal)
}

fn read_entry(
    table: &Arc<FrameTable>,
    context: &mut UnwindContext<usize>,
    entry: FrameEntry,
    address: u64,
) -> Option<Row> {
    let (section, bases) = (table.section(), table.bases());
    let entry = section.fde_from_offset(&bases, entry.offset.into(), FrameSection::cie_from_offset).ok()?;
    let row = entry.unwind_info_for_address(&section, &bases, context, address).ok()?;
    Some(simple(&entry, row).map_or_else(|| general(table, &entry, row), Row::Simple))
}

type Entry<'a> = FrameDescriptionEntry<gimli::EndianSlice<'a, gimli::LittleEndian>>;

fn simple(entry: &Entry, row: &UnwindTableRow<usize>) -> Option<SimpleRow> {
    let &CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { return None };
    let is_usual = row.register(X86_64::RA) == Some(RegisterRule::Offset(RETURN_OFFSET))
        && entry.cie().return_address_register() == X86_64::RA
        && !entry.is_signal_trampoline()
        && register.0 < RETURN_ADDRESS;
    if !is_usual {
        return None;
    }
    let mut saved = [UNCHANGED; PRESERVED.len()];
    for (register, rule) in row.registers().filter(|(register, _)| *register != X86_64::RA) {
        let place = PRESERVED.iter().position(|preserved| *preserved as u16 == register.0)?;
        *saved.get_mut(place)? = match rule {
            RegisterRule::Offset(offset) if offset % 8 == 0 => {
                i16::try_from(offset / 8).ok().filter(|&words| words != UNCHANGED)?
            }
            RegisterRule::SameValue => UNCHANGED,
            _ => return None,
        };
    }
    let cfa_register = u8::try_from(register.0).ok()?;
    Some(SimpleRow { cfa_register, cfa_offset: i32::try_from(offset).ok()?, saved })
}

fn general(table: &Arc<FrameTable>, entry: &Entry, row: &UnwindTableRow<usize>) -> Row {
    let return_register = entry.cie().return_address_register();
    let rules = row.registers().filter(|(register, _)| *register != return_register);
    Row::General(Arc::new(GeneralRow {
        table: table.clone(),
        encoding: entry.cie().encoding(),
        cfa: row.cfa().clone(),
        rules: rules.map(|(register, rule)| (register.0, rule.clone())).collect(),
        return_address: row.register(return_register).unwrap_or(RegisterRule::Undefined),
        is_signal: entry.is_signal_trampoline(),
    }))
}
