//! Where a verb writes to: standard output, or a file that appears under its name only when it is complete.
//!
//! A reader that goes away (`trackway dump … | head`) is no error: [`Stopped::Gone`] ends the verb quietly.

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

/// A buffered destination.
pub struct Output {
    writer: BufWriter<Destination>,
}

enum Destination {
    /// Something that is written to as it is: standard output, a device, a pipe.
    Open {
        file: File,
        path: PathBuf,
    },
    Draft(Draft),
    /// Goes through another program.
    Compressed {
        compressor: Running,
        draft: Draft,
    },
}

/// A file that will be called `path`.
struct Draft {
    file: File,
    path: PathBuf,
    part: PathBuf,
    kept: bool,
}

/// A compressor at work.
struct Running {
    name: &'static str,
    child: Child,
    /// `None` when all was written.
    input: Option<ChildStdin>,
}

/// Lists of bytes that are written out when they are long enough.
pub struct Lines {
    output: Output,
    /// What is not written out yet.
    pub bytes: Vec<u8>,
}

/// So many bytes are worth writing; as many as are not collected once more.
const LINES_BYTES: usize = BUFFER_BYTES;

impl Lines {
    pub fn new(output: Output) -> Self {
        Self { output, bytes: Vec::with_capacity(LINES_BYTES + LINES_BYTES / 8) }
    }

    /// Writes out what has come together, if it is much.
    #[inline]
    pub fn flush_long(&mut self) -> Result<(), Stopped> {
        if self.bytes.len() < LINES_BYTES { Ok(()) } else { self.flush() }
    }

    fn flush(&mut self) -> Result<(), Stopped> {
        self.output.write(&self.bytes)?;
        self.bytes.clear();
        Ok(())
    }

    /// Writes out everything and gives a file its name.
    pub fn finish(mut self) -> Result<(), Stopped> {
        self.flush()?;
        self.output.finish()
    }
}

/// Why writing stopped.
#[derive(Debug)]
pub enum Stopped {
    /// Nobody reads any more.
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

/// Refuses to write to the file that is read.
pub fn is_apart(input: &Path, output: Option<&Path>) -> Result<(), Failure> {
    let place = |path: &Path| std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    match output.and_then(place) {
        Some(own) if place(input) == Some(own) => {
            let sentence = format!("{} would be written over", input.display());
            Err(Failure::new(sentence).hint("choose another name with -o"))
        }
        _ => Ok(()),
    }
}

/// Makes a directory for files, if it is not there.
pub fn make_directory(directory: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(directory).map_err(|error| Failure::writing(directory, &error))
}

/// Writes files, each with a name and a text, into a directory.
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

    /// As [`Self::open`], for what is made of the file `input`, which must not be written over.
    pub fn beside(input: &Path, path: Option<&Path>) -> Result<Self, Failure> {
        is_apart(input, path)?;
        Self::open(path)
    }

    /// Writes through `compressor` to the file `path`.
    pub fn compressed(path: &Path, compressor: Compressor) -> Result<Self, Failure> {
        let draft = Draft::create(path)?;
        let compressor = Running::start(compressor, &draft)?;
        let destination = Destination::Compressed { compressor, draft };
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

    /// Writes out what is buffered.
    pub fn flush(&mut self) -> Result<(), Stopped> {
        self.writer.flush().map_err(|error| self.stopped(&error))
    }

    /// Writes out what is buffered and gives a file its name.
    pub fn finish(mut self) -> Result<(), Stopped> {
        self.flush()?;
        self.writer.get_mut().keep().map_err(|error| self.stopped(&error))
    }

    fn stopped(&self, error: &io::Error) -> Stopped {
        match (error.kind(), self.writer.get_ref()) {
            (_, Destination::Compressed { compressor, draft }) => {
                Failure::new(format!("{} cannot write {}: {error}", compressor.name, draft.path.display())).into()
            }
            (io::ErrorKind::BrokenPipe, _) => Stopped::Gone,
            (_, Destination::Open { path, .. } | Destination::Draft(Draft { path, .. })) => {
                Failure::writing(path, error).into()
            }
        }
    }
}

impl Destination {
    /// Standard output without the line buffering of [`io::stdout`].
    fn standard() -> Result<Self, Failure> {
        let path = PathBuf::from("standard output");
        match io::stdout().as_fd().try_clone_to_owned() {
            Ok(descriptor) => Ok(Self::Open { file: descriptor.into(), path }),
            Err(error) => Err(Failure::writing(&path, &error)),
        }
    }

