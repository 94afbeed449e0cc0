//! Random programs of real machine code, and a simple interpreter that executes them as the engine
//! would. It produces the words for the ring and, independently of them, what a reader must return.
#![allow(dead_code)]

use std::collections::HashMap;

use trackway_trace::{
    AccessDescriptors, AppPc, BlockId, CallStackId, DataMode, Event, Exit, Fragment, FragmentId, MappingCall, Module,
    PathId, Recording, RoutineCall, RoutineKind, Summary, Terminator, ThreadId, ThreadInfo, Tsc, Writer, WriterOptions,
};
use wire::code::{
    self, FragmentBlock, FragmentExit, TERMINATOR_DIRECT, TERMINATOR_INDIRECT, TERMINATOR_NOT_TAKEN,
    TERMINATOR_SYSCALL, TERMINATOR_TAKEN,
};
use wire::word;

pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Conditional(usize),
    Jump(usize),
    Call(usize),
    IndirectJump,
    IndirectCall,
    Return,
    Syscall,
    Cut,
    Trap,
}

#[derive(Clone, Debug)]
struct Block {
    id: BlockId,
    address: AppPc,
    code: Vec<u8>,
    /// Addresses of its instructions.
    instructions: Vec<AppPc>,
    ending: Ending,
}

impl Block {
    fn end(&self) -> AppPc {
        self.address + self.code.len() as u64
    }
}

struct SampleFragment {
    id: FragmentId,
    /// Block, and whether it goes on to the next one by a taken branch.
    blocks: Vec<(usize, bool)>,
    exits: Vec<FragmentExit>,
    accesses: Vec<AccessSource>,
    /// Bytes of data up to the end of each block.
    lengths: Vec<usize>,
}

/// An access descriptor, and the address of its instruction.
#[derive(Debug)]
struct AccessSource {
    descriptor: code::AccessDescriptor,
    pc: AppPc,
}

/// One access as it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRecord {
    pub pc: AppPc,
    pub writes: bool,
    pub address: u64,
    pub value: Vec<u8>,
}

/// One image of the process: its blocks, one after the other, and the fragments made so far.
pub struct Image {
    blocks: Vec<Block>,
    fragments: Vec<SampleFragment>,
    by_head: HashMap<usize, Vec<usize>>,
    /// Fragments that have been handed to the writer.
    announced: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedItem {
    Step { address: AppPc, instructions: u32, terminator: Terminator, next: AppPc },
    Event(Event),
}

const NOPS: [&[u8]; 5] = [&[0x90], &[0x66, 0x90], &[0x0f, 0x1f, 0x00], &[0xf3, 0xa4], &[0x0f, 0x1f, 0x44, 0x00, 0x00]];

impl Image {
    pub fn random(random: &mut Random, count: usize, next_block: &mut u32) -> Self {
        let endings: Vec<Ending> = (0..count).map(|place| random_ending(random, place, count)).collect();
        let bodies: Vec<Vec<&[u8]>> =
            (0..count).map(|_| (0..random.below(6)).map(|_| NOPS[random.below(NOPS.len())]).collect()).collect();
        let mut addresses = vec![AppPc::new(0x40_0000)];
        for (body, ending) in bodies.iter().zip(&endings) {
            let length: usize = body.iter().map(|nop| nop.len()).sum::<usize>() + ending_length(*ending);
            addresses.push(*addresses.last().unwrap() + length as u64);
        }
        let blocks = (0..count).map(|place| {
            let mut code = Vec::new();
            let mut instructions = Vec::new();
            for nop in &bodies[place] {
                instructions.push(addresses[place] + code.len() as u64);
                code.extend_from_slice(nop);
            }
            instructions.push(addresses[place] + code.len() as u64);
            let target = |to: usize| ((addresses[to] - addresses[place + 1]) as u32).to_le_bytes();
            match endings[place] {
                Ending::Conditional(to) => code.extend([&[0x0f, 0x85][..], &target(to)].concat()),
                Ending::Jump(to) => code.extend([&[0xe9][..], &target(to)].concat()),
                Ending::Call(to) => code.extend([&[0xe8][..], &target(to)].concat()),
                Ending::IndirectJump => code.extend([0xff, 0xe0]),
                Ending::IndirectCall => code.extend([0xff, 0xd0]),
                Ending::Return => code.push(0xc3),
                Ending::Syscall => code.extend([0x0f, 0x05]),
                Ending::Cut => code.push(0x90),
                Ending::Trap => code.push(0xcc),
            }
            *next_block += 1;
            Block {
                id: BlockId::new(*next_block),
                address: addresses[place],
                code,
                instructions,
                ending: endings[place],
            }
        });
        Self { blocks: blocks.collect(), fragments: Vec::new(), by_head: HashMap::new(), announced: 0 }
    }

