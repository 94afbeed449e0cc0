//! mcfTRaptor: emits a message for each mispredicted branch, so that the remaining control flow can
//! be inferred. A [`FlowFilter`] takes batches of steps, or whole paths, which is faster (module
//! `paths`). [`check`] decodes and compares.

mod check;
mod paths;

use filter::traptor::{
    BranchEncoder, BranchKind, BranchMessage, BranchOutcome, BranchSite, CountStart, Predict, PredictorSizes,
    Predictors,
};
use hashbrown::HashMap;
use predict::IllegalSize;
use trace::{AppPc, Batch, BlockIndex, Blocks, Event, PathBatch, PathItem, Step, Terminator, ThreadId};

use replay::block_end::{BlockEnd, BlockEnds, StepVisitor};
use replay::control::{Discontinuity, ThreadPosition};
use replay::{PerThread, Sharing};

pub use check::check;
use paths::PreparedPaths;

#[derive(Clone, Copy, Debug, Default)]
pub struct FlowSettings {
    pub sizes: PredictorSizes,
    pub count_start: CountStart,
    pub sharing: Sharing,
}

/// Counts of branches, by prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowStatistics {
    pub instructions: u64,
    pub outcomes_predicted: u64,
    pub outcomes_mispredicted: u64,
    pub targets_predicted: u64,
    pub targets_mispredicted: u64,
    /// Indirect branches whose target the trace does not contain: the process ended before the
    /// thread's next block did.
    pub targets_unknown: u64,
    /// Signals and returns from their handlers.
    pub exceptions: u64,
    /// Discontinuities after missing parts of the trace; encoded like exceptions.
    pub gaps: u64,
}

impl FlowStatistics {
    /// Conditional and indirect branches.
    #[must_use]
    pub fn branches(&self) -> u64 {
        self.conditional() + self.indirect()
    }

    #[must_use]
    pub fn conditional(&self) -> u64 {
        self.outcomes_predicted + self.outcomes_mispredicted
    }

    #[must_use]
    pub fn indirect(&self) -> u64 {
        self.targets_predicted + self.targets_mispredicted + self.targets_unknown
    }

    #[inline]
    fn count(&mut self, outcome: BranchOutcome, is_correct: bool) {
        let sum = match (outcome, is_correct) {
            (BranchOutcome::Taken(_), true) => &mut self.outcomes_predicted,
            (BranchOutcome::Taken(_), false) => &mut self.outcomes_mispredicted,
            (BranchOutcome::Target(_), true) => &mut self.targets_predicted,
            (BranchOutcome::Target(_), false) => &mut self.targets_mispredicted,
        };
        *sum += 1;
    }
}

/// A message with the place in the program that it concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocatedMessage {
    pub thread: ThreadId,
    pub message: BranchMessage,
    /// Address of the branch, or of the instruction that would have followed.
    pub address: AppPc,
    /// The block with the branch; for an exception, the block where execution continues.
    pub block: BlockIndex,
}

/// Encoder and position of a thread.
#[derive(Clone, Copy, Debug)]
struct ThreadState {
    encoder: BranchEncoder,
    position: ThreadPosition,
    /// Indirect branch of the last step, if only the next step reveals its target.
    unresolved: Option<UnresolvedBranch>,
}

/// A branch whose target is not known yet.
#[derive(Clone, Copy, Debug)]
struct UnresolvedBranch {
    site: BranchSite,
    block: BlockIndex,
}

/// Returns the branch at the end of a step, if only the next step reveals its target.
fn unresolved_branch(block_end: &BlockEnd, step: &Step) -> Option<UnresolvedBranch> {
    // Placeholder for the target.
    const ANY_TARGET: AppPc = AppPc::new(1);
    let is_unresolved = step.terminator() == Terminator::Indirect && step.next().is_none();
    let (site, _) = block_end.branch(&step.with_next(ANY_TARGET)).filter(|_| is_unresolved)?;
    Some(UnresolvedBranch { site, block: step.block() })
}

/// The flow filter of a trace.
#[derive(Clone, Debug)]
pub struct FlowFilter {
    predictors: PerThread<Predictors>,
    count_start: CountStart,
    threads: HashMap<ThreadId, ThreadState>,
    statistics: FlowStatistics,
    block_ends: BlockEnds,
    prepared: PreparedPaths,
}

impl FlowFilter {
    pub fn new(settings: &FlowSettings) -> Result<Self, IllegalSize> {
        Ok(Self {
            predictors: PerThread::new(settings.sharing, Predictors::new(&settings.sizes)?),
            count_start: settings.count_start,
            threads: HashMap::new(),
            statistics: FlowStatistics::default(),
            block_ends: BlockEnds::default(),
            prepared: PreparedPaths::default(),
        })
    }

