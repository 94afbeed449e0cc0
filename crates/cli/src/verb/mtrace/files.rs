//! The files that a tool writes: descriptors, perhaps compressed, and statistics.

use std::path::{Path, PathBuf};

use jiff::Zoned;

use crate::arguments::mtrace::Common;
use crate::descriptor::{DisassemblyCache, RecordFormat};
use crate::failure::Failure;
use crate::output::{LineBuffer, Output, Stopped};

/// The names of the files.
pub struct FileNames {
    pub descriptors: PathBuf,
    pub statistics: PathBuf,
}

impl FileNames {
    pub fn new(tool: &str, common: &Common) -> Result<Self, Failure> {
        let names = match &common.output {
            Some(name) => Self::of(name, common),
            None => Self::of_time(tool, &Zoned::now(), common),
        };
        match names.descriptors.metadata() {
            Ok(metadata) if metadata.is_dir() => {
                Err(Failure::new(format!("cannot write {}: it is a directory", names.descriptors.display())))
            }
            _ => Ok(names),
        }
    }

    fn of(name: &Path, common: &Common) -> Self {
        let with = |suffix: &str| {
            let mut name = name.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        let compressed = common.compressor.map_or("", |compressor| compressor.suffix());
        let kind = if common.ascii { ".txt" } else { ".bin" };
        Self { descriptors: with(&format!("{kind}{compressed}")), statistics: with(".Statistics") }
    }

    /// Returns names made of the time, as in the thesis: `mcfTrace.out2013_8_31_15.4.1`; with a
    /// number behind it if such a file exists.
    fn of_time(tool: &str, now: &Zoned, common: &Common) -> Self {
        let (year, month, day) = (now.year(), now.month(), now.day());
        let name = format!("{tool}.out{year}_{month}_{day}_{}.{}.{}", now.hour(), now.minute(), now.second());
        let mut names = Self::of(Path::new(&name), common);
        let mut number = 1;
        while names.descriptors.exists() || names.statistics.exists() {
            number += 1;
            names = Self::of(Path::new(&format!("{name}_{number}")), common);
        }
        names
    }
}

/// The file with descriptors.
pub struct DescriptorFile {
    lines: LineBuffer,
    pub format: RecordFormat,
    pub texts: Option<DisassemblyCache>,
    /// The number of bytes written, and its limit.
    bytes: u64,
    limit: u64,
    count: u64,
    is_full: bool,
    /// The error that ended writing.
    stopped: Option<Stopped>,
}

impl DescriptorFile {
    pub fn create(names: &FileNames, common: &Common, format: RecordFormat) -> Result<Self, Failure> {
        let output = match common.compressor {
            Some(compressor) => Output::compressed(&names.descriptors, compressor)?,
            None => Output::open(Some(&names.descriptors))?,
        };
        Ok(Self {
            lines: LineBuffer::new(output),
            format,
            texts: common.disassemble.then(DisassemblyCache::new),
            bytes: 0,
            limit: common.max_size,
            count: 0,
            is_full: false,
            stopped: None,
        })
    }

    /// Lets `write` append a descriptor. One that exceeds the limit is removed again, and nothing
    /// more is written.
    #[inline]
    pub fn add(&mut self, write: impl FnOnce(RecordFormat, Option<&mut DisassemblyCache>, &mut Vec<u8>)) {
        if self.is_full {
            return;
        }
        let before = self.lines.bytes.len();
        write(self.format, self.texts.as_mut(), &mut self.lines.bytes);
        let bytes = self.bytes + (self.lines.bytes.len() - before) as u64;
        if bytes > self.limit {
            self.lines.bytes.truncate(before);
            self.is_full = true;
            return;
        }
        (self.bytes, self.count) = (bytes, self.count + 1);
        if let Err(stopped) = self.lines.flush_if_long() {
            self.is_full = true;
            self.stopped = Some(stopped);
        }
    }

    /// Returns the error that ended writing, if there was one.
    pub fn check(&mut self) -> Result<(), Stopped> {
        self.stopped.take().map_or(Ok(()), Err)
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether the limit is reached.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    pub fn finish(mut self) -> Result<(), Stopped> {
        self.check()?;
        self.lines.finish()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Verb};

    fn common(flags: &str) -> Common {
        let words = ["trackway", "mcfTrace"].into_iter().chain(flags.split_whitespace()).chain(["ls"]);
        match Arguments::parse_from(words).verb {
            Verb::McfTrace(tool) => tool.common,
            _ => panic!("another verb"),
        }
    }

    #[test]
    fn files_are_named_after_the_option_or_the_time() {
        let names = |flags| {
            let names = FileNames::new("mcfTrace", &common(flags)).unwrap();
            [names.descriptors, names.statistics].map(|path| path.display().to_string())
        };
        assert_eq!(names("-o fft_p1"), ["fft_p1.bin", "fft_p1.Statistics"]);
        assert_eq!(names("-o a.b -a -c gzip"), ["a.b.txt.gz", "a.b.Statistics"]);
        assert_eq!(names("-o x -c bzip2")[0], "x.bin.bz2");
        let time = jiff::civil::date(2013, 8, 31).at(15, 4, 1, 0).to_zoned(jiff::tz::TimeZone::UTC).unwrap();
        let names = FileNames::of_time("mcfTrace", &time, &common("-a"));
        assert_eq!(names.descriptors, Path::new("mcfTrace.out2013_8_31_15.4.1.txt"));
        assert_eq!(names.statistics, Path::new("mcfTrace.out2013_8_31_15.4.1.Statistics"));
    }

    #[test]
    fn files_end_at_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let names = FileNames::of(&directory.path().join("x"), &common(""));
        let mut common = common("");
        common.max_size = 20;
        let mut descriptors = DescriptorFile::create(&names, &common, RecordFormat::Ascii).unwrap();
        for letter in [b'a', b'b', b'c'] {
            descriptors.add(|_, _, lines| lines.extend([letter; 9]));
        }
        assert_eq!((descriptors.count(), descriptors.bytes(), descriptors.is_full()), (2, 18, true));
        descriptors.finish().unwrap();
        assert_eq!(std::fs::read(names.descriptors).unwrap(), b"aaaaaaaaabbbbbbbbb");
    }
}