    /// A fragment that begins at block `head`: an old one or, now and then, a new one.
    fn fragment_at(&mut self, random: &mut Random, head: usize, next_path: &mut u32) -> usize {
        let known = self.by_head.entry(head).or_default();
        if !known.is_empty() && !random.one_in(20) {
            return known[if random.one_in(3) { random.below(known.len()) } else { known.len() - 1 }];
        }
        let (mut blocks, mut exits) = (Vec::new(), Vec::new());
        let mut at = head;
        let length = 1 + random.below(8);
        loop {
            let number = blocks.len() as u16 + 1;
            let last = usize::from(number) == length || at + 1 == self.blocks.len();
            let after = at + 1;
            let (taken, next) = match self.blocks[at].ending {
                Ending::Conditional(to) => {
                    let taken = random.one_in(2);
                    if last || taken {
                        exits.push(FragmentExit::new(number, TERMINATOR_NOT_TAKEN));
                    }
                    if last || !taken {
                        exits.push(FragmentExit::new(number, TERMINATOR_TAKEN));
                    }
                    (taken, Some(if taken { to } else { after }))
                }
                Ending::Jump(to) | Ending::Call(to) => {
                    if last {
                        exits.push(FragmentExit::new(number, TERMINATOR_DIRECT));
                    }
                    (false, Some(to))
                }
                Ending::Return => {
                    exits.push(FragmentExit::new(number, TERMINATOR_INDIRECT));
                    // As if the fragment held the call that is returned from.
                    (false, random.one_in(3).then(|| random.below(self.blocks.len())))
                }
                Ending::IndirectJump | Ending::IndirectCall => {
                    exits.push(FragmentExit::new(number, TERMINATOR_INDIRECT));
                    (false, None)
                }
                Ending::Syscall => {
                    exits.push(FragmentExit::new(number, TERMINATOR_SYSCALL));
                    (false, None)
                }
                Ending::Cut | Ending::Trap => {
                    if last || self.blocks[at].ending == Ending::Trap {
                        exits.push(FragmentExit::new(number, TERMINATOR_DIRECT));
                    }
                    (false, (self.blocks[at].ending == Ending::Cut).then_some(after))
                }
            };
            blocks.push((at, taken && !last));
            match next {
                Some(next) if !last => at = next,
                _ => break,
            }
        }
        let id = FragmentId::new(PathId::new(*next_path));
        *next_path += exits.len() as u32;
        let (accesses, lengths) = self.random_accesses(random, &blocks);
        self.fragments.push(SampleFragment { id, blocks, exits, accesses, lengths });
        self.by_head.entry(head).or_default().push(self.fragments.len() - 1);
        self.fragments.len() - 1
    }

