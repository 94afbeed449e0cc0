//! The memory that the recorder shares with the engine, seen from the recorder: its mapping, its
//! futexes, and the lock by which the engine notices that the recorder has died.
//!
//! Knows the layout (crate `wire`), not the meaning of the contents.

use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, Rlimit};
use rustix::thread::futex;
use wire::Control;

use crate::split::SegmentWords;

/// Words that fit into a segment.
pub const SEGMENT_WORDS: usize = wire::SEGMENT_BYTES / size_of::<u32>();

/// Slots below this one keep their memory when they are freed: programs that start one thread after
/// the other reuse them.
const SLOTS_KEPT: usize = 64;

/// The name that the target gives the memory, and its name in `/proc/PID/maps`.
pub const FILE_NAME: &[u8] = b"trackway\0";
pub const SHARED_NAME: &str = "memfd:trackway";
/// The start of the name of a System V segment in `/proc/PID/maps`.
pub const SEGMENT_NAME: &str = "/SYSV";

/// The part of the memory that is used before there is a target: everything but the rings.
const FRONT_BYTES: usize = wire::CODE_RING_OFFSET;

/// The shared memory. It stays at one address as long as this lives. Before there is a target, the
/// front is private and the rest cannot be accessed. Each new image of the target makes a file in
/// memory, which replaces that mapping (see [`Self::adopt`]). The target may be another user's, or
/// in other namespaces, so that it could not open a file of the recorder.
pub struct Shared {
    memory: Memory,
    /// The inode of the mapped file; 0 if there is none.
    inode: AtomicU64,
}

/// A mapping in the recorder's address space.
struct Memory {
    start: *mut u8,
    length: usize,
}

// SAFETY: nothing but an address and a length; who accesses the memory argues for that.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps memory at an address that the kernel chooses.
    fn map(length: usize, protection: i32, flags: i32, file: Option<BorrowedFd>) -> io::Result<Self> {
        let file = file.map_or(-1, |file| file.as_raw_fd());
        // SAFETY: without a fixed address, nothing that exists is changed.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { start: start.cast(), length })
    }

    fn as_ptr(&self) -> *const u8 {
        self.start
    }

    fn as_mut_ptr(&self) -> *mut u8 {
        self.start
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and no reference outlives this.
        unsafe { libc::munmap(self.start.cast(), self.length) };
    }
}

/// A System V segment. It is removed when this is dropped and no process has it attached any more.
pub struct SystemSegment {
    pub id: i32,
}

impl SystemSegment {
    fn create(length: usize) -> io::Result<Self> {
        const SHM_NORESERVE: i32 = 0o10_000;
        // SAFETY: takes no pointers.
        let id = unsafe { libc::shmget(libc::IPC_PRIVATE, length, libc::IPC_CREAT | SHM_NORESERVE | 0o600) };
        if id < 0 { Err(io::Error::last_os_error()) } else { Ok(Self { id }) }
    }

    /// Attaches the segment, at `address` unless that is null. With `SHM_REMAP`, the caller owns
    /// what was mapped there.
    fn attach(&self, address: *mut libc::c_void, flags: i32) -> io::Result<*mut libc::c_void> {
        // SAFETY: without SHM_REMAP nothing that exists is changed; with it, the range is the
        // caller's own.
        let attached = unsafe { libc::shmat(self.id, address, flags) };
        if attached == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(attached) }
    }
}

impl Drop for SystemSegment {
    fn drop(&mut self) {
        // SAFETY: the command takes no description.
        unsafe { libc::shmctl(self.id, libc::IPC_RMID, std::ptr::null_mut()) };
    }
}

