//! Uses everything a reader offers, with bounds on what a small input may ask for.

use trace::Trace;

pub fn exercise(bytes: Vec<u8>) {
    let Ok(trace) = Trace::from_bytes(bytes) else { return };
    for damage in trace.damage() {
        let _ = damage.to_string();
    }
    let _ = trace.verify();
    let blocks = trace.blocks();
    for thread in trace.threads() {
        let number = thread.info.thread;
        let Ok(mut steps) = trace.steps(number) else { continue };
        for _ in 0..1000 {
            match steps.next_batch() {
                Ok(None) => break,
                Ok(Some(batch)) => {
                    let executed: usize = batch.steps().iter().map(|step| blocks.instructions(step).count()).sum();
                    assert!(executed as u64 == batch.instructions());
                }
                Err(error) => _ = error.to_string(),
            }
        }
        if let Ok(mut steps) = trace.steps_with_accesses(number) {
            for _ in 0..1000 {
                match steps.next_batch() {
                    Ok(None) => break,
                    // A string instruction may claim any number of iterations.
                    Ok(Some(batch)) => {
                        batch.accesses().take(10_000).for_each(|access| _ = batch.value(&access));
                        batch.items_with_accesses().for_each(|(_, accesses)| _ = accesses.take(100).count());
                    }
                    Err(error) => _ = error.to_string(),
                }
            }
            let _ = trace.seek_with_accesses(number, thread.counts.instructions / 3);
        }
        if let Ok(mut steps) = trace.seek(number, thread.counts.instructions / 2) {
            let _ = steps.next_batch();
        }
    }
    let mut merged = trace.merged();
    for _ in 0..1000 {
        if matches!(merged.next_batch(), Ok(None)) {
            break;
        }
    }
}
