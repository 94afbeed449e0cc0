//! The input is a technique, a size of predictors, and bits that are followed through a recorded trace.

use port::bits::BitReader;
use port::cores::Cores;
use port::{Config, Follower, Settings, Subject, Technique};
use trace::Trace;

use crate::next;

/// A trace with values; see the README there.
const TRACE: &[u8] = include_bytes!("../../trace/tests/fixtures/version-2-values.trk");

/// Follows the trace by these bits, as `port decode` does.
pub fn port_bits(mut bytes: &[u8]) {
    let trace = Trace::from_bytes(TRACE.to_vec()).expect("the trace is sound");
    let technique = Technique::ALL[usize::from(next(&mut bytes)) % Technique::ALL.len()];
    let config = [Config::SMALL, Config::MEDIUM, Config::LARGE][usize::from(next(&mut bytes)) % 3];
    let threads = trace.threads().iter().map(|thread| thread.info.thread);
    let Ok(cores) = Cores::new(threads, None) else { return };
    let reader = BitReader::new(bytes, bytes.len() as u64 * 8);
    let Ok(mut follower) = Follower::new(technique, &config, &Settings::default(), &cores, reader) else { return };
    follower.list();
    let merged = match technique.subject() {
        Subject::Loads => trace.merged_with_accesses(),
        _ => Ok(trace.merged()),
    };
    let Ok(mut merged) = merged else { return };
    while let Ok(Some(batch)) = merged.next_batch() {
        follower.batch(trace.blocks(), batch);
        drop(follower.read());
    }
    drop(follower.finish());
}