impl Shared {
    /// Makes the front of the memory and fills in the constant fields of the control page.
    pub fn create() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let memory = Memory::map(wire::SHARED_BYTES, libc::PROT_NONE, flags, None)?;
        // SAFETY: the range is the beginning of the new mapping.
        if unsafe { libc::mprotect(memory.start.cast(), FRONT_BYTES, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let control = memory.as_mut_ptr().cast::<Control>();
        // SAFETY: the mapping is larger than `Control`, page-aligned, and not shared yet.
        unsafe {
            (*control).magic = wire::MAGIC;
            (*control).version = wire::VERSION;
            (*control).recorder_pid = std::process::id();
        }
        Ok(Self { memory, inode: AtomicU64::new(0) })
    }

    /// As [`Self::create`], with a file of the recorder's.
    pub fn create_alone() -> io::Result<Self> {
        let shared = Self::create()?;
        shared.adopt(rustix::fs::memfd_create("trackway", rustix::fs::MemfdFlags::CLOEXEC)?)?;
        Ok(shared)
    }

    /// Replaces the mapping by an empty file that the target has made and not mapped yet. Copies
    /// the contents, except for those of the rings. Meanwhile only the calling thread may write to
    /// the front, unless the write may be lost.
    pub fn adopt(&self, file: OwnedFd) -> io::Result<()> {
        with_any_file_size(|| Ok(rustix::fs::ftruncate(&file, wire::SHARED_BYTES as u64)?))?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let front = Memory::map(FRONT_BYTES, access, flags, Some(std::os::fd::AsFd::as_fd(&file)))?;
        // SAFETY: the new mapping has `FRONT_BYTES` bytes, and so has the file, which no other
        // process uses yet.
        unsafe { self.copy_front(front.as_mut_ptr()) };
        // SAFETY: a copy of a control page.
        begin_image(unsafe { &*front.as_ptr().cast::<Control>() });
        self.give_up();
        // SAFETY: the range is our own, and stays mapped: the new mapping replaces the old one in
        // one step. All accesses are of atomics or through raw pointers, and the contents of
        // the front stay what they were.
        let mapped = unsafe {
            let flags = flags | libc::MAP_FIXED;
            libc::mmap(self.memory.start.cast(), self.memory.length, access, flags, file.as_raw_fd(), 0)
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.inode.store(rustix::fs::fstat(&file)?.st_ino, Ordering::SeqCst);
        Ok(())
    }

    /// As [`Self::adopt`], with a System V segment, whose size `ulimit -f` does not limit. Returns
    /// the segment, which the target then attaches. That takes the same user and IPC namespace.
    pub fn adopt_segment(&self) -> io::Result<SystemSegment> {
        let segment = SystemSegment::create(self.memory.length)?;
        let front = segment.attach(std::ptr::null_mut(), 0)?;
        // SAFETY: the segment is as large, and no other process uses it yet; it is detached from
        // where it was attached.
        unsafe {
            self.copy_front(front.cast());
            begin_image(&*front.cast::<Control>());
            libc::shmdt(front);
        }
        self.give_up();
        // As in `adopt`, the new mapping replaces the old one of the same length in one step.
        segment.attach(self.memory.start.cast(), libc::SHM_REMAP)?;
        self.inode.store(segment.id as u64, Ordering::SeqCst);
        Ok(segment)
    }

    /// Copies the front, word by word: another thread of the recorder may ring the doorbell
    /// meanwhile.
    ///
    /// # Safety
    /// At `to` there are `FRONT_BYTES` bytes of memory, aligned to pages, that nothing else uses.
    unsafe fn copy_front(&self, to: *mut u8) {
        for offset in (0..FRONT_BYTES).step_by(size_of::<u32>()) {
            // SAFETY: in bounds of the front, and of `to` as the caller promises; both are aligned.
            // What is written to the front meanwhile is atomic.
            unsafe {
                let word = AtomicU32::from_ptr(self.memory.as_mut_ptr().add(offset).cast());
                to.add(offset).cast::<u32>().write(word.load(Ordering::Relaxed));
            }
        }
    }

    /// Notes in the old memory that the recorder no longer reads it. A process that has shared the
    /// memory of an image (vfork) may outlive the image; it goes on natively.
    fn give_up(&self) {
        let control = self.control();
        control.detach.store(wire::DETACH_SEPARATELY, Ordering::SeqCst);
        control.slots.iter().filter(|slot| slot.waiting.load(Ordering::SeqCst) != 0).for_each(|slot| wake(&slot.tail));
        wake_low_half(&control.code_tail);
    }

    /// Returns the inode of the mapped file (or segment), as in `/proc/PID/maps`.
    pub fn inode(&self) -> u64 {
        self.inode.load(Ordering::SeqCst)
    }

    pub fn control(&self) -> &Control {
        // SAFETY: the mapping is larger than `Control` and page-aligned; what changes while it is
        // shared is atomic.
        unsafe { &*self.memory.as_ptr().cast::<Control>() }
    }

    /// Moves the first `count` words of a segment to `into`, and zeroes them in the segment.
    pub fn take_segment(&self, slot: usize, segment: usize, count: usize, into: &mut Vec<u32>) {
        assert!(slot < wire::SLOT_COUNT && segment < wire::SEGMENT_COUNT && count <= SEGMENT_WORDS);
        into.clear();
        into.reserve(count);
        // SAFETY: in bounds as asserted, and aligned; the capacity was reserved. The protocol
        // leaves the segment to the recorder; the words are copied before the recorder examines
        // them, so that a target that still writes to it can spoil its own trace and nothing else.
        unsafe {
            let words = self.memory.as_mut_ptr().add(wire::segment_offset(slot, segment)).cast::<u32>();
            into.as_mut_ptr().copy_from_nonoverlapping(words, count);
            into.set_len(count);
            words.write_bytes(0, count);
        }
    }

    /// Returns the first `count` words of a segment, to be read in place.
    pub fn segment(&self, slot: usize, segment: usize, count: usize) -> RingSegment<'_> {
        assert!(slot < wire::SLOT_COUNT && segment < wire::SEGMENT_COUNT && count <= SEGMENT_WORDS);
        let words = self.memory.as_mut_ptr().wrapping_add(wire::segment_offset(slot, segment)).cast();
        RingSegment { words, count, _shared: PhantomData }
    }

    /// Appends to `into` the `length` bytes of the code ring from position `from` on, which wraps
    /// around.
    pub fn copy_code(&self, from: u64, length: usize, into: &mut Vec<u8>) {
        assert!(length <= wire::CODE_RING_BYTES);
        let start = (from % wire::CODE_RING_BYTES as u64) as usize;
        let first = length.min(wire::CODE_RING_BYTES - start);
        self.copy(wire::CODE_RING_OFFSET + start, first, into);
        self.copy(wire::CODE_RING_OFFSET, length - first, into);
    }

    fn copy(&self, offset: usize, length: usize, into: &mut Vec<u8>) {
        into.reserve(length);
        // SAFETY: callers stay in the mapping; the capacity was reserved; the bytes are copied
        // before the recorder examines them, so that a target that still writes can spoil its own
        // trace and nothing else.
        unsafe {
            let end = into.as_mut_ptr().add(into.len());
            end.copy_from_nonoverlapping(self.memory.as_ptr().add(offset), length);
            into.set_len(into.len() + length);
        }
    }

    /// Publishes the selected addresses to the engine: ranges and entries, both in ascending order.
    pub fn publish_selection(&self, ranges: &[Range<u64>], entries: &[u64], probes: &[(u64, u8)]) {
        let control = self.control();
        let ranges = &ranges[..ranges.len().min(wire::RANGES_MAX)];
        let entries = &entries[..entries.len().min(wire::ENTRIES_MAX)];
        let probes = &probes[..probes.len().min(wire::PROBES_MAX)];
        let generation = control.selection_generation.load(Ordering::Relaxed);
        control.selection_generation.store(generation.wrapping_add(1), Ordering::SeqCst);
        // SAFETY: the tables have room for as many, inside of the mapping; the engine throws away
        // what it reads while the generation is odd or changes.
        unsafe {
            let table = self.memory.as_mut_ptr().add(wire::RANGES_OFFSET).cast::<[u64; 2]>();
            for (index, range) in ranges.iter().enumerate() {
                table.add(index).write_volatile([range.start, range.end]);
            }
            let table = self.memory.as_mut_ptr().add(wire::ENTRIES_OFFSET).cast::<u64>();
            for (index, entry) in entries.iter().enumerate() {
                table.add(index).write_volatile(*entry);
            }
            let table = self.memory.as_mut_ptr().add(wire::PROBES_OFFSET).cast::<[u64; 2]>();
            for (index, &(address, routine)) in probes.iter().enumerate() {
                table.add(index).write_volatile([address, u64::from(routine)]);
            }
        }
        control.range_count.store(ranges.len() as u32, Ordering::Relaxed);
        control.entry_count.store(entries.len() as u32, Ordering::Relaxed);
        control.probe_count.store(probes.len() as u32, Ordering::Relaxed);
        control.selection_generation.store(generation.wrapping_add(2), Ordering::SeqCst);
    }

    /// Returns the selected addresses as an engine reads them.
    #[cfg(test)]
    pub fn selection(&self) -> (Vec<Range<u64>>, Vec<u64>) {
        let control = self.control();
        let (ranges, entries) =
            (control.range_count.load(Ordering::SeqCst), control.entry_count.load(Ordering::SeqCst));
        // SAFETY: the tables are in the mapping and have as many entries; only this process writes
        // to them.
        let read = |offset, index: u32| unsafe {
            self.memory.as_ptr().add(offset).cast::<u64>().add(index as usize).read_volatile()
        };
        let range = |index| read(wire::RANGES_OFFSET, 2 * index)..read(wire::RANGES_OFFSET, 2 * index + 1);
        ((0..ranges).map(range).collect(), (0..entries).map(|index| read(wire::ENTRIES_OFFSET, index)).collect())
    }

    /// Writes to the memory as an engine does.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= wire::SHARED_BYTES);
        // SAFETY: in bounds as asserted. Tests and fuzzing own the memory, which no engine maps,
        // and there is no reference into it meanwhile.
        unsafe { self.memory.as_mut_ptr().add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Zeroes all segments of a slot and gives their memory back to the system.
    pub fn clear_slot(&self, slot: usize) {
        assert!(slot < wire::SLOT_COUNT);
        let start = self.memory.as_mut_ptr().wrapping_add(wire::segment_offset(slot, 0));
        // SAFETY: in bounds as asserted; the protocol leaves the slot to the recorder.
        let removed = unsafe { libc::madvise(start.cast(), wire::SLOT_STRIDE, libc::MADV_REMOVE) };
        assert!(removed == 0, "memory files can have holes: {}", io::Error::last_os_error());
    }

    /// Returns whether the memory of a freed slot should be given back.
    pub fn is_worth_clearing(slot: usize) -> bool {
        slot >= SLOTS_KEPT
    }
}

/// Words of a segment in place. The protocol leaves them to the recorder, but a damaged target may
/// still write to them. So each word is copied before the recorder examines it, and none is read
/// twice.
pub struct RingSegment<'a> {
    words: *mut u32,
    count: usize,
    _shared: PhantomData<&'a Shared>,
}

impl RingSegment<'_> {
    /// Zeroes all words.
    pub fn clear(self) {
        // SAFETY: in bounds as asserted in `Shared::segment`, and aligned.
        unsafe { self.words.write_bytes(0, self.count) };
    }
}

