//! The segmenter: splits the steps of threads into traces by a [`Policy`] and keeps them in a
//! [`Tree`]. A [`TraceObserver`] is called at the end of each trace.

use hashbrown::HashMap;
use trace::{AppPc, BlockIndex, ThreadId};

use crate::bias::{BiasPrediction, BranchBiases};
use crate::class::Class;
use crate::policy::Policy;
use crate::set::{EndReason, InstructionRun, TraceSet};
use crate::steps::{CodeAddresses, SegmentStep, ThreadSteps};
use crate::tree::{Edge, EdgeEnd, Length, NONE, Tree};

/// The unfinished trace of a thread.
#[derive(Clone, Copy, Debug)]
struct OpenTrace {
    /// [`NONE`] before its first instruction.
    node: u32,
    /// Instructions since the last control-flow instruction, and since the start.
    run: u32,
    instructions: u32,
    cfis: u32,
    /// Expected next instruction; [`AppPc::NONE`] if unknown.
    next: AppPc,
    /// Probability of the path from the start, if the policy needs it.
    consistency: f32,
    /// Calls in the trace without their returns, if the policy needs it.
    calls: u32,
    image: u32,
}

impl OpenTrace {
    /// An empty trace of an image.
    fn empty(image: u32) -> Self {
        let next = AppPc::NONE;
        Self { node: NONE, run: 0, instructions: 0, cfis: 0, next, consistency: 1.0, calls: 0, image }
    }

    #[inline]
    fn take(&mut self, instructions: u32) {
        self.run += instructions;
        self.instructions += instructions;
    }
}

/// Observer of executed traces.
pub trait TraceObserver {
    /// Whether the observer does anything.
    const IS_ACTIVE: bool = true;
    fn trace_executed(&mut self, trace: &ExecutedTrace<'_>);
}

impl TraceObserver for () {
    const IS_ACTIVE: bool = false;
    fn trace_executed(&mut self, _: &ExecutedTrace<'_>) {}
}

/// One execution of a trace.
pub struct ExecutedTrace<'t> {
    pub thread: ThreadId,
    /// Number of the trace, from 0 in the order of first execution. Traces with the same path have
    /// the same number, whatever ended them.
    pub number: u32,
    tree: &'t Tree,
    node: u32,
}

impl ExecutedTrace<'_> {
    #[must_use]
    pub fn start(&self) -> AppPc {
        self.tree.start_address(self.node)
    }

    #[must_use]
    pub fn instructions(&self) -> u32 {
        self.tree.instructions(self.node)
    }

    /// Returns the number of calls minus the number of returns.
    #[must_use]
    pub fn calls(&self) -> i32 {
        self.tree.calls(self.node)
    }

    #[must_use]
    pub fn runs(&self) -> Vec<InstructionRun> {
        self.tree.runs(self.node)
    }
}

/// What a learning policy decides about a branch.
enum LearnedRule {
    /// The policy's classes decide.
    ByClass,
    /// The branch is allowed inside, with weight 0.
    Inside,
    Ends(EndReason),
}

/// Splits the steps of threads into traces.
#[derive(Clone, Debug)]
pub struct Segmenter {
    policy: Policy,
    tree: Tree,
    biases: BranchBiases,
    open: HashMap<ThreadId, OpenTrace>,
}

impl Segmenter {
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, tree: Tree::default(), biases: BranchBiases::default(), open: HashMap::new() }
    }

    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Processes the next steps of a thread.
    pub fn process(&mut self, thread_steps: ThreadSteps<'_>, code: &impl CodeAddresses) {
        self.process_observed(thread_steps, code, &mut ());
    }

    /// Processes the next steps of a thread and calls the observer at the end of each trace.
    pub fn process_observed(
        &mut self,
        thread_steps: ThreadSteps<'_>,
        code: &impl CodeAddresses,
        observer: &mut impl TraceObserver,
    ) {
        let ThreadSteps { thread, image, begins, steps } = thread_steps;
        let mut open = self.open.get(&thread).copied().unwrap_or(OpenTrace::empty(image));
        if begins || (open.image != image && !steps.is_empty()) {
            self.close(&open);
            open = OpenTrace::empty(image);
        }
        let mut thread_segmenter = ThreadSegmenter { segmenter: self, thread, open, code, observer };
        steps.iter().for_each(|step| thread_segmenter.step(step));
        let open = thread_segmenter.open;
        self.open.insert(thread, open);
    }

    /// Ends an unfinished trace without a successor.
    fn close(&mut self, &OpenTrace { node, run, instructions, cfis, .. }: &OpenTrace) {
        if instructions > 0 {
            let edge = Edge::new(run, EdgeEnd::End as u8, Some(EndReason::End), 0);
            let end = self.tree.advance(node, edge, Length { instructions, cfis });
            self.tree.end_last(end);
        }
    }

    /// Returns how often a branch became biased or unbiased, if the policy learns.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.biases.changes()
    }

    /// Ends all traces and returns them.
    #[must_use]
    pub fn finish(mut self) -> TraceSet {
        for open in std::mem::take(&mut self.open).into_values() {
            self.close(&open);
        }
        TraceSet::new(self.tree.traces())
    }
}