    fn create(path: &Path) -> Result<Self, Failure> {
        // Devices and pipes are written to as they are; a rename would replace them.
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            let file = File::create(path).map_err(|error| Failure::writing(path, &error))?;
            return Ok(Self::Open { file, path: path.to_owned() });
        }
        Draft::create(path).map(Self::Draft)
    }

    fn writer(&mut self) -> io::Result<&mut dyn Write> {
        match self {
            Self::Open { file, .. } | Self::Draft(Draft { file, .. }) => Ok(file),
            Self::Compressed { compressor, .. } => match &mut compressor.input {
                Some(input) => Ok(input),
                None => Err(io::ErrorKind::BrokenPipe.into()),
            },
        }
    }

    fn keep(&mut self) -> io::Result<()> {
        match self {
            Self::Open { .. } => Ok(()),
            Self::Draft(draft) => draft.keep(),
            Self::Compressed { compressor, draft } => {
                compressor.finish()?;
                draft.keep()
            }
        }
    }
}

impl Draft {
    fn create(path: &Path) -> Result<Self, Failure> {
        let part = part_of(path);
        let file = trace::create_private(&part).map_err(|error| Failure::writing(path, &error))?;
        Ok(Self { file, part, path: path.to_owned(), kept: false })
    }

    fn keep(&mut self) -> io::Result<()> {
        std::fs::rename(&self.part, &self.path)?;
        self.kept = true;
        Ok(())
    }
}

impl Running {
    fn start(compressor: Compressor, draft: &Draft) -> Result<Self, Failure> {
        let name = compressor.name();
        let failed = |error: io::Error| Failure::new(format!("cannot run {name}: {error}"));
        let output = draft.file.try_clone().map_err(failed)?;
        // In a group of its own: an interrupt at the terminal is for the program that is traced.
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

    /// Waits until all is written.
    fn finish(&mut self) -> io::Result<()> {
        self.input = None;
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("{} ended with {status}", self.name))) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.input.is_some() {
            // Nobody wants the result.
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

fn part_of(path: &Path) -> PathBuf {
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

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.kept {
            drop(std::fs::remove_file(&self.part));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_when_it_is_complete() {
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
    fn what_is_read_is_not_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("in"), directory.path().join("link"));
        std::fs::write(&path, "x").unwrap();
        std::fs::hard_link(&path, &other).unwrap();
        assert!(Output::beside(&path, Some(&other)).is_err_and(|failure| failure.sentence.contains("written over")));
        assert!(
            Output::beside(&path, Some(&directory.path().join("out"))).is_ok() && Output::beside(&path, None).is_ok()
        );
    }

    #[test]
    fn a_full_device_is_told() {
        let mut output = Output::open(Some(Path::new("/dev/full"))).unwrap();
        output.write(b"x").unwrap();
        let Err(Stopped::Failed(failure)) = output.finish() else { panic!("nothing was noticed") };
        assert!(failure.sentence.contains("No space left on device"), "{failure}");
    }

    #[test]
    fn a_missing_directory_is_told() {
        let Err(failure) = Output::open(Some(Path::new("/nowhere/at/all"))) else { panic!("it was created") };
        assert!(failure.to_string().contains("does not exist"), "{failure}");
    }
}
