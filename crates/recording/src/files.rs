//! The trace files of child processes, named after the file of the first process.

use std::path::{Path, PathBuf};

use capture::SinkFactory;
use trace::{Exit, ProcessInfo, Recording, WriteError};

use crate::sink::FileSink;

/// Makes a trace file for each child process.
pub struct ChildFiles {
    output: PathBuf,
}

impl ChildFiles {
    /// Puts the files of children beside `output`, the file of the first process.
    pub fn beside(output: PathBuf) -> Self {
        Self { output }
    }
}

impl SinkFactory for ChildFiles {
    type Sink = FileSink;

    fn create(&self, process: i32, recording: &Recording) -> Result<FileSink, WriteError> {
        FileSink::create(&child_path(&self.output, process), recording)
    }

    fn finish(&self, sink: FileSink, exit: Exit, processes: &[ProcessInfo]) -> Result<(), WriteError> {
        sink.finish(exit, processes).map(drop)
    }

    fn discard(&self, sink: FileSink) {
        sink.discard();
    }
}

/// Returns the file of a child process: its number stands before the extension of `output`.
fn child_path(output: &Path, process: i32) -> PathBuf {
    let mut name = output.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{process}"));
    if let Some(extension) = output.extension() {
        name.push(".");
        name.push(extension);
    }
    output.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_after_processes() {
        let check = |output, expected| assert_eq!(child_path(Path::new(output), 17), Path::new(expected));
        check("t.trk", "t.17.trk");
        check("a/b.c/t.x.trk", "a/b.c/t.x.17.trk");
        check("t", "t.17");
    }

    #[test]
    fn a_discarded_sink_leaves_no_file() {
        let directory = std::env::temp_dir().join(format!("trackway-recording-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let files = ChildFiles::beside(directory.join("t.trk"));
        let sink = files.create(17, &Recording::default()).unwrap();
        assert!(directory.join("t.17.trk.part").exists());
        files.discard(sink);
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
        std::fs::remove_dir(directory).unwrap();
    }
}
