//! Accesses to memory as plain lists: those of a trace, those of single-stepping, and their
//! differences.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use trace::{ThreadId, Trace};

use crate::Data;
use crate::listing;

/// Only `fxsave` and similar instructions access at least this number of bytes.
const STATE_BYTES_MIN: usize = 512;

/// One read or write by an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    pub pc: u64,
    pub address: u64,
    pub writes: bool,
    pub size: usize,
    /// In memory order; `None` if it was not recorded, or if it differs between runs.
    pub value: Option<Vec<u8>>,
}

impl fmt::Display for Access {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        let Self { address, writes, size, value, .. } = self;
        write!(formatter, "{} {address:#014x} {size:3}", if *writes { 'S' } else { 'L' })?;
        let Some(value) = value else { return Ok(()) };
        write!(formatter, " 0x")?;
        value.iter().rev().take(64).try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl From<&oracle::Access> for Access {
    fn from(access: &oracle::Access) -> Self {
        let &oracle::Access { pc, address, writes, ref value, .. } = access;
        Self { pc, address, writes, size: value.len(), value: Some(value.clone()) }
    }
}

/// Calls `look` for every access of a thread, with its value if that was recorded.
///
/// # Panics
///
/// If there is no such thread, or if a part of it cannot be read.
pub fn for_each(trace: &Trace, thread: ThreadId, mut look: impl FnMut(&trace::Access, Option<&[u8]>)) {
    let mut steps = trace.steps_with_accesses(thread).expect("the thread exists and has data");
    while let Some(batch) = steps.next_batch().expect("the trace is sound") {
        batch.accesses().for_each(|access| look(&access, batch.value(&access)));
    }
}

/// Returns all accesses of a thread.
///
/// # Panics
///
/// As [`for_each`].
#[must_use]
pub fn recorded_accesses(trace: &Trace, thread: ThreadId) -> Vec<Access> {
    let mut accesses = Vec::new();
    for_each(trace, thread, |access, value| {
        accesses.push(Access {
            pc: access.pc().get(),
            address: access.address(),
            writes: access.is_write(),
            size: access.size() as usize,
            value: value.map(<[u8]>::to_vec),
        });
    });
    accesses
}

/// Returns the accesses of a thread in several single-stepped runs, without values that differ
/// between runs. Values of saved states are left out, too: which registers a processor takes to be
/// in use depends on when other programs have run.
///
/// # Panics
///
/// If the runs differ in more than values.
#[must_use]
pub fn repeatable_accesses(runs: &[&[oracle::Access]]) -> Vec<Access> {
    let (first, others) = runs.split_first().expect("there is a run");
    let mut accesses: Vec<Access> = first.iter().map(Access::from).collect();
    for other in others {
        assert_eq!(accesses.len(), other.len(), "the runs make different numbers of accesses");
        for (access, other) in accesses.iter_mut().zip(*other) {
            let place = |access: &Access| (access.pc, access.address, access.size, access.writes);
            let other = Access::from(other);
            assert_eq!(place(access), place(&other), "the runs make different accesses");
            access.value = access.value.take().filter(|value| Some(value) == other.value.as_ref());
        }
    }
    accesses.iter_mut().filter(|access| access.size >= STATE_BYTES_MIN).for_each(|access| access.value = None);
    accesses
}

/// Returns whether two accesses agree, as far as `data` was recorded. Where the expected value is
/// unknown, any value of that size will do.
fn agree(recorded: &Access, expected: &Access, data: Data) -> bool {
    let place = |access: &Access| (access.pc, access.address, access.size, access.writes);
    let value_agrees = match (data, &recorded.value, &expected.value) {
        (Data::Values, Some(recorded), Some(expected)) => recorded == expected,
        (Data::Values, Some(recorded), None) => recorded.len() == expected.size,
        (Data::Values, None, _) => false,
        (_, recorded, _) => recorded.is_none(),
    };
    place(recorded) == place(expected) && value_agrees
}

/// Describes the instructions in which two lists of accesses differ; `None` if the lists are equal.
#[must_use]
pub fn differences(trace: &Trace, recorded: &[Access], expected: &[Access], data: Data) -> Option<String> {
    const INSTRUCTIONS_MAX: usize = 40;
    let place = recorded.iter().zip(expected).position(|(ours, theirs)| !agree(ours, theirs, data));
    if place.is_none() && recorded.len() == expected.len() {
        return None;
    }
    let place = place.unwrap_or(recorded.len().min(expected.len()));
    let (ours, theirs) = (by_instruction(recorded), by_instruction(expected));
    let mut text = format!(
        "{} accesses recorded, {} expected; the first that differs is number {place}, by the instruction at {:#x}\n",
        recorded.len(),
        expected.len(),
        expected.get(place).or(recorded.get(place)).map_or(0, |access| access.pc),
    );
    let pcs: std::collections::BTreeSet<u64> = ours.keys().chain(theirs.keys()).copied().collect();
    let none = Vec::new();
    let mut count = 0;
    for pc in pcs {
        let (ours, theirs) = (ours.get(&pc).unwrap_or(&none), theirs.get(&pc).unwrap_or(&none));
        let Some(difference) = difference_of_one(ours, theirs, data) else { continue };
        count += 1;
        if count <= INSTRUCTIONS_MAX {
            let _ = writeln!(text, "{pc:#x} {}\n{difference}", listing::disassembly(trace, pc).unwrap_or_default());
        }
    }
    let _ = match count {
        0 => writeln!(text, "each instruction makes the expected accesses, but in another order"),
        _ => writeln!(text, "{count} instructions differ"),
    };
    Some(text)
}

fn by_instruction(accesses: &[Access]) -> BTreeMap<u64, Vec<&Access>> {
    let mut lists: BTreeMap<u64, Vec<&Access>> = BTreeMap::new();
    accesses.iter().for_each(|access| lists.entry(access.pc).or_default().push(access));
    lists
}

/// Describes the first difference between all accesses of one instruction.
fn difference_of_one(recorded: &[&Access], expected: &[&Access], data: Data) -> Option<String> {
    let place = recorded.iter().zip(expected).position(|(ours, theirs)| !agree(ours, theirs, data));
    if place.is_none() && recorded.len() == expected.len() {
        return None;
    }
    let place = place.unwrap_or(recorded.len().min(expected.len()));
    let shown = |access: Option<&&Access>| access.map_or_else(|| "(nothing)".into(), ToString::to_string);
    Some(format!(
        "    {place} of {} recorded {}\n    {place} of {} expected {}",
        recorded.len(),
        shown(recorded.get(place)),
        expected.len(),
        shown(expected.get(place)),
    ))
}
