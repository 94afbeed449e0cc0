//! The file that a recording is written to.
//!
//! A long file bypasses the page cache: copying gigabytes into it takes as much processor time as
//! making them, and evicts everything else. A thread of its own waits for the disk meanwhile. A
//! short file, or one on a file system that does not support this, is written in the usual way.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// A file shorter than this is likely to be read soon, and costs little.
const LONG: u64 = 64 << 20;
/// Positions, lengths and addresses must be multiples of it; of all disks in use, none needs more.
const BLOCK: usize = 4096;
const BUFFER_BLOCKS: usize = 512;
const BUFFER_COUNT: usize = 4;

/// Creates or empties a file that only its owner may read: it will hold what a program had in its
/// memory.
pub fn create_private(path: &Path) -> io::Result<File> {
    const OWNER_ONLY: u32 = 0o600;
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(OWNER_ONLY).clone();
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 {
        // It was there before. Where that fails, the file system has no such permissions.
        let _ = file.set_permissions(Permissions::from_mode(OWNER_ONLY));
    }
    Ok(file)
}

pub(super) struct Output {
    path: PathBuf,
    file: File,
    length: u64,
    past_cache: PastCache,
}

enum PastCache {
    Inactive { long: u64 },
    Impossible,
    Active(Direct),
}

impl Output {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Self::create_with(path, LONG)
    }

    fn create_with(path: &Path, long: u64) -> io::Result<Self> {
        let file = create_private(path)?;
        Ok(Self { path: path.to_owned(), file, length: 0, past_cache: PastCache::Inactive { long } })
    }

    /// Bytes appended so far.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if matches!(self.past_cache, PastCache::Inactive { long } if self.length >= long) {
            self.past_cache = Direct::begin(&self.path, &self.file, self.length);
        }
        match &mut self.past_cache {
            PastCache::Active(direct) => direct.append(bytes)?,
            _ => self.file.write_all_at(bytes, self.length)?,
        }
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Makes everything appended visible to readers of the file, soon.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        match &mut self.past_cache {
            PastCache::Active(direct) => direct.flush(&self.file),
            _ => Ok(()),
        }
    }

    /// Waits until everything is written.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.past_cache, PastCache::Impossible) {
            PastCache::Active(direct) => direct.finish(&self.file),
            _ => Ok(()),
        }
    }
}

impl Drop for Output {
    /// A caller that wants to know about errors has called [`Output::finish`].
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

/// Blocks at an address that is a multiple of [`BLOCK`].
struct Buffer {
    memory: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new() -> Self {
        let memory = vec![0; (BUFFER_BLOCKS + 1) * BLOCK];
        let start = memory.as_ptr().align_offset(BLOCK);
        Self { memory, start }
    }

    fn blocks(&self) -> &[u8] {
        &self.memory[self.start..][..BUFFER_BLOCKS * BLOCK]
    }

    fn blocks_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..BUFFER_BLOCKS * BLOCK]
    }
}

/// Writes past the cache, a full buffer at a time.
struct Direct {
    buffer: Buffer,
    filled: usize,
    /// How much of the buffer is in the file already.
    flushed: usize,
    /// Where in the file the buffer begins.
    at: u64,
    /// `None` once the thread has ended.
    thread: Option<Thread>,
}

struct Thread {
    full: SyncSender<(Buffer, u64)>,
    empty: Receiver<Buffer>,
    handle: JoinHandle<io::Result<()>>,
}

impl Thread {
    /// Exchanges a full buffer for an empty one; `None` if the thread has ended, which it does
    /// early only for an error.
    fn exchange(&self, full: &mut Buffer, at: u64) -> Option<()> {
        let empty = self.empty.recv().ok()?;
        self.full.send((std::mem::replace(full, empty), at)).ok()
    }

    fn end(self) -> io::Result<()> {
        drop(self.full);
        self.handle.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes the file has panicked")))
    }
}

impl Direct {
    fn begin(path: &Path, file: &File, length: u64) -> PastCache {
        let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(path);
        let begun = direct.and_then(|direct| Self::begin_with(direct, file, length));
        begun.map_or(PastCache::Impossible, PastCache::Active)
    }

    /// Begins behind the first `length` bytes of `file`; `direct` is the same file.
    fn begin_with(direct: File, file: &File, length: u64) -> io::Result<Self> {
        let mut twice = FileHandles { direct: Some(direct), usual: file.try_clone()? };
        let (mut buffer, filled) = (Buffer::new(), (length % BLOCK as u64) as usize);
        let at = length - filled as u64;
        file.read_exact_at(&mut buffer.blocks_mut()[..filled], at)?;
        let (full, queue) = sync_channel(BUFFER_COUNT);
        let (give_back, empty) = sync_channel(BUFFER_COUNT);
        for _ in 1..BUFFER_COUNT {
            let _ = give_back.send(Buffer::new());
        }
        let handle = std::thread::Builder::new()
            .name("trace-file".into())
            .spawn(move || write_all(&mut twice, &queue, &give_back))?;
        Ok(Self { buffer, filled, flushed: filled, at, thread: Some(Thread { full, empty, handle }) })
    }

    fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut room = &mut self.buffer.blocks_mut()[self.filled..];
            let taken = room.write(bytes)?;
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == BUFFER_BLOCKS * BLOCK {
                self.send()?;
            }
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        let Some(thread) = &self.thread else { return Err(io::Error::other("it could not be written before")) };
        if thread.exchange(&mut self.buffer, self.at).is_none() {
            return self.end();
        }
        self.at += self.filled as u64;
        (self.filled, self.flushed) = (0, 0);
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        self.thread.take().map_or(Ok(()), Thread::end)
    }

    fn flush(&mut self, file: &File) -> io::Result<()> {
        file.write_all_at(&self.buffer.blocks()[self.flushed..self.filled], self.at + self.flushed as u64)?;
        self.flushed = self.filled;
        Ok(())
    }

    fn finish(mut self, file: &File) -> io::Result<()> {
        self.end()?;
        self.flush(file)
    }
}

/// A file that is open twice: for writing past the cache, unless that was refused, and for writing
/// in the usual way.
struct FileHandles {
    direct: Option<File>,
    usual: File,
}

impl FileHandles {
    /// Some file systems let a file be opened for writing past the cache and refuse only the
    /// writing. A write that was refused, and everything after it, is done in the usual way.
    fn write_at(&mut self, blocks: &[u8], at: u64) -> io::Result<()> {
        if let Some(direct) = &self.direct {
            match direct.write_all_at(blocks, at) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.direct = None,
                done => return done,
            }
        }
        self.usual.write_all_at(blocks, at)
    }
}

fn write_all(
    file: &mut FileHandles,
    queue: &Receiver<(Buffer, u64)>,
    give_back: &SyncSender<Buffer>,
) -> io::Result<()> {
    while let Ok((buffer, at)) = queue.recv() {
        file.write_at(buffer.blocks(), at)?;
        // If the receiver is gone, no buffer will come back either.
        let _ = give_back.send(buffer);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    /// The directory should be on a disk, in memory it is written in the usual way.
    fn check(directory: &Path, long: u64, length: usize) {
        check_output(Output::create_with(&directory.join("file"), long).unwrap(), length);
    }

    /// Appends in pieces of many lengths.
    fn check_output(mut output: Output, length: usize) {
        let content = content(length);
        let (mut rest, mut turn) = (content.as_slice(), 0);
        while !rest.is_empty() {
            let (piece, left) = rest.split_at((turn * turn * 37 % 300_000).min(rest.len()));
            output.append(piece).unwrap();
            rest = left;
            if turn % 5 == 0 {
                output.flush().unwrap();
            }
            turn += 1;
        }
        assert_eq!(output.length(), length as u64);
        output.finish().unwrap();
        assert!(std::fs::read(&output.path).unwrap() == content);
    }

    #[test]
    fn everything_is_in_the_file() {
        // Where programs are built, there is a disk; directories for temporary files may be in
        // memory.
        let program = std::env::current_exe().unwrap();
        let here = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        for (long, length) in [(0, 0), (0, 1), (0, 10 << 20), (123_457, 9_999_999), (1 << 20, 1 << 20), (3, 2 << 20)] {
            check(here.path(), long, length);
        }
    }

    #[test]
    fn flushed_bytes_can_be_read() {
        let here = tempfile::tempdir().unwrap();
        let path = here.path().join("file");
        let mut output = Output::create_with(&path, 5000).unwrap();
        let content = content(20_000);
        content.chunks(999).for_each(|piece| output.append(piece).unwrap());
        output.flush().unwrap();
        assert!(std::fs::read(&path).unwrap() == content);
    }

    #[test]
    fn memory_has_no_disk_behind_it() {
        let here = tempfile::tempdir_in("/dev/shm").unwrap();
        check(here.path(), 1000, 5 << 20);
    }

    /// Can be opened by everybody, and refuses what is no number in the same way as file systems
    /// that cannot write past the cache.
    fn refusing() -> File {
        let file = OpenOptions::new().write(true).open("/proc/self/oom_score_adj").unwrap();
        assert_eq!(file.write_at(b"none", 0).unwrap_err().raw_os_error(), Some(libc::EINVAL));
        file
    }

    #[test]
    fn a_refused_direct_write_is_made_through_the_cache() {
        let here = tempfile::tempdir().unwrap();
        for length in [0, 1, BUFFER_BLOCKS * BLOCK, 9_999_999] {
            let mut output = Output::create(&here.path().join("file")).unwrap();
            output.past_cache = PastCache::Active(Direct::begin_with(refusing(), &output.file, 0).unwrap());
            check_output(output, length);
        }
    }

    #[test]
    fn a_refused_direct_write_ends_direct_writing() {
        let mut file = FileHandles { direct: Some(refusing()), usual: tempfile::tempfile().unwrap() };
        file.write_at(b"one", 0).unwrap();
        assert!(file.direct.is_none());
        file.write_at(b" two", 3).unwrap();
        let mut written = [0; 7];
        file.usual.read_exact_at(&mut written, 0).unwrap();
        assert_eq!(&written, b"one two");
    }

    #[test]
    fn other_errors_are_errors() {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut file = FileHandles { direct: Some(full), usual: tempfile::tempfile().unwrap() };
        let error = file.write_at(b"one", 0).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
        assert!(file.direct.is_some());
        assert_eq!(file.usual.metadata().unwrap().len(), 0);
    }
}
