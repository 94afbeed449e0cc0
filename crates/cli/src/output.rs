//! Where a verb writes to: standard output, or a file that appears under its name only when it is complete.
//!
//! A reader that goes away (`trackway dump … | head`) is no error: [`Stopped::Gone`] ends the verb quietly.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

const BUFFER_BYTES: usize = 1 << 18;

/// A buffered destination.
pub struct Output {
    writer: BufWriter<Destination>,
}

enum Destination {
    /// Something that is written to as it is: standard output, a device, a pipe.
    Open { file: File, path: PathBuf },
    /// A file that will be called `path`.
    Draft { file: File, path: PathBuf, part: PathBuf, kept: bool },
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

impl Output {
    pub fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let destination = match path {
            None => Destination::standard()?,
            Some(path) => Destination::create(path)?,
        };
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
            (io::ErrorKind::BrokenPipe, _) => Stopped::Gone,
            (_, Destination::Open { path, .. } | Destination::Draft { path, .. }) => {
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
        let failed = |error| Failure::writing(path, &error);
        // Devices and pipes are written to as they are; a rename would replace them.
        if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            return Ok(Self::Open { file: File::create(path).map_err(failed)?, path: path.to_owned() });
        }
        let part = part_of(path);
        let file = File::create(&part).map_err(failed)?;
        Ok(Self::Draft { file, part, path: path.to_owned(), kept: false })
    }

    fn file(&mut self) -> &mut File {
        match self {
            Self::Open { file, .. } | Self::Draft { file, .. } => file,
        }
    }

    fn keep(&mut self) -> io::Result<()> {
        if let Self::Draft { part, path, kept, .. } = self {
            std::fs::rename(part, path)?;
            *kept = true;
        }
        Ok(())
    }
}

fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file().flush()
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if let Self::Draft { part, kept: false, .. } = self {
            drop(std::fs::remove_file(part));
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
