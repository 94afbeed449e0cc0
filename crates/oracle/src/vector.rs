//! The extended state of a thread (vector and mask registers) and the sizes of `xsave` areas. CPUID
//! describes the layout of both.

use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::OnceLock;

use iced_x86::Register;

/// Bytes of the legacy area and the header, before the first of the other components.
pub const FIXED_BYTES: usize = 576;
/// The offset of the header's second word, which says whether an area is compacted and what is in
/// it.
pub const COMPACTION_OFFSET: u64 = 520;
pub const IS_COMPACTED: u64 = 1 << 63;

const XMM: usize = 160;
const UPPER_HALVES_OF_YMM: usize = 2;
const MASKS: usize = 5;
const UPPER_HALVES_OF_ZMM: usize = 6;
const ZMM_FROM_16: usize = 7;

#[derive(Clone, Copy, Debug, Default)]
struct Component {
    offset: usize,
    size: usize,
    is_aligned: bool,
}

/// The components of the extended state, by number.
struct Layout {
    enabled: u64,
    components: [Component; 63],
}

fn layout() -> &'static Layout {
    static LAYOUT: OnceLock<Layout> = OnceLock::new();
    LAYOUT.get_or_init(|| {
        let component = |number: usize| {
            let leaf = __cpuid_count(0xd, number as u32);
            Component { offset: leaf.ebx as usize, size: leaf.eax as usize, is_aligned: leaf.ecx & 2 != 0 }
        };
        let mut components = [Component::default(); 63];
        for (number, place) in components.iter_mut().enumerate().skip(2) {
            *place = component(number);
        }
        Layout { enabled: enabled_components(), components }
    })
}

fn enabled_components() -> u64 {
    if !std::is_x86_feature_detected!("xsave") {
        return 3;
    }
    // SAFETY: the processor has xsave and the kernel has enabled it: that is what the detection
    // looks at.
    unsafe { _xgetbv(0) }
}

fn chosen(components: u64) -> impl Iterator<Item = &'static Component> {
    layout().components.iter().enumerate().filter(move |(number, _)| components >> number & 1 != 0).map(|(_, it)| it)
}

/// Returns the components that `xsave` saves with this mask in edx:eax.
pub fn requested(mask: u64) -> u64 {
    mask & layout().enabled
}

/// Returns the bytes of an area in the standard format that holds these components.
pub fn standard_bytes(components: u64) -> usize {
    chosen(components).map(|component| component.offset + component.size).max().unwrap_or(0).max(FIXED_BYTES)
}

/// Returns the bytes of an area in the compacted format that holds these components.
pub fn compacted_bytes(components: u64) -> usize {
    chosen(components).fold(FIXED_BYTES, |end, component| {
        let start = if component.is_aligned { end.next_multiple_of(64) } else { end };
        start + component.size
    })
}

/// The extended state in the standard format of `xsave`, as ptrace shows it.
pub struct ExtendedState(Vec<u8>);

impl ExtendedState {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    fn part(&self, offset: usize, size: usize) -> &[u8] {
        self.0.get(offset..offset + size).unwrap_or(&[0; 64][..size])
    }

    fn component(&self, number: usize, index: usize, size: usize) -> &[u8] {
        let component = layout().components[number];
        if component.size == 0 { &[0; 64][..size] } else { self.part(component.offset + index * size, size) }
    }

    /// Returns all bytes of a vector register; `None` for another register.
    pub fn vector(&self, register: Register) -> Option<Vec<u8>> {
        if register.is_mm() {
            return Some(self.mmx(register.number()).to_vec());
        }
        if !register.is_vector_register() {
            return None;
        }
        let index = register.number();
        let mut bytes = Vec::with_capacity(64);
        if index < 16 {
            bytes.extend_from_slice(self.part(XMM + 16 * index, 16));
            bytes.extend_from_slice(self.component(UPPER_HALVES_OF_YMM, index, 16));
            bytes.extend_from_slice(self.component(UPPER_HALVES_OF_ZMM, index, 32));
        } else {
            bytes.extend_from_slice(self.component(ZMM_FROM_16, index - 16, 64));
        }
        bytes.truncate(register.size());
        Some(bytes)
    }

    /// Returns the significand of an x87 register. The legacy area has them in the order of the
    /// stack, whose top is 0 in MMX code.
    fn mmx(&self, index: usize) -> &[u8] {
        let top = usize::from(self.part(2, 2)[1] >> 3 & 7);
        self.part(32 + 16 * ((index + 8 - top) % 8), 8)
    }

    /// Returns the bits of a mask register.
    pub fn mask(&self, register: Register) -> u64 {
        let bytes = self.component(MASKS, register.number(), 8);
        bytes.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
    }
}