    /// Returns the number of instructions so far.
    #[must_use]
    pub fn instructions(&self) -> u64 {
        self.statistics.instructions
    }

    #[must_use]
    pub fn statistics(&self) -> FlowStatistics {
        let unresolved = self.threads.values().filter(|thread| thread.unresolved.is_some()).count() as u64;
        FlowStatistics { targets_unknown: self.statistics.targets_unknown + unresolved, ..self.statistics }
    }

    /// Filters the next batch of a thread.
    pub fn batch(&mut self, blocks: &Blocks, batch: &Batch, emit: impl FnMut(LocatedMessage)) {
        self.each(batch.thread(), emit, |pass, block_ends, _| block_ends.walk(blocks, batch, pass));
    }

    /// Filters the next batch of a thread path by path, which is faster. A trace must be filtered
    /// in one of the two ways only. Here the thread's next batch reveals the target of an indirect
    /// branch at the end of a batch; meanwhile other threads may have updated shared predictors.
    pub fn path_batch(&mut self, batch: &PathBatch<'_>, emit: impl FnMut(LocatedMessage)) {
        let paths = batch.paths();
        self.each(batch.thread(), emit, |pass, block_ends, prepared| {
            block_ends.extend(paths.blocks());
            let mut items = batch.items();
            while let Some(item) = items.next() {
                match item {
                    PathItem::Path(path) => pass.path(paths, path, &mut items, block_ends, prepared),
                    PathItem::Event { event, steps, last, at } => {
                        if let Some(at) = at {
                            pass.resolve_target(at);
                        }
                        steps.iter().chain(&last).for_each(|step| pass.lone_step(step, block_ends));
                        pass.event(&event);
                    }
                }
            }
        });
    }

    fn each<F: FnMut(LocatedMessage)>(
        &mut self,
        thread: ThreadId,
        emit: F,
        walk: impl FnOnce(&mut FilterPass<'_, F>, &mut BlockEnds, &mut PreparedPaths),
    ) {
        let fresh = ThreadState {
            encoder: BranchEncoder::new(self.count_start),
            position: ThreadPosition::NOT_BEGUN,
            unresolved: None,
        };
        let state = self.threads.entry(thread).or_insert(fresh);
        let mut pass = FilterPass {
            thread,
            state: *state,
            predictors: self.predictors.of(thread),
            statistics: self.statistics,
            emit,
        };
        walk(&mut pass, &mut self.block_ends, &mut self.prepared);
        (*state, self.statistics) = (pass.state, pass.statistics);
    }
}

/// A batch of one thread on its way through the filter.
struct FilterPass<'f, F> {
    thread: ThreadId,
    state: ThreadState,
    predictors: &'f mut Predictors,
    statistics: FlowStatistics,
    emit: F,
}

impl<F: FnMut(LocatedMessage)> StepVisitor for FilterPass<'_, F> {
    fn event(&mut self, event: &Event) {
        self.state.position.event(event);
    }

    #[inline]
    fn step(&mut self, step: &Step, first: AppPc, block_end: &BlockEnd) {
        self.execute(step, first);
        self.terminate(step, block_end);
    }
}

