//! Control flow: only what the predictors did not know is told, with the number of branches since the last time.

use std::collections::VecDeque;

use predict::{Budget, Gshare, Ibtb, IllegalSize, Ittage, Point, Ras, Tage, Tagging, Victim};

/// What the program tells of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchSite {
    pub kind: BranchKind,
    pub address: u64,
    /// The instruction behind it.
    pub fall_through: u64,
}

/// Kinds of branches that make a difference. Direct jumps do not: everybody knows where they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchKind {
    Conditional,
    /// Direct. Everybody knows where it goes, too, but it returns.
    Call,
    IndirectCall,
    IndirectJump,
    Return,
}

/// What only execution tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchOutcome {
    Taken(bool),
    Target(u64),
}

/// What predicts where branches go. Whoever filters and whoever follows have the same.
pub trait Predict {
    /// A branch went somewhere: learns, and says whether that was predicted. `None` if nobody has to predict it.
    fn update(&mut self, site: &BranchSite, outcome: BranchOutcome) -> Option<bool>;
    /// Where a branch is predicted to go.
    #[must_use]
    fn predict(&self, site: &BranchSite) -> Option<BranchOutcome>;
}

/// How many entries the predictors have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictorSizes {
    pub gshare: usize,
    pub ras: usize,
    pub ibtb: usize,
    pub tagging: Tagging,
    pub victim: Victim,
    pub without_gshare: StaticPrediction,
}

impl Default for PredictorSizes {
    /// The largest of Myers 2014, chapter 6, in ways that can be decoded.
    fn default() -> Self {
        Self {
            gshare: 4096,
            ras: 32,
            ibtb: 64,
            tagging: Tagging::default(),
            victim: Victim::default(),
            without_gshare: StaticPrediction::default(),
        }
    }
}

/// What is said of conditional branches if gshare has no entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StaticPrediction {
    /// That they are not taken, so that only those that are must be told.
    #[default]
    NotTaken,
    /// Nothing: all are told, as in Myers 2014. As a message does not say which way the branch went, this cannot be decoded.
    Absent,
}

/// Those of the theses: gshare, a return stack and a target buffer.
#[derive(Clone, Debug)]
pub struct Predictors {
    gshare: Gshare,
    ras: Ras,
    ibtb: Ibtb,
    /// In place of gshare if it has no entries.
    fixed: Option<StaticPrediction>,
}

impl Predictors {
    pub fn new(sizes: &PredictorSizes) -> Result<Self, IllegalSize> {
        Ok(Self {
            gshare: Gshare::new(sizes.gshare)?,
            ras: Ras::new(sizes.ras)?,
            ibtb: Ibtb::new(sizes.ibtb, sizes.tagging)?.with_victim(sizes.victim),
            fixed: (sizes.gshare == 0).then_some(sizes.without_gshare),
        })
    }

    /// A direct call was executed, which will return to `fall_through`.
    #[inline]
    pub fn push_return(&mut self, fall_through: u64) {
        self.ras.call(fall_through);
    }

