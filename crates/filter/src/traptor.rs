//! TRaptor, the filter of control flow. A [`BranchEncoder`] asks predictors ([`Predict`]) about
//! each branch and emits a [`BranchMessage`] for each mispredict. The message carries the number of
//! branches since the previous message. A [`BranchDecoder`] reproduces all outcomes.

use std::collections::VecDeque;

use predict::{Budget, Gshare, Ibtb, IllegalSize, Ittage, Ras, RowBranch, Tage, Tagging, Victim};

/// A branch as the program defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BranchSite {
    pub kind: BranchKind,
    pub address: u64,
    /// Address of the next instruction. A call returns to it.
    pub fall_through: u64,
}

/// Kinds of branches that predictors see. Direct jumps are not among them: the program says where
/// they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchKind {
    Conditional,
    /// Direct. The program says where it goes, but it pushes a return address.
    Call,
    IndirectCall,
    IndirectJump,
    Return,
}

/// Outcome of an executed branch: direction of a conditional branch, target of any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchOutcome {
    Taken(bool),
    Target(u64),
}

/// Branch predictors. Encoder and decoder have the same ones in the same state.
pub trait Predict {
    /// Updates the predictors with an executed branch. Returns whether they predicted it, or `None`
    /// for a branch that is not predicted (a direct call).
    fn update(&mut self, site: &BranchSite, outcome: BranchOutcome) -> Option<bool>;
    /// Returns the predicted outcome.
    #[must_use]
    fn predict(&self, site: &BranchSite) -> Option<BranchOutcome>;
}

/// Numbers of entries of the predictors, and how they look up and replace entries.
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
    /// The largest configuration of Myers 2014, chapter 6, in variants that can be decoded.
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

/// Static prediction of conditional branches if gshare has no entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StaticPrediction {
    /// Not taken, so that only taken branches need a message.
    #[default]
    NotTaken,
    /// No prediction: every branch emits a message, as in Myers 2014. A message does not contain
    /// the direction, so this cannot be decoded.
    Absent,
}

/// The predictors of the theses: gshare, a return address stack, and an indirect branch target
/// buffer.
#[derive(Clone, Debug)]
pub struct Predictors {
    gshare: Gshare,
    ras: Ras,
    ibtb: Ibtb,
    /// Replaces gshare if it has no entries.
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

    /// Records a direct call that returns to `return_address`.
    #[inline]
    pub fn push_return(&mut self, return_address: u64) {
        self.ras.push(return_address);
    }

    /// Updates the return address stack with a return to `target`. Returns whether it was
    /// predicted.
    #[inline]
    pub fn update_return(&mut self, target: u64) -> bool {
        self.ras.pop_matches(target)
    }

    /// Returns how many leading branches of a row are predicted with saturated counters, so that an
    /// update by them changes nothing.
    #[must_use]
    #[inline]
    pub fn saturated_prefix(&self, row: &[RowBranch]) -> usize {
        self.gshare.saturated_prefix(row)
    }

    /// Updates gshare with the next conditional branch of a row and returns whether it was
    /// predicted. The caller continues with the other branches of the row and then calls
    /// [`Self::finish_row`].
    #[inline]
    pub fn update_in_row(&mut self, point: &RowBranch) -> bool {
        match self.fixed {
            None => self.gshare.update_in_row(point),
            Some(fixed) => fixed == StaticPrediction::NotTaken && !point.is_taken(),
        }
    }

    /// Moves the history past a row whose updates are complete. Returns whether the next pass over
    /// the same row finds the same entries.
    #[inline]
    pub fn finish_row(&mut self, row: &[RowBranch]) -> bool {
        self.gshare.finish_row(row)
    }
}

impl Predict for Predictors {
    #[inline]
    fn update(&mut self, site: &BranchSite, outcome: BranchOutcome) -> Option<bool> {
        let is_correct = match (site.kind, outcome) {
            (BranchKind::Conditional, BranchOutcome::Taken(taken)) => match self.fixed {
                None => self.gshare.update(site.address, taken),
                Some(fixed) => fixed == StaticPrediction::NotTaken && !taken,
            },
            (BranchKind::Return, BranchOutcome::Target(target)) => self.ras.pop_matches(target),
            (BranchKind::IndirectCall | BranchKind::IndirectJump, BranchOutcome::Target(target)) => {
                self.ibtb.update(site.address, target)
            }
            (BranchKind::Call, _) => {
                self.ras.push(site.fall_through);
                return None;
            }
            // The outcome does not fit the kind.
            _ => false,
        };
        if site.kind == BranchKind::IndirectCall {
            self.ras.push(site.fall_through);
        }
        Some(is_correct)
    }

    #[inline]
    fn predict(&self, site: &BranchSite) -> Option<BranchOutcome> {
        match site.kind {
            BranchKind::Conditional => match self.fixed {
                None => self.gshare.predict(site.address).map(BranchOutcome::Taken),
                Some(fixed) => (fixed == StaticPrediction::NotTaken).then_some(BranchOutcome::Taken(false)),
            },
            BranchKind::Return => self.ras.top().map(|(_, target)| BranchOutcome::Target(target)),
            BranchKind::IndirectCall | BranchKind::IndirectJump => {
                self.ibtb.predict(site.address).map(BranchOutcome::Target)
            }
            BranchKind::Call => None,
        }
    }
}

/// The predictors of current processors: TAGE, a return address stack, and ITTAGE.
#[derive(Clone, Debug)]
pub struct TaggedPredictors {
    tage: Tage,
    ras: Ras,
    ittage: Ittage,
}