/// Processing of one thread's steps.
struct ThreadSegmenter<'a, C, W> {
    segmenter: &'a mut Segmenter,
    thread: ThreadId,
    open: OpenTrace,
    code: &'a C,
    observer: &'a mut W,
}

impl<C: CodeAddresses, W: TraceObserver> ThreadSegmenter<'_, C, W> {
    #[inline]
    fn step(&mut self, step: &SegmentStep) {
        if self.open.next != step.first || self.open.node == NONE {
            self.begin_or_jump(step.first);
        }
        let (mut left, mut offset) = (step.instructions, step.offset);
        let max = self.segmenter.policy.max_instructions();
        if left > max - self.open.instructions {
            if self.segmenter.policy.keeps_blocks() && self.open.instructions > 0 {
                self.end_full(step.block, offset);
            }
            while left > max - self.open.instructions {
                let room = max - self.open.instructions;
                (left, offset) = (left - room, offset + room);
                self.open.take(room);
                self.end_full(step.block, offset);
            }
        }
        self.open.take(left);
        self.open.next = step.next;
        if step.class != Class::None {
            self.control(step);
        } else if self.open.instructions == max {
            self.end_full(step.block, offset + left);
        }
    }

    /// Begins a trace at `first`, or records that execution unexpectedly continues there.
    #[cold]
    fn begin_or_jump(&mut self, first: AppPc) {
        if self.open.node == NONE || self.open.instructions == 0 {
            self.open.node = self.segmenter.tree.start(self.open.image, first);
        } else {
            self.advance(EdgeEnd::Discontinuity as u8, None, first.get());
        }
    }

    /// Ends a full trace; the next one begins with this instruction of a block.
    fn end_full(&mut self, block: BlockIndex, offset: u32) {
        // After a control-flow instruction, the trace is already at its last node.
        if self.open.run > 0 {
            self.advance(
                EdgeEnd::Full as u8,
                Some(EndReason::MaxInstructions),
                u64::from(block.0) << 32 | u64::from(offset),
            );
        }
        let code = self.code;
        self.end(EndReason::MaxInstructions, || code.address(block, offset));
    }

    /// Handles a control-flow instruction at the end of a step.
    #[inline]
    fn control(&mut self, step: &SegmentStep) {
        let policy = &self.segmenter.policy;
        let rule = if policy.learns() { self.apply_learning(step) } else { LearnedRule::ByClass };
        let policy = &self.segmenter.policy;
        let weight = if matches!(rule, LearnedRule::Inside) { 0 } else { policy.weight(step.class) };
        let max_cfis = policy.max_cfis();
        let is_inside = matches!(rule, LearnedRule::Inside) || policy.is_inside(step.class);
        self.open.cfis = self.open.cfis.saturating_add(weight);
        let reason = if let LearnedRule::Ends(reason) = rule {
            Some(reason)
        } else if !is_inside {
            Some(EndReason::Class(step.class))
        } else if self.open.cfis >= max_cfis && weight > 0 {
            Some(EndReason::MaxCfis)
        } else if self.open.instructions == self.segmenter.policy.max_instructions() {
            Some(EndReason::MaxInstructions)
        } else {
            self.reaches_other_start(step.next).then_some(EndReason::OtherTraceStart)
        };
        self.advance(step.class as u8, reason, step.next.get());
        if let Some(reason) = reason {
            self.end(reason, || step.next);
        }
    }

    /// Applies what was learned about the branch, then learns from it.
    #[inline(never)]
    fn apply_learning(&mut self, step: &SegmentStep) -> LearnedRule {
        let Self { segmenter: Segmenter { policy, biases, .. }, open, .. } = self;
        let is_inside = policy.restructures() && policy.is_inside(step.class);
        // The call in the trace determines the target of its return.
        if step.class == Class::Return && open.calls > 0 {
            open.calls -= 1;
            return if policy.restructures() { LearnedRule::Inside } else { LearnedRule::ByClass };
        }
        open.calls += u32::from(step.class.is_call());
        if !step.class.is_choice() {
            return if is_inside { LearnedRule::Inside } else { LearnedRule::ByClass };
        }
        if let Some(least) = policy.least_consistency() {
            let consistency = open.consistency * biases.probability(step.block, step.next);
            if consistency < least {
                return LearnedRule::Ends(EndReason::Inconsistent);
            }
            open.consistency = consistency;
            return LearnedRule::ByClass;
        }
        match biases.predict_bias(step.block, step.next) {
            BiasPrediction::Unknown | BiasPrediction::Unbiased => LearnedRule::ByClass,
            BiasPrediction::Biased { follows_bias: true } => LearnedRule::Inside,
            BiasPrediction::Biased { follows_bias: false } => LearnedRule::Ends(EndReason::Inconsistent),
        }
    }

    /// Returns whether the trace is long enough to end where others begin, and others begin at
    /// `next`.
    #[inline]
    fn reaches_other_start(&self, next: AppPc) -> bool {
        let Segmenter { policy, tree, .. } = &*self.segmenter;
        policy
            .meets_from()
            .is_some_and(|least| self.open.instructions >= least && tree.starts_at(self.open.image, next) >= STARTS_MIN)
    }

    /// Ends the trace at its current node.
    #[inline]
    fn end(&mut self, reason: EndReason, next: impl FnOnce() -> AppPc) {
        let OpenTrace { node, image, .. } = self.open;
        let Segmenter { policy, tree, .. } = &mut *self.segmenter;
        let (start, address) = tree.end(node, reason, image, next);
        if policy.meets_from().is_some() {
            tree.count_start(start);
        }
        self.open = OpenTrace { node: start, next: address, ..OpenTrace::empty(image) };
        if W::IS_ACTIVE {
            let number = tree.number(node);
            self.observer.trace_executed(&ExecutedTrace { thread: self.thread, number, tree, node });
        }
    }

    /// Advances in the tree.
    #[inline]
    fn advance(&mut self, class: u8, end: Option<EndReason>, next: u64) {
        let OpenTrace { node, run, instructions, cfis, .. } = self.open;
        self.open.node =
            self.segmenter.tree.advance(node, Edge::new(run, class, end, next), Length { instructions, cfis });
        self.open.run = 0;
    }
}