    /// Accesses for the instructions of these blocks, each with slots of its own.
    fn random_accesses(&self, random: &mut Random, blocks: &[(usize, bool)]) -> (Vec<AccessSource>, Vec<usize>) {
        let (mut accesses, mut lengths) = (Vec::new(), Vec::new());
        let mut end = 0;
        for (place, &(block, _)) in blocks.iter().enumerate() {
            let block = &self.blocks[block];
            for &pc in &block.instructions {
                if random.one_in(2) {
                    continue;
                }
                let mut slot = |bytes: usize| {
                    end += bytes;
                    (end - bytes) as u16
                };
                let size = [1, 2, 4, 8, 10, 16, 32, 64][random.below(8)];
                let mut descriptor = code::AccessDescriptor {
                    block: place as u16,
                    offset: (pc - block.address) as u16,
                    size,
                    flags: code::HAS_BASE | if random.one_in(2) { code::WRITES } else { 0 },
                    base: slot(8),
                    displacement: random.below(4000) as i64 - 2000,
                    count: 1,
                    ..code::AccessDescriptor::default()
                };
                match random.below(6) {
                    0 => {
                        (descriptor.kind, descriptor.size, descriptor.count) =
                            (code::MASKED, 4, 1 + random.below(16) as u8);
                        (descriptor.mask_kind, descriptor.mask) = (code::MASK_BITS, slot(8));
                    }
                    1 => {
                        descriptor.flags |= code::HAS_INDEX | random.below(4) as u8;
                        descriptor.index = slot(8);
                    }
                    2 => descriptor.flags |= code::HAS_FS,
                    _ => {}
                }
                descriptor.value = slot(usize::from(descriptor.size) * usize::from(descriptor.count));
                if descriptor.size == 8 && Some(&pc) == block.instructions.last() {
                    // What an indirect transfer loads is where it goes; here it is anything.
                    descriptor.flags |= code::WRITES;
                }
                accesses.push(AccessSource { descriptor, pc });
            }
            end = end.next_multiple_of(4);
            lengths.push(end);
        }
        (accesses, lengths)
    }

    pub fn define_blocks(&self, image: u32, writer: &mut Writer) {
        for block in &self.blocks {
            writer.block(image, block.id, block.address, &block.code).unwrap();
        }
    }

