//! Whole paths through the filter. What is known of a path before it is executed is prepared when it is first met: its conditional branches as a
//! row, of which mostly all are predicted, and the few other things that concern the predictors.

use filter::traptor::{Kind, Site, Went};
use predict::Point;
use trace::{BlockIndex, PathItems, PathTable};

use super::{Filtering, Pending, Told};
use crate::walk::Tails;

/// What a path does to the predictors beside conditional branches.
#[derive(Clone, Copy, Debug)]
struct Operation {
    site: Site,
    /// Where the path itself says that it goes.
    target: u64,
    block: BlockIndex,
    /// Instructions of the path up to it, conditional branches before it, and all branches that count.
    instructions: u32,
    place: u8,
    branches: u8,
}

/// What is wanted of a conditional branch that has to be told.
#[derive(Clone, Copy, Debug)]
struct Detail {
    address: u64,
    block: BlockIndex,
    instructions: u32,
    /// Branches of the path before it that count.
    branches: u8,
}

#[derive(Clone, Copy, Debug)]
struct Preparation {
    head: u64,
    /// Where it leads, unless that is told later.
    next: u64,
    pending: Option<Pending>,
    instructions: u32,
    points_at: u32,
    operations_at: u32,
    points: u8,
    operations: u8,
    /// All branches that count.
    branches: u8,
}

/// What is known of paths.
#[derive(Clone, Debug, Default)]
pub(super) struct Preparations {
    /// By number of the path: one more than the place among those that are prepared; [`NOT_PREPARED`] if it is too long for that.
    places: Vec<u32>,
    prepared: Vec<Preparation>,
    operations: Vec<Operation>,
    points: Vec<Point>,
    /// Of each point.
    details: Vec<Detail>,
}

const NOT_PREPARED: u32 = u32::MAX;

impl Preparations {
    #[inline]
    fn of(&mut self, paths: PathTable<'_>, path: u32, tails: &Tails) -> Option<(&Preparation, &Self)> {
        let place = self.places.get(path as usize).copied().unwrap_or(0);
        let place = if place == 0 { self.enter(paths, path, tails) } else { place };
        let own = self.prepared.get(place as usize - 1)?;
        Some((own, self))
    }

    #[cold]
    fn enter(&mut self, paths: PathTable<'_>, path: u32, tails: &Tails) -> u32 {
        let (points, operations) = (self.points.len(), self.operations.len());
        let place = match self.prepare(paths, path, tails) {
            Some(own) => {
                self.prepared.push(own);
                u32::try_from(self.prepared.len()).unwrap_or(NOT_PREPARED)
            }
            None => {
                self.points.truncate(points);
                self.details.truncate(points);
                self.operations.truncate(operations);
                NOT_PREPARED
            }
        };
        let number = path as usize;
        if self.places.len() <= number {
            self.places.resize(number + 1 + number / 2, 0);
        }
        self.places[number] = place;
        place
    }

    fn prepare(&mut self, paths: PathTable<'_>, path: u32, tails: &Tails) -> Option<Preparation> {
        let (steps, last) = paths.get(path)?;
        let mut own = Preparation {
            head: tails.of(steps.first().unwrap_or(&last))?.head,
            next: last.next(),
            pending: tails.of(&last)?.pending(&last),
            instructions: 0,
            points_at: u32::try_from(self.points.len()).ok()?,
            operations_at: u32::try_from(self.operations.len()).ok()?,
            points: 0,
            operations: 0,
            branches: 0,
        };
        for step in steps.iter().chain([&last]) {
            own.instructions += step.instructions();
            let Some((site, went)) = tails.of(step)?.branch(step) else { continue };
            let (block, instructions) = (step.block(), own.instructions);
            match went {
                Went::Taken(taken) => {
                    let before = self.points.last().filter(|_| own.points > 0);
                    self.points.push(Point::behind(before, site.address, taken));
                    self.details.push(Detail { address: site.address, block, instructions, branches: own.branches });
                    own.points = own.points.checked_add(1)?;
                }
                Went::To(target) => {
                    let (place, branches) = (own.points, own.branches);
                    self.operations.push(Operation { site, target, block, instructions, place, branches });
                    own.operations = own.operations.checked_add(1)?;
                }
            }
            own.branches = own.branches.checked_add(u8::from(site.kind != Kind::Call))?;
        }
        Some(own)
    }

    #[inline]
    fn points(&self, own: &Preparation) -> &[Point] {
        let at = own.points_at as usize;
        self.points.get(at..at + usize::from(own.points)).unwrap_or(&[])
    }