    /// A return went to `target`: learns, and says whether it was predicted.
    #[inline]
    pub fn update_return(&mut self, target: u64) -> bool {
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
            Some(fixed) => fixed == StaticPrediction::NotTaken && !point.is_taken(),
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
    fn update(&mut self, site: &BranchSite, outcome: BranchOutcome) -> Option<bool> {
        let is_correct = match (site.kind, outcome) {
            (BranchKind::Conditional, BranchOutcome::Taken(taken)) => match self.fixed {
                None => self.gshare.branch(site.address, taken),
                Some(fixed) => fixed == StaticPrediction::NotTaken && !taken,
            },
            (BranchKind::Return, BranchOutcome::Target(target)) => self.ras.ret(target),
            (BranchKind::IndirectCall | BranchKind::IndirectJump, BranchOutcome::Target(target)) => {
                self.ibtb.branch(site.address, target)
            }
            (BranchKind::Call, _) => {
                self.ras.call(site.fall_through);
                return None;
            }
            // An answer to another question.
            _ => false,
        };
        if site.kind == BranchKind::IndirectCall {
            self.ras.call(site.fall_through);
        }
        Some(is_correct)
    }

    #[inline]
    fn predict(&self, site: &BranchSite) -> Option<BranchOutcome> {
        match site.kind {
            BranchKind::Conditional => match self.fixed {
                None => self.gshare.prediction(site.address).map(BranchOutcome::Taken),
                Some(fixed) => (fixed == StaticPrediction::NotTaken).then_some(BranchOutcome::Taken(false)),
            },
            BranchKind::Return => self.ras.top().map(|(_, target)| BranchOutcome::Target(target)),
            BranchKind::IndirectCall | BranchKind::IndirectJump => {
                self.ibtb.prediction(site.address).map(BranchOutcome::Target)
            }
            BranchKind::Call => None,
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
    fn update(&mut self, site: &BranchSite, outcome: BranchOutcome) -> Option<bool> {
        let &BranchSite { kind, address, fall_through } = site;
        if matches!(kind, BranchKind::Call | BranchKind::IndirectCall) {
            self.ras.call(fall_through);
        }
        match (kind, outcome) {
            (BranchKind::Conditional, BranchOutcome::Taken(taken)) => {
                self.ittage.note(address, taken);
                Some(self.tage.branch(address, taken))
            }
            // Where a direct call goes is no news to anybody.
            (BranchKind::Call, _) => {
                self.tage.pass(address, fall_through);
                self.ittage.pass(address, fall_through);
                None
            }
            (BranchKind::Return, BranchOutcome::Target(target)) => {
                self.tage.pass(address, target);
                self.ittage.pass(address, target);
                Some(self.ras.ret(target))
            }
            (BranchKind::IndirectCall | BranchKind::IndirectJump, BranchOutcome::Target(target)) => {
                self.tage.pass(address, target);
                Some(self.ittage.branch(address, target))
            }
            // An answer to another question.
            _ => Some(false),
        }
    }

    fn predict(&self, site: &BranchSite) -> Option<BranchOutcome> {
        match site.kind {
            BranchKind::Conditional => Some(BranchOutcome::Taken(self.tage.prediction(site.address))),
            BranchKind::Return => self.ras.top().map(|(_, target)| BranchOutcome::Target(target)),
            BranchKind::IndirectCall | BranchKind::IndirectJump => {
                self.ittage.prediction(site.address).map(BranchOutcome::Target)
            }
            BranchKind::Call => None,
        }
    }
}

/// Where counting begins again after a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CountStart {
    /// The first branch is number 1, as in Tewar 2015.
    #[default]
    FromOne,
    /// The first branch is number 2, as in Myers 2014, Figure 4.31.
    FromTwo,
}

impl CountStart {
    fn start(self) -> u64 {
        match self {
            Self::FromOne => 0,
            Self::FromTwo => 1,
        }
    }
}

/// What is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchMessage {
    /// A conditional branch did not go where it was predicted to.
    Outcome { branches: u64 },
    /// Nor did an indirect one.
    Target { branches: u64, target: u64 },
    /// After so many instructions, execution went on elsewhere.
    Exception { instructions: u64, target: u64 },
}

/// The filter's own part of a thread.
#[derive(Clone, Copy, Debug)]
pub struct BranchEncoder {
    count_start: CountStart,
    branches: u64,
    instructions: u64,
}

impl BranchEncoder {
    #[must_use]
    pub fn new(count_start: CountStart) -> Self {
        Self { count_start, branches: count_start.start(), instructions: 0 }
    }

    fn reset(&mut self) {
        *self = Self::new(self.count_start);
    }

    /// So many instructions were executed, a branch as the last of them included.
    #[inline]
    pub fn add_instructions(&mut self, count: u64) {
        self.instructions += count;
    }

