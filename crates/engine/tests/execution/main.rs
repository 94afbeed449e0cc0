//! Random programs are executed natively and translated, block by block and as superblocks, and
//! have to do exactly the same: all registers, flags, data and the whole stack (the translator must
//! not use it, not even below rsp). The words at the cursor have to name the blocks that were
//! executed. Then all of it again, stopping after every instruction of the cache: at every safe
//! point, the state that a signal handler would see has to be the native one.

mod machine;
mod program;

use std::collections::HashMap;

use entity::{AppPc, FragmentId, PathId};
use machine::{End, FLAGS, Machine, Registers, Stop};
use program::{Code, DATA_BYTES, FAR, LOW, Layout, Program, REGION_BYTES, STACK_BYTES, STACK_TOP};
use proptest::prelude::*;
use trackway_engine::cache_pc::CachePc;
use trackway_engine::emit::{Emitter, IndirectTable};
use trackway_engine::translate::{
    self, ExitKind, Order, RegisterState, STUB_STRIDE, SourceBlock, Spill, Translation, TranslationOptions,
};
use wire::word;

/// In the region of the data.
const RING: u64 = 0x4_0000;
/// In the region of the cache.
const STUBS_END: u64 = REGION_BYTES;
const FIRST_PATH: u32 = 1000;
const SUPERBLOCK_BLOCKS: usize = 6;
const RSP: usize = 4;

/// How a program is translated.
#[derive(Clone, Copy, Debug)]
struct Mode {
    layout: Layout,
    by_pext: bool,
    high_table: bool,
    order: Order,
    inline_indirect: bool,
    check: bool,
    /// What is recorded beside the path.
    data: u32,
}

/// What a run has left behind.
#[derive(Clone, PartialEq, Eq)]
struct Outcome {
    registers: Registers,
    data: Vec<u8>,
    stack: Vec<u8>,
}

fn fill(address: u64, length: u64, seed: u64) {
    let mut value = seed | 1;
    for place in (address..address + length).step_by(8) {
        value = value.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        machine::write(place, value);
    }
}

fn bytes(address: u64, length: u64) -> Vec<u8> {
    (address..address + length).step_by(8).flat_map(|place| machine::read(place).to_le_bytes()).collect()
}

fn put(address: u64, code: &[u8]) {
    for (index, chunk) in code.chunks(8).enumerate() {
        let mut word = [0x90; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        machine::write(address + 8 * index as u64, u64::from_le_bytes(word));
    }
}

/// Puts code, data and stack into their initial state and returns that of the registers.
fn load(program: &Program, code: &Code, layout: Layout) -> Registers {
    put(layout.code, &code.bytes);
    let mut end = vec![0xff, 0x25, 0, 0, 0, 0];
    end.extend(machine::native_end().to_le_bytes());
    put(layout.code + program::END, &end);
    fill(layout.data, DATA_BYTES, program.seed);
    for (place, target) in &code.pointers {
        machine::write(*place, *target);
    }
    let top = layout.data + STACK_TOP;
    for place in (top - STACK_BYTES..top + STACK_BYTES).step_by(8) {
        machine::write(place, layout.code + program::END);
    }
    let mut registers = Registers { general: program.general, flags: program.flags & FLAGS };
    registers.general[RSP] = top;
    registers
}

fn outcome(layout: Layout, registers: Registers) -> Outcome {
    let stack = bytes(layout.data + STACK_TOP - STACK_BYTES, 2 * STACK_BYTES);
    Outcome { registers, data: bytes(layout.data, DATA_BYTES), stack }
}

fn run_native(
    machine: &mut Machine,
    program: &Program,
    code: &Code,
    layout: Layout,
    step: bool,
) -> (Outcome, Vec<Stop>) {
    let mut registers = load(program, code, layout);
    machine.watch(layout.code, layout.code + program::END);
    let end = machine.run(layout.code, &mut registers, None, step);
    assert_eq!(end, End::Native);
    (outcome(layout, registers), machine.stops())
}

struct Fragment {
    start: CachePc,
    end: CachePc,
    addresses: Vec<AppPc>,
    id: FragmentId,
    translation: Translation,
}

/// A translator and dispatcher in small: every exit comes back to it.
struct Dispatcher<'a> {
    mode: Mode,
    code: &'a [u8],
    fragments: Vec<Fragment>,
    by_address: HashMap<AppPc, usize>,
    exit_count: u32,
    cache_next: CachePc,
    stubs_next: CachePc,
}