    /// Hands fragments to the writer that it has not seen.
    pub fn announce(&mut self, image: u32, data: DataMode, writer: &mut Writer) {
        for fragment in &self.fragments[self.announced..] {
            let block = |&(block, is_taken): &(usize, bool)| FragmentBlock::new(self.blocks[block].id, is_taken);
            let blocks: Vec<FragmentBlock> = fragment.blocks.iter().map(block).collect();
            let definition = Fragment { fragment: fragment.id, blocks: &blocks, exits: &fragment.exits };
            writer.fragment(image, &definition).unwrap();
            if data != DataMode::None {
                let length = |exit: &FragmentExit| fragment.lengths[usize::from(exit.block_count()) - 1] as u32;
                let lengths: Vec<u32> = fragment.exits.iter().map(length).collect();
                let accesses: Vec<code::AccessDescriptor> =
                    fragment.accesses.iter().map(|source| source.descriptor).collect();
                let descriptors = AccessDescriptors { fragment: fragment.id, lengths: &lengths, accesses: &accesses };
                writer.access_descriptors(&descriptors).unwrap();
            }
        }
        self.announced = self.fragments.len();
    }
}

fn random_ending(random: &mut Random, place: usize, count: usize) -> Ending {
    let to = random.below(count);
    if place + 1 == count {
        return Ending::Jump(to);
    }
    match random.below(20) {
        0..7 => Ending::Conditional(to),
        7..9 => Ending::Jump(to),
        9..12 => Ending::Call(to),
        12 => Ending::IndirectJump,
        13 => Ending::IndirectCall,
        14..17 => Ending::Return,
        17 => Ending::Syscall,
        18 => Ending::Cut,
        _ => Ending::Trap,
    }
}

fn ending_length(ending: Ending) -> usize {
    match ending {
        Ending::Conditional(_) => 6,
        Ending::Jump(_) | Ending::Call(_) => 5,
        Ending::IndirectJump | Ending::IndirectCall | Ending::Syscall => 2,
        Ending::Return | Ending::Cut | Ending::Trap => 1,
    }
}

impl AccessSource {
    /// Makes the access: puts what it needs into `data` and gives what was accessed.
    fn make(&self, random: &mut Random, turn: u64, fs_base: u64, data: &mut [u8]) -> Vec<AccessRecord> {
        let descriptor = &self.descriptor;
        let mut put = |at: u16, value: u64| data[usize::from(at)..][..8].copy_from_slice(&value.to_le_bytes());
        // Mostly as in loops over arrays.
        let base = if random.one_in(4) { random.next() } else { 0x7000 + turn * u64::from(descriptor.size) };
        put(descriptor.base, base);
        let mut address = base.wrapping_add(descriptor.displacement as u64);
        if descriptor.flags & code::HAS_INDEX != 0 {
            let index = random.below(100) as u64;
            put(descriptor.index, index);
            address = address.wrapping_add(index << (descriptor.flags & 3));
        }
        if descriptor.flags & code::HAS_FS != 0 {
            address = address.wrapping_add(fs_base);
        }
        let mask = if descriptor.mask_kind == code::MASK_BITS { random.next() } else { u64::MAX };
        if descriptor.mask_kind == code::MASK_BITS {
            put(descriptor.mask, mask);
        }
        let size = usize::from(descriptor.size);
        let mut seen = Vec::new();
        for element in 0..usize::from(descriptor.count) {
            let value = if random.one_in(3) { random.next() } else { turn };
            let value: Vec<u8> = value.to_le_bytes().into_iter().cycle().take(size).collect();
            data[usize::from(descriptor.value) + element * size..][..size].copy_from_slice(&value);
            if mask >> element & 1 != 0 {
                let address = address.wrapping_add((element * size) as u64);
                seen.push(AccessRecord { pc: self.pc, writes: descriptor.flags & code::WRITES != 0, address, value });
            }
        }
        seen
    }
}

/// A thread that executes an image at random.
#[derive(Debug)]
pub struct Thread {
    pub number: ThreadId,
    at: usize,
    pub words: Vec<u32>,
    pub expected: Vec<ExpectedItem>,
    pub data: Vec<u8>,
    /// Of every instruction executed, its accesses.
    pub seen: Vec<Vec<AccessRecord>>,
    fs_base: u64,
    turn: u64,
    /// A branch leaves its usual direction once in so many executions.
    habit: usize,
    tsc: Tsc,
    clock: Clock,
    /// Whether events record accesses.
    has_explicit_accesses: bool,
    has_allocations: bool,
}

/// How the timestamps of threads go on.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// What passes between two timestamps of a thread, at least and in addition.
    pub least: u64,
    pub more: u64,
    /// How much later than the thread before it a thread starts.
    pub delay: u64,
    /// Whether it goes back now and then.
    pub goes_back: bool,
}

impl Default for Clock {
    fn default() -> Self {
        Self { least: 1, more: 1000, delay: 1, goes_back: false }
    }
}

impl Thread {
    pub fn new(number: ThreadId, setting: &Setting) -> Self {
        Self {
            number,
            at: 0,
            words: Vec::new(),
            expected: Vec::new(),
            data: Vec::new(),
            seen: Vec::new(),
            fs_base: 0,
            turn: 0,
            habit: setting.habit,
            tsc: Tsc::new(1000 + u64::from(number.get()) * setting.clock.delay),
            clock: setting.clock,
            has_explicit_accesses: setting.has_explicit_accesses,
            has_allocations: setting.has_allocations,
        }
    }

    fn time(&mut self, random: &mut Random) -> Tsc {
        let mut ticks = self.tsc.get() + self.clock.least + random.next() % self.clock.more;
        if self.clock.goes_back && random.one_in(8) {
            ticks = ticks.saturating_sub(random.next() % (5 * self.clock.more)).max(1);
        }
        self.tsc = Tsc::new(ticks);
        self.tsc
    }

    /// An access that belongs to what is executed next.
    fn explicit_access(&mut self, image: &Image, random: &mut Random) {
        let (pc, address) = (image.blocks[self.at].address.get(), random.next() >> 20);
        self.words.push(word::event(word::ACCESS, 2 << 8));
        self.words.extend([pc, address].into_iter().flat_map(|value| [value as u32, (value >> 32) as u32]));
        self.words.push(8);
        self.data.extend(random.next().to_le_bytes());
    }

