//! Damaged stacks and damaged files: unwinding ends without panic, with frames in order.

use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use symbols::FrameTable;
use trackway_unwind::{Frame, FrameRegister, FrameRegisters, UnwindEnd, Unwinder};

/// Libraries whose code is written in C and in assembly, and a program.
const FILES: [&str; 2] = ["/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/sort"];

const STACK: u64 = 0x7ffc_0000_0000;
const LIMIT: usize = 300;

/// A pseudo-random number.
fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    (number ^ number >> 29).wrapping_mul(0xc4ce_b9fe_1a85_ec53) ^ number >> 32
}

/// Returns the linked address of some instruction.
fn some_code(table: &FrameTable, number: u64) -> u64 {
    let entries = table.entries();
    let entry = entries[usize::try_from(number).unwrap() % entries.len()];
    entry.start + mix(number) % (entry.end - entry.start + 1)
}

/// Unwinds a stack of plausible nonsense: return addresses, addresses on the stack, small numbers.
fn unwind(table: &Arc<FrameTable>, seed: u64) -> (Vec<Frame>, UnwindEnd) {
    let mut unwinder = Unwinder::new();
    let first = table.entries().first().map_or(0, |entry| entry.start) & !0xfff;
    // Mapped as it was linked, whatever the offset of the code in the file is.
    let bias = (0..1 << 24).step_by(4096).find_map(|offset| Some((offset, table.bias(first, offset)?)));
    let (offset, bias) = bias.unwrap_or_default();
    unwinder.map(first..first + (1 << 26), offset, table.clone());
    let value = |number: u64| match mix(number) % 8 {
        0..3 => some_code(table, mix(number) >> 4).wrapping_add(bias),
        3..6 => STACK + (mix(number) >> 4) % 0x1_0000,
        6 => mix(number) >> 4 & 0xff,
        _ => mix(number),
    };
    let start = some_code(table, mix(seed)).wrapping_add(bias);
    let all = [
        FrameRegister::Rbx,
        FrameRegister::Rbp,
        FrameRegister::R10,
        FrameRegister::R12,
        FrameRegister::R13,
        FrameRegister::Rdi,
    ];
    let registers = all.into_iter().fold(FrameRegisters::new(start, STACK + seed % 0x8000), |registers, register| {
        registers.with(register, value(seed.wrapping_add(register as u64)))
    });
    let mut frames = Vec::new();
    let mut memory = |address: u64| (!mix(address).is_multiple_of(37)).then(|| value(address ^ seed));
    let end = unwinder.unwind(&registers, LIMIT, &mut memory, &mut frames);
    (frames, end)
}

/// Checks that a stack does not fold back, except where a signal has interrupted something: the
/// frame address of a signal's frame is the stack pointer of the interrupted code.
fn check(frames: &[Frame], end: UnwindEnd) {
    assert!(frames.len() <= LIMIT && (end != UnwindEnd::Limit || frames.len() == LIMIT));
    let is_signal = |at: usize| frames.get(at + 1).map_or(end == UnwindEnd::Limit, |caller| caller.is_exact);
    for (at, pair) in frames.windows(2).enumerate() {
        let (callee, caller) = (&pair[0], &pair[1]);
        if caller.is_exact || is_signal(at + 1) {
            continue;
        }
        if let (Some(below), Some(above)) = (callee.cfa, caller.cfa) {
            assert!(below < above, "{pair:x?}, {end:?}");
        }
    }
}

proptest! {
    // Cases depend on the system's files: a failing one is of no use elsewhere.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn a_damaged_stack_has_an_end(seed in any::<u64>(), file in 0..FILES.len()) {
        static TABLES: std::sync::OnceLock<Vec<Arc<FrameTable>>> = std::sync::OnceLock::new();
        let read = |path: &&str| Arc::new(FrameTable::of_file(Path::new(path)).unwrap());
        let tables = TABLES.get_or_init(|| FILES.iter().map(read).collect());
        let (frames, end) = unwind(&tables[file], seed);
        check(&frames, end);
    }
}

#[test]
fn damaged_files_are_read_without_panic() {
    let good = std::fs::read(FILES[1]).unwrap();
    let mut understood = 0;
    for seed in 0..200 {
        let mut bytes = good.clone();
        for flip in 0..1 << (seed % 12) {
            let number = mix(seed << 32 | flip);
            // The headers have to be found.
            let place = 4096 + usize::try_from(number).unwrap() % (bytes.len() - 3 * 4096);
            bytes[place] ^= u8::try_from(number >> 56).unwrap();
        }
        let Some(table) = FrameTable::parse(&bytes).map(Arc::new) else { continue };
        if table.entries().is_empty() {
            continue;
        }
        understood += 1;
        for start in 0..50 {
            let (frames, end) = unwind(&table, mix(seed) ^ start);
            check(&frames, end);
        }
    }
    assert!(understood > 100, "{understood}");
}
