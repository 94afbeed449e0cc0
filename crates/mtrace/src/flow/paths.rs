//! Whole paths through the filter. A path is prepared on first use: its conditional branches become
//! a row, which is mostly predicted as a whole, and the other branches become a list of
//! [`PredictorOperation`]s. [`FilterPass::path`] runs a prepared path.

use filter::traptor::{BranchKind, BranchOutcome, BranchSite};
use hashbrown::HashMap;
use predict::RowBranch;
use trace::{AppPc, BlockIndex, PathId, PathItems, PathTable};

use super::{FilterPass, LocatedMessage, UnresolvedBranch, unresolved_branch};
use replay::block_end::BlockEnds;

/// A branch of a path that is not conditional.
#[derive(Clone, Copy, Debug)]
struct PredictorOperation {
    site: BranchSite,
    /// Target within the path.
    target: u64,
    block: BlockIndex,
    /// Instructions of the path up to and including it, conditional branches before it, and all
    /// counted branches before it.
    instructions: u32,
    point: u8,
    branches: u8,
}

/// Details of a conditional branch, used if it is mispredicted.
#[derive(Clone, Copy, Debug)]
struct BranchDetail {
    address: AppPc,
    block: BlockIndex,
    instructions: u32,
    /// Counted branches of the path before it.
    branches: u8,
}

#[derive(Clone, Copy, Debug)]
struct PreparedPath {
    start: AppPc,
    /// Successor of the path, unless the next path reveals it.
    next: AppPc,
    unresolved: Option<UnresolvedBranch>,
    instructions: u32,
    points_at: u32,
    operations_at: u32,
    points: u8,
    operations: u8,
    /// Number of counted branches.
    branches: u8,
}

/// All prepared paths.
#[derive(Clone, Debug, Default)]
pub(super) struct PreparedPaths {
    /// Indexed by path number: one more than the index into `prepared`, or [`TOO_LONG`] if the path
    /// cannot be prepared.
    indices: Vec<u32>,
    /// The same for numbers far beyond the others, which only a damaged trace has.
    far_indices: HashMap<PathId, u32>,
    prepared: Vec<PreparedPath>,
    operations: Vec<PredictorOperation>,
    points: Vec<RowBranch>,
    /// One for each point.
    details: Vec<BranchDetail>,
}

const TOO_LONG: u32 = u32::MAX;

/// Path numbers that have an entry in any case, and as many more for each path that is executed. A
/// recorder numbers paths densely.
const NEAR: usize = 1 << 20;
const NEAR_PER_PATH: usize = 16;

impl PreparedPaths {
    #[inline]
    fn of(&mut self, paths: PathTable<'_>, path: PathId, block_ends: &BlockEnds) -> Option<(&PreparedPath, &Self)> {
        let index = self.indices.get(path.get() as usize).copied().unwrap_or(0);
        let index = if index == 0 { self.enter(paths, path, block_ends) } else { index };
        let own = self.prepared.get(index as usize - 1)?;
        Some((own, self))
    }

    #[cold]
    fn enter(&mut self, paths: PathTable<'_>, path: PathId, block_ends: &BlockEnds) -> u32 {
        if let Some(&index) = self.far_indices.get(&path) {
            return index;
        }
        let (points, operations) = (self.points.len(), self.operations.len());
        let index = match self.prepare(paths, path, block_ends) {
            Some(own) => {
                self.prepared.push(own);
                u32::try_from(self.prepared.len()).unwrap_or(TOO_LONG)
            }
            None => {
                self.points.truncate(points);
                self.details.truncate(points);
                self.operations.truncate(operations);
                TOO_LONG
            }
        };
        let number = path.get() as usize;
        if number >= NEAR + NEAR_PER_PATH * self.prepared.len() {
            self.far_indices.insert(path, index);
            return index;
        }
        if self.indices.len() <= number {
            self.indices.resize(number + 1 + number / 2, 0);
        }
        self.indices[number] = index;
        index
    }