    fn event(&mut self, event: Event, low: u32, interrupted: Option<(FragmentId, u32)>) {
        let split = |value: u64| [value as u32, (value >> 32) as u32];
        let (address, time) = (|pc: AppPc| split(pc.get()), |tsc: Tsc| split(tsc.get()));
        let (kind, payload) = match event {
            Event::Start { pc, tsc } => (word::START, [address(pc), time(tsc)].concat()),
            Event::Time { tsc } => (word::TIME, time(tsc).to_vec()),
            Event::Syscall { number, tsc } => (word::SYSCALL, [&[number][..], &time(tsc)].concat()),
            Event::Signal { pc, handler, tsc, .. } => {
                let (first_path, blocks) =
                    interrupted.map_or((0, 0), |(fragment, blocks)| (fragment.first_path().get(), blocks));
                (word::SIGNAL, [&[first_path, blocks][..], &address(pc), &address(handler), &time(tsc)].concat())
            }
            Event::Resume { pc, tsc } => (word::RESUME, [address(pc), time(tsc)].concat()),
            Event::End { tsc } => (word::END, time(tsc).to_vec()),
            Event::Child { thread, os_tid } => (word::CHILD, vec![thread.get(), os_tid]),
            Event::Detach { tsc } => (word::DETACH, time(tsc).to_vec()),
            Event::FsBase { base } => (word::FS_BASE, split(base).to_vec()),
            Event::RoutineEnter { call, tsc } => {
                let [first, second, third] = call.arguments.map(split);
                let place = [address(call.pc), split(call.stack_pointer)];
                let words = [&place[..], &[first, second, third, address(call.caller)]].concat().concat();
                (word::ENTER, [&words[..], &[call.stack.0], &time(tsc)].concat())
            }
            Event::RoutineReturn { value, tsc, .. } => (word::RETURN, [split(value), time(tsc)].concat()),
            Event::Mapping { call, tsc } => {
                let values = [&call.arguments[..], &[call.result]].concat().into_iter().flat_map(split);
                let words: Vec<u32> = std::iter::once(call.number).chain(values).chain([call.stack.0]).collect();
                (word::MAPPING, [&words[..], &time(tsc)].concat())
            }
            Event::Gap { .. } | Event::Unfinished { .. } | Event::Lost => unreachable!(),
        };
        self.words.push(word::event(kind, low));
        self.words.extend(payload);
        self.expected.push(ExpectedItem::Event(event));
    }

    pub fn start(&mut self, image: &Image, random: &mut Random) {
        self.at = random.below(image.blocks.len());
        let tsc = self.time(random);
        self.event(Event::Start { pc: image.blocks[self.at].address, tsc }, 0, None);
        self.fs_base = random.next() >> 20;
        self.event(Event::FsBase { base: self.fs_base }, 0, None);
    }

    /// Records the accesses of the first `count` instructions of a block of a fragment. Returns the
    /// end of their data.
    fn access(
        &mut self,
        random: &mut Random,
        fragment: &SampleFragment,
        block: (usize, &Block),
        count: usize,
        data: &mut [u8],
    ) -> usize {
        let (place, block) = block;
        let mut end = 0;
        for &pc in &block.instructions[..count] {
            let own = fragment.accesses.iter().filter(|own| usize::from(own.descriptor.block) == place && own.pc == pc);
            let mut seen = Vec::new();
            for source in own {
                seen.extend(source.make(random, self.turn, self.fs_base, data));
                let descriptor = &source.descriptor;
                end = usize::from(descriptor.value) + usize::from(descriptor.size) * usize::from(descriptor.count);
            }
            self.seen.push(seen);
        }
        end
    }