    /// A branch was executed; gives the message, if one is needed.
    #[inline]
    pub fn encode_branch(
        &mut self,
        predictors: &mut impl Predict,
        site: &BranchSite,
        outcome: BranchOutcome,
    ) -> Option<BranchMessage> {
        let is_correct = predictors.update(site, outcome)?;
        self.branches += 1;
        if is_correct {
            return None;
        }
        let branches = self.branches;
        self.reset();
        Some(match outcome {
            BranchOutcome::Taken(_) => BranchMessage::Outcome { branches },
            BranchOutcome::Target(target) => BranchMessage::Target { branches, target },
        })
    }

    /// So many branches were executed, which all were predicted.
    #[inline]
    pub fn add_predicted(&mut self, branches: u64) {
        self.branches += branches;
    }

    /// A conditional branch was executed, which was not predicted.
    #[inline]
    pub fn encode_misprediction(&mut self) -> BranchMessage {
        let branches = self.branches + 1;
        self.reset();
        BranchMessage::Outcome { branches }
    }

    /// A branch to `target` was executed, which was not predicted.
    #[inline]
    pub fn encode_target(&mut self, target: u64) -> BranchMessage {
        let branches = self.branches + 1;
        self.reset();
        BranchMessage::Target { branches, target }
    }

    /// Something else than a branch made execution go on at `target`.
    pub fn encode_exception(&mut self, target: u64) -> BranchMessage {
        let instructions = self.instructions;
        self.reset();
        BranchMessage::Exception { instructions, target }
    }
}

/// What a mirror image is told of a branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchCorrection {
    /// A conditional branch did not go where it was predicted to.
    Mispredicted,
    /// An indirect one went here.
    Target(u64),
}

/// Where a mirror image gets its messages from. One has to come before the branch that it tells of.
pub trait BranchMessageSource {
    /// Takes what is told of the branch with this number; `None` if nothing is.
    fn take_branch(&mut self, branches: u64, is_indirect: bool) -> Option<BranchCorrection>;
    /// Takes where execution went on behind so many instructions, if that is told.
    fn take_exception(&mut self, instructions: u64) -> Option<u64>;
}

impl BranchMessageSource for VecDeque<BranchMessage> {
    fn take_branch(&mut self, number: u64, is_indirect: bool) -> Option<BranchCorrection> {
        let correction = match self.front().copied() {
            Some(BranchMessage::Outcome { branches }) if branches == number && !is_indirect => {
                BranchCorrection::Mispredicted
            }
            Some(BranchMessage::Target { branches, target }) if branches == number && is_indirect => {
                BranchCorrection::Target(target)
            }
            _ => return None,
        };
        self.pop_front();
        Some(correction)
    }

    fn take_exception(&mut self, number: u64) -> Option<u64> {
        match self.front().copied() {
            Some(BranchMessage::Exception { instructions, target }) if instructions == number => {
                self.pop_front();
                Some(target)
            }
            _ => None,
        }
    }
}

/// The mirror image of a [`BranchEncoder`]: takes its messages and says where branches went.
#[derive(Clone, Copy, Debug)]
pub struct BranchDecoder {
    encoder: BranchEncoder,
}

impl BranchDecoder {
    #[must_use]
    pub fn new(count_start: CountStart) -> Self {
        Self { encoder: BranchEncoder::new(count_start) }
    }

    /// Where the branch that is executed now goes: as predicted, unless it is the one that the next message tells of. `None` if nobody
    /// has to predict it, or if the messages do not say.
    #[inline]
    pub fn decode_branch(
        &mut self,
        predictors: &mut impl Predict,
        site: &BranchSite,
        messages: &mut impl BranchMessageSource,
    ) -> Option<BranchOutcome> {
        if site.kind == BranchKind::Call {
            predictors.update(site, BranchOutcome::Taken(true));
            return None;
        }
        self.encoder.branches += 1;
        let correction = messages.take_branch(self.encoder.branches, site.kind != BranchKind::Conditional);
        let predicted = predictors.predict(site);
        let outcome = match correction {
            None => predicted?,
            Some(correction) => {
                self.encoder.reset();
                match (correction, predicted) {
                    (BranchCorrection::Mispredicted, Some(BranchOutcome::Taken(taken))) => BranchOutcome::Taken(!taken),
                    (BranchCorrection::Mispredicted, _) => return None,
                    (BranchCorrection::Target(target), _) => BranchOutcome::Target(target),
                }
            }
        };
        predictors.update(site, outcome);
        Some(outcome)
    }