impl SegmentWords for RingSegment<'_> {
    #[inline(always)]
    fn word(&self, at: usize) -> Option<u32> {
        // SAFETY: in bounds as asserted in `Shared::segment` and checked here, and aligned.
        (at < self.count).then(|| unsafe { self.words.add(at).read_volatile() })
    }

    #[inline(always)]
    fn copy(&self, at: usize, into: &mut [u32]) -> bool {
        let fits = at <= self.count && into.len() <= self.count - at;
        if fits {
            // SAFETY: in bounds as asserted in `Shared::segment` and checked here, and aligned;
            // `into` is not shared.
            unsafe { into.as_mut_ptr().copy_from_nonoverlapping(self.words.add(at), into.len()) };
        }
        fits
    }
}

/// A lock that the recording thread holds as long as it records. The kernel marks it when the
/// thread dies.
pub struct LivenessLock<'a> {
    shared: &'a Shared,
    /// The C library requires that the thread that locked the mutex unlocks it.
    _stays_on_its_thread: PhantomData<*const ()>,
}

impl<'a> LivenessLock<'a> {
    pub fn acquire(shared: &'a Shared) -> io::Result<Self> {
        const { assert!(size_of::<libc::pthread_mutex_t>() <= size_of::<[AtomicU32; 16]>()) };
        let mutex = Self::mutex(shared);
        let mut attributes = std::mem::MaybeUninit::uninit();
        // SAFETY: the attributes are initialised by the first call before the others use them; the
        // mutex lies in a mapping that outlives the lock (`'a`) and is large and aligned enough.
        unsafe {
            check(libc::pthread_mutexattr_init(attributes.as_mut_ptr()))?;
            check(libc::pthread_mutexattr_setpshared(attributes.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED))?;
            check(libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST))?;
            check(libc::pthread_mutex_init(mutex, attributes.as_ptr()))?;
            check(libc::pthread_mutex_lock(mutex))?;
        }
        Ok(Self { shared, _stays_on_its_thread: PhantomData })
    }

    fn mutex(shared: &Shared) -> *mut libc::pthread_mutex_t {
        shared.memory.as_mut_ptr().wrapping_add(std::mem::offset_of!(Control, recorder)).cast()
    }
}

