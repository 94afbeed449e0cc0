//! Drains rings with given contents, for fuzzing: whatever a damaged target could leave there.

use std::io;
use std::sync::atomic::Ordering::SeqCst;

use wire::{CODE_RING_BYTES, CODE_RING_OFFSET, SLOT_LIVE};

use crate::drain::Drain;
use crate::select::Selection;
use crate::shared::{SEGMENT_WORDS, Shared};
use crate::sink::Sink;

/// The contents of the rings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rings<'a> {
    /// Records of the code ring.
    pub code: &'a [u8],
    /// The bytes of a thread's first segment.
    pub segment: &'a [u8],
    /// Whether the thread has completed the segment.
    pub is_complete: bool,
    /// One of `wire::DATA_*`.
    pub data: u32,
    /// The most instructions to record.
    pub length: Option<u64>,
}

/// Drains the rings into `sink`, to the end.
///
/// # Errors
/// If there is no memory for the rings.
pub fn drain<S: Sink>(rings: &Rings<'_>, sink: S) -> io::Result<Option<S::Error>> {
    let shared = Shared::create_alone()?;
    let control = shared.control();
    control.data.store(rings.data, SeqCst);
    let code = rings.code.get(..CODE_RING_BYTES).unwrap_or(rings.code);
    shared.write(CODE_RING_OFFSET, code);
    control.code_head.store(code.len() as u64, SeqCst);
    let segment = rings.segment.get(..4 * SEGMENT_WORDS).unwrap_or(rings.segment);
    shared.write(wire::segment_offset(0, 0), segment);
    let slot = &control.slots[0];
    slot.parent.store(u32::MAX, SeqCst);
    slot.state.store(SLOT_LIVE, SeqCst);
    if rings.is_complete {
        slot.used[0].store(segment.len() as u32, SeqCst);
        slot.head.store(1, SeqCst);
    }
    let mut drain = Drain::new(&shared, sink);
    if rings.length.is_some() {
        drain.select(&Selection { length: rings.length, ..Selection::default() }, 0);
    }
    drain.drain_once();
    drain.finish_image();
    Ok(drain.finish().2)
}