    fn prepare(&mut self, paths: PathTable<'_>, path: PathId, block_ends: &BlockEnds) -> Option<PreparedPath> {
        let (steps, last) = paths.get(path)?;
        let mut own = PreparedPath {
            start: block_ends.of(steps.first().unwrap_or(&last))?.start,
            next: last.next(),
            unresolved: unresolved_branch(block_ends.of(&last)?, &last),
            instructions: 0,
            points_at: u32::try_from(self.points.len()).ok()?,
            operations_at: u32::try_from(self.operations.len()).ok()?,
            points: 0,
            operations: 0,
            branches: 0,
        };
        for step in steps.iter().chain([&last]) {
            own.instructions += step.instructions();
            let Some((site, outcome)) = block_ends.of(step)?.branch(step) else { continue };
            let (block, instructions) = (step.block(), own.instructions);
            match outcome {
                BranchOutcome::Taken(taken) => {
                    let before = self.points.last().filter(|_| own.points > 0);
                    self.points.push(RowBranch::after(before, site.address, taken));
                    self.details.push(BranchDetail {
                        address: AppPc::new(site.address),
                        block,
                        instructions,
                        branches: own.branches,
                    });
                    own.points = own.points.checked_add(1)?;
                }
                BranchOutcome::Target(target) => {
                    let (point, branches) = (own.points, own.branches);
                    self.operations.push(PredictorOperation { site, target, block, instructions, point, branches });
                    own.operations = own.operations.checked_add(1)?;
                }
            }
            own.branches = own.branches.checked_add(u8::from(site.kind != BranchKind::Call))?;
        }
        Some(own)
    }

    #[inline]
    fn points(&self, own: &PreparedPath) -> &[RowBranch] {
        let at = own.points_at as usize;
        self.points.get(at..at + usize::from(own.points)).unwrap_or(&[])
    }

    #[inline]
    fn operations(&self, own: &PreparedPath) -> &[PredictorOperation] {
        let at = own.operations_at as usize;
        self.operations.get(at..at + usize::from(own.operations)).unwrap_or(&[])
    }
}

/// Branches and instructions of a path that are already counted.
#[derive(Clone, Copy, Debug, Default)]
struct EncodedPrefix {
    branches: u8,
    instructions: u32,
}