    /// So many more instructions were executed, a branch as the last of them included.
    #[inline]
    pub fn add_instructions(&mut self, count: u64) {
        self.encoder.add_instructions(count);
    }

    /// Where execution goes on now, if it does not where the branches say.
    #[inline]
    pub fn decode_exception(&mut self, messages: &mut impl BranchMessageSource) -> Option<u64> {
        let target = messages.take_exception(self.encoder.instructions)?;
        self.encoder.reset();
        Some(target)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes() -> PredictorSizes {
        PredictorSizes { gshare: 64, ras: 8, ibtb: 16, ..PredictorSizes::default() }
    }

    fn site(kind: BranchKind, address: u64) -> BranchSite {
        BranchSite { kind, address, fall_through: address + 5 }
    }

    /// Myers 2014, Figure 4.31, and Tewar 2015, Figure 6.16: the first branch that is mispredicted is number 2 or number 1.
    #[test]
    fn counting_begins_at_one_or_at_two() {
        for (count_start, first) in [(CountStart::FromOne, 1), (CountStart::FromTwo, 2)] {
            let (mut predictors, mut encoder) = (Predictors::new(&sizes()).unwrap(), BranchEncoder::new(count_start));
            let jump = site(BranchKind::Conditional, 0x1000);
            let message = encoder.encode_branch(&mut predictors, &jump, BranchOutcome::Taken(true));
            assert_eq!(message, Some(BranchMessage::Outcome { branches: first }));
            assert_eq!(
                encoder.encode_branch(
                    &mut predictors,
                    &site(BranchKind::Conditional, 0x2000),
                    BranchOutcome::Taken(false)
                ),
                None
            );
            let message = encoder.encode_branch(
                &mut predictors,
                &site(BranchKind::IndirectJump, 0x3000),
                BranchOutcome::Target(7),
            );
            assert_eq!(message, Some(BranchMessage::Target { branches: first + 1, target: 7 }));
        }
    }

    #[test]
    fn calls_are_not_counted_but_pushed_onto_the_return_stack() {
        let (mut predictors, mut encoder) =
            (Predictors::new(&sizes()).unwrap(), BranchEncoder::new(CountStart::FromOne));
        assert_eq!(
            encoder.encode_branch(&mut predictors, &site(BranchKind::Call, 0x1000), BranchOutcome::Target(0x2000)),
            None
        );
        assert_eq!(
            encoder.encode_branch(&mut predictors, &site(BranchKind::Return, 0x2000), BranchOutcome::Target(0x1005)),
            None
        );
        let message =
            encoder.encode_branch(&mut predictors, &site(BranchKind::Return, 0x1005), BranchOutcome::Target(0x9999));
        assert_eq!(message, Some(BranchMessage::Target { branches: 2, target: 0x9999 }));
    }

    /// Something that happens: a branch, or an exception behind so many instructions.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum ThreadEvent {
        Branch(BranchSite, BranchOutcome),
        Exception(u64),
    }

    fn event() -> impl Strategy<Value = ThreadEvent> {
        let kinds = [
            BranchKind::Conditional,
            BranchKind::Conditional,
            BranchKind::Call,
            BranchKind::IndirectCall,
            BranchKind::IndirectJump,
            BranchKind::Return,
        ];
        (0usize..40, 0u64..64, 0u64..3, any::<bool>()).prop_map(move |(choice, place, target, taken)| {
            let Some(&kind) = kinds.get(choice % 7) else { return ThreadEvent::Exception(target) };
            let site = site(kind, place * 16);
            let outcome = if kind == BranchKind::Conditional {
                BranchOutcome::Taken(taken)
            } else {
                BranchOutcome::Target(target * 16 + 5)
            };
            ThreadEvent::Branch(site, outcome)
        })
    }

