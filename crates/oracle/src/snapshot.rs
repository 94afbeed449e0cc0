//! The writable memory of a program before and after a step: a check that no write of an
//! instruction is missed.

use std::fs;

use crate::Error;
use crate::access::PlannedAccess;
use crate::tracee::Tracee;

/// The contents of the writable mappings.
pub struct Snapshot {
    mappings: Vec<(u64, Vec<u8>)>,
}

impl Snapshot {
    pub fn take(tracee: Tracee) -> Result<Self, Error> {
        let text = fs::read_to_string(format!("/proc/{}/maps", tracee.0)).map_err(Error::Mappings)?;
        let ranges = text.lines().filter_map(writable_range);
        let mappings = ranges.map(|(start, length)| (start, contents(tracee, start, length)));
        Ok(Self { mappings: mappings.collect() })
    }

    /// Checks that every changed byte is one that `planned` writes to, and updates the snapshot.
    pub fn check(&mut self, tracee: Tracee, pc: u64, planned: &[PlannedAccess]) -> Result<(), Error> {
        for (start, before) in &mut self.mappings {
            let after = contents(tracee, *start, before.len());
            if *before == after {
                continue;
            }
            let changed = before.iter().zip(&after).zip(*start..).filter(|((before, after), _)| before != after);
            let is_planned = |&address: &u64| planned.iter().any(|access| access.covers(address));
            let missed = changed.map(|(_, address)| address).find(|address| !is_planned(address));
            if let Some(address) = missed {
                return Err(Error::Missed { pc, address });
            }
            *before = after;
        }
        Ok(())
    }
}

/// Returns start and length of a writable mapping, from a line of /proc/PID/maps.
fn writable_range(line: &str) -> Option<(u64, usize)> {
    let mut fields = line.split(' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    fields.next()?.contains('w').then_some((start, (end - start) as usize))
}

fn contents(tracee: Tracee, start: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    tracee.read(start, &mut bytes);
    bytes
}