    pub fn end(&mut self, random: &mut Random) {
        // The next step shows the target of an indirect transfer; here there is none.
        let is_passing = |event: &Event| {
            matches!(
                event,
                Event::Time { .. } | Event::RoutineEnter { .. } | Event::RoutineReturn { .. } | Event::Mapping { .. }
            )
        };
        let is_passed = |item: &&mut ExpectedItem| matches!(item, ExpectedItem::Event(event) if is_passing(event));
        let last = self.expected.iter_mut().rev().find(|item| !is_passed(item));
        if let Some(ExpectedItem::Step { terminator: Terminator::Indirect, next, .. }) = last {
            *next = AppPc::NONE;
        }
        let tsc = self.time(random);
        let event = if random.one_in(2) { Event::End { tsc } } else { Event::Detach { tsc } };
        self.event(event, 0, None);
    }

    /// Calls an allocation routine, which maps memory.
    fn allocate(&mut self, random: &mut Random) {
        let routine = RoutineKind::Calloc;
        let (pc, caller) = (AppPc::new(random.next() >> 17), AppPc::new(random.next() >> 17));
        let arguments = [random.next(), random.next() >> 40, random.next() >> 60];
        let stack = CallStackId(random.below(1000) as u32);
        let call = RoutineCall { routine, pc, stack_pointer: random.next() >> 17, arguments, caller, stack };
        let tsc = self.time(random);
        self.event(Event::RoutineEnter { call, tsc }, u32::from(routine as u8), None);
        let call = MappingCall { number: 9, arguments, result: random.next() >> 17, is_nested: true, stack };
        let tsc = self.time(random);
        self.event(Event::Mapping { call, tsc }, word::MAPPING_NESTED, None);
        let tsc = self.time(random);
        let returned = Event::RoutineReturn { routine, value: random.next() >> 17, tsc };
        self.event(returned, u32::from(routine as u8), None);
    }

    /// Executes one fragment.
    pub fn run(&mut self, image: &mut Image, random: &mut Random, next_path: &mut u32) {
        if self.has_explicit_accesses && random.one_in(10) {
            self.explicit_access(image, random);
        }
        if random.one_in(50) {
            let tsc = self.time(random);
            self.event(Event::Time { tsc }, 0, None);
        }
        if self.has_allocations && random.one_in(60) {
            self.allocate(random);
        }
        let fragment = image.fragment_at(random, self.at, next_path);
        let image = &*image;
        let fragment = &image.fragments[fragment];
        let stop = random.one_in(40).then(|| random.below(fragment.blocks.len()));
        let mut data = vec![0; fragment.lengths.last().copied().unwrap_or(0)];
        self.turn += 1;
        for (place, &(index, goes_on_taken)) in fragment.blocks.iter().enumerate() {
            let block = &image.blocks[index];
            if stop == Some(place) || block.ending == Ending::Trap {
                return self.interrupt(image, random, fragment, place, data);
            }
            let inner = fragment.blocks.get(place + 1).map(|&(next, _)| next);
            let (terminator_code, terminator, next) = self.outcome(image, random, index, inner);
            let address = image.blocks[next].address;
            let instructions = block.instructions.len() as u32;
            self.expected.push(ExpectedItem::Step { address: block.address, instructions, terminator, next: address });
            self.access(random, fragment, (place, block), block.instructions.len(), &mut data);
            self.at = next;
            let follows = inner == Some(next)
                && match block.ending {
                    Ending::Conditional(_) => goes_on_taken == (terminator_code == TERMINATOR_TAKEN),
                    Ending::IndirectJump | Ending::IndirectCall | Ending::Syscall => false,
                    _ => true,
                };
            if !follows {
                let exit = FragmentExit::new(place as u16 + 1, terminator_code);
                let number = fragment.exits.iter().position(|&other| other == exit).expect("there is an exit");
                self.words.push(fragment.id.path(number as u32).get());
                self.data.extend_from_slice(&data[..fragment.lengths[place]]);
                if terminator_code == TERMINATOR_SYSCALL {
                    // Above rt_sigreturn, which comes back elsewhere.
                    let (number, tsc) = (16 + random.below(400) as u32, self.time(random));
                    self.event(Event::Syscall { number, tsc }, 0, None);
                    if random.one_in(4) {
                        self.event(Event::Child { thread: ThreadId::new(77), os_tid: 88 }, 0, None);
                    }
                }
                return;
            }
        }
    }

