//! The output of a verb: standard output, or a file that appears under its name only when it is
//! complete.
//!
//! A reader that goes away (`trackway dump … | head`) is no error: [`Stopped::Gone`] ends the verb
//! quietly.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::compressor::Compressor;
use crate::failure::Failure;

const BUFFER_BYTES: usize = 1 << 18;

/// A buffered destination of bytes.
pub struct Output {
    writer: BufWriter<Destination>,
}

enum Destination {
    /// A file that is written directly: standard output, a device, a pipe.
    Open {
        file: File,
        path: PathBuf,
    },
    PendingFile(PendingFile),
    /// A file that a compressor writes.
    Compressed {
        compressor: CompressorProcess,
        pending: PendingFile,
    },
}

/// A file that gets the name `path` when it is complete, and is removed if it never is.
struct PendingFile {
    file: File,
    path: PathBuf,
    part: PathBuf,
    is_complete: bool,
}

/// A compressor that runs.
struct CompressorProcess {
    name: &'static str,
    child: Child,
    /// `None` after the end of the input.
    input: Option<ChildStdin>,
}

/// A buffer of lines or records that is written out when it is long enough.
pub struct LineBuffer {
    output: Output,
    /// The bytes that are not written out yet.
    pub bytes: Vec<u8>,
}

/// The length at which the buffer is written out. It equals the buffer of [`Output`], which passes
/// such writes on without a copy.
const LINES_BYTES: usize = BUFFER_BYTES;

impl LineBuffer {
    pub fn new(output: Output) -> Self {
        Self { output, bytes: Vec::with_capacity(LINES_BYTES + LINES_BYTES / 8) }
    }

    /// Writes out the buffer if it is long.
    #[inline]
    pub fn flush_if_long(&mut self) -> Result<(), Stopped> {
        if self.bytes.len() < LINES_BYTES { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<(), Stopped> {
        self.output.write(&self.bytes)?;
        self.bytes.clear();
        Ok(())
    }

    /// Writes out everything and gives the file its name.
    pub fn finish(mut self) -> Result<(), Stopped> {
        self.flush()?;
        self.output.finish()
    }
}

/// Why a verb stopped early.
#[derive(Debug)]
pub enum Stopped {
    /// The reader of standard output has closed the pipe.
    Gone,
    Failed(Failure),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<trace::ReadError> for Stopped {
    fn from(error: trace::ReadError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<experiment::Error> for Stopped {
    fn from(error: experiment::Error) -> Self {
        Self::Failed(error.into())
    }
}

/// Fails if `output` is the file that is read.
pub fn refuse_same_file(input: &Path, output: Option<&Path>) -> Result<(), Failure> {
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    match output.and_then(identity) {
        Some(own) if identity(input) == Some(own) => {
            let sentence = format!("{} would be written over", input.display());
            Err(Failure::new(sentence).hint("choose another name with -o"))
        }
        _ => Ok(()),
    }
}

/// Creates a directory, if it does not exist.
pub fn make_directory(directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory).map_err(|error| Failure::writing(directory, &error))
}

/// Writes files, each with a name and a content, into a directory.
pub fn write_files(directory: &Path, files: impl IntoIterator<Item = (String, String)>) -> Result<(), Stopped> {
    for (name, text) in files {
        let mut output = Output::open(Some(&directory.join(name)))?;
        output.write(text.as_bytes())?;
        output.finish()?;
    }
    Ok(())
}

impl Output {
    pub fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let destination = match path {
            None => Destination::standard()?,
            Some(path) => Destination::create(path)?,
        };
        Ok(Self { writer: BufWriter::with_capacity(BUFFER_BYTES, destination) })
    }

    /// As [`Self::open`]; fails if `path` is the file `input` that the verb reads.
    pub fn open_apart_from(input: &Path, path: Option<&Path>) -> Result<Self, Failure> {
        refuse_same_file(input, path)?;
        Self::open(path)
    }

    /// Writes through `compressor` to the file `path`.
    pub fn compressed(path: &Path, compressor: Compressor) -> Result<Self, Failure> {
        let pending = PendingFile::create(path)?;
        let compressor = CompressorProcess::start(compressor, &pending)?;
        let destination = Destination::Compressed { compressor, pending };
        Ok(Self { writer: BufWriter::with_capacity(BUFFER_BYTES, destination) })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Stopped> {
        self.writer.write_all(bytes).map_err(|error| self.stopped(&error))
    }

    /// Writes a value as indented JSON.
    pub fn json(&mut self, value: &impl serde::Serialize) -> Result<(), Stopped> {
        let mut text = serde_json::to_vec_pretty(value).map_err(|error| Failure::new(format!("no JSON: {error}")))?;
        text.push(b'\n');
        self.write(&text)
    }

    /// Writes out the buffer.
    pub fn flush(&mut self) -> Result<(), Stopped> {
        self.writer.flush().map_err(|error| self.stopped(&error))
    }

    /// Writes out the buffer and gives the file its name.
    pub fn finish(mut self) -> Result<(), Stopped> {
        self.flush()?;
        self.writer.get_mut().complete().map_err(|error| self.stopped(&error))
    }

    /// Returns why a verb stops that could not write here.
    pub fn stopped(&self, error: &io::Error) -> Stopped {
        match (error.kind(), self.writer.get_ref()) {
            (_, Destination::Compressed { compressor, pending }) => {
                Failure::new(format!("{} cannot write {}: {error}", compressor.name, pending.path.display())).into()
            }
            (io::ErrorKind::BrokenPipe, _) => Stopped::Gone,
            (_, Destination::Open { path, .. }) => Failure::writing_directly(path, error).into(),
            (_, Destination::PendingFile(PendingFile { path, .. })) => Failure::writing(path, error).into(),
        }
    }
}

/// For libraries that write. [`Output::stopped`] explains their errors.
impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl Destination {
    /// Opens standard output without the line buffering of [`io::stdout`].
    fn standard() -> Result<Self, Failure> {
        let path = PathBuf::from("standard output");
        match io::stdout().as_fd().try_clone_to_owned() {
            Ok(descriptor) => Ok(Self::Open { file: descriptor.into(), path }),
            Err(error) => Err(Failure::writing(&path, &error)),
        }
    }

    fn create(path: &Path) -> Result<Self, Failure> {
        // Devices and pipes are written directly; a rename would replace them.
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            let file = File::create(path).map_err(|error| Failure::writing(path, &error))?;
            return Ok(Self::Open { file, path: path.to_owned() });
        }
        PendingFile::create(path).map(Self::PendingFile)
    }

    fn writer(&mut self) -> io::Result<&mut dyn Write> {
        match self {
            Self::Open { file, .. } | Self::PendingFile(PendingFile { file, .. }) => Ok(file),
            Self::Compressed { compressor, .. } => match &mut compressor.input {
                Some(input) => Ok(input),
                None => Err(io::ErrorKind::BrokenPipe.into()),
            },
        }
    }

    fn complete(&mut self) -> io::Result<()> {
        match self {
            Self::Open { .. } => Ok(()),
            Self::PendingFile(pending) => pending.complete(),
            Self::Compressed { compressor, pending } => {
                compressor.finish()?;
                pending.complete()
            }
        }
    }
}

impl PendingFile {
    fn create(path: &Path) -> Result<Self, Failure> {
        let part = partial_path(path);
        let file = trace::create_private(&part).map_err(|error| Failure::writing(path, &error))?;
        Ok(Self { file, part, path: path.to_owned(), is_complete: false })
    }

    fn complete(&mut self) -> io::Result<()> {
        std::fs::rename(&self.part, &self.path)?;
        self.is_complete = true;
        Ok(())
    }
}

impl CompressorProcess {
    fn start(compressor: Compressor, pending: &PendingFile) -> Result<Self, Failure> {
        let name = compressor.name();
        let failed = |error: io::Error| Failure::new(format!("cannot run {name}: {error}"));
        let output = pending.file.try_clone().map_err(failed)?;
        // A process group of its own: an interrupt at the terminal is for the traced program only.
        let mut child = Command::new(name)
            .args(compressor.arguments())
            .stdin(Stdio::piped())
            .stdout(output)
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let input = child.stdin.take();
        Ok(Self { name, child, input })
    }

    /// Closes the input and waits until the compressor has written everything.
    fn finish(&mut self) -> io::Result<()> {
        self.input = None;
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("{} ended with {status}", self.name))) }
    }
}

