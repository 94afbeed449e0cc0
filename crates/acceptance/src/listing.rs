//! Traces as plain lists: the addresses that a thread executed, and the events in between.

use std::fmt::Write as _;

use iced_x86::{Decoder, DecoderOptions, Formatter as _, IntelFormatter};
use trace::{AppPc, Event, Item, ThreadId, Trace};

/// What one thread executed, according to a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The address of every executed instruction.
    pub addresses: Vec<u64>,
    /// Events, each with the number of instructions executed before it.
    pub events: Vec<(usize, Event)>,
}

/// Lists every thread, in the order of creation.
///
/// # Panics
///
/// If a part of the trace cannot be read.
#[must_use]
pub fn of_trace(trace: &Trace) -> Vec<Listing> {
    trace.threads().iter().map(|thread| of_thread(trace, thread.info.thread)).collect()
}

/// Lists one thread.
///
/// # Panics
///
/// If there is no such thread, or if a part of it cannot be read.
#[must_use]
pub fn of_thread(trace: &Trace, thread: ThreadId) -> Listing {
    let mut listing = Listing::default();
    for item in trace.steps(thread).expect("the thread exists") {
        match item.expect("the trace is sound") {
            Item::Step(step) => {
                let instructions = trace.blocks().instructions(&step);
                listing.addresses.extend(instructions.map(|instruction| instruction.address.get()));
            }
            Item::Event(event) => listing.events.push((listing.addresses.len(), event)),
        }
    }
    listing
}

/// Describes the first difference of two lists of addresses, with the instructions around it.
/// `None` if they are equal.
#[must_use]
pub fn first_difference(trace: &Trace, recorded: &Listing, expected: &[u64]) -> Option<String> {
    const AROUND: usize = 6;
    let ours = &recorded.addresses;
    let common = ours.iter().zip(expected).position(|(a, b)| a != b);
    let place = match common {
        Some(place) => place,
        None if ours.len() == expected.len() => return None,
        None => ours.len().min(expected.len()),
    };
    let mut text = format!(
        "instruction {place} differs ({} recorded, {} expected); recorded | expected:\n",
        ours.len(),
        expected.len()
    );
    for number in place.saturating_sub(AROUND)..place + AROUND {
        for (_, event) in recorded.events.iter().filter(|&&(before, _)| before == number) {
            let _ = writeln!(text, "           {event:x?}");
        }
        let (ours, theirs) = (ours.get(number).copied(), expected.get(number).copied());
        if ours.is_none() && theirs.is_none() {
            break;
        }
        let mark = if ours == theirs { ' ' } else { '!' };
        let _ = writeln!(text, "{mark} {number:8} {} | {}", shown(trace, ours), shown(trace, theirs));
    }
    Some(text)
}

fn shown(trace: &Trace, address: Option<u64>) -> String {
    match address {
        None => "(nothing)".into(),
        Some(address) => format!("{address:#014x} {:40}", disassembly(trace, address).unwrap_or_default()),
    }
}

/// Returns the bytes and the text of the instruction at `address`, if any block of the trace has
/// it.
pub(crate) fn disassembly(trace: &Trace, address: u64) -> Option<String> {
    let pc = AppPc::new(address);
    let mut blocks = trace.blocks().iter().filter(|block| (block.address()..block.end()).contains(&pc));
    let found = blocks.find_map(|block| block.instructions().find(|instruction| instruction.address == pc))?;
    let mut text = String::new();
    let decoded = Decoder::with_ip(64, found.bytes, address, DecoderOptions::NONE).decode();
    IntelFormatter::new().format(&decoded, &mut text);
    Some(format!("{:02x?} {text}", found.bytes))
}
