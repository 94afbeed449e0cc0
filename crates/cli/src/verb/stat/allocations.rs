//! A summary of allocations: how many, how many bytes, and where most of them come from.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use serde::Serialize;
use trace::{AppPc, Event, Step, ThreadId, Trace};

use crate::allocations::{Allocation, Change, Ledger};
use crate::arguments::Stat;
use crate::digits::grouped;
use crate::output::Stopped;
use crate::symbolizer::Symbolizer;
use crate::{allocations, select};

#[derive(Serialize)]
pub struct AllocationsJson {
    /// Blocks that were allocated or resized, and the bytes asked for.
    allocations: u64,
    bytes: u64,
    /// Blocks that were given back; of these, those that are older than the recording.
    frees: u64,
    older_frees: u64,
    failed: u64,
    mappings: u64,
    peak_live_bytes: u64,
    live_blocks: usize,
    live_bytes: u64,
    call_sites: Vec<CallSiteJson>,
}

#[derive(Serialize)]
struct CallSiteJson {
    address: String,
    name: String,
    allocations: u64,
    bytes: u64,
}

#[derive(Default)]
struct Counter {
    ledger: Ledger,
    allocations: u64,
    bytes: u64,
    frees: u64,
    older_frees: u64,
    failed: u64,
    mappings: u64,
    /// Allocations and bytes by image and return address.
    sites: BTreeMap<(u32, AppPc), (u64, u64)>,
}

/// Counts the allocations of the selected part; `None` if they were not recorded.
pub fn count(trace: &Trace, arguments: &Stat) -> Result<Option<AllocationsJson>, Stopped> {
    if !allocations::are_in(trace) {
        return Ok(None);
    }
    let mut counter = Counter::default();
    select::walk(trace, &arguments.input, &mut counter)?;
    Ok(Some(counter.describe(trace, arguments.top)))
}

impl select::Visitor for Counter {
    fn step(&mut self, _: ThreadId, _: &Step, _: Range<u32>) -> Result<(), Stopped> {
        Ok(())
    }

    fn event(&mut self, thread: ThreadId, event: &Event) -> Result<(), Stopped> {
        match self.ledger.event(thread, event) {
            Some(Change::Allocation(allocation)) => self.add(&allocation),
            Some(Change::Mapping(_)) => self.mappings += 1,
            None => {}
        }
        Ok(())
    }
}

impl Counter {
    fn add(&mut self, allocation: &Allocation) {
        if allocation.is_release() {
            self.frees += u64::from(allocation.old.is_some());
            self.older_frees += u64::from(allocation.old.is_some_and(|old| old.size.is_none()));
            return;
        }
        if allocation.result == Some(0) {
            self.failed += 1;
            return;
        }
        let size = allocation.call.size().unwrap_or(0);
        self.allocations += 1;
        self.bytes = self.bytes.saturating_add(size);
        let (count, bytes) = self.sites.entry((self.ledger.image(), allocation.call.caller)).or_default();
        *count += 1;
        *bytes = bytes.saturating_add(size);
    }

    fn describe(self, trace: &Trace, top: usize) -> AllocationsJson {
        let mut sites: Vec<_> = self.sites.into_iter().collect();
        sites.sort_by_key(|&(_, (count, bytes))| std::cmp::Reverse((bytes, count)));
        let mut symbolizer = Symbolizer::new(trace);
        let describe = |((image, address), (allocations, bytes)): ((u32, AppPc), (u64, u64))| CallSiteJson {
            address: format!("{address:#x}"),
            name: symbolizer.return_address(image, address).to_owned(),
            allocations,
            bytes,
        };
        let call_sites = sites.into_iter().take(top).map(describe).collect();
        let (live_blocks, live_bytes) = self.ledger.live();
        AllocationsJson {
            allocations: self.allocations,
            bytes: self.bytes,
            frees: self.frees,
            older_frees: self.older_frees,
            failed: self.failed,
            mappings: self.mappings,
            peak_live_bytes: self.ledger.peak_bytes(),
            live_blocks,
            live_bytes,
            call_sites,
        }
    }
}

/// Appends the summary and a table of call sites.
pub fn table(text: &mut String, allocations: &AllocationsJson) {
    let mut line = |line: String| writeln!(text, "{line}").expect("a string takes everything");
    line(format!(
        "\n{} allocations of {} bytes, {} frees ({} of older blocks), {} failed, {} mappings",
        grouped(allocations.allocations),
        grouped(allocations.bytes),
        grouped(allocations.frees),
        grouped(allocations.older_frees),
        grouped(allocations.failed),
        grouped(allocations.mappings),
    ));
    line(format!(
        "at most {} bytes were live at once; {} bytes in {} blocks are left",
        grouped(allocations.peak_live_bytes),
        grouped(allocations.live_bytes),
        grouped(allocations.live_blocks as u64),
    ));
    if !allocations.call_sites.is_empty() {
        line(format!("\n{:>20}{:>20}  allocated by", "bytes", "allocations"));
    }
    for site in &allocations.call_sites {
        line(format!("{:>20}{:>20}  {}", grouped(site.bytes), grouped(site.allocations), site.name));
    }
}