    /// How the block ends: one of the `TERMINATOR_*`, the terminator, the next block.
    fn outcome(
        &self,
        image: &Image,
        random: &mut Random,
        index: usize,
        inner: Option<usize>,
    ) -> (u32, Terminator, usize) {
        let after = index + 1;
        match image.blocks[index].ending {
            Ending::Conditional(to) => {
                let usual = !index.is_multiple_of(3);
                let taken = if random.one_in(self.habit) { !usual } else { usual };
                if taken {
                    (TERMINATOR_TAKEN, Terminator::Taken, to)
                } else {
                    (TERMINATOR_NOT_TAKEN, Terminator::NotTaken, after)
                }
            }
            Ending::Jump(to) | Ending::Call(to) => (TERMINATOR_DIRECT, Terminator::Direct, to),
            Ending::Return | Ending::IndirectJump | Ending::IndirectCall => {
                let usual = inner.unwrap_or(index * 7 % image.blocks.len());
                let to = if random.one_in(self.habit) { random.below(image.blocks.len()) } else { usual };
                (TERMINATOR_INDIRECT, Terminator::Indirect, to)
            }
            Ending::Syscall => (TERMINATOR_SYSCALL, Terminator::Syscall, after),
            Ending::Cut | Ending::Trap => (TERMINATOR_DIRECT, Terminator::Next, after),
        }
    }

    /// A signal comes in block `place` of the fragment; the handler runs on somewhere, or the
    /// thread resumes.
    fn interrupt(
        &mut self,
        image: &Image,
        random: &mut Random,
        fragment: &SampleFragment,
        place: usize,
        mut data: Vec<u8>,
    ) {
        let index = fragment.blocks[place].0;
        let block = &image.blocks[index];
        let count = if block.ending == Ending::Trap {
            block.instructions.len()
        } else {
            random.below(block.instructions.len())
        };
        let pc = block.instructions.get(count).copied().unwrap_or(block.end());
        if count > 0 {
            let (address, instructions) = (block.address, count as u32);
            self.expected.push(ExpectedItem::Step {
                address,
                instructions,
                terminator: Terminator::Interrupted,
                next: pc,
            });
        }
        let before = if place == 0 { 0 } else { fragment.lengths[place - 1] };
        let end = self.access(random, fragment, (place, block), count, &mut data).max(before).next_multiple_of(4);
        self.data.extend_from_slice(&data[..end]);
        self.at = random.below(image.blocks.len());
        let tsc = self.time(random);
        let event = Event::Signal { signal: 11, pc, handler: image.blocks[self.at].address, tsc };
        self.event(event, 11 | (end as u32 / 4) << 8, Some((fragment.id, place as u32)));
        let handler = self.at;
        if random.one_in(2) {
            self.at = random.below(image.blocks.len());
        }
        if self.at != handler {
            let tsc = self.time(random);
            self.event(Event::Resume { pc: image.blocks[self.at].address, tsc }, 0, None);
        }
    }

    /// Addresses of all instructions executed.
    pub fn instructions(&self, addresses: &HashMap<AppPc, Vec<AppPc>>) -> Vec<AppPc> {
        let mut all = Vec::new();
        for expected in &self.expected {
            if let ExpectedItem::Step { address, instructions, .. } = expected {
                all.extend(&addresses[address][..*instructions as usize]);
            }
        }
        all
    }
}

#[derive(Clone, Debug)]
pub struct Setting {
    pub seed: u64,
    pub blocks: usize,
    pub threads: u32,
    pub images: u32,
    pub runs: usize,
    pub habit: usize,
    pub options: WriterOptions,
    pub data: DataMode,
    pub clock: Clock,
    /// Whether events record accesses; they are in no expectation.
    pub has_explicit_accesses: bool,
    /// Whether threads call allocation routines; all numbers of such a call are random.
    pub has_allocations: bool,
}