impl<F: FnMut(LocatedMessage)> FilterPass<'_, F> {
    /// Executes a step up to its branch.
    #[inline]
    fn execute(&mut self, step: &Step, first: AppPc) {
        if self.state.position.next != first {
            self.encode_discontinuity(step, first);
        }
        let count = u64::from(step.instructions());
        self.statistics.instructions += count;
        self.state.encoder.add_instructions(count);
    }

    /// Executes the terminator of a step.
    #[inline]
    fn terminate(&mut self, step: &Step, block_end: &BlockEnd) {
        self.state.position.next = step.next();
        match block_end.branch(step) {
            Some((site, outcome)) => self.branch(&site, outcome, step.block()),
            None => self.statistics.targets_unknown += u64::from(step.terminator() == Terminator::Indirect),
        }
    }

    #[inline]
    fn branch(&mut self, site: &BranchSite, outcome: BranchOutcome, block: BlockIndex) {
        let message = self.state.encoder.encode_branch(self.predictors, site, outcome);
        if site.kind != BranchKind::Call {
            self.statistics.count(outcome, message.is_none());
        }
        if let Some(message) = message {
            (self.emit)(LocatedMessage { thread: self.thread, message, address: AppPc::new(site.address), block });
        }
    }

    /// Updates the predictors with an indirect branch to `target`. Returns whether it was
    /// predicted.
    #[inline]
    fn update_target(&mut self, site: &BranchSite, target: u64) -> bool {
        match site.kind {
            BranchKind::Return => self.predictors.update_return(target),
            _ => self.predictors.update(site, BranchOutcome::Target(target)) == Some(true),
        }
    }

    /// Executes a step that starts at the beginning of its block. The next step may reveal its
    /// target.
    fn lone_step(&mut self, step: &Step, block_ends: &BlockEnds) {
        let Some(block_end) = block_ends.of(step) else { return };
        self.execute(step, block_end.start);
        self.state.unresolved = unresolved_branch(block_end, step);
        if self.state.unresolved.is_none() {
            self.terminate(step, block_end);
        }
    }

    /// Resolves the indirect branch of the last step, if there is one: it went to `target`.
    #[inline]
    fn resolve_target(&mut self, target: AppPc) {
        if let Some(UnresolvedBranch { site, block }) = self.state.unresolved.take() {
            self.state.position.next = target;
            if target.is_none() {
                self.statistics.targets_unknown += 1;
                return;
            }
            let target = target.get();
            if self.update_target(&site, target) {
                self.statistics.targets_predicted += 1;
                self.state.encoder.add_predicted(1);
                return;
            }
            self.statistics.targets_mispredicted += 1;
            let message = self.state.encoder.encode_target(target);
            (self.emit)(LocatedMessage { thread: self.thread, message, address: AppPc::new(site.address), block });
        }
    }

    /// Encodes that execution continues at `first`, although neither a branch nor the program leads
    /// there.
    #[cold]
    fn encode_discontinuity(&mut self, step: &Step, first: AppPc) {
        let count = match self.state.position.discontinuity_at(first) {
            None => return,
            Some(Discontinuity::Exception) => &mut self.statistics.exceptions,
            Some(Discontinuity::Gap) => &mut self.statistics.gaps,
        };
        *count += 1;
        let (message, address) = (self.state.encoder.encode_exception(first.get()), self.state.position.next);
        (self.emit)(LocatedMessage { thread: self.thread, message, address, block: step.block() });
    }
}

#[cfg(test)]
mod tests {
    use trace::{BlockId, DataMode, Fragment, FragmentId, LiveTrace, PathId, WriteError};
    use wire::code::{FragmentBlock, FragmentExit, TERMINATOR_INDIRECT};
    use wire::word;

    use super::*;

    /// Two returns to each other. One thread ends in the second; the other is lost in the first and
    /// begins anew.
    fn live() -> LiveTrace {
        let mut live = LiveTrace::new(DataMode::None);
        for (number, address) in [(1, 0x1000), (2, 0x2000)] {
            let (block, fragment) = (BlockId::new(number), FragmentId::new(PathId::new(number)));
            live.block(0, block, AppPc::new(address), &[0xc3]).unwrap();
            let (blocks, exits) = ([FragmentBlock::new(block, false)], [FragmentExit::new(1, TERMINATOR_INDIRECT)]);
            live.fragment(0, &Fragment { fragment, blocks: &blocks, exits: &exits }).unwrap();
        }
        live.add(0, ThreadId::new(7), &[1, 2, 1, 2], &[]);
        live.add(0, ThreadId::new(8), &[1, word::event(word::START, 0), 0x2000, 0, 9, 0, 2, 1], &[]);
        live
    }

    #[test]
    fn branches_without_a_target_are_counted() {
        let (mut by_step, mut by_path) =
            (FlowFilter::new(&FlowSettings::default()).unwrap(), FlowFilter::new(&FlowSettings::default()).unwrap());
        let (mut steps, mut paths) = (Vec::new(), Vec::new());
        let (mut of_steps, mut of_paths) = (live(), live());
        let result: Result<(), WriteError> = of_steps.finish(|blocks, batch| {
            by_step.batch(blocks, batch, |message| steps.push(message));
            Ok(())
        });
        result.unwrap();
        let result: Result<(), WriteError> = of_paths.finish_path_batches(|batch| {
            by_path.path_batch(batch, |message| paths.push(message));
            Ok(())
        });
        result.unwrap();
        // Unknown of seven returns: the last of each thread, and the one before thread 8 begins
        // anew.
        let expected = FlowStatistics {
            instructions: 7,
            targets_mispredicted: 4,
            targets_unknown: 3,
            ..FlowStatistics::default()
        };
        assert_eq!((by_step.statistics(), by_path.statistics()), (expected, expected));
        assert_eq!((steps.len(), by_step.statistics().indirect()), (4, 7));
        steps.sort_by_key(|message| message.thread);
        paths.sort_by_key(|message| message.thread);
        assert_eq!(steps, paths);
    }
}
