//! Uses everything a reader offers, with bounds on what a small input may ask for.

use std::num::NonZeroU64;

use trace::{AccessVisitor, Event, InstructionIndex, Operand, RoundRobinUnit, Trace};

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
            let _ = trace.seek_with_accesses(number, InstructionIndex::new(thread.counts.instructions / 3));
        }
        if let Ok(mut steps) = trace.seek(number, InstructionIndex::new(thread.counts.instructions / 2)) {
            let _ = steps.next_batch();
        }
    }
    for mut merged in [trace.merged(), trace.merged().interleaved(2)] {
        (0..1000).find(|_| matches!(merged.next_batch(), Ok(None)));
    }
    for mut merged in [trace.merged(), trace.merged().interleaved(2)].into_iter().chain(trace.merged_with_accesses()) {
        merged.seek(InstructionIndex::new(trace.totals().instructions / 2));
        (0..100).find(|_| matches!(merged.next_batch(), Ok(None)));
    }
    for unit in [RoundRobinUnit::Branches, RoundRobinUnit::Accesses] {
        if let Ok(mut turns) = trace.round_robin(unit, NonZeroU64::MIN) {
            (0..1000).find(|_| matches!(turns.next_batch(), Ok(None)));
        }
    }
    let mut merged = trace.merged();
    (0..1000).find(|_| match merged.next_path_batch() {
        Ok(batch) => batch.map(|batch| batch.items().count()).is_none(),
        Err(_) => false,
    });
    if let Ok(mut merged) = trace.merged_with_accesses() {
        (0..1000).find(|_| matches!(merged.visit_next(|_| IgnoringVisitor), Ok(false)));
    }
}

/// Reads every access and ignores it.
struct IgnoringVisitor;

impl AccessVisitor for IgnoringVisitor {
    fn executed(&mut self, _: u64) {}

    fn operand(&mut self, operand: Operand<'_>) {
        std::hint::black_box(operand.value());
    }

    fn event(&mut self, _: &Event) {}
}