impl<F: FnMut(LocatedMessage)> FilterPass<'_, F> {
    /// Runs a path, with its repetitions if they change nothing.
    #[inline]
    pub(super) fn path(
        &mut self,
        paths: PathTable<'_>,
        path: PathId,
        items: &mut PathItems<'_>,
        block_ends: &BlockEnds,
        prepared: &mut PreparedPaths,
    ) {
        let Some((own, prepared)) = prepared.of(paths, path, block_ends) else {
            return self.step_by_step(paths, path, block_ends);
        };
        self.resolve_target(own.start);
        if self.state.position.next != own.start {
            return self.step_by_step(paths, path, block_ends);
        }
        let (points, operations) = (prepared.points(own), prepared.operations(own));
        self.statistics.targets_predicted += u64::from(own.branches - own.points);
        let saturated_count = self.predictors.saturated_prefix(points);
        let mut encoded = EncodedPrefix::default();
        let mut times = 1;
        if saturated_count < points.len() {
            encoded = self.encode_unsaturated(prepared, own, saturated_count);
        } else {
            let is_same = self.predictors.finish_row(points);
            if !operations.is_empty() {
                operations.iter().for_each(|operation| self.execute_operation(operation, &mut encoded));
            } else if is_same && own.next == own.start && own.unresolved.is_none() {
                // The path is its own successor, and the predictors do not change.
                times += items.repetitions(path);
            }
            self.statistics.outcomes_predicted += points.len() as u64 * times;
        }
        let instructions = u64::from(own.instructions) * times;
        self.statistics.instructions += instructions;
        self.state.encoder.add_instructions(instructions - u64::from(encoded.instructions));
        self.state.encoder.add_predicted(u64::from(own.branches) * times - u64::from(encoded.branches));
        (self.state.position.next, self.state.unresolved) = (own.next, own.unresolved);
    }

    #[cold]
    fn step_by_step(&mut self, paths: PathTable<'_>, path: PathId, block_ends: &BlockEnds) {
        let Some((steps, last)) = paths.get(path) else { return };
        if let Some(block_end) = block_ends.of(steps.first().unwrap_or(&last)) {
            self.resolve_target(block_end.start);
        }
        steps.iter().chain([&last]).for_each(|step| self.lone_step(step, block_ends));
    }

    /// Executes a branch that is not conditional. A predicted branch is counted with the path.
    #[inline]
    fn execute_operation(&mut self, operation: &PredictorOperation, encoded: &mut EncodedPrefix) {
        let PredictorOperation { site, target, .. } = operation;
        if site.kind == BranchKind::Call {
            return self.predictors.push_return(site.fall_through);
        }
        if !self.update_target(site, *target) {
            self.emit_target(operation, encoded);
        }
    }

    #[cold]
    fn emit_target(&mut self, operation: &PredictorOperation, encoded: &mut EncodedPrefix) {
        let &PredictorOperation { site, target, block, instructions, branches, .. } = operation;
        self.statistics.targets_mispredicted += 1;
        self.statistics.targets_predicted -= 1;
        self.state.encoder.add_predicted(u64::from(branches - encoded.branches));
        *encoded = EncodedPrefix { branches: branches + 1, instructions };
        let message = self.state.encoder.encode_target(target);
        (self.emit)(LocatedMessage { thread: self.thread, message, address: AppPc::new(site.address), block });
    }

    /// Runs a path with conditional branches that update the predictors; `saturated_count` leading
    /// branches do not.
    #[inline(never)]
    fn encode_unsaturated(
        &mut self,
        prepared: &PreparedPaths,
        own: &PreparedPath,
        saturated_count: usize,
    ) -> EncodedPrefix {
        let (points, mut encoded) = (prepared.points(own), EncodedPrefix::default());
        let details = prepared.details.get(own.points_at as usize..).unwrap_or(&[]);
        let mut operations = prepared.operations(own).iter().peekable();
        let (mut wrong, mut index) = (0, saturated_count);
        while let (Some(point), Some(detail)) = (points.get(index), details.get(index)) {
            if !self.predictors.update_in_row(point) {
                while let Some(operation) = operations.next_if(|operation| usize::from(operation.point) <= index) {
                    self.execute_operation(operation, &mut encoded);
                }
                wrong += 1;
                self.state.encoder.add_predicted(u64::from(detail.branches - encoded.branches));
                encoded = EncodedPrefix { branches: detail.branches + 1, instructions: detail.instructions };
                let message = self.state.encoder.encode_misprediction();
                (self.emit)(LocatedMessage {
                    thread: self.thread,
                    message,
                    address: detail.address,
                    block: detail.block,
                });
            }
            index += 1;
            index += self.predictors.saturated_prefix(points.get(index..).unwrap_or(&[]));
        }
        operations.for_each(|operation| self.execute_operation(operation, &mut encoded));
        self.predictors.finish_row(points);
        self.statistics.outcomes_mispredicted += wrong;
        self.statistics.outcomes_predicted += points.len() as u64 - wrong;
        encoded
    }
}

#[cfg(test)]
mod tests {
    use trace::{DataMode, LiveTrace, ThreadId, WriteError};

    use super::*;

    #[test]
    fn path_numbers_of_a_damaged_trace_take_no_memory() {
        let (mut live, mut prepared) = (LiveTrace::new(DataMode::None), PreparedPaths::default());
        live.add(0, ThreadId::FIRST, &[100_000_000, 5], &[]);
        let result: Result<(), WriteError> = live.finish_path_batches(|batch| {
            for path in [100_000_000, 5, 100_000_000].map(PathId::new) {
                assert!(prepared.of(batch.paths(), path, &BlockEnds::default()).is_none());
            }
            Ok(())
        });
        result.unwrap();
        assert!(prepared.indices.len() < NEAR);
    }
}
