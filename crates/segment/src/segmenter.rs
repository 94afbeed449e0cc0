//! Cuts what threads execute into traces by a [`Policy`].

use hashbrown::HashMap;

use crate::class::Class;
use crate::habit::{Habits, Judgement};
use crate::moves::{Code, Move, Part};
use crate::policy::Policy;
use crate::set::{Reason, Stretch, TraceSet};
use crate::tree::{Ending, Length, NONE, Tree, Way};

/// A trace that a thread is in.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// [`NONE`] before its first instruction.
    node: u32,
    /// Instructions since the last control-flow instruction, and since the start.
    run: u32,
    instructions: u32,
    cfis: u32,
    /// What comes next, as far as anybody knows.
    next: u64,
    /// How probable it was to come here from the start, if the policy asks.
    consistency: f32,
    /// Calls in the trace whose returns have not come yet, if the policy asks.
    calls: u32,
    image: u32,
}

impl Place {
    /// Before the first instruction of an image.
    fn before(image: u32) -> Self {
        Self { node: NONE, run: 0, instructions: 0, cfis: 0, next: 0, consistency: 1.0, calls: 0, image }
    }

    #[inline]
    fn take(&mut self, instructions: u32) {
        self.run += instructions;
        self.instructions += instructions;
    }
}

/// Hears of every trace when it ends.
pub trait Watch {
    /// Whether there is anybody to hear.
    const LISTENS: bool = true;
    fn trace(&mut self, trace: &Executed<'_>);
}

impl Watch for () {
    const LISTENS: bool = false;
    fn trace(&mut self, _: &Executed<'_>) {}
}

/// A trace that was executed once more.
pub struct Executed<'t> {
    pub thread: u32,
    /// Of the trace among all, from 0 in the order of their first execution. Traces that go the same way are one, whatever made them end.
    pub number: u32,
    tree: &'t Tree,
    node: u32,
}

impl Executed<'_> {
    #[must_use]
    pub fn start(&self) -> u64 {
        self.tree.begins_at(self.node)
    }

    #[must_use]
    pub fn instructions(&self) -> u32 {
        self.tree.instructions(self.node)
    }

    /// Calls less returns.
    #[must_use]
    pub fn calls(&self) -> i32 {
        self.tree.calls(self.node)
    }

    #[must_use]
    pub fn stretches(&self) -> Vec<Stretch> {
        self.tree.stretches(self.node)
    }
}

/// What the policy's learning says of a branch.
enum Verdict {
    /// The policy's classes decide.
    AsTold,
    /// It may stand inside, and does not count.
    Inside,
    Ends(Reason),
}

/// Cuts what threads execute into traces.
#[derive(Clone, Debug)]
pub struct Segmenter {
    policy: Policy,
    tree: Tree,
    habits: Habits,
    places: HashMap<u32, Place>,
}

impl Segmenter {
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, tree: Tree::default(), habits: Habits::default(), places: HashMap::new() }
    }

    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Takes what a thread has executed next.
    pub fn part(&mut self, part: Part<'_>, code: &impl Code) {
        self.watched(part, code, &mut ());
    }

    /// The same, and tells of every trace that ends.
    pub fn watched(&mut self, part: Part<'_>, code: &impl Code, watch: &mut impl Watch) {
        let Part { thread, image, begins, moves } = part;
        let mut place = self.places.get(&thread).copied().unwrap_or(Place::before(image));
        if begins || (place.image != image && !moves.is_empty()) {
            self.leave(&place);
            place = Place::before(image);
        }
        let mut cutting = Cutting { segmenter: self, thread, place, code, watch };
        moves.iter().for_each(|step| cutting.step(step));
        let place = cutting.place;
        self.places.insert(thread, place);
    }

    /// What is begun is a trace, too, though nothing goes on behind it.
    fn leave(&mut self, &Place { node, run, instructions, cfis, .. }: &Place) {
        if instructions > 0 {
            let way = Way::new(run, Ending::End as u8, Some(Reason::End), 0);
            let end = self.tree.go(node, way, Length { instructions, cfis });
            self.tree.end_for_good(end);
        }
    }

    /// How often a branch was found to be steady, or no longer to be, if the policy learns.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.habits.changes()
    }

    /// Nothing more is executed.
    #[must_use]
    pub fn finish(mut self) -> TraceSet {
        for place in std::mem::take(&mut self.places).into_values() {
            self.leave(&place);
        }
        TraceSet::new(self.tree.traces())
    }
}