impl<'a> Dispatcher<'a> {
    fn new(mode: Mode, code: &'a [u8]) -> Self {
        Self {
            mode,
            code,
            fragments: Vec::new(),
            by_address: HashMap::new(),
            exit_count: 0,
            cache_next: CachePc::new(mode.layout.cache),
            stubs_next: CachePc::new(mode.layout.cache + STUBS_END),
        }
    }

    fn table(&self) -> IndirectTable {
        IndirectTable { address: machine::TABLES[usize::from(self.mode.high_table)], by_pext: self.mode.by_pext }
    }

    fn find(&mut self, superblock: &[AppPc]) -> usize {
        if let Some(index) = self.by_address.get(&superblock[0]) {
            return *index;
        }
        let fragment = self.translate(superblock);
        self.by_address.insert(superblock[0], self.fragments.len());
        self.fragments.push(fragment);
        self.fragments.len() - 1
    }

    fn translate(&mut self, addresses: &[AppPc]) -> Fragment {
        let block = |index: usize| SourceBlock {
            address: addresses[index],
            code: &self.code[(addresses[index].get() - self.mode.layout.code) as usize..],
            next: addresses.get(index + 1).copied(),
            check: self.mode.check,
            is_entry: self.mode.data != wire::DATA_NONE,
        };
        let superblock: Vec<_> = (0..addresses.len()).map(block).collect();
        let options = TranslationOptions {
            table: self.table(),
            inline_indirect: self.mode.inline_indirect,
            order: self.mode.order,
            data: self.mode.data,
            has_avx512: std::arch::is_x86_feature_detected!("avx512f"),
            fragment: FragmentId::new(PathId::new(FIRST_PATH + self.exit_count)),
            stubs_end: self.stubs_next,
        };
        let mut room = vec![0; 0x1_0000];
        let mut out = Emitter::new(&mut room, self.cache_next);
        let translation = translate::translate(&superblock, &mut out, &options).unwrap();
        out.align(64);
        assert!(!out.overflowed());
        let (start, end) = (self.cache_next, out.here());
        put(start.get(), &room[..(end - start) as usize]);
        for index in 0..translation.exits.len() {
            let mut room = [0x90; STUB_STRIDE];
            let stub = options.stub(index);
            Emitter::new(&mut room, stub).exit_stub(options.fragment.path(index as u32).get());
            put(stub.get(), &room);
        }
        self.cache_next = end;
        let count = translation.exits.len();
        self.stubs_next = self.stubs_next - (count * STUB_STRIDE) as u64;
        self.exit_count += count as u32;
        Fragment { start, end, addresses: addresses.to_vec(), id: options.fragment, translation }
    }

    /// Which fragment and exit left with this word at the cursor.
    fn path(&self, word: u32) -> (&Fragment, usize) {
        let exit_in = |fragment: &Fragment| fragment.id.exit_of(PathId::new(word)) as usize;
        let fragment = self.fragments.iter().find(|fragment| exit_in(fragment) < fragment.translation.exits.len());
        let fragment = fragment.unwrap_or_else(|| panic!("{word:#x} is no path"));
        (fragment, exit_in(fragment))
    }

    /// What a signal handler would take for the application's state; `None` where it would not.
    fn recover_state(&self, stop: &Stop) -> Option<(AppPc, Registers)> {
        let pc = CachePc::new(stop.pc);
        let fragment = self.fragments.iter().find(|fragment| (fragment.start..fragment.end).contains(&pc))?;
        let offset = (pc - fragment.start) as u16;
        let after = fragment.translation.map.partition_point(|entry| entry.cache <= offset);
        let entry = fragment.translation.map[after - 1];
        let mut registers = stop.registers;
        let (own, spilled): (bool, &[(u8, u64)]) = match entry.state {
            RegisterState::BetweenSafePoints => return None,
            RegisterState::Cursor => (false, &[]),
            RegisterState::App => (true, &[]),
            RegisterState::Scratch => (false, &[(1, stop.scratch[0]), (2, stop.scratch[1])]),
            RegisterState::ScratchApp => (true, &[(1, stop.scratch[0]), (2, stop.scratch[1])]),
            RegisterState::Spilled(spill, own) => {
                if spill.flags {
                    registers.flags = stop.flags >> 8 & 0xd5 | (stop.flags & 1) << 11 | registers.flags & 0x400;
                }
                (own, &[(spill.general, stop.scratch[0]), (spill.third, stop.scratch[2])])
            }
        };
        for (register, value) in spilled.iter().filter(|(register, _)| *register != Spill::NONE) {
            registers.general[usize::from(*register)] = *value;
        }
        if !own {
            registers.general[15] = stop.has_app_r15;
        }
        Some((fragment.addresses[usize::from(entry.block)] + u64::from(entry.offset), registers))
    }
}

