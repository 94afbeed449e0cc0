//! Exits: how a path ends, and the code behind the superblock that leads there.

use entity::{AppPc, PathId};
use wire::code::TERMINATOR_INDIRECT;

use super::Translator;
use crate::cache_pc::CachePc;
use crate::emit::EXIT_STUB_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitKind {
    /// To `target`, through a jump that can be linked.
    Direct,
    /// Through the indirect-branch table.
    Indirect,
    /// A system call; `target` is the address of the instruction.
    Syscall,
    /// The engine executes the instruction at `target` and records its path.
    Emulated,
}

/// Set in an exit's number, beside the fragment's number: the code at the fragment's entry has
/// changed, and nothing has been executed.
pub const ENTRY_CHANGED: u32 = wire::word::EVENT;

/// An exit of a new fragment. Its path follows from its index: see
/// [`entity::FragmentId::path`].
#[derive(Clone, Copy, Debug)]
pub struct TranslatedExit {
    pub kind: ExitKind,
    pub target: AppPc,
    /// Address of the jump's displacement (direct exits).
    pub site: CachePc,
    /// Number of blocks executed.
    pub blocks: u16,
    /// Terminator of the last of them: one of `wire::code::TERMINATOR_*`.
    pub terminator: u32,
    /// Bytes of data behind the path's word.
    pub data: u32,
}

pub const STUB_STRIDE: usize = EXIT_STUB_BYTES + 2;

pub(super) struct SideExit {
    /// Position of the displacement that jumps here.
    pub(super) site: usize,
    pub(super) has_app_r15: bool,
    pub(super) blocks: u16,
    pub(super) data: usize,
    pub(super) target: SideTarget,
}

pub(super) enum SideTarget {
    Direct {
        target: AppPc,
        terminator: u32,
    },
    /// An indirect transfer did not go to this expected address; rcx is the difference.
    Indirect(AppPc),
    /// A locked instruction may follow another thread's; rcx, rdx and rsi are spilled.
    Timed {
        target: AppPc,
    },
    /// The next block's code has changed; rcx and rdx are spilled. `terminator` is that of the
    /// block before.
    Changed {
        target: AppPc,
        terminator: u32,
    },
}

impl Translator<'_, '_> {
    /// Number of blocks executed up to here.
    pub(super) fn blocks(&self) -> u16 {
        u16::from(self.block) + 1
    }

    /// The path to the next exit that is added.
    pub(super) fn next_path(&self) -> PathId {
        self.options.fragment.path(self.result.exits.len() as u32)
    }

    /// Adds an exit after `blocks` blocks and records its path.
    pub(super) fn record_exit(&mut self, kind: ExitKind, target: AppPc, blocks: u16, terminator: u32) {
        let path = self.next_path();
        let data = self.data.length as u32;
        if kind != ExitKind::Emulated {
            self.out.record(path.get(), data);
        }
        self.result.exits.push(TranslatedExit { kind, target, site: CachePc::NONE, blocks, terminator, data });
    }

    /// Exits after the current block through a linkable jump.
    pub(super) fn exit_to(&mut self, target: AppPc, terminator: u32) {
        self.exit_after(self.blocks(), target, terminator);
    }

    pub(super) fn exit_after(&mut self, blocks: u16, target: AppPc, terminator: u32) {
        self.require_cursor();
        self.map_between_safe_points();
        let stub = self.options.stub(self.result.exits.len());
        self.record_exit(ExitKind::Direct, target, blocks, terminator);
        self.jump_linkable(stub);
    }

    /// Emits the jump of the newest exit, to its stub at first.
    pub(super) fn jump_linkable(&mut self, stub: CachePc) {
        let position = self.out.jump_patchable(stub);
        let site = self.out.here() - (self.out.position() - position) as u64;
        if let Some(exit) = self.result.exits.last_mut() {
            exit.site = site;
        }
    }

    /// Exits to the application address in rcx.
    pub(super) fn exit_indirect(&mut self, blocks: u16) {
        self.record_exit(ExitKind::Indirect, AppPc::NONE, blocks, TERMINATOR_INDIRECT);
        self.out.jump_indirect(self.options.table);
    }

    /// Adds a side exit, which the displacement at `site` jumps to.
    pub(super) fn side_exit(&mut self, site: usize, target: SideTarget) {
        let (has_app_r15, blocks, data) = (self.has_app_r15, self.blocks(), self.data.length);
        self.side_exits.push(SideExit { site, has_app_r15, blocks, data, target });
    }

    /// Emits the code behind the superblock: side exits and literals.
    pub(super) fn finish(&mut self) {
        for miss in core::mem::take(&mut self.owner_misses) {
            self.emit_owner_miss(&miss);
        }
        for side_exit in core::mem::take(&mut self.side_exits) {
            self.emit_side_exit(&side_exit);
        }
        self.emit_literals();
    }

    fn emit_side_exit(&mut self, side_exit: &SideExit) {
        self.map_between_safe_points();
        self.out.land(side_exit.site);
        self.has_app_r15 = side_exit.has_app_r15;
        self.data.length = side_exit.data;
        match side_exit.target {
            SideTarget::Direct { target, terminator } => self.exit_after(side_exit.blocks, target, terminator),
            SideTarget::Timed { target } => self.exit_timed(side_exit.blocks, target),
            SideTarget::Changed { target, terminator } => self.exit_changed(side_exit.blocks, target, terminator),
            SideTarget::Indirect(expected) => {
                self.require_cursor();
                self.out.load_constant(2, expected.get());
                self.out.bytes(&[0x48, 0x8d, 0x0c, 0x11]); // lea rcx, [rcx + rdx]
                self.exit_indirect(side_exit.blocks);
            }
        }
    }

    fn emit_literals(&mut self) {
        if !self.literals.is_empty() {
            self.out.align(8);
        }
        for (position, value) in core::mem::take(&mut self.literals) {
            self.out.land(position);
            self.out.bytes(&value.to_le_bytes());
        }
    }
}
