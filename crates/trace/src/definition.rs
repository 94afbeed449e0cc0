//! Definitions of code: one as a sink hands it over or a file holds it, and a list of them that is
//! kept.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::ops::Range;

use entity::{AppPc, BlockId, FragmentId};
use wire::code::{AccessDescriptor, FragmentBlock, FragmentExit};

use crate::model::{AccessDescriptors, Fragment};

/// A definition of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Definition<'a> {
    Block { image: u32, id: BlockId, address: AppPc, code: &'a [u8] },
    Fragment { image: u32, fragment: Fragment<'a> },
    AccessDescriptors(AccessDescriptors<'a>),
}

/// Definitions in the order in which they were added.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    kept: Vec<KeptDefinition>,
    /// The code of all blocks.
    code: Vec<u8>,
    /// Of all fragments.
    blocks: Vec<FragmentBlock>,
    exits: Vec<FragmentExit>,
    /// Of all access descriptors.
    lengths: Vec<u32>,
    accesses: Vec<AccessDescriptor>,
}

/// A definition whose slices are in the vectors of [`Definitions`].
#[derive(Debug)]
enum KeptDefinition {
    Block { image: u32, id: BlockId, address: AppPc, code: Range<usize> },
    Fragment { image: u32, fragment: FragmentId, blocks: Range<usize>, exits: Range<usize> },
    AccessDescriptors { fragment: FragmentId, lengths: Range<usize>, accesses: Range<usize> },
}

impl Definitions {
    /// Returns the code of all blocks, one after the other.
    pub(crate) fn code(&self) -> &[u8] {
        &self.code
    }

    pub(crate) fn push(&mut self, definition: &Definition<'_>) {
        self.kept.push(match *definition {
            Definition::Block { image, id, address, code } => {
                KeptDefinition::Block { image, id, address, code: append(&mut self.code, code) }
            }
            Definition::Fragment { image, fragment: Fragment { fragment, blocks, exits } } => {
                let (blocks, exits) = (append(&mut self.blocks, blocks), append(&mut self.exits, exits));
                KeptDefinition::Fragment { image, fragment, blocks, exits }
            }
            Definition::AccessDescriptors(AccessDescriptors { fragment, lengths, accesses }) => {
                let (lengths, accesses) = (append(&mut self.lengths, lengths), append(&mut self.accesses, accesses));
                KeptDefinition::AccessDescriptors { fragment, lengths, accesses }
            }
        });
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Definition<'_>> {
        self.kept.iter().map(|kept| match *kept {
            KeptDefinition::Block { image, id, address, ref code } => {
                Definition::Block { image, id, address, code: part(&self.code, code) }
            }
            KeptDefinition::Fragment { image, fragment, ref blocks, ref exits } => {
                let (blocks, exits) = (part(&self.blocks, blocks), part(&self.exits, exits));
                Definition::Fragment { image, fragment: Fragment { fragment, blocks, exits } }
            }
            KeptDefinition::AccessDescriptors { fragment, ref lengths, ref accesses } => {
                let (lengths, accesses) = (part(&self.lengths, lengths), part(&self.accesses, accesses));
                Definition::AccessDescriptors(AccessDescriptors { fragment, lengths, accesses })
            }
        })
    }
}

/// Appends `new` and returns where it is.
fn append<T: Copy>(all: &mut Vec<T>, new: &[T]) -> Range<usize> {
    let start = all.len();
    all.extend_from_slice(new);
    start..all.len()
}

fn part<'a, T>(all: &'a [T], range: &Range<usize>) -> &'a [T] {
    all.get(range.clone()).unwrap_or(&[])
}