/// Resets, in a copy of the control page, what belongs to the previous image and to processes that
/// shared its memory.
fn begin_image(control: &Control) {
    control.stage.store(wire::STAGE_NONE, Ordering::SeqCst);
    control.layout.gate.store(0, Ordering::SeqCst);
    for end in control.engine_ranges.iter().flatten() {
        end.store(0, Ordering::SeqCst);
    }
    control.vforks.store(0, Ordering::SeqCst);
    control.sharers.store(0, Ordering::SeqCst);
    for slot in control.slots.iter().filter(|slot| slot.state.load(Ordering::SeqCst) != wire::SLOT_LIVE) {
        for word in slot.used.iter().chain([&slot.os_tid, &slot.thread, &slot.waiting, &slot.head, &slot.tail]) {
            word.store(0, Ordering::Relaxed);
        }
        slot.uninstrumented_from.store(0, Ordering::Relaxed);
        slot.parent.store(u32::MAX, Ordering::Relaxed);
        slot.state.store(wire::SLOT_FREE, Ordering::SeqCst);
    }
}

impl Drop for LivenessLock<'_> {
    /// Threads that still wait for the recorder, which stops early only by a panic, must learn that
    /// it is gone.
    fn drop(&mut self) {
        // SAFETY: locked by this thread in `acquire`, still mapped.
        unsafe { libc::pthread_mutex_unlock(Self::mutex(self.shared)) };
        self.shared.control().recorder[0].store(wire::OWNER_DIED, Ordering::SeqCst);
        self.shared.control().detach.store(1, Ordering::SeqCst);
    }
}