/// A thread's moves on their way into the tree.
struct Cutting<'a, C, W> {
    segmenter: &'a mut Segmenter,
    thread: u32,
    place: Place,
    code: &'a C,
    watch: &'a mut W,
}

impl<C: Code, W: Watch> Cutting<'_, C, W> {
    #[inline]
    fn step(&mut self, step: &Move) {
        if self.place.next != step.first || self.place.node == NONE {
            self.arrive(step.first);
        }
        let (mut left, mut offset) = (step.instructions, step.offset);
        let max = self.segmenter.policy.max_instructions();
        if left > max - self.place.instructions {
            if self.segmenter.policy.keeps_blocks() && self.place.instructions > 0 {
                self.fill(step.block, offset);
            }
            while left > max - self.place.instructions {
                let room = max - self.place.instructions;
                (left, offset) = (left - room, offset + room);
                self.place.take(room);
                self.fill(step.block, offset);
            }
        }
        self.place.take(left);
        self.place.next = step.next;
        if step.class != Class::None {
            self.control(step);
        } else if self.place.instructions == max {
            self.fill(step.block, offset + left);
        }
    }

    /// Execution is at `first`, which is not where it should be, or which is where it begins.
    #[cold]
    fn arrive(&mut self, first: u64) {
        if self.place.node == NONE || self.place.instructions == 0 {
            self.place.node = self.segmenter.tree.start(self.place.image, first);
        } else {
            self.go(Ending::Elsewhere as u8, None, first);
        }
    }

    /// There is no room in the trace; the next one begins with this instruction of a block.
    fn fill(&mut self, block: u32, offset: u32) {
        // Behind a control-flow instruction, the trace has already come to where it ends.
        if self.place.run > 0 {
            self.go(Ending::Full as u8, Some(Reason::MaxInstructions), u64::from(block) << 32 | u64::from(offset));
        }
        let code = self.code;
        self.end(Reason::MaxInstructions, || code.address(block, offset));
    }

    /// The last instruction is one of control flow.
    #[inline]
    fn control(&mut self, step: &Move) {
        let policy = &self.segmenter.policy;
        let verdict = if policy.learns() { self.learned(step) } else { Verdict::AsTold };
        let policy = &self.segmenter.policy;
        let weight = if matches!(verdict, Verdict::Inside) { 0 } else { policy.weight(step.class) };
        let max_cfis = policy.max_cfis();
        let is_inside = matches!(verdict, Verdict::Inside) || policy.is_inside(step.class);
        self.place.cfis = self.place.cfis.saturating_add(weight);
        let reason = if let Verdict::Ends(reason) = verdict {
            Some(reason)
        } else if !is_inside {
            Some(Reason::Class(step.class))
        } else if self.place.cfis >= max_cfis && weight > 0 {
            Some(Reason::MaxCfis)
        } else if self.place.instructions == self.segmenter.policy.max_instructions() {
            Some(Reason::MaxInstructions)
        } else {
            self.meets(step.next).then_some(Reason::Meets)
        };
        self.go(step.class as u8, reason, step.next);
        if let Some(reason) = reason {
            self.end(reason, || step.next);
        }
    }

    /// What is known of the branch, and learns from it.
    #[inline(never)]
    fn learned(&mut self, step: &Move) -> Verdict {
        let Self { segmenter: Segmenter { policy, habits, .. }, place, .. } = self;
        let is_inside = policy.restructures() && policy.is_inside(step.class);
        // Where a return goes was settled when its call came into the trace.
        if step.class == Class::Return && place.calls > 0 {
            place.calls -= 1;
            return if policy.restructures() { Verdict::Inside } else { Verdict::AsTold };
        }
        place.calls += u32::from(step.class.is_call());
        if !step.class.is_choice() {
            return if is_inside { Verdict::Inside } else { Verdict::AsTold };
        }
        if let Some(least) = policy.least_consistency() {
            let consistency = place.consistency * habits.probability(step.block, step.next);
            if consistency < least {
                return Verdict::Ends(Reason::Inconsistent);
            }
            place.consistency = consistency;
            return Verdict::AsTold;
        }
        match habits.judgement(step.block, step.next) {
            Judgement::Unknown | Judgement::Unsteady => Verdict::AsTold,
            Judgement::Steady { as_usual: true } => Verdict::Inside,
            Judgement::Steady { as_usual: false } => Verdict::Ends(Reason::Inconsistent),
        }
    }

    /// Whether the trace is long enough to end before others begin, and others begin here.
    #[inline]
    fn meets(&self, next: u64) -> bool {
        let Segmenter { policy, tree, .. } = &*self.segmenter;
        policy
            .meets_from()
            .is_some_and(|least| self.place.instructions >= least && tree.begun_at(self.place.image, next) >= BEGUN)
    }

    /// The trace ends where it is.
    #[inline]
    fn end(&mut self, reason: Reason, next: impl FnOnce() -> u64) {
        let Place { node, image, .. } = self.place;
        let Segmenter { policy, tree, .. } = &mut *self.segmenter;
        let (start, address) = tree.end(node, reason, image, next);
        if policy.meets_from().is_some() {
            tree.begin(start);
        }
        self.place = Place { node: start, next: address, ..Place::before(image) };
        if W::LISTENS {
            let number = tree.number(node);
            self.watch.trace(&Executed { thread: self.thread, number, tree, node });
        }
    }

    /// Goes on in the tree.
    #[inline]
    fn go(&mut self, class: u8, end: Option<Reason>, next: u64) {
        let Place { node, run, instructions, cfis, .. } = self.place;
        self.place.node = self.segmenter.tree.go(node, Way::new(run, class, end, next), Length { instructions, cfis });
        self.place.run = 0;
    }
}

