//! Every instruction of a program once, found by its address.

use hashbrown::HashMap;
use trace::{BlockIndex, Blocks};

use crate::set::{Stretch, Trace};

/// Where an instruction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    pub block: BlockIndex,
    /// Among the instructions of the block.
    pub place: u32,
}

/// The instructions of a program, each with a number of its own even if several blocks have it. Where code was changed, the code that was executed first counts.
#[derive(Clone, Debug)]
pub struct Listing<'b> {
    blocks: &'b Blocks,
    /// By image and address.
    spots: HashMap<(u32, u64), Spot>,
    /// Of every instruction of every block: its number.
    numbers: Vec<u32>,
    /// Where a block's numbers begin.
    firsts: Vec<usize>,
}

impl<'b> Listing<'b> {
    #[must_use]
    pub fn new(blocks: &'b Blocks) -> Self {
        let mut listing = Self { blocks, spots: HashMap::new(), numbers: Vec::new(), firsts: Vec::new() };
        for (index, block) in (0..).zip(blocks.iter()) {
            listing.firsts.push(listing.numbers.len());
            for (place, instruction) in (0..).zip(block.instructions()) {
                let spot = Spot { block: BlockIndex(index), place };
                let first = *listing.spots.entry((block.image(), instruction.address)).or_insert(spot);
                let number = if first == spot { listing.numbers.len() as u32 } else { listing.number(first) };
                listing.numbers.push(number);
            }
        }
        listing
    }

    #[must_use]
    pub fn blocks(&self) -> &'b Blocks {
        self.blocks
    }

    /// Numbers are smaller than this.
    #[must_use]
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The number of an instruction, the same wherever it is met.
    #[must_use]
    pub fn number(&self, spot: Spot) -> u32 {
        self.numbers[self.firsts[spot.block.0 as usize] + spot.place as usize]
    }

    /// The instructions of a stretch of an image; fewer if nobody knows the code.
    pub fn walk(&self, image: u32, stretch: Stretch) -> impl Iterator<Item = Spot> + '_ {
        let mut at = self.spots.get(&(image, stretch.address)).copied();
        (0..stretch.instructions).map_while(move |_| {
            let spot = at?;
            let block = self.blocks.get(spot.block)?;
            let next = Spot { place: spot.place + 1, ..spot };
            let is_inside = next.place < block.instruction_count();
            at = if is_inside { Some(next) } else { self.spots.get(&(image, block.end())).copied() };
            Some(spot)
        })
    }

    /// The instructions of a trace.
    pub fn path<'l>(&'l self, trace: &'l Trace) -> impl Iterator<Item = Spot> + 'l {
        trace.stretches.iter().flat_map(|&stretch| self.walk(trace.image, stretch))
    }
}