/// Runs `work` with the limit on the size of files (`ulimit -f`) lifted as far as allowed. To the
/// system, shared memory is a file.
fn with_any_file_size<T>(work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    /// The limit applies to the whole process.
    static LIMIT: Mutex<()> = Mutex::new(());
    let _one_at_a_time = LIMIT.lock().unwrap_or_else(PoisonError::into_inner);
    let old = rustix::process::getrlimit(Resource::Fsize);
    let is_lifted = old.current.is_some_and(|limit| limit < wire::SHARED_BYTES as u64) && {
        let lift = |maximum| rustix::process::setrlimit(Resource::Fsize, Rlimit { current: maximum, maximum });
        lift(None).or_else(|_| lift(old.maximum)).is_ok()
    };
    let result = work();
    if is_lifted {
        // Lowering it is always allowed.
        let _ = rustix::process::setrlimit(Resource::Fsize, old);
    }
    result
}

fn check(status: libc::c_int) -> io::Result<()> {
    if status == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(status)) }
}

/// Wakes all threads that wait on `word`.
pub fn wake(word: &AtomicU32) {
    // Waking fails only for addresses that are no memory.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}

/// Wakes all threads that wait on the low half of `word`.
pub fn wake_low_half(word: &AtomicU64) {
    // SAFETY: x86-64 is little-endian, so that the low half is at the address of the whole; it is
    // only passed to the kernel as an address.
    wake(unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) });
}