/// Traces that must have begun at an address before it counts as a start.
const STARTS_MIN: u64 = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Code with instructions of four bytes, where a block's number is its address.
    struct Plain;

    impl CodeAddresses for Plain {
        fn address(&self, block: BlockIndex, index: u32) -> AppPc {
            AppPc::new(u64::from(block.0 + 4 * index))
        }
    }

    fn step(first: u32, instructions: u32, class: Class, next: u64) -> SegmentStep {
        let (pc, next) = (AppPc::new(first.into()), AppPc::new(next));
        SegmentStep { first: pc, next, instructions, class, block: BlockIndex(first), offset: 0 }
    }

    fn thread_steps(thread: u32, steps: &[SegmentStep]) -> ThreadSteps<'_> {
        ThreadSteps { thread: ThreadId::new(thread), image: 0, begins: false, steps }
    }

    /// Hadjipavlou 2025, section 5.2: three traces, if a direct jump has weight 1.
    #[test]
    fn the_example_of_section_5_2() {
        let policy = Policy::new(8, 2).unwrap().with(Class::DirectCall, false).with_weight(Class::DirectJump, 1);
        let mut segmenter = Segmenter::new(policy);
        let steps = [
            step(0x100, 2, Class::DirectCall, 0x200),
            step(0x200, 11, Class::DirectJump, 0x300),
            step(0x300, 2, Class::ForwardNotTaken, 0x308),
        ];
        segmenter.process(thread_steps(0, &steps), &Plain);
        let found: Vec<_> = segmenter
            .finish()
            .traces()
            .iter()
            .map(|trace| (trace.start().get(), trace.instructions, trace.cfis, trace.reason, trace.occurrences))
            .collect();
        let expected = [
            (0x100, 2, 1, EndReason::Class(Class::DirectCall), 1),
            (0x200, 8, 0, EndReason::MaxInstructions, 1),
            (0x220, 5, 2, EndReason::MaxCfis, 1),
        ];
        assert!(expected.iter().all(|trace| found.contains(trace)), "{found:x?}");
        assert_eq!(found.len(), 3);
    }

    /// A naive segmenter: one instruction at a time, and a list of all executed traces.
    #[derive(Default)]
    struct Naive {
        traces: Vec<(Vec<AppPc>, EndReason)>,
        /// Weighted control-flow instructions of each trace.
        counts: Vec<u32>,
        now: Vec<AppPc>,
        cfis: u32,
        calls: u32,
        product: f32,
        begun: HashMap<AppPc, u64>,
        biases: BranchBiases,
    }

    impl Naive {
        fn run(policy: &Policy, steps: &[SegmentStep]) -> Self {
            let mut naive = Self { product: 1.0, ..Self::default() };
            steps.iter().for_each(|step| naive.step(policy, step));
            if !naive.now.is_empty() {
                naive.end(EndReason::End, AppPc::NONE);
            }
            naive
        }

        fn step(&mut self, policy: &Policy, step: &SegmentStep) {
            let is_too_long = self.now.len() as u32 + step.instructions > policy.max_instructions();
            if policy.keeps_blocks() && is_too_long && !self.now.is_empty() {
                self.end(EndReason::MaxInstructions, step.first);
            }
            for place in 0..step.instructions {
                let address = step.first + 4 * u64::from(place);
                self.now.push(address);
                let is_last = place + 1 == step.instructions && step.class != Class::None;
                let next = if is_last { step.next } else { address + 4 };
                let reason = if is_last { self.control(policy, step) } else { None };
                let is_full = self.now.len() as u32 == policy.max_instructions();
                let meets = |least| {
                    self.now.len() as u32 >= least && self.begun.get(&next).is_some_and(|&begun| begun >= STARTS_MIN)
                };
                if let Some(reason) = reason.or(is_full.then_some(EndReason::MaxInstructions)) {
                    self.end(reason, next);
                } else if is_last && policy.meets_from().is_some_and(meets) {
                    self.end(EndReason::OtherTraceStart, next);
                }
            }
        }

        fn end(&mut self, reason: EndReason, next: AppPc) {
            self.traces.push((std::mem::take(&mut self.now), reason));
            self.counts.push(self.cfis);
            (self.cfis, self.calls, self.product) = (0, 0, 1.0);
            *self.begun.entry(next).or_default() += 1;
        }

        fn control(&mut self, policy: &Policy, step: &SegmentStep) -> Option<EndReason> {
            let matched = step.class == Class::Return && self.calls > 0;
            self.calls += u32::from(matches!(step.class, Class::DirectCall | Class::IndirectCall));
            self.calls -= u32::from(matched);
            let goes_one_way =
                matches!(step.class, Class::DirectJump | Class::DirectCall | Class::Syscall | Class::Interrupt);
            let branches = !matched && !goes_one_way;
            let mut is_free = false;
            if let Some(least) = policy.least_consistency().filter(|_| branches) {
                self.product *= self.biases.probability(step.block, step.next);
                if self.product < least {
                    self.cfis += policy.weight(step.class);
                    return Some(EndReason::Inconsistent);
                }
            }
            if policy.restructures() {
                match branches.then(|| self.biases.predict_bias(step.block, step.next)) {
                    Some(BiasPrediction::Biased { follows_bias: true }) => is_free = true,
                    Some(BiasPrediction::Biased { .. }) => return Some(EndReason::Inconsistent),
                    Some(_) => {}
                    None => is_free = matched || policy.is_inside(step.class),
                }
            }
            let weight = if is_free { 0 } else { policy.weight(step.class) };
            self.cfis += weight;
            if !is_free && !policy.is_inside(step.class) {
                return Some(EndReason::Class(step.class));
            }
            (weight > 0 && self.cfis >= policy.max_cfis()).then_some(EndReason::MaxCfis)
        }
    }

    /// A random walk through a small program: blocks of one to ten instructions, each with a class
    /// and up to three successors.
    fn walk(seed: &[(u32, u8, u8)], choices: &[u8]) -> Vec<SegmentStep> {
        let count = seed.len();
        let first = |block: usize| 0x1000 + 64 * block as u32;
        let mut at = 0;
        choices
            .iter()
            .map(|&choice| {
                let (length, class, spread) = seed[at];
                let class = Class::ALL[usize::from(class) % Class::COUNT];
                let (to, length) = ((at * 7 + usize::from(spread) + usize::from(choice % 3)) % count, 1 + length % 10);
                // Without a branch, execution continues elsewhere by itself.
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
        paths: Vec<Vec<AppPc>>,
    }

    impl TraceObserver for Numbers {
        fn trace_executed(&mut self, trace: &ExecutedTrace<'_>) {
            let addresses =
                |run: &InstructionRun| (0..run.instructions).map(|place| 4 * u64::from(place)).collect::<Vec<_>>();
            let path: Vec<AppPc> = trace
                .runs()
                .iter()
                .flat_map(|run| addresses(run).into_iter().map(|place| run.address + place))
                .collect();
            assert_eq!((trace.start(), trace.instructions()), (path[0], path.len() as u32));
            self.numbers.push(trace.number);
            self.paths.push(path);
        }
    }

    /// Memory grows with the number of distinct traces, not with executions.
    #[test]
    fn repeated_traces_take_no_more_memory() {
        let seed = [(3, 6, 1), (9, 4, 2), (5, 3, 0), (7, 9, 5), (2, 12, 3)];
        let walk = walk(&seed, &[0, 1, 2, 0, 2, 2, 1, 0, 0, 1]);
        for policy in [Policy::default(), Policy::default().restructuring(), Policy::default().meeting_from(4)] {
            let mut segmenter = Segmenter::new(policy);
            let mut go = |times: usize| {
                (0..times).for_each(|_| segmenter.process(thread_steps(0, &walk), &Plain));
                segmenter.tree.len()
            };
            let steady = go(3000);
            assert!(steady > 4 && steady < 2000, "{steady}");
            assert_eq!(go(3000), steady);
        }
    }

    proptest! {
        /// The segmenter finds the same traces as the naive one, each as often; together they are
        /// the whole execution.
        #[test]
        fn segmenter_agrees_with_a_naive_one(
            seed in proptest::collection::vec((0u32..10, any::<u8>(), any::<u8>()), 1..12),
            choices in proptest::collection::vec(any::<u8>(), 0..400),
            max_instructions in 1u32..40, max_cfis in 1u32..6, inside in any::<u16>(), heavy in any::<bool>(),
            rule in 0..3, keeps_blocks in any::<bool>(), meets_from in proptest::option::of(0u32..20),
        ) {
            let steps = walk(&seed, &choices);
            let mut policy = Policy::new(max_instructions, max_cfis).unwrap();
            for class in Class::ALL.into_iter().skip(1) {
                policy = policy.with(class, inside >> class as u32 & 1 == 1);
            }
            let policy = match heavy {
                true => policy.with_weight(Class::ForwardTaken, 2).with_weight(Class::DirectJump, 1),
                false => policy,
            };
            let policy = match rule {
                0 => policy,
                1 => policy.with_least_consistency(0.3).unwrap(),
                _ => policy.restructuring(),
            };
            let policy = if keeps_blocks { policy.keeping_blocks() } else { policy };
            let policy = meets_from.map_or(policy, |least| policy.meeting_from(least));
            let mut expected: HashMap<(Vec<AppPc>, EndReason), u64> = HashMap::new();
            let Naive { traces: naive, counts, .. } = Naive::run(&policy, &steps);
            naive.iter().for_each(|trace| *expected.entry(trace.clone()).or_default() += 1);
            let (mut segmenter, mut observer) = (Segmenter::new(policy), Numbers::default());
            for steps in steps.chunks(7) {
                segmenter.process_observed(thread_steps(3, steps), &Plain, &mut observer);
            }
            // The order of execution is the same, too; equal traces have equal numbers.
            let complete = naive.iter().filter(|(_, reason)| *reason != EndReason::End);
            prop_assert!(observer.paths.iter().eq(complete.map(|(path, _)| path)));
            let mut numbers = HashMap::new();
            for (number, (path, _)) in observer.numbers.iter().zip(&naive) {
                prop_assert_eq!(*numbers.entry(path).or_insert(*number), *number);
            }
            prop_assert_eq!(numbers.len(), observer.numbers.iter().collect::<hashbrown::HashSet<_>>().len());
            let set = segmenter.finish();
            if rule < 2 {
                // With restructuring, the weights depend on the time.
                let found: u64 = set.traces().iter().map(|trace| u64::from(trace.cfis) * trace.occurrences).sum();
                prop_assert_eq!(found, counts.iter().map(|&count| u64::from(count)).sum::<u64>());
            }
            let executed: u64 = steps.iter().map(|step| u64::from(step.instructions)).sum();
            prop_assert_eq!(set.instructions(), executed);
            let mut found: HashMap<(AppPc, u32, EndReason), u64> = HashMap::new();
            for trace in set.traces() {
                *found.entry((trace.start(), trace.instructions, trace.reason)).or_default() += trace.occurrences;
            }
            let mut same: HashMap<(AppPc, u32, EndReason), u64> = HashMap::new();
            for ((path, reason), count) in &expected {
                *same.entry((path[0], path.len() as u32, *reason)).or_default() += count;
            }
            prop_assert_eq!(found, same);
            // The number of distinct traces is the same: no paths are confused or duplicated.
            prop_assert_eq!(set.traces().len(), expected.len());
        }
    }
}