impl TaggedPredictors {
    /// `ras` is the number of entries of the return address stack.
    pub fn new(budget: Budget, ras: usize) -> Result<Self, IllegalSize> {
        Ok(Self { tage: Tage::new(budget), ras: Ras::new(ras)?, ittage: Ittage::new(budget) })
    }
}

impl Predict for TaggedPredictors {
    fn update(&mut self, site: &BranchSite, outcome: BranchOutcome) -> Option<bool> {
        let &BranchSite { kind, address, fall_through } = site;
        if matches!(kind, BranchKind::Call | BranchKind::IndirectCall) {
            self.ras.push(fall_through);
        }
        match (kind, outcome) {
            (BranchKind::Conditional, BranchOutcome::Taken(taken)) => {
                self.ittage.record_outcome(address, taken);
                Some(self.tage.update(address, taken))
            }
            // The program says where a direct call goes; it only enters the history.
            (BranchKind::Call, _) => {
                self.tage.record_transfer(address, fall_through);
                self.ittage.record_transfer(address, fall_through);
                None
            }
            (BranchKind::Return, BranchOutcome::Target(target)) => {
                self.tage.record_transfer(address, target);
                self.ittage.record_transfer(address, target);
                Some(self.ras.pop_matches(target))
            }
            (BranchKind::IndirectCall | BranchKind::IndirectJump, BranchOutcome::Target(target)) => {
                self.tage.record_transfer(address, target);
                Some(self.ittage.update(address, target))
            }
            // The outcome does not fit the kind.
            _ => Some(false),
        }
    }

    fn predict(&self, site: &BranchSite) -> Option<BranchOutcome> {
        match site.kind {
            BranchKind::Conditional => Some(BranchOutcome::Taken(self.tage.predict(site.address))),
            BranchKind::Return => self.ras.top().map(|(_, target)| BranchOutcome::Target(target)),
            BranchKind::IndirectCall | BranchKind::IndirectJump => {
                self.ittage.predict(site.address).map(BranchOutcome::Target)
            }
            BranchKind::Call => None,
        }
    }
}

/// First branch number after a message.
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

/// A message of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchMessage {
    /// A conditional branch was mispredicted.
    Outcome { branches: u64 },
    /// An indirect branch was mispredicted.
    Target { branches: u64, target: u64 },
    /// Execution continued at `target` after this number of instructions, without a branch.
    Exception { instructions: u64, target: u64 },
}

/// Encoder of one thread: counts branches and instructions since the last message.
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

    /// Counts executed instructions, including a branch at their end.
    #[inline]
    pub fn add_instructions(&mut self, count: u64) {
        self.instructions += count;
    }

    /// Encodes an executed branch. Returns a message if the branch was mispredicted.
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

    /// Counts branches that were predicted correctly.
    #[inline]
    pub fn add_predicted(&mut self, branches: u64) {
        self.branches += branches;
    }

    /// Encodes a mispredicted conditional branch.
    #[inline]
    pub fn encode_misprediction(&mut self) -> BranchMessage {
        let branches = self.branches + 1;
        self.reset();
        BranchMessage::Outcome { branches }
    }

    /// Encodes a mispredicted branch to `target`.
    #[inline]
    pub fn encode_target(&mut self, target: u64) -> BranchMessage {
        let branches = self.branches + 1;
        self.reset();
        BranchMessage::Target { branches, target }
    }

    /// Encodes that execution continued at `target` without a branch.
    pub fn encode_exception(&mut self, target: u64) -> BranchMessage {
        let instructions = self.instructions;
        self.reset();
        BranchMessage::Exception { instructions, target }
    }
}

/// Content of a message about a branch, as a decoder takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchCorrection {
    /// A conditional branch was mispredicted.
    Mispredicted,
    /// The indirect branch went to this target.
    Target(u64),
}

/// Source of a decoder's messages. A message must be available before its branch is decoded.
pub trait BranchMessageSource {
    /// Takes the message about branch number `branches`; `None` if there is none.
    fn take_branch(&mut self, branches: u64, is_indirect: bool) -> Option<BranchCorrection>;
    /// Takes the target of an exception after `instructions` instructions; `None` if there is none.
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

/// Decoder of one thread, the inverse of [`BranchEncoder`]: takes messages and returns branch
/// outcomes.
#[derive(Clone, Copy, Debug)]
pub struct BranchDecoder {
    encoder: BranchEncoder,
}

impl BranchDecoder {
    #[must_use]
    pub fn new(count_start: CountStart) -> Self {
        Self { encoder: BranchEncoder::new(count_start) }
    }

    /// Returns the outcome of the branch that is executed now: the prediction, unless the next
    /// message corrects it. Returns `None` for a direct call, or if the messages do not determine
    /// the outcome.
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

    /// Counts executed instructions, including a branch at their end.
    #[inline]
    pub fn add_instructions(&mut self, count: u64) {
        self.encoder.add_instructions(count);
    }

    /// Returns where execution continues, if the next message is an exception at this instruction.
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

    /// Myers 2014, Figure 4.31, and Tewar 2015, Figure 6.16: the first mispredicted branch is
    /// number 2 or number 1.
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

    /// An event of a thread: a branch, or an exception after some instructions.
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
                let mut points: Vec<RowBranch> = Vec::new();
                row.iter().for_each(|&(address, taken)| points.push(RowBranch::after(points.last(), address, taken)));
                let (mut messages, mut decoded) = (Vec::new(), Vec::new());
                for point in &points {
                    match predictors.update_in_row(point) {
                        true => encoder.add_predicted(1),
                        false => messages.push(encoder.encode_misprediction()),
                    }
                }
                predictors.finish_row(&points);
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

    /// Encodes and decodes several threads in any order, with private or shared predictors.
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