/// Others begin somewhere when so many traces did.
const BEGUN: u64 = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Code in which every instruction has four bytes, and a block's number is the address of its first.
    struct Plain;

    impl Code for Plain {
        fn address(&self, block: u32, place: u32) -> u64 {
            u64::from(block + 4 * place)
        }
    }

    fn step(first: u32, instructions: u32, class: Class, next: u64) -> Move {
        Move { first: first.into(), next, instructions, class, block: first, offset: 0 }
    }

    fn part(thread: u32, moves: &[Move]) -> Part<'_> {
        Part { thread, image: 0, begins: false, moves }
    }

    /// Hadjipavlou 2025, section 5.2: three traces, if a direct jump counts.
    #[test]
    fn the_example_of_section_5_2() {
        let policy = Policy::new(8, 2).unwrap().with(Class::DirectCall, false).with_weight(Class::DirectJump, 1);
        let mut segmenter = Segmenter::new(policy);
        let moves = [
            step(0x100, 2, Class::DirectCall, 0x200),
            step(0x200, 11, Class::DirectJump, 0x300),
            step(0x300, 2, Class::ForwardNotTaken, 0x308),
        ];
        segmenter.part(part(0, &moves), &Plain);
        let shown: Vec<_> = segmenter
            .finish()
            .traces()
            .iter()
            .map(|trace| (trace.start(), trace.instructions, trace.cfis, trace.reason, trace.occurrences))
            .collect();
        let expected = [
            (0x100, 2, 1, Reason::Class(Class::DirectCall), 1),
            (0x200, 8, 0, Reason::MaxInstructions, 1),
            (0x220, 5, 2, Reason::MaxCfis, 1),
        ];
        assert!(expected.iter().all(|trace| shown.contains(trace)), "{shown:x?}");
        assert_eq!(shown.len(), 3);
    }

    /// One instruction at a time, and a list of everything that was executed.
    #[derive(Default)]
    struct Naive {
        traces: Vec<(Vec<u64>, Reason)>,
        /// Of each trace.
        counts: Vec<u32>,
        now: Vec<u64>,
        cfis: u32,
        calls: u32,
        product: f32,
        begun: HashMap<u64, u64>,
        habits: Habits,
    }

    impl Naive {
        fn run(policy: &Policy, moves: &[Move]) -> Self {
            let mut naive = Self { product: 1.0, ..Self::default() };
            moves.iter().for_each(|step| naive.step(policy, step));
            if !naive.now.is_empty() {
                naive.end(Reason::End, 0);
            }
            naive
        }

        fn step(&mut self, policy: &Policy, step: &Move) {
            let is_too_long = self.now.len() as u32 + step.instructions > policy.max_instructions();
            if policy.keeps_blocks() && is_too_long && !self.now.is_empty() {
                self.end(Reason::MaxInstructions, step.first);
            }
            for place in 0..step.instructions {
                let address = step.first + 4 * u64::from(place);
                self.now.push(address);
                let is_last = place + 1 == step.instructions && step.class != Class::None;
                let next = if is_last { step.next } else { address + 4 };
                let reason = if is_last { self.control(policy, step) } else { None };
                let is_full = self.now.len() as u32 == policy.max_instructions();
                let meets = |least| {
                    self.now.len() as u32 >= least && self.begun.get(&next).is_some_and(|&begun| begun >= BEGUN)
                };
                if let Some(reason) = reason.or(is_full.then_some(Reason::MaxInstructions)) {
                    self.end(reason, next);
                } else if is_last && policy.meets_from().is_some_and(meets) {
                    self.end(Reason::Meets, next);
                }
            }
        }

        fn end(&mut self, reason: Reason, next: u64) {
            self.traces.push((std::mem::take(&mut self.now), reason));
            self.counts.push(self.cfis);
            (self.cfis, self.calls, self.product) = (0, 0, 1.0);
            *self.begun.entry(next).or_default() += 1;
        }

        fn control(&mut self, policy: &Policy, step: &Move) -> Option<Reason> {
            let matched = step.class == Class::Return && self.calls > 0;
            self.calls += u32::from(matches!(step.class, Class::DirectCall | Class::IndirectCall));
            self.calls -= u32::from(matched);
            let goes_one_way =
                matches!(step.class, Class::DirectJump | Class::DirectCall | Class::Syscall | Class::Interrupt);
            let branches = !matched && !goes_one_way;
            let mut is_free = false;
            if let Some(least) = policy.least_consistency().filter(|_| branches) {
                self.product *= self.habits.probability(step.block, step.next);
                if self.product < least {
                    self.cfis += policy.weight(step.class);
                    return Some(Reason::Inconsistent);
                }
            }
            if policy.restructures() {
                match branches.then(|| self.habits.judgement(step.block, step.next)) {
                    Some(Judgement::Steady { as_usual: true }) => is_free = true,
                    Some(Judgement::Steady { .. }) => return Some(Reason::Inconsistent),
                    Some(_) => {}
                    None => is_free = matched || policy.is_inside(step.class),
                }
            }
            let weight = if is_free { 0 } else { policy.weight(step.class) };
            self.cfis += weight;
            if !is_free && !policy.is_inside(step.class) {
                return Some(Reason::Class(step.class));
            }
            (weight > 0 && self.cfis >= policy.max_cfis()).then_some(Reason::MaxCfis)
        }
    }

    /// A random walk through a small program: blocks of one to ten instructions, each with a class and up to three ways on.
    fn walk(seed: &[(u32, u8, u8)], choices: &[u8]) -> Vec<Move> {
        let count = seed.len();
        let first = |block: usize| 0x1000 + 64 * block as u32;
        let mut at = 0;
        choices
            .iter()
            .map(|&choice| {
                let (length, class, spread) = seed[at];
                let class = Class::ALL[usize::from(class) % Class::COUNT];
                let (to, length) = ((at * 7 + usize::from(spread) + usize::from(choice % 3)) % count, 1 + length % 10);
                // Without a branch, somebody else makes execution go on elsewhere.
                let next = if class == Class::None { first(at) + 4 * length } else { first(to) };
                let step = step(first(at), length, class, next.into());
                at = to;
                step
            })
            .collect()
    }

    #[derive(Default)]
    struct Numbers {
        numbers: Vec<u32>,
        paths: Vec<Vec<u64>>,
    }

    impl Watch for Numbers {
        fn trace(&mut self, trace: &Executed<'_>) {
            let addresses =
                |stretch: &Stretch| (0..stretch.instructions).map(|place| 4 * u64::from(place)).collect::<Vec<_>>();
            let path: Vec<u64> = trace
                .stretches()
                .iter()
                .flat_map(|stretch| addresses(stretch).into_iter().map(|place| stretch.address + place))
                .collect();
            assert_eq!((trace.start(), trace.instructions()), (path[0], path.len() as u32));
            self.numbers.push(trace.number);
            self.paths.push(path);
        }
    }

    /// Memory is for different traces, however often they are executed.
    #[test]
    fn what_repeats_needs_no_memory() {
        let seed = [(3, 6, 1), (9, 4, 2), (5, 3, 0), (7, 9, 5), (2, 12, 3)];
        let walk = walk(&seed, &[0, 1, 2, 0, 2, 2, 1, 0, 0, 1]);
        for policy in [Policy::default(), Policy::default().restructuring(), Policy::default().meeting_from(4)] {
            let mut segmenter = Segmenter::new(policy);
            let mut go = |times: usize| {
                (0..times).for_each(|_| segmenter.part(part(0, &walk), &Plain));
                segmenter.tree.len()
            };
            let settled = go(3000);
            assert!(settled > 4 && settled < 2000, "{settled}");
            assert_eq!(go(3000), settled);
        }
    }

    proptest! {
        /// The same traces as those of a segmenter that nobody could get wrong, each as often; and they are all that was executed.
        #[test]
        fn it_does_what_the_naive_one_does(
            seed in proptest::collection::vec((0u32..10, any::<u8>(), any::<u8>()), 1..12),
            choices in proptest::collection::vec(any::<u8>(), 0..400),
            max_instructions in 1u32..40, max_cfis in 1u32..6, inside in any::<u16>(), heavy in any::<bool>(),
            rule in 0..3, keeps_blocks in any::<bool>(), meets_from in proptest::option::of(0u32..20),
        ) {
            let moves = walk(&seed, &choices);
            let mut policy = Policy::new(max_instructions, max_cfis).unwrap();
            for class in Class::ALL.into_iter().skip(1) {
                policy = policy.with(class, inside >> class as u32 & 1 == 1);
            }
            let policy = if heavy { policy.with_weight(Class::ForwardTaken, 2).with_weight(Class::DirectJump, 1) } else { policy };
            let policy = match rule {
                0 => policy,
                1 => policy.with_least_consistency(0.3).unwrap(),
                _ => policy.restructuring(),
            };
            let policy = if keeps_blocks { policy.keeping_blocks() } else { policy };
            let policy = meets_from.map_or(policy, |least| policy.meeting_from(least));
            let mut expected: HashMap<(Vec<u64>, Reason), u64> = HashMap::new();
            let Naive { traces: naive, counts, .. } = Naive::run(&policy, &moves);
            naive.iter().for_each(|trace| *expected.entry(trace.clone()).or_default() += 1);
            let (mut segmenter, mut watch) = (Segmenter::new(policy), Numbers::default());
            for moves in moves.chunks(7) {
                segmenter.watched(part(3, moves), &Plain, &mut watch);
            }
            // In the order in which they were executed, too; equal ones by equal numbers.
            prop_assert!(watch.paths.iter().eq(naive.iter().filter(|(_, reason)| *reason != Reason::End).map(|(path, _)| path)));
            let mut numbers = HashMap::new();
            for (number, (path, _)) in watch.numbers.iter().zip(&naive) {
                prop_assert_eq!(*numbers.entry(path).or_insert(*number), *number);
            }
            prop_assert_eq!(numbers.len(), watch.numbers.iter().collect::<hashbrown::HashSet<_>>().len());
            let set = segmenter.finish();
            if rule < 2 {
                // Of those that restructure, it depends on when.
                let shown: u64 = set.traces().iter().map(|trace| u64::from(trace.cfis) * trace.occurrences).sum();
                prop_assert_eq!(shown, counts.iter().map(|&count| u64::from(count)).sum::<u64>());
            }
            let executed: u64 = moves.iter().map(|step| u64::from(step.instructions)).sum();
            prop_assert_eq!(set.instructions(), executed);
            let mut shown: HashMap<(u64, u32, Reason), u64> = HashMap::new();
            for trace in set.traces() {
                *shown.entry((trace.start(), trace.instructions, trace.reason)).or_default() += trace.occurrences;
            }
            let mut same: HashMap<(u64, u32, Reason), u64> = HashMap::new();
            for ((path, reason), count) in &expected {
                *same.entry((path[0], path.len() as u32, *reason)).or_default() += count;
            }
            prop_assert_eq!(shown, same);
            // The same number of different traces: ways that differ are not taken for one, nor one for several.
            prop_assert_eq!(set.traces().len(), expected.len());
        }
    }
}