/// Runs translated; `history` are the addresses of the blocks in the order of execution if they are
/// known, so that superblocks can be made of them. Returns the history of this run.
fn run_translated(
    machine: &mut Machine,
    dispatcher: &mut Dispatcher,
    program: &Program,
    code: &Code,
    history: Option<&[AppPc]>,
    step: bool,
) -> (Outcome, Vec<AppPc>, Vec<Stop>) {
    let layout = dispatcher.mode.layout;
    let mut registers = load(program, code, layout);
    fill(layout.data + RING, 4096, program.seed);
    machine.prepare(dispatcher.table().mask());
    machine.watch(layout.cache, layout.cache + REGION_BYTES / 2);
    let mut executed = Vec::new();
    let mut pc = AppPc::new(layout.code);
    while pc != AppPc::new(layout.code + program::END) {
        let from = executed.len();
        let superblock = match history {
            Some(history) => &history[from..history.len().min(from + SUPERBLOCK_BLOCKS)],
            None => &[pc],
        };
        assert_eq!(superblock[0], pc);
        let index = dispatcher.find(superblock);
        let start = dispatcher.fragments[index].start;
        let mut cursor = layout.data + RING;
        let end = machine.run(start.get(), &mut registers, Some(&mut cursor), step);
        let (fragment, exit) = dispatcher.path(machine::read(layout.data + RING) as u32);
        let taken = fragment.translation.exits[exit];
        executed.extend_from_slice(&fragment.addresses[..usize::from(taken.blocks)]);
        check_words(cursor, layout.data + RING, u64::from(taken.data));
        pc = match end {
            End::Exit(number) => {
                assert_eq!(PathId::new(number), fragment.id.path(exit as u32));
                assert_eq!(taken.kind, ExitKind::Direct);
                taken.target
            }
            End::Indirect(target) => {
                assert_eq!(taken.kind, ExitKind::Indirect);
                AppPc::new(target)
            }
            End::Native => panic!("translated code has come to native code"),
        };
    }
    (outcome(layout, registers), executed, machine.stops())
}

/// One path with its data, and perhaps the time.
fn check_words(cursor: u64, start: u64, data: u64) {
    match cursor - start - data {
        4 => {}
        16 => assert_eq!(machine::read(start + 4 + data) as u32, word::event(word::TIME, 0)),
        other => panic!("{other} bytes were recorded"),
    }
}

/// Every stop at a safe point shows a state that the native program goes through, in order and
/// without a gap.
fn check_stops(dispatcher: &Dispatcher, code: &[u8], native: &[Stop], stops: &[Stop]) {
    let layout = dispatcher.mode.layout;
    // A direct jump leaves no trace in the cache.
    let is_jump = |stop: &Stop| matches!(code[(stop.pc - layout.code) as usize], 0xe9 | 0xeb);
    let mut at = 0;
    for stop in stops {
        let Some((pc, registers)) = dispatcher.recover_state(stop) else { continue };
        let seen =
            |index: usize| native.get(index).is_some_and(|stop| stop.pc == pc.get() && stop.registers == registers);
        if seen(at) {
            continue;
        }
        while native.get(at + 1).is_some_and(is_jump) && !seen(at + 1) {
            at += 1;
        }
        at += 1;
        if !seen(at) {
            let wanted = native.get(at).map(|stop| (stop.pc - layout.code, stop.registers));
            panic!(
                "at cache+{:x} a signal would see code+{:x} and {registers:x?}\nnative is {wanted:x?}",
                stop.pc - layout.cache,
                pc - AppPc::new(layout.code),
            );
        }
    }
    while native.get(at + 1).is_some_and(is_jump) {
        at += 1;
    }
    assert_eq!(at + 1, native.len(), "the last instructions were never seen");
}

fn compare(expected: &Outcome, actual: &Outcome) {
    assert_eq!(expected.registers, actual.registers);
    assert!(expected.data == actual.data, "the data differs");
    assert!(expected.stack == actual.stack, "the stack differs");
}

