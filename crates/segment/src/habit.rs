//! What has been seen of branches so far: where each usually goes, and how often it does.

/// Of a branch. Counts are halved now and then, so that what was long ago counts less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Habit {
    /// Where it went lately, and how often, of `all`. Who has more ways than there is room for goes none of them often.
    ways: [(u64, u16); 4],
    all: u16,
    is_steady: bool,
}

/// What can be said of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It was not seen often enough.
    Unknown,
    /// It mostly goes one way; whether it does so now.
    Steady {
        as_usual: bool,
    },
    Unsteady,
}

/// Before it was executed so often, nothing is said of a branch.
const ENOUGH: u16 = 16;
/// When counts are halved.
const MANY: u16 = 1024;

impl Habit {
    fn see(&mut self, next: u64) {
        if self.all == MANY {
            self.all /= 2;
            self.ways.iter_mut().for_each(|(_, times)| *times /= 2);
        }
        self.all += 1;
        match self.ways.iter_mut().find(|(way, times)| *way == next && *times > 0) {
            Some((_, times)) => *times += 1,
            None => {
                let rarest = self.ways.iter_mut().min_by_key(|(_, times)| *times).expect("there are four");
                *rarest = (next, 1);
            }
        }
    }

    fn times(&self, next: u64) -> u16 {
        self.ways.iter().filter(|(way, _)| *way == next).map(|&(_, times)| times).sum()
    }

    /// Where it goes most often.
    fn usual(&self) -> (u64, u16) {
        self.ways.iter().copied().max_by_key(|&(_, times)| times).unwrap_or_default()
    }

    /// The share of executions that went to `next`, with one more for each of two ways so that nothing is certain before it was seen.
    fn probability(&self, next: u64) -> f32 {
        (f32::from(self.times(next)) + 1.0) / (f32::from(self.all) + 2.0)
    }

    /// Judges, and says whether it was judged otherwise before. Who is steady stays so until it fails clearly.
    fn judge(&mut self) -> bool {
        let (times, all) = (u32::from(self.usual().1), u32::from(self.all));
        let is_steady = if self.is_steady { times * 8 >= all * 7 } else { times * 16 >= all * 15 };
        let is_steady = is_steady && self.all >= ENOUGH;
        std::mem::replace(&mut self.is_steady, is_steady) != is_steady
    }
}

/// The habits of all branches, by the block that they end.
#[derive(Clone, Debug, Default)]
pub struct Habits {
    habits: Vec<Habit>,
    changes: u64,
}

impl Habits {
    #[inline]
    fn of(&mut self, block: u32) -> &mut Habit {
        let place = block as usize;
        if place >= self.habits.len() {
            self.habits.resize(place + 1, Habit::default());
        }
        &mut self.habits[place]
    }

    /// How probable it was that the branch at the end of `block` goes to `next`, as it now does.
    pub fn probability(&mut self, block: u32, next: u64) -> f32 {
        let habit = self.of(block);
        let probability = habit.probability(next);
        habit.see(next);
        probability
    }

    /// What was to be said of the branch at the end of `block`, which now goes to `next`.
    pub fn judgement(&mut self, block: u32, next: u64) -> Judgement {
        let habit = self.of(block);
        let before = *habit;
        habit.see(next);
        let changed = habit.judge();
        self.changes += u64::from(changed);
        match before {
            Habit { all, .. } if all < ENOUGH => Judgement::Unknown,
            Habit { is_steady: true, .. } => Judgement::Steady { as_usual: before.usual().0 == next },
            _ => Judgement::Unsteady,
        }
    }

    /// How often a branch became steady or ceased to be.
    pub fn changes(&self) -> u64 {
        self.changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_learned() {
        let mut habits = Habits::default();
        assert_eq!(habits.probability(7, 0x10), 0.5, "nobody knows");
        let known: Vec<f32> = (0..1000).map(|_| habits.probability(7, 0x10)).collect();
        assert!(known.is_sorted() && known[999] > 0.99);
        assert!(habits.probability(7, 0x20) < 0.01);
        // Of a branch with two ways, both are counted exactly.
        (0..50).for_each(|time| assert!(habits.probability(8, if time % 5 == 0 { 0x10 } else { 0x20 }) > 0.0));
        assert_eq!([0x10, 0x20].map(|next| habits.of(8).probability(next)), [11.0 / 52.0, 41.0 / 52.0]);
        // None of many ways is probable.
        let known: Vec<f32> = (0..1000).map(|time| habits.probability(9, time % 64)).collect();
        assert!(known[100..].iter().all(|&known| known < 0.04));
    }

    #[test]
    fn who_fails_is_no_longer_steady() {
        let mut habits = Habits::default();
        let judged: Vec<Judgement> = (0..40).map(|_| habits.judgement(1, 0x10)).collect();
        assert_eq!(judged[15], Judgement::Unknown);
        assert_eq!(judged[39], Judgement::Steady { as_usual: true });
        assert_eq!(habits.judgement(1, 0x20), Judgement::Steady { as_usual: false });
        let judged: Vec<Judgement> = (0..40).map(|_| habits.judgement(1, 0x20)).collect();
        assert!(judged.contains(&Judgement::Unsteady));
        assert_eq!(habits.changes(), 2);
        // In time it has a new habit.
        let judged = (0..3000).map(|_| habits.judgement(1, 0x20)).last();
        assert_eq!(judged, Some(Judgement::Steady { as_usual: true }));
        assert_eq!(habits.changes(), 3);
    }
}
