//! Control flow: only what the predictors did not know is told, with the number of branches since the last time.

use std::collections::VecDeque;

use predict::{Budget, Gshare, Ibtb, IllegalSize, Ittage, Point, Ras, Tage, Tagging, Victim};

/// What the program tells of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    pub kind: Kind,
    pub address: u64,
    /// The instruction behind it.
    pub behind: u64,
}

/// Kinds of branches that make a difference. Direct jumps do not: everybody knows where they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Conditional,
    /// Direct. Everybody knows where it goes, too, but it returns.
    Call,
    IndirectCall,
    IndirectJump,
    Return,
}

/// What only execution tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Went {
    Taken(bool),
    To(u64),
}

/// What predicts where branches go. Whoever filters and whoever follows have the same.
pub trait Predict {
    /// A branch went somewhere: learns, and says whether that was predicted. `None` if nobody has to predict it.
    fn learn(&mut self, site: &Site, went: Went) -> Option<bool>;
    /// Where a branch is predicted to go.
    #[must_use]
    fn predict(&self, site: &Site) -> Option<Went>;
}

/// How many entries the predictors have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub gshare: usize,
    pub ras: usize,
    pub ibtb: usize,
    pub tagging: Tagging,
    pub victim: Victim,
    pub without_gshare: WithoutGshare,
}

impl Default for Sizes {
    /// The largest of Myers 2014, chapter 6, in ways that can be decoded.
    fn default() -> Self {
        Self {
            gshare: 4096,
            ras: 32,
            ibtb: 64,
            tagging: Tagging::default(),
            victim: Victim::default(),
            without_gshare: WithoutGshare::default(),
        }
    }
}

/// What is said of conditional branches if gshare has no entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WithoutGshare {
    /// That they are not taken, so that only those that are must be told.
    #[default]
    NotTaken,
    /// Nothing: all are told, as in Myers 2014. As a message does not say which way the branch went, this cannot be decoded.
    Nothing,
}

/// Those of the theses: gshare, a return stack and a target buffer.
#[derive(Clone, Debug)]
pub struct Predictors {
    gshare: Gshare,
    ras: Ras,
    ibtb: Ibtb,
    /// In place of gshare if it has no entries.
    fixed: Option<WithoutGshare>,
}

impl Predictors {
    pub fn new(sizes: &Sizes) -> Result<Self, IllegalSize> {
        Ok(Self {
            gshare: Gshare::new(sizes.gshare)?,
            ras: Ras::new(sizes.ras)?,
            ibtb: Ibtb::new(sizes.ibtb, sizes.tagging)?.with_victim(sizes.victim),
            fixed: (sizes.gshare == 0).then_some(sizes.without_gshare),
        })
    }

    /// A direct call was executed, which will return to `behind`.
    #[inline]
    pub fn call(&mut self, behind: u64) {
        self.ras.call(behind);
    }

    /// A return went to `target`: learns, and says whether it was predicted.
    #[inline]
    pub fn returned(&mut self, target: u64) -> bool {
        self.ras.ret(target)
    }

    /// How many conditional branches of a row are predicted with so much certainty that nothing is learnt by them.
    #[must_use]
    #[inline]
    pub fn sure_of(&self, row: &[Point]) -> usize {
        self.gshare.sure_of(row)
    }

    /// The next conditional branch of a row went as it says: learns, and says whether it was predicted. To be followed by the others and by
    /// [`Self::pass`].
    #[inline]
    pub fn branch_in(&mut self, point: &Point) -> bool {
        match self.fixed {
            None => self.gshare.branch_in(point),
            Some(fixed) => fixed == WithoutGshare::NotTaken && !point.is_taken(),
        }
    }

    /// Goes on behind a row, of which all was learnt that is to be learnt. Returns whether it will be met again as it was met now.
    #[inline]
    pub fn pass(&mut self, row: &[Point]) -> bool {
        self.gshare.pass(row)
    }
}

impl Predict for Predictors {
    #[inline]
    fn learn(&mut self, site: &Site, went: Went) -> Option<bool> {
        let right = match (site.kind, went) {
            (Kind::Conditional, Went::Taken(taken)) => match self.fixed {
                None => self.gshare.branch(site.address, taken),
                Some(fixed) => fixed == WithoutGshare::NotTaken && !taken,
            },
            (Kind::Return, Went::To(target)) => self.ras.ret(target),
            (Kind::IndirectCall | Kind::IndirectJump, Went::To(target)) => self.ibtb.branch(site.address, target),
            (Kind::Call, _) => {
                self.ras.call(site.behind);
                return None;
            }
            // An answer to another question.
            _ => false,
        };
        if site.kind == Kind::IndirectCall {
            self.ras.call(site.behind);
        }
        Some(right)
    }