impl Drop for CompressorProcess {
    fn drop(&mut self) {
        if self.input.is_some() {
            // The result will be removed.
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

fn partial_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer()?.flush()
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        if !self.is_complete {
            drop(std::fs::remove_file(&self.part));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_appears_when_it_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out");
        std::fs::write(&path, "older").unwrap();
        let mut output = Output::open(Some(&path)).unwrap();
        output.write(b"newer").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"older");
        output.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"newer");
        let mut output = Output::open(Some(&path)).unwrap();
        output.write(b"half").unwrap();
        drop(output);
        assert_eq!(std::fs::read(&path).unwrap(), b"newer");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn input_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("in"), directory.path().join("link"));
        std::fs::write(&path, "x").unwrap();
        std::fs::hard_link(&path, &other).unwrap();
        assert!(
            Output::open_apart_from(&path, Some(&other))
                .is_err_and(|failure| failure.sentence.contains("written over"))
        );
        assert!(
            Output::open_apart_from(&path, Some(&directory.path().join("out"))).is_ok()
                && Output::open_apart_from(&path, None).is_ok()
        );
    }

    #[test]
    fn full_device_is_reported() {
        let mut output = Output::open(Some(Path::new("/dev/full"))).unwrap();
        output.write(b"x").unwrap();
        let Err(Stopped::Failed(failure)) = output.finish() else { panic!("nothing was noticed") };
        assert!(failure.sentence.contains("No space left on device"), "{failure}");
    }

    #[test]
    fn missing_directory_is_reported() {
        let Err(failure) = Output::open(Some(Path::new("/nowhere/at/all"))) else { panic!("it was created") };
        assert!(failure.to_string().contains("does not exist"), "{failure}");
    }
}