fn check(program: &Program, mode: Mode) {
    let program = &program.for_data(mode.data);
    let mut guard = machine::machine();
    let machine = guard.as_mut().unwrap();
    map_once(mode.layout);
    machine.prepare(0);
    let code = program.assemble(mode.layout);
    let (expected, _) = run_native(machine, program, &code, mode.layout, false);

    let mut blocks = Dispatcher::new(mode, &code.bytes);
    let (actual, history, _) = run_translated(machine, &mut blocks, program, &code, None, false);
    compare(&expected, &actual);

    let mut superblocks = Dispatcher::new(mode, &code.bytes);
    let (actual, executed, _) = run_translated(machine, &mut superblocks, program, &code, Some(&history), false);
    compare(&expected, &actual);
    assert_eq!(history, executed);
}

/// As [`check`], stopping after every instruction.
fn check_every_stop(program: &Program, mode: Mode) {
    let program = &program.for_data(mode.data);
    let mut guard = machine::machine();
    let machine = guard.as_mut().unwrap();
    map_once(mode.layout);
    machine.prepare(0);
    let code = program.assemble(mode.layout);
    let (expected, native) = run_native(machine, program, &code, mode.layout, true);

    let mut blocks = Dispatcher::new(mode, &code.bytes);
    let (actual, history, stops) = run_translated(machine, &mut blocks, program, &code, None, true);
    compare(&expected, &actual);
    check_stops(&blocks, &code.bytes, &native, &stops);

    let mut superblocks = Dispatcher::new(mode, &code.bytes);
    let (actual, _, stops) = run_translated(machine, &mut superblocks, program, &code, Some(&history), true);
    compare(&expected, &actual);
    check_stops(&superblocks, &code.bytes, &native, &stops);
}

/// Maps the regions of a layout, the first time.
fn map_once(layout: Layout) {
    use std::sync::Mutex;
    static MAPPED: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    let mut mapped = MAPPED.lock().unwrap();
    if !mapped.contains(&layout.code) {
        mapped.push(layout.code);
        for address in [layout.code, layout.data, layout.cache] {
            machine::map(address, REGION_BYTES);
        }
    }
}

/// An indirect jump to `target` that the table leads to the indirect entry of `indirect entry`.
fn check_indirect_entry(general: [u64; 16], flags: u64, target: u64, entry_target: u64) {
    let mut guard = machine::machine();
    let machine = guard.as_mut().unwrap();
    map_once(LOW);
    machine.prepare(0);
    let mut room = [0; 256];
    let mut out = Emitter::new(&mut room, CachePc::new(LOW.cache));
    out.spill_scratch();
    out.load_constant(1, target);
    out.indirect_entry(AppPc::new(entry_target));
    out.exit_stub(FIRST_PATH);
    put(LOW.cache, &room);
    let mut registers = Registers { general, flags: flags & FLAGS };
    registers.general[RSP] = LOW.data + STACK_TOP;
    let expected = registers;
    let mut cursor = LOW.data + RING;
    let end = machine.run(LOW.cache, &mut registers, Some(&mut cursor), false);
    assert_eq!(end, if target == entry_target { End::Exit(FIRST_PATH) } else { End::Indirect(target) });
    assert_eq!(registers, expected);
    assert_eq!(cursor, LOW.data + RING);
}

proptest! {
    #[test]
    fn indirect_entries_check_their_target(general: [u64; 16], flags: u64, target: u64, other: u64) {
        check_indirect_entry(general, flags, target, target);
        check_indirect_entry(general, flags, target, other);
        check_indirect_entry(general, flags, target, target ^ 1 << 32);
    }
}

fn mode() -> impl Strategy<Value = Mode> {
    let has_bmi2 = std::arch::is_x86_feature_detected!("bmi2");
    let orders = if has_bmi2 { 4 } else { 2 };
    let flags = (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        0usize..orders,
        any::<bool>(),
        prop::bool::weighted(0.2),
        0..=wire::DATA_VALUES,
    );
    flags.prop_map(move |(far, by_pext, high_table, order, inline_indirect, check, data)| Mode {
        layout: if far { FAR } else { LOW },
        by_pext: by_pext && has_bmi2,
        high_table,
        order: [Order::None, Order::EveryTime, Order::Contention, Order::Contention][order],
        inline_indirect,
        check,
        data,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn translated_programs_do_the_same(program in program::program(), mode in mode()) {
        check(&program, mode);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn safe_points_show_the_native_state(program in program::program(), mode in mode()) {
        check_every_stop(&program, mode);
    }
}
