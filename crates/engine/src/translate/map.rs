//! The translation map: for every address of a fragment, the next application instruction and where
//! the application's registers are.

use entity::AppPc;

use super::Translator;

/// An entry of the translation map. It holds from `cache` (relative to the fragment's body) up to
/// the next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapEntry {
    pub cache: u16,
    /// The next application instruction, relative to the start of its block.
    pub offset: u16,
    /// Bytes of data that the instructions before it have stored, and perhaps [`super::IN_STRING`].
    pub data: u16,
    /// Index of the block in the superblock.
    pub block: u8,
    pub state: RegisterState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterState {
    /// All registers are the application's, except r15, which is the cursor.
    Cursor,
    /// All registers are the application's.
    App,
    /// As `Cursor`, but rcx and rdx are in their scratch places.
    Scratch,
    /// As `App`, but rcx and rdx are in their scratch places.
    ScratchApp,
    /// These registers are spilled; r15 is the cursor or, if the flag is set, the application's.
    Spilled(Spill, bool),
    /// Between safe points: the application's state is exact again a few instructions later.
    BetweenSafePoints,
}

/// Registers of the application that the engine has spilled, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spill {
    /// In rcx's scratch place.
    pub general: u8,
    /// In the third scratch place.
    pub third: u8,
    /// In the scratch place for the base of an operand relative to gs.
    pub segment: u8,
    /// A vector register.
    pub vector: u8,
    /// The flags before the current instruction are in the thread control block.
    pub flags: bool,
}

impl Spill {
    pub const NONE: u8 = 0xff;
}

impl Default for Spill {
    fn default() -> Self {
        Self { general: Self::NONE, third: Self::NONE, segment: Self::NONE, vector: Self::NONE, flags: false }
    }
}

impl Translator<'_, '_> {
    /// Adds the entry of the fragment's start.
    pub(super) fn open_map(&mut self) {
        self.result.map.push(MapEntry { cache: 0, offset: 0, data: 0, block: 0, state: RegisterState::Cursor });
    }

    /// Adds an entry for the code from here on.
    pub(super) fn map(&mut self, pc: AppPc, state: RegisterState) {
        let offset = (pc - self.block_address) as u16;
        let data = self.data.complete as u16;
        let entry = MapEntry { cache: self.offset(), offset, data, block: self.block, state };
        self.is_between_safe_points = state == RegisterState::BetweenSafePoints;
        self.result.map.push(entry);
    }

    /// Adds a safe point before the instruction at `pc` to the translation map.
    pub(super) fn map_safe_point(&mut self, pc: AppPc) {
        let state = match (self.spill == Spill::default(), self.has_app_r15) {
            (true, true) => RegisterState::App,
            (true, false) => RegisterState::Cursor,
            (false, has_app_r15) => RegisterState::Spilled(self.spill, has_app_r15),
        };
        self.map(pc, state);
    }

    /// Adds an entry between safe points.
    pub(super) fn map_between_safe_points(&mut self) {
        self.map(self.block_address, RegisterState::BetweenSafePoints);
    }

    fn offset(&self) -> u16 {
        (self.out.position() - self.start) as u16
    }
}