/// Waits until `word` is no longer `value` and another thread wakes this one, at most for
/// `timeout`.
pub fn wait(word: &AtomicU32, value: u32, timeout: Duration) {
    let timeout = futex::Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    // Whatever the result, the caller looks again.
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&timeout));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_recorder_is_seen_in_the_first_word() {
        let shared = Shared::create().unwrap();
        std::thread::scope(|scope| {
            let recorder = scope.spawn(|| {
                let life = LivenessLock::acquire(&shared).unwrap();
                // SAFETY: gettid has no preconditions.
                let thread = unsafe { libc::gettid() } as u32;
                let word = shared.control().recorder[0].load(Ordering::SeqCst);
                assert_eq!(word & 0x3fff_ffff, thread, "the C library keeps the owner in the first word");
                // Ends without unlocking, as a killed recorder does.
                std::mem::forget(life);
            });
            recorder.join().unwrap();
        });
        assert_ne!(shared.control().recorder[0].load(Ordering::SeqCst) & wire::OWNER_DIED, 0);
    }

    #[test]
    fn stopping_early_looks_like_dying() {
        let shared = Shared::create().unwrap();
        drop(LivenessLock::acquire(&shared).unwrap());
        assert_ne!(shared.control().recorder[0].load(Ordering::SeqCst) & wire::OWNER_DIED, 0);
    }

    #[test]
    fn an_adopted_file_has_the_old_contents() {
        let shared = Shared::create().unwrap();
        std::thread::scope(|scope| {
            let recorder = scope.spawn(|| {
                let life = LivenessLock::acquire(&shared).unwrap();
                shared.publish_selection(&[5..7, 8..9], &[3], &[]);
                let mut inodes = Vec::new();
                for _ in 0..2 {
                    let file = rustix::fs::memfd_create("trackway", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
                    let inode = rustix::fs::fstat(&file).unwrap().st_ino;
                    let theirs = Memory::map(
                        FRONT_BYTES,
                        libc::PROT_READ,
                        libc::MAP_SHARED,
                        Some(std::os::fd::AsFd::as_fd(&file)),
                    );
                    shared.adopt(file).unwrap();
                    assert_eq!(shared.inode(), inode);
                    // SAFETY: mapped for reading, and the file is large enough by now.
                    assert_eq!(unsafe { theirs.unwrap().as_ptr().cast::<u64>().read_volatile() }, wire::MAGIC);
                    inodes.push(inode);
                }
                assert_ne!(inodes[0], inodes[1]);
                assert_eq!(shared.selection(), (vec![5..7, 8..9], vec![3]));
                std::mem::forget(life);
            });
            recorder.join().unwrap();
        });
        assert_ne!(shared.control().recorder[0].load(Ordering::SeqCst) & wire::OWNER_DIED, 0);
    }

    #[test]
    fn a_segment_is_as_good_as_a_file() {
        let shared = Shared::create().unwrap();
        shared.publish_selection(&[5..7, 8..9], &[3], &[]);
        let segment = shared.adopt_segment().unwrap();
        let theirs = segment.attach(std::ptr::null_mut(), 0).unwrap();
        drop(segment);
        assert_eq!(shared.selection(), (vec![5..7, 8..9], vec![3]));
        shared.write(wire::segment_offset(9, 0), &[7]);
        // SAFETY: the segment is attached for reading and large enough.
        let word = || unsafe { theirs.cast::<u8>().add(wire::segment_offset(9, 0)).read_volatile() };
        assert_eq!(word(), 7);
        shared.clear_slot(9);
        assert_eq!(word(), 0);
        // SAFETY: attached above.
        unsafe { libc::shmdt(theirs) };
    }

    #[test]
    fn cleared_slots_are_zero() {
        let shared = Shared::create_alone().unwrap();
        shared.write(wire::segment_offset(7, 1), &[9]);
        let mut words = Vec::new();
        shared.clear_slot(7);
        shared.take_segment(7, 1, 10, &mut words);
        assert_eq!(words, [0; 10]);
    }
}
