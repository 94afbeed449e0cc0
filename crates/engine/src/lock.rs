//! A mutex for the engine's own structures: spins briefly, then sleeps.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use crate::sys;

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;
const SPINS: u32 = 100;

pub struct Mutex<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard only, and only one guard exists at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    pub fn lock(&self) -> Guard<'_, T> {
        for _ in 0..SPINS {
            if self.state.compare_exchange_weak(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return Guard { mutex: self };
            }
            core::hint::spin_loop();
        }
        while self.state.swap(CONTENDED, Ordering::Acquire) != FREE {
            sys::futex_wait_without_limit(&self.state, CONTENDED);
        }
        Guard { mutex: self }
    }
}

impl<T> Mutex<T> {
    /// Waits until the mutex is free, for a second at most, and then makes it free.
    ///
    /// # Safety
    /// If the calling thread holds it, it must not use what the mutex protects any more.
    pub unsafe fn break_open(&self) {
        const MILLISECONDS: u64 = 10;
        for _ in 0..100 {
            match self.state.load(Ordering::Acquire) {
                FREE => return,
                state => sys::futex_wait(&self.state, state, MILLISECONDS),
            };
        }
        self.state.store(FREE, Ordering::Release);
        sys::futex_wake(&self.state);
    }
}

pub struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
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
        if self.mutex.state.swap(FREE, Ordering::Release) == CONTENDED {
            sys::futex_wake(&self.mutex.state);
        }
    }
}
