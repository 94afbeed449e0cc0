//! A mutex for the engine's own structures: spins briefly, then sleeps.
//!
//! The state identifies the holder by a page of its stack. A process that shares the memory (see
//! `clone`) can be killed while it holds a mutex, and its parent then has to release it.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut, Range};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

const FREE: u32 = 0;
/// A thread sleeps until the mutex is free. The other bits are those of [`holder_at`].
const CONTENDED: u32 = 1 << 31;
const SPINS: u32 = 100;

pub struct Mutex<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard only, and only one guard exists at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}

/// The identification of a thread that has `address` on its stack: low bits of the page number.
fn holder_at(address: u64) -> u32 {
    ((address / sys::PAGE) as u32 & !CONTENDED).max(1)
}

/// The identification of the calling thread.
fn own_holder() -> u32 {
    let on_stack = 0u8;
    holder_at(&raw const on_stack as u64)
}

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) -> Guard<'_, T> {
        let holder = own_holder();
        for _ in 0..SPINS {
            if self.state.compare_exchange_weak(FREE, holder, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return self.guard();
            }
            core::hint::spin_loop();
        }
        // Other threads may sleep, too.
        while let Err(state) =
            self.state.compare_exchange(FREE, holder | CONTENDED, Ordering::Acquire, Ordering::Relaxed)
        {
            let contended = state | CONTENDED;
            let marked = self.state.compare_exchange(state, contended, Ordering::Relaxed, Ordering::Relaxed);
            if marked.is_ok() {
                sys::futex_wait_without_limit(&self.state, contended);
            }
        }
        self.guard()
    }

    /// The guard of the calling thread, which has just locked the mutex.
    fn guard(&self) -> Guard<'_, T> {
        Guard { mutex: self, _stays_on_its_thread: PhantomData }
    }

    /// Releases the mutex if code on a stack in this range holds it, which was killed or has
    /// failed. True if it did: the protected value may be inconsistent.
    ///
    /// # Safety
    /// No code on these stacks may use the protected value again through a guard that it has now.
    pub unsafe fn release_for_dead(&self, stacks: Range<u64>) -> bool {
        let holder = self.state.load(Ordering::Acquire) & !CONTENDED;
        let is_held = holder != FREE && stacks.step_by(sys::PAGE as usize).any(|page| holder_at(page) == holder);
        if is_held {
            self.release();
        }
        is_held
    }

    fn release(&self) {
        if self.state.swap(FREE, Ordering::Release) & CONTENDED != 0 {
            sys::futex_wake(&self.state);
        }
    }
}

pub struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
    /// The state identifies the thread, so that another one must neither release the mutex nor use
    /// the value through this.
    _stays_on_its_thread: PhantomData<*const ()>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the mutex.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the mutex.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.mutex.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        static COUNT: Mutex<u64> = Mutex::new(0);
        let count = || (0..50_000).for_each(|_| *COUNT.lock() += 1);
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(count)).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*COUNT.lock(), 200_000);
        assert_eq!(COUNT.state.load(Ordering::Relaxed) & !CONTENDED, FREE);
    }

    #[test]
    fn a_mutex_of_a_dead_thread_is_released() {
        static MUTEX: Mutex<u64> = Mutex::new(0);
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let on_stack = 0u8;
            let at = (&raw const on_stack as u64) & !(sys::PAGE - 1);
            core::mem::forget(MUTEX.lock());
            send.send(at - 16 * sys::PAGE..at + sys::PAGE).unwrap();
        })
        .join()
        .unwrap();
        let stacks: Range<u64> = receive.recv().unwrap();
        let waiting = std::thread::spawn(|| *MUTEX.lock() += 1);
        // SAFETY: the thread has ended, and these are of no other thread's stack.
        unsafe {
            assert!(!MUTEX.release_for_dead(stacks.start - 64 * sys::PAGE..stacks.start - 32 * sys::PAGE));
            assert!(MUTEX.release_for_dead(stacks.clone()));
        }
        waiting.join().unwrap();
        // SAFETY: as above.
        assert!(!unsafe { MUTEX.release_for_dead(stacks) });
        assert_eq!(*MUTEX.lock(), 1);
    }
}
