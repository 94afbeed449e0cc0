//! Whether a trace has allocations.

use trace::Trace;

use crate::failure::Failure;

/// Returns whether allocations were recorded.
pub fn are_in(trace: &Trace) -> bool {
    trace.recording().options.iter().any(|option| option == "--allocations")
}

/// Fails if allocations were not recorded.
pub fn require(trace: &Trace) -> Result<(), Failure> {
    if are_in(trace) {
        return Ok(());
    }
    Err(Failure::new("allocations were not recorded in this trace").hint("record with --allocations to have them"))
}