/// What a recording was made of.
#[derive(Debug)]
pub struct SampleRecording {
    pub threads: Vec<Thread>,
    pub summary: Summary,
    /// Of every block of every image: by image and address, the addresses of its instructions.
    pub addresses: Vec<HashMap<AppPc, Vec<AppPc>>>,
}

/// Executes random programs and records them in `path`.
pub fn record(path: &std::path::Path, setting: &Setting) -> SampleRecording {
    let mut random = Random(setting.seed);
    let recording =
        Recording { command: vec!["random".into()], pid: 1, tsc_hz: 5, data: setting.data, ..Recording::default() };
    let mut writer = Writer::create_with(path, &recording, setting.options).unwrap();
    let (mut next_block, mut next_path) = (0, 1);
    let mut threads: Vec<Thread> =
        (0..setting.threads).map(|number| Thread::new(ThreadId::new(number), setting)).collect();
    let mut addresses = Vec::new();
    for number in 0..setting.images {
        let mut image = Image::random(&mut random, setting.blocks, &mut next_block);
        addresses.push(image.blocks.iter().map(|block| (block.address, block.instructions.clone())).collect());
        image.define_blocks(number, &mut writer);
        let (path, tsc) = ("/bin/random".into(), Tsc::new(1));
        let module = Module { address: 0x40_0000, length: 0x1000, file_offset: 0, path, tsc };
        writer.module(number, &module).unwrap();
        let mut sent = vec![(0, 0); threads.len()];
        for thread in &mut threads {
            let own = thread.number.get();
            let parent = own.checked_sub(1).map(ThreadId::new);
            let info = ThreadInfo { thread: thread.number, os_tid: 100 + own, parent, image: number };
            writer.thread(&info).unwrap();
            sent[thread.number.get() as usize] = (thread.words.len(), thread.data.len());
            thread.start(&image, &mut random);
        }
        for _ in 0..setting.runs {
            let place = random.below(threads.len());
            threads[place].run(&mut image, &mut random, &mut next_path);
            if random.one_in(100) {
                send(&mut writer, (number, setting.data), &mut image, &mut threads[place], &mut sent[place]);
            }
        }
        for thread in &mut threads {
            thread.end(&mut random);
            send(&mut writer, (number, setting.data), &mut image, thread, &mut sent[thread.number.get() as usize]);
        }
    }
    writer.unmapped(0, 0x40_0000, 1, Tsc::new(999)).unwrap();
    let summary = writer.finish(Exit::Code(3)).unwrap();
    SampleRecording { threads, summary, addresses }
}

type SentLengths = (usize, usize);

fn send(writer: &mut Writer, to: (u32, DataMode), image: &mut Image, thread: &mut Thread, sent: &mut SentLengths) {
    let (number, mode) = to;
    image.announce(number, mode, writer);
    let (words, data) = (&thread.words[sent.0..], &thread.data[sent.1..]);
    writer.path_with_data(number, thread.number, words, data).unwrap();
    *sent = (thread.words.len(), thread.data.len());
}

/// Compares two lists and shows where they first differ.
pub fn assert_same(left: &[ExpectedItem], right: &[ExpectedItem]) {
    let place = left.iter().zip(right).position(|(left, right)| left != right);
    if let Some(place) = place {
        panic!("item {place} is {:?}, not {:?}", left[place], right[place]);
    }
    assert_eq!(left.len(), right.len());
}

/// Where the chunks are: offset of the header, of the payload, and of the end.
pub fn chunks(file: &[u8]) -> Vec<(usize, usize, usize)> {
    let mut found = Vec::new();
    let mut at = 16;
    while file[at..].starts_with(&[0xa7, b'T', b'k', b'C']) {
        let extra = usize::from(u16::from_le_bytes(file[at + 6..at + 8].try_into().unwrap()));
        let stored = u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap()) as usize;
        let payload = at + 32 + extra;
        found.push((at, payload, payload + stored));
        at = payload + stored;
    }
    found
}

/// Kinds of chunks.
pub const CODE: u8 = 2;
pub const PATH: u8 = 4;
pub const END: u8 = 5;
pub const INDEX: u8 = 6;
pub const DATA: u8 = 7;