    #[inline]
    fn predict(&self, site: &Site) -> Option<Went> {
        match site.kind {
            Kind::Conditional => match self.fixed {
                None => self.gshare.prediction(site.address).map(Went::Taken),
                Some(fixed) => (fixed == WithoutGshare::NotTaken).then_some(Went::Taken(false)),
            },
            Kind::Return => self.ras.top().map(|(_, target)| Went::To(target)),
            Kind::IndirectCall | Kind::IndirectJump => self.ibtb.prediction(site.address).map(Went::To),
            Kind::Call => None,
        }
    }
}

/// Those of today's processors: TAGE, a return stack and ITTAGE.
#[derive(Clone, Debug)]
pub struct TaggedPredictors {
    tage: Tage,
    ras: Ras,
    ittage: Ittage,
}

impl TaggedPredictors {
    /// `ras` entries of the return stack.
    pub fn new(budget: Budget, ras: usize) -> Result<Self, IllegalSize> {
        Ok(Self { tage: Tage::new(budget), ras: Ras::new(ras)?, ittage: Ittage::new(budget) })
    }
}

impl Predict for TaggedPredictors {
    fn learn(&mut self, site: &Site, went: Went) -> Option<bool> {
        let &Site { kind, address, behind } = site;
        if matches!(kind, Kind::Call | Kind::IndirectCall) {
            self.ras.call(behind);
        }
        match (kind, went) {
            (Kind::Conditional, Went::Taken(taken)) => {
                self.ittage.note(address, taken);
                Some(self.tage.branch(address, taken))
            }
            // Where a direct call goes is no news to anybody.
            (Kind::Call, _) => {
                self.tage.pass(address, behind);
                self.ittage.pass(address, behind);
                None
            }
            (Kind::Return, Went::To(target)) => {
                self.tage.pass(address, target);
                self.ittage.pass(address, target);
                Some(self.ras.ret(target))
            }
            (Kind::IndirectCall | Kind::IndirectJump, Went::To(target)) => {
                self.tage.pass(address, target);
                Some(self.ittage.branch(address, target))
            }
            // An answer to another question.
            _ => Some(false),
        }
    }

    fn predict(&self, site: &Site) -> Option<Went> {
        match site.kind {
            Kind::Conditional => Some(Went::Taken(self.tage.prediction(site.address))),
            Kind::Return => self.ras.top().map(|(_, target)| Went::To(target)),
            Kind::IndirectCall | Kind::IndirectJump => self.ittage.prediction(site.address).map(Went::To),
            Kind::Call => None,
        }
    }
}

/// Where counting begins again after a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counting {
    /// The first branch is number 1, as in Tewar 2015.
    #[default]
    FromOne,
    /// The first branch is number 2, as in Myers 2014, Figure 4.31.
    FromTwo,
}

impl Counting {
    fn start(self) -> u64 {
        match self {
            Self::FromOne => 0,
            Self::FromTwo => 1,
        }
    }
}

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A conditional branch did not go where it was predicted to.
    Outcome { branches: u64 },
    /// Nor did an indirect one.
    Target { branches: u64, target: u64 },
    /// After so many instructions, execution went on elsewhere.
    Exception { instructions: u64, target: u64 },
}

/// The filter's own part of a thread.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    counting: Counting,
    branches: u64,
    instructions: u64,
}

impl Counter {
    #[must_use]
    pub fn new(counting: Counting) -> Self {
        Self { counting, branches: counting.start(), instructions: 0 }
    }

    fn reset(&mut self) {
        *self = Self::new(self.counting);
    }

    /// So many instructions were executed, a branch as the last of them included.
    #[inline]
    pub fn instructions(&mut self, count: u64) {
        self.instructions += count;
    }

    /// A branch was executed; gives the message, if one is needed.
    #[inline]
    pub fn branch(&mut self, predictors: &mut impl Predict, site: &Site, went: Went) -> Option<Message> {
        let right = predictors.learn(site, went)?;
        self.branches += 1;
        if right {
            return None;
        }
        let branches = self.branches;
        self.reset();
        Some(match went {
            Went::Taken(_) => Message::Outcome { branches },
            Went::To(target) => Message::Target { branches, target },
        })
    }

    /// So many branches were executed, which all were predicted.
    #[inline]
    pub fn predicted(&mut self, branches: u64) {
        self.branches += branches;
    }

    /// A conditional branch was executed, which was not predicted.
    #[inline]
    pub fn mispredicted(&mut self) -> Message {
        let branches = self.branches + 1;
        self.reset();
        Message::Outcome { branches }
    }

    /// A branch to `target` was executed, which was not predicted.
    #[inline]
    pub fn went_elsewhere(&mut self, target: u64) -> Message {
        let branches = self.branches + 1;
        self.reset();
        Message::Target { branches, target }
    }

