//! Links: how the exit of one fragment jumps to the body of another one without the dispatcher.
//!
//! An unlinked [`ExitLink`] jumps to its exit stub, which leaves the code cache. The dispatcher
//! links a direct exit when it has found the target; dropping or replacing the target unlinks it.

use core::sync::atomic::{AtomicU64, Ordering};

use entity::{AppPc, FragmentId, PathId};

use crate::cache_pc::CachePc;
use crate::engine::Engine;
use crate::fragment::{Fragment, FragmentRef, NO_FRAGMENT};
use crate::translate::{ExitKind, STUB_STRIDE};

#[derive(Clone, Copy)]
pub struct ExitLink {
    pub kind: ExitKind,
    pub target: AppPc,
    /// Address of the jump's displacement (direct exits).
    pub site: CachePc,
    /// Whether it may be linked.
    pub(crate) is_linkable: bool,
    /// Number of the fragment's blocks that have been executed at this exit.
    pub(crate) blocks: u16,
    /// The fragment that it is linked to, or `NO_FRAGMENT`.
    pub(crate) linked_to: FragmentId,
}

impl Engine {
    /// Returns the exit that records `path`; `None` if it has been reclaimed.
    pub fn exit(&self, path: PathId) -> Option<ExitLink> {
        let at = self.exit_index(path)?;
        self.cache.units.get(at.0)?.exits.get(at.1).copied()
    }

    pub(crate) fn exit_mut(&mut self, path: PathId) -> Option<&mut ExitLink> {
        let at = self.exit_index(path)?;
        self.cache.units.get_mut(at.0)?.exits.get_mut(at.1)
    }

    /// The unit of a path's exit, and the exit's index in the unit's table.
    pub(crate) fn exit_index(&self, path: PathId) -> Option<(usize, usize)> {
        let at = self.paths.fragment(path)?;
        let fragment = self.fragment(at);
        Some((at.unit(), (fragment.first_exit + fragment.id.exit_of(path)) as usize))
    }

    /// Address of the stub of a fragment's exit.
    pub(crate) fn stub(fragment: &Fragment, path: PathId) -> CachePc {
        fragment.stubs_end - (u64::from(fragment.id.exit_of(path)) + 1) * STUB_STRIDE as u64
    }

    /// Links a direct exit to its target, if a jump reaches that far.
    pub fn link(&mut self, path: PathId, target: FragmentRef) {
        let fragment = self.fragment(target);
        let (body, id) = (fragment.body, fragment.id);
        let Some(exit) = self.exit_mut(path) else { return };
        if !exit.is_linkable || exit.site.is_none() || exit.linked_to == id {
            return; // perhaps another thread was faster
        }
        let site = exit.site;
        let Ok(displacement) = i32::try_from((body - (site + 4)) as i64) else { return };
        exit.linked_to = id;
        self.add_incoming(target, path);
        patch_displacement(site, displacement);
    }

    /// Adds an exit to the incoming links of a fragment.
    pub(crate) fn add_incoming(&mut self, target: FragmentRef, path: PathId) {
        let incoming = &self.fragment(target).incoming;
        if incoming.len() == incoming.capacity() {
            // Most exits of a long list may have been reclaimed or unlinked.
            let mut list = core::mem::take(&mut self.fragment_mut(target).incoming);
            let id = self.fragment(target).id;
            list.retain(|path| self.exit(*path).is_some_and(|exit| exit.linked_to == id));
            self.fragment_mut(target).incoming = list;
        }
        self.fragment_mut(target).incoming.push(path);
    }

    /// Unlinks an exit from the fragment `linked_to`: it jumps to its stub again. False if it was
    /// not linked to that fragment.
    pub(crate) fn unlink(&mut self, path: PathId, linked_to: FragmentId) -> bool {
        let Some(at) = self.paths.fragment(path) else { return false };
        let stub = Self::stub(self.fragment(at), path);
        let Some(exit) = self.exit_mut(path) else { return false };
        if exit.linked_to != linked_to {
            return false;
        }
        exit.linked_to = NO_FRAGMENT;
        let site = exit.site;
        // The displacement fits: the translator made the jump to this stub.
        patch_displacement(site, (stub - (site + 4)) as i32);
        true
    }

    pub(crate) fn unlink_all(&mut self, at: FragmentRef) {
        let fragment = self.fragment_mut(at);
        let (incoming, id) = (core::mem::take(&mut fragment.incoming), fragment.id);
        for path in incoming {
            self.unlink(path, id);
        }
    }
}

/// Changes the displacement of a jump that other threads may be executing.
fn patch_displacement(site: CachePc, displacement: i32) {
    // SAFETY: the four bytes lie within these eight of our code (see `Emitter::jump_patchable`),
    // which change under the lock only. Other threads see the old or the new jump.
    let word = unsafe { &*((site.get() & !7) as *const AtomicU64) };
    let mut bytes = word.load(Ordering::Relaxed).to_le_bytes();
    let at = (site.get() & 7) as usize;
    bytes[at..at + 4].copy_from_slice(&displacement.to_le_bytes());
    word.store(u64::from_le_bytes(bytes), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BRANCH, JUMP_TO_ITSELF, engine, jumps_to, page, transfer_at};

    #[test]
    fn an_exit_is_linked() {
        let mut engine = engine();
        let code = page(&[(0, &BRANCH), (0x40, &JUMP_TO_ITSELF)]);
        let from = engine.find(code, false).unwrap();
        let taken = engine.fragment(from).id.path(1);
        let ExitLink { target, site, .. } = engine.exit(taken).unwrap();
        assert_eq!(target, code + 0x40);
        let to = engine.find(target, false).unwrap();
        let body = engine.fragment(to).body;
        assert_ne!(transfer_at(site - 1), jumps_to(body));
        engine.link(taken, to);
        engine.link(taken, to);
        assert_eq!(transfer_at(site - 1), jumps_to(body));
        assert_eq!(engine.fragment(to).incoming, [taken]);
        let stub = Engine::stub(engine.fragment(from), taken);
        engine.drop_fragment(to);
        assert_eq!(transfer_at(site - 1), jumps_to(stub), "what led to it leads to the dispatcher");
    }
}
