//! Memory limits (setrlimit) of the application. The engine's memory is in the same address space
//! and must not count, so the kernel's limits are higher by the engine's memory and grow with it.
//! The application sees the limits that it has set.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::lock::Mutex;
use crate::memory::{self, PlainData};
use crate::sys::{self, number};
use crate::syscall;

/// RLIMIT_DATA and RLIMIT_AS.
const RESOURCES: [u64; 2] = [2, 9];
const INFINITE: u64 = u64::MAX;
/// How much the engine's memory may grow after the application has lowered its hard limit.
const HEADROOM: u64 = 1 << 40;

/// The kernel's `struct rlimit`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit {
    current: u64,
    most: u64,
}

// SAFETY: integers without padding.
unsafe impl PlainData for Limit {}

/// The limits that the application has set.
static LIMITS: Mutex<[Option<Limit>; RESOURCES.len()]> = Mutex::new([None; RESOURCES.len()]);
static ANY: AtomicBool = AtomicBool::new(false);
/// Bytes of the engine's memory.
static ENGINE_BYTES: AtomicU64 = AtomicU64::new(0);

/// See `lock::Mutex::release_for_dead`.
///
/// # Safety
/// As there.
pub unsafe fn release_for_dead(stacks: core::ops::Range<u64>) -> bool {
    // SAFETY: the caller's promise.
    unsafe { LIMITS.release_for_dead(stacks) }
}

fn resource_index(resource: u64) -> Option<usize> {
    RESOURCES.iter().position(|known| *known == resource & 0xffff_ffff)
}

/// Whether a resource is a limit of memory.
pub fn is_of_memory(resource: u64) -> bool {
    resource_index(resource).is_some()
}

/// Notes that the engine's memory has grown.
pub fn grow(bytes: u64) {
    ENGINE_BYTES.fetch_add(bytes, Ordering::Relaxed);
    adjust(bytes as i64);
}

/// Notes that the engine's memory has shrunk.
pub fn shrink(bytes: u64) {
    ENGINE_BYTES.fetch_sub(bytes, Ordering::Relaxed);
    adjust((bytes as i64).wrapping_neg());
}

fn adjust(by: i64) {
    if !ANY.load(Ordering::Relaxed) {
        return;
    }
    let limits = LIMITS.lock();
    for (&resource, _) in RESOURCES.iter().zip(limits.iter()).filter(|(_, limit)| limit.is_some()) {
        let Some(mut real) = read_kernel_limit(resource) else { continue };
        if real.current != INFINITE {
            real.current = real.current.saturating_add_signed(by).min(real.most);
            // SAFETY: the kernel reads the limit.
            unsafe { sys::call(number::PRLIMIT64, [0, resource, &raw const real as u64, 0, 0, 0]) };
        }
    }
}

/// Reads the kernel's limit.
fn read_kernel_limit(resource: u64) -> Option<Limit> {
    let mut limit = Limit { current: 0, most: 0 };
    // SAFETY: the kernel writes the limit.
    let result = unsafe { sys::call(number::PRLIMIT64, [0, resource, 0, &raw mut limit as u64, 0, 0]) };
    (result == 0).then_some(limit)
}

/// The limit for the kernel if the application sets `wanted` and the kernel has `real`.
fn kernel_limit(wanted: Limit, real: Limit, own: u64) -> Limit {
    let most = match wanted.most {
        INFINITE => INFINITE,
        // The kernel decides whether the hard limit may be raised.
        most if most > real.most => most,
        most => most.saturating_add(HEADROOM).min(real.most),
    };
    let current = match wanted.current {
        INFINITE => INFINITE,
        current => current.saturating_add(own).min(most),
    };
    Limit { current, most }
}

/// The application's setrlimit, getrlimit and prlimit64.
pub fn limit(call: u64, arguments: [u64; 6]) -> i64 {
    let [a, b, c, d, ..] = arguments;
    let (resource, new, old) = match call {
        number::SETRLIMIT => (Some(a), b, 0),
        number::GETRLIMIT => (Some(a), 0, b),
        _ if a == 0 || a == own_process() => (Some(b), c, d),
        // Of another process.
        _ => (None, c, d),
    };
    match resource.and_then(resource_index) {
        Some(resource_index) => of_memory(call, arguments, resource_index, new, old),
        // SAFETY: the application's own call.
        None => unsafe { syscall::call_now(call, arguments) },
    }
}

fn own_process() -> u64 {
    // SAFETY: no arguments.
    unsafe { sys::call(number::GETPID, [0; 6]) as u64 }
}

fn of_memory(call: u64, mut arguments: [u64; 6], resource_index: usize, new: u64, old: u64) -> i64 {
    let wanted = match new {
        0 => None,
        address => match memory::read::<Limit>(address) {
            Some(limit) if limit.current > limit.most => return sys::EINVAL,
            Some(limit) => Some(limit),
            None => return sys::EFAULT,
        },
    };
    let mut limits = LIMITS.lock();
    let (before, real) = (limits[resource_index], read_kernel_limit(RESOURCES[resource_index]));
    let lifted =
        wanted.zip(real).map(|(wanted, real)| kernel_limit(wanted, real, ENGINE_BYTES.load(Ordering::Relaxed)));
    if let Some(lifted) = &lifted {
        arguments[if call == number::SETRLIMIT { 1 } else { 2 }] = core::ptr::from_ref(lifted) as u64;
    }
    // SAFETY: the application's own call, with a limit of the engine in place of its own.
    let result = unsafe { syscall::call_now(call, arguments) };
    if result != 0 {
        return result;
    }
    if wanted.is_some() {
        limits[resource_index] = wanted;
        ANY.store(true, Ordering::Relaxed);
    }
    drop(limits);
    // SAFETY: the application's system call has written the kernel's limit there.
    let write_old = |before: Limit| unsafe { memory::write(old, &before) };
    let is_written = old == 0 || before.is_none_or(write_old);
    if is_written { 0 } else { sys::EFAULT }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gets_more_than_the_application_asks_for() {
        let endless = Limit { current: INFINITE, most: INFINITE };
        let both = |number| Limit { current: number, most: number };
        assert_eq!(kernel_limit(endless, endless, 7), endless);
        assert_eq!(kernel_limit(both(100), endless, 7), Limit { current: 107, most: 100 + HEADROOM });
        assert_eq!(
            kernel_limit(Limit { current: 100, most: INFINITE }, endless, 7),
            Limit { current: 107, most: INFINITE }
        );
        let low = both(HEADROOM / 2);
        assert_eq!(kernel_limit(both(100), low, 7), Limit { current: 107, most: HEADROOM / 2 });
        assert_eq!(kernel_limit(both(HEADROOM), low, 7).most, HEADROOM, "the kernel will refuse");
    }
}