    /// Something else than a branch made execution go on at `target`.
    pub fn exception(&mut self, target: u64) -> Message {
        let instructions = self.instructions;
        self.reset();
        Message::Exception { instructions, target }
    }
}

/// What a mirror image is told of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A conditional branch did not go where it was predicted to.
    Otherwise,
    /// An indirect one went here.
    To(u64),
}

/// Where a mirror image gets its messages from. One has to come before the branch that it tells of.
pub trait Messages {
    /// Takes what is told of the branch with this number; `None` if nothing is.
    fn branch(&mut self, branches: u64, is_indirect: bool) -> Option<Told>;
    /// Takes where execution went on behind so many instructions, if that is told.
    fn exception(&mut self, instructions: u64) -> Option<u64>;
}

impl Messages for VecDeque<Message> {
    fn branch(&mut self, number: u64, is_indirect: bool) -> Option<Told> {
        let told = match self.front().copied() {
            Some(Message::Outcome { branches }) if branches == number && !is_indirect => Told::Otherwise,
            Some(Message::Target { branches, target }) if branches == number && is_indirect => Told::To(target),
            _ => return None,
        };
        self.pop_front();
        Some(told)
    }

    fn exception(&mut self, number: u64) -> Option<u64> {
        match self.front().copied() {
            Some(Message::Exception { instructions, target }) if instructions == number => {
                self.pop_front();
                Some(target)
            }
            _ => None,
        }
    }
}

/// The mirror image of a [`Counter`]: takes its messages and says where branches went.
#[derive(Clone, Copy, Debug)]
pub struct Mirror {
    counter: Counter,
}

impl Mirror {
    #[must_use]
    pub fn new(counting: Counting) -> Self {
        Self { counter: Counter::new(counting) }
    }

    /// Where the branch that is executed now goes: as predicted, unless it is the one that the next message tells of. `None` if nobody
    /// has to predict it, or if the messages do not say.
    #[inline]
    pub fn branch(&mut self, predictors: &mut impl Predict, site: &Site, messages: &mut impl Messages) -> Option<Went> {
        if site.kind == Kind::Call {
            predictors.learn(site, Went::Taken(true));
            return None;
        }
        self.counter.branches += 1;
        let told = messages.branch(self.counter.branches, site.kind != Kind::Conditional);
        let predicted = predictors.predict(site);
        let went = match told {
            None => predicted?,
            Some(told) => {
                self.counter.reset();
                match (told, predicted) {
                    (Told::Otherwise, Some(Went::Taken(taken))) => Went::Taken(!taken),
                    (Told::Otherwise, _) => return None,
                    (Told::To(target), _) => Went::To(target),
                }
            }
        };
        predictors.learn(site, went);
        Some(went)
    }

    /// So many more instructions were executed, a branch as the last of them included.
    #[inline]
    pub fn instructions(&mut self, count: u64) {
        self.counter.instructions(count);
    }

    /// Where execution goes on now, if it does not where the branches say.
    #[inline]
    pub fn exception(&mut self, messages: &mut impl Messages) -> Option<u64> {
        let target = messages.exception(self.counter.instructions)?;
        self.counter.reset();
        Some(target)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes() -> Sizes {
        Sizes { gshare: 64, ras: 8, ibtb: 16, ..Sizes::default() }
    }

    fn site(kind: Kind, address: u64) -> Site {
        Site { kind, address, behind: address + 5 }
    }

    /// Myers 2014, Figure 4.31, and Tewar 2015, Figure 6.16: the first branch that is mispredicted is number 2 or number 1.
    #[test]
    fn counting_begins_at_one_or_at_two() {
        for (counting, first) in [(Counting::FromOne, 1), (Counting::FromTwo, 2)] {
            let (mut predictors, mut counter) = (Predictors::new(&sizes()).unwrap(), Counter::new(counting));
            let jump = site(Kind::Conditional, 0x1000);
            let told = counter.branch(&mut predictors, &jump, Went::Taken(true));
            assert_eq!(told, Some(Message::Outcome { branches: first }));
            assert_eq!(counter.branch(&mut predictors, &site(Kind::Conditional, 0x2000), Went::Taken(false)), None);
            let told = counter.branch(&mut predictors, &site(Kind::IndirectJump, 0x3000), Went::To(7));
            assert_eq!(told, Some(Message::Target { branches: first + 1, target: 7 }));
        }
    }

    #[test]
    fn calls_are_not_counted_but_remembered() {
        let (mut predictors, mut counter) = (Predictors::new(&sizes()).unwrap(), Counter::new(Counting::FromOne));
        assert_eq!(counter.branch(&mut predictors, &site(Kind::Call, 0x1000), Went::To(0x2000)), None);
        assert_eq!(counter.branch(&mut predictors, &site(Kind::Return, 0x2000), Went::To(0x1005)), None);
        let told = counter.branch(&mut predictors, &site(Kind::Return, 0x1005), Went::To(0x9999));
        assert_eq!(told, Some(Message::Target { branches: 2, target: 0x9999 }));
    }

    /// Something that happens: a branch, or an exception behind so many instructions.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Happening {
        Branch(Site, Went),
        Exception(u64),
    }