    #[test]
    fn a_row_gives_the_messages_of_its_branches() {
        for gshare in [0, 64] {
            let mut predictors = Predictors::new(&PredictorSizes { gshare, ..sizes() }).unwrap();
            let (mut other_predictors, mut encoder) = (predictors.clone(), BranchEncoder::new(CountStart::FromOne));
            let mut other_encoder = encoder;
            for round in 0..20 {
                let row = [(0x1000, true), (0x2000, round % 3 == 0), (0x3000, false)];
                let mut points: Vec<Point> = Vec::new();
                row.iter().for_each(|&(address, taken)| points.push(Point::behind(points.last(), address, taken)));
                let (mut messages, mut decoded) = (Vec::new(), Vec::new());
                for point in &points {
                    match predictors.branch_in(point) {
                        true => encoder.add_predicted(1),
                        false => messages.push(encoder.encode_misprediction()),
                    }
                }
                predictors.pass(&points);
                for (address, taken) in row {
                    decoded.extend(other_encoder.encode_branch(
                        &mut other_predictors,
                        &site(BranchKind::Conditional, address),
                        BranchOutcome::Taken(taken),
                    ));
                }
                assert_eq!(messages, decoded);
            }
        }
    }

    proptest! {
        #[test]
        fn decoders_reproduce_every_event(
            events in proptest::collection::vec((0usize..3, 0u64..4, event()), 0..500),
            shared in any::<bool>(), from_two in any::<bool>(), nothing in any::<bool>(),
        ) {
            let count_start = if from_two { CountStart::FromTwo } else { CountStart::FromOne };
            let sizes = if nothing { PredictorSizes { gshare: 0, ras: 0, ibtb: 0, ..sizes() } } else { sizes() };
            check_decoder(&events, &Predictors::new(&sizes).unwrap(), shared, count_start)?;
            let tagged = TaggedPredictors::new(Budget::Small, sizes.ras).unwrap();
            check_decoder(&events, &tagged, shared, count_start)?;
        }
    }

    /// Several threads, in any order, with predictors of their own or with those of all.
    fn check_decoder<P: Predict + Clone>(
        events: &[(usize, u64, ThreadEvent)],
        fresh: &P,
        shared: bool,
        count_start: CountStart,
    ) -> Result<(), TestCaseError> {
        let own = |thread: usize| if shared { 0 } else { thread };
        let mut predictors = vec![fresh.clone(); 3];
        let mut other_predictors = predictors.clone();
        let mut encoders = [BranchEncoder::new(count_start); 3];
        let mut messages = [const { Vec::new() }; 3];
        for &(thread, before, event) in events {
            encoders[thread].add_instructions(before);
            let message = match event {
                ThreadEvent::Exception(target) => Some(encoders[thread].encode_exception(target)),
                ThreadEvent::Branch(site, outcome) => {
                    encoders[thread].add_instructions(1);
                    encoders[thread].encode_branch(&mut predictors[own(thread)], &site, outcome)
                }
            };
            messages[thread].extend(message);
        }
        let mut decoders = messages.map(|messages| (BranchDecoder::new(count_start), VecDeque::from(messages)));
        for &(thread, before, event) in events {
            let (decoder, messages) = &mut decoders[thread];
            decoder.add_instructions(before);
            match event {
                ThreadEvent::Exception(target) => prop_assert_eq!(decoder.decode_exception(messages), Some(target)),
                ThreadEvent::Branch(site, outcome) => {
                    decoder.add_instructions(1);
                    let decoded = decoder.decode_branch(&mut other_predictors[own(thread)], &site, messages);
                    prop_assert_eq!(decoded, (site.kind != BranchKind::Call).then_some(outcome));
                }
            }
        }
        prop_assert!(decoders.iter().all(|(_, messages)| messages.is_empty()));
        Ok(())
    }
}