    #[inline]
    fn operations(&self, own: &Preparation) -> &[Operation] {
        let at = own.operations_at as usize;
        self.operations.get(at..at + usize::from(own.operations)).unwrap_or(&[])
    }
}

/// Branches and instructions of a path that are counted already.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    branches: u8,
    instructions: u32,
}

impl<F: FnMut(Told)> Filtering<'_, F> {
    /// A path is executed, and perhaps again and again.
    #[inline]
    pub(super) fn path(
        &mut self,
        paths: PathTable<'_>,
        path: u32,
        parts: &mut PathItems<'_>,
        tails: &Tails,
        preparations: &mut Preparations,
    ) {
        let Some((own, preparations)) = preparations.of(paths, path, tails) else {
            return self.step_by_step(paths, path, tails);
        };
        self.went_to(own.head);
        if self.place.at.next != own.head {
            return self.step_by_step(paths, path, tails);
        }
        let (points, operations) = (preparations.points(own), preparations.operations(own));
        self.statistics.targets_predicted += u64::from(own.branches - own.points);
        let sure = self.predictors.sure_of(points);
        let mut counted = Counted::default();
        let mut times = 1;
        if sure < points.len() {
            counted = self.learn(preparations, own, sure);
        } else {
            let is_same = self.predictors.pass(points);
            if !operations.is_empty() {
                operations.iter().for_each(|operation| self.operate(operation, &mut counted));
            } else if is_same && own.next == own.head && own.pending.is_none() {
                // What it leads to is itself, and nothing has changed by it.
                times += parts.repetitions(path);
            }
            self.statistics.outcomes_predicted += points.len() as u64 * times;
        }
        let instructions = u64::from(own.instructions) * times;
        self.statistics.instructions += instructions;
        self.place.counter.instructions(instructions - u64::from(counted.instructions));
        self.place.counter.predicted(u64::from(own.branches) * times - u64::from(counted.branches));
        (self.place.at.next, self.place.pending) = (own.next, own.pending);
    }

    #[cold]
    fn step_by_step(&mut self, paths: PathTable<'_>, path: u32, tails: &Tails) {
        let Some((steps, last)) = paths.get(path) else { return };
        if let Some(tail) = tails.of(steps.first().unwrap_or(&last)) {
            self.went_to(tail.head);
        }
        steps.iter().chain([&last]).for_each(|step| self.single(step, tails));
    }

    /// Something other than a conditional branch. If it is predicted, it is counted with the path.
    #[inline]
    fn operate(&mut self, operation: &Operation, counted: &mut Counted) {
        let Operation { site, target, .. } = operation;
        if site.kind == Kind::Call {
            return self.predictors.call(site.behind);
        }
        if !self.learn_target(site, *target) {
            self.tell_target(operation, counted);
        }
    }

    #[cold]
    fn tell_target(&mut self, operation: &Operation, counted: &mut Counted) {
        let &Operation { site, target, block, instructions, branches, .. } = operation;
        self.statistics.targets_mispredicted += 1;
        self.statistics.targets_predicted -= 1;
        self.place.counter.predicted(u64::from(branches - counted.branches));
        *counted = Counted { branches: branches + 1, instructions };
        let message = self.place.counter.went_elsewhere(target);
        (self.tell)(Told { thread: self.thread, message, address: site.address, block });
    }

    /// A path with a conditional branch by which something is learnt; there are `sure` before it of which that is not so.
    #[inline(never)]
    fn learn(&mut self, preparations: &Preparations, own: &Preparation, sure: usize) -> Counted {
        let (points, mut counted) = (preparations.points(own), Counted::default());
        let details = preparations.details.get(own.points_at as usize..).unwrap_or(&[]);
        let mut operations = preparations.operations(own).iter().peekable();
        let (mut wrong, mut place) = (0, sure);
        while let (Some(point), Some(detail)) = (points.get(place), details.get(place)) {
            if !self.predictors.branch_in(point) {
                while let Some(operation) = operations.next_if(|operation| usize::from(operation.place) <= place) {
                    self.operate(operation, &mut counted);
                }
                wrong += 1;
                self.place.counter.predicted(u64::from(detail.branches - counted.branches));
                counted = Counted { branches: detail.branches + 1, instructions: detail.instructions };
                let message = self.place.counter.mispredicted();
                (self.tell)(Told { thread: self.thread, message, address: detail.address, block: detail.block });
            }
            place += 1;
            place += self.predictors.sure_of(points.get(place..).unwrap_or(&[]));
        }
        operations.for_each(|operation| self.operate(operation, &mut counted));
        self.predictors.pass(points);
        self.statistics.outcomes_mispredicted += wrong;
        self.statistics.outcomes_predicted += points.len() as u64 - wrong;
        counted
    }
}