    fn happening() -> impl Strategy<Value = Happening> {
        let kinds =
            [Kind::Conditional, Kind::Conditional, Kind::Call, Kind::IndirectCall, Kind::IndirectJump, Kind::Return];
        (0usize..40, 0u64..64, 0u64..3, any::<bool>()).prop_map(move |(choice, place, target, taken)| {
            let Some(&kind) = kinds.get(choice % 7) else { return Happening::Exception(target) };
            let site = site(kind, place * 16);
            let went = if kind == Kind::Conditional { Went::Taken(taken) } else { Went::To(target * 16 + 5) };
            Happening::Branch(site, went)
        })
    }

    #[test]
    fn a_row_is_told_as_its_branches_are() {
        for gshare in [0, 64] {
            let mut predictors = Predictors::new(&Sizes { gshare, ..sizes() }).unwrap();
            let (mut images, mut counter) = (predictors.clone(), Counter::new(Counting::FromOne));
            let mut image = counter;
            for round in 0..20 {
                let row = [(0x1000, true), (0x2000, round % 3 == 0), (0x3000, false)];
                let mut points: Vec<Point> = Vec::new();
                row.iter().for_each(|&(address, taken)| points.push(Point::behind(points.last(), address, taken)));
                let (mut told, mut shown) = (Vec::new(), Vec::new());
                for point in &points {
                    match predictors.branch_in(point) {
                        true => counter.predicted(1),
                        false => told.push(counter.mispredicted()),
                    }
                }
                predictors.pass(&points);
                for (address, taken) in row {
                    shown.extend(image.branch(&mut images, &site(Kind::Conditional, address), Went::Taken(taken)));
                }
                assert_eq!(told, shown);
            }
        }
    }

    proptest! {
        #[test]
        fn the_mirror_shows_what_happened(
            happenings in proptest::collection::vec((0usize..3, 0u64..4, happening()), 0..500),
            shared in any::<bool>(), from_two in any::<bool>(), nothing in any::<bool>(),
        ) {
            let counting = if from_two { Counting::FromTwo } else { Counting::FromOne };
            let sizes = if nothing { Sizes { gshare: 0, ras: 0, ibtb: 0, ..sizes() } } else { sizes() };
            check_mirror(&happenings, &Predictors::new(&sizes).unwrap(), shared, counting)?;
            let tagged = TaggedPredictors::new(Budget::Small, sizes.ras).unwrap();
            check_mirror(&happenings, &tagged, shared, counting)?;
        }
    }

    /// Several threads, in any order, with predictors of their own or with those of all.
    fn check_mirror<P: Predict + Clone>(
        happenings: &[(usize, u64, Happening)],
        fresh: &P,
        shared: bool,
        counting: Counting,
    ) -> Result<(), TestCaseError> {
        let own = |thread: usize| if shared { 0 } else { thread };
        let mut predictors = vec![fresh.clone(); 3];
        let mut images = predictors.clone();
        let mut counters = [Counter::new(counting); 3];
        let mut messages = [const { Vec::new() }; 3];
        for &(thread, before, happening) in happenings {
            counters[thread].instructions(before);
            let message = match happening {
                Happening::Exception(target) => Some(counters[thread].exception(target)),
                Happening::Branch(site, went) => {
                    counters[thread].instructions(1);
                    counters[thread].branch(&mut predictors[own(thread)], &site, went)
                }
            };
            messages[thread].extend(message);
        }
        let mut mirrors = messages.map(|messages| (Mirror::new(counting), VecDeque::from(messages)));
        for &(thread, before, happening) in happenings {
            let (mirror, messages) = &mut mirrors[thread];
            mirror.instructions(before);
            match happening {
                Happening::Exception(target) => prop_assert_eq!(mirror.exception(messages), Some(target)),
                Happening::Branch(site, went) => {
                    mirror.instructions(1);
                    let shown = mirror.branch(&mut images[own(thread)], &site, messages);
                    prop_assert_eq!(shown, (site.kind != Kind::Call).then_some(went));
                }
            }
        }
        prop_assert!(mirrors.iter().all(|(_, messages)| messages.is_empty()));
        Ok(())
    }
}
