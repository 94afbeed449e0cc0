//! The input is a file of port bits, which are decoded along a recorded trace.

use port::bits::BitReader;
use port::cores::Cores;
use port::{PortDecoder, Subject, file};
use trace::Trace;

/// A trace with values; see the README there.
const TRACE: &[u8] = include_bytes!("../../trace/tests/fixtures/version-2-values.trk");

/// Decodes the bits of this file and compares them with the trace, as `port decode` does.
pub fn port_bits(bytes: &[u8]) {
    let trace = Trace::from_bytes(TRACE.to_vec()).expect("the trace is sound");
    let Ok((description, bits)) = file::parse(bytes) else { return };
    let Some(technique) = description.technique() else { return };
    let Some((config, settings)) = description.config().zip(description.settings()) else { return };
    let threads = trace.threads().iter().map(|thread| thread.info.thread);
    let Ok(cores) = Cores::new(threads, Some(description.cores)) else { return };
    let reader = BitReader::new(bits, description.bits);
    let Ok(mut decoder) = PortDecoder::new(technique, &config, &settings, &cores, reader) else { return };
    decoder.log_messages();
    let merged = match technique.subject() {
        Subject::Loads => trace.merged_with_accesses(),
        _ => Ok(trace.merged()),
    };
    let Ok(mut merged) = merged else { return };
    while let Ok(Some(batch)) = merged.next_batch() {
        decoder.batch(trace.blocks(), batch);
        drop(decoder.take_messages());
    }
    drop(decoder.finish());
}
