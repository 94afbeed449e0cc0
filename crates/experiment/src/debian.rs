//! Programs of the Debian distribution, each with a typical task whose inputs we make: text, pictures, tables, sources and
//! scripts that are the same in every run. A task takes some hundred million instructions.
//!
//! Programs are run directly, without a shell script or a driver that starts other processes, and with one thread where they
//! can be told so.

mod inputs;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// A program and its task.
pub struct DebianProgram {
    pub name: &'static str,
    location: Location,
    /// Of the distribution.
    pub package: &'static str,
    /// Apart by spaces.
    arguments: &'static str,
    inputs: &'static [Input],
}

/// Where a program is. What `PATH` finds may be a wrapper that starts it.
enum Location {
    Path(&'static str),
    /// A part of the compiler, in a directory that has its version in its name.
    OfGcc(&'static str),
}

/// A file that is read, and what is in it.
type Input = (&'static str, Content);

enum Content {
    Made(fn() -> Vec<u8>),
    Kept(&'static str),
}
use Content::{Kept, Made};

/// What programs are to find in their environment, and nothing else: it decides about the order of text and of hash tables.
pub const ENVIRONMENT: [(&str, &str); 4] =
    [("LC_ALL", "C"), ("PERL_HASH_SEED", "0"), ("PERL_PERTURB_KEYS", "0"), ("PYTHONHASHSEED", "0")];

pub fn all() -> &'static [DebianProgram] {
    &ALL
}

impl DebianProgram {
    pub fn find(name: &str) -> Result<&'static Self, Error> {
        let known = || ALL.iter().map(|program| program.name).collect::<Vec<_>>().join(", ");
        ALL.iter().find(|program| program.name == name).ok_or_else(|| Error::UnknownProgram {
            kind: "real program",
            name: name.to_owned(),
            known: known(),
        })
    }

    pub fn is_installed(&self) -> bool {
        self.path().is_some()
    }

    /// Writes the inputs into a directory. The command is to be run there, in our [`ENVIRONMENT`].
    pub fn prepare(&self, directory: &Path) -> Result<Vec<String>, Error> {
        let path = self.path().ok_or(Error::NotInstalled { program: self.name, package: self.package })?;
        for (name, content) in self.inputs {
            let path = directory.join(name);
            std::fs::write(&path, content.bytes()).map_err(|error| Error::Write { path, error })?;
        }
        let arguments = self.arguments.split_whitespace().map(str::to_owned);
        Ok(std::iter::once(path.display().to_string()).chain(arguments).collect())
    }

    fn path(&self) -> Option<PathBuf> {
        let path = match self.location {
            Location::Path(path) => PathBuf::from(path),
            Location::OfGcc(name) => part_of_gcc(name)?,
        };
        path.is_file().then_some(path)
    }
}

impl Content {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Made(make) => make(),
            Kept(text) => text.as_bytes().to_vec(),
        }
    }
}

/// Where the compiler has one of its parts; only a name if it has none.
fn part_of_gcc(name: &str) -> Option<PathBuf> {
    let output = Command::new("/usr/bin/gcc").arg(format!("-print-prog-name={name}")).output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    path.is_absolute().then_some(path)
}

static ALL: [DebianProgram; 20] = [
    DebianProgram {
        name: "bc",
        location: Location::Path("/usr/bin/bc"),
        package: "bc",
        arguments: "-q numbers.bc",
        inputs: &[("numbers.bc", Kept(include_str!("debian/numbers.bc")))],
    },
    DebianProgram {
        name: "bzip2",
        location: Location::Path("/usr/bin/bzip2"),
        package: "bzip2",
        arguments: "-c text",
        inputs: &[("text", Made(|| inputs::text(600_000)))],
    },
    DebianProgram {
        name: "convert",
        location: Location::Path("/usr/bin/convert"),
        package: "imagemagick",
        arguments: "-limit thread 1 picture.ppm -resize 60% -rotate 7 -median 1 -colors 32 \
                    -define png:exclude-chunks=date,time picture.png",
        inputs: &[("picture.ppm", Made(|| inputs::picture(320, 240)))],
    },
    DebianProgram {
        name: "gcc",
        location: Location::OfGcc("cc1"),
        package: "gcc",
        arguments: "-quiet -O2 program.c -o program.s",
        inputs: &[("program.c", Made(|| inputs::c_program(4)))],
    },
    DebianProgram {
        name: "gnugo",
        location: Location::Path("/usr/games/gnugo"),
        package: "gnugo",
        arguments: "--mode gtp --gtp-input game.gtp --seed 1 --level 4",
        inputs: &[("game.gtp", Kept(include_str!("debian/game.gtp")))],
    },
    DebianProgram {
        name: "gzip",
        location: Location::Path("/usr/bin/gzip"),
        package: "gzip",
        // Without the time of the file.
        arguments: "-n -c text",
        inputs: &[("text", Made(|| inputs::text(800_000)))],
    },
    DebianProgram {
        name: "jq",
        location: Location::Path("/usr/bin/jq"),
        package: "jq",
        arguments: "-f summary.jq people.json",
        inputs: &[
            ("people.json", Made(|| inputs::people(320))),
            ("summary.jq", Kept(include_str!("debian/summary.jq"))),
        ],
    },
    DebianProgram {
        name: "lua",
        location: Location::Path("/usr/bin/lua5.4"),
        package: "lua5.4",
        arguments: "life.lua",
        inputs: &[("life.lua", Kept(include_str!("debian/life.lua")))],
    },
    DebianProgram {
        name: "mawk",
        location: Location::Path("/usr/bin/mawk"),
        package: "mawk",
        arguments: "-f report.awk table",
        inputs: &[("table", Made(|| inputs::table(40_000))), ("report.awk", Kept(include_str!("debian/report.awk")))],
    },
    DebianProgram {
        name: "openssl",
        location: Location::Path("/usr/bin/openssl"),
        package: "openssl",
        arguments: "enc -aes-256-cbc -base64 -in text -out text.enc -iv 000102030405060708090a0b0c0d0e0f \
                    -K 00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef",
        inputs: &[("text", Made(|| inputs::text(8_000_000)))],
    },
    DebianProgram {
        name: "perl",
        location: Location::Path("/usr/bin/perl"),
        package: "perl-base",
        arguments: "words.pl text",
        inputs: &[("text", Made(|| inputs::text(100_000))), ("words.pl", Kept(include_str!("debian/words.pl")))],
    },
    DebianProgram {
        name: "php",
        location: Location::Path("/usr/bin/php"),
        package: "php-cli",
        arguments: "-n pages.php",
        inputs: &[("pages.php", Kept(include_str!("debian/pages.php")))],
    },
    DebianProgram {
        name: "povray",
        location: Location::Path("/usr/bin/povray"),
        package: "povray",
        arguments: "+Iscene.pov +Oscene.ppm +FP +W120 +H90 +WT1 -D -GA",
        inputs: &[("scene.pov", Kept(include_str!("debian/scene.pov")))],
    },
    DebianProgram {
        name: "python",
        location: Location::Path("/usr/bin/python3"),
        package: "python3-minimal",
        // Without what a site or a user adds.
        arguments: "-S -s -B solve.py",
        inputs: &[("solve.py", Kept(include_str!("debian/solve.py")))],
    },
    DebianProgram {
        name: "ruby",
        location: Location::Path("/usr/bin/ruby"),
        package: "ruby",
        arguments: "--disable=gems shop.rb",
        inputs: &[("shop.rb", Kept(include_str!("debian/shop.rb")))],
    },
    DebianProgram {
        name: "sort",
        location: Location::Path("/usr/bin/sort"),
        package: "coreutils",
        arguments: "--parallel=1 --buffer-size=64M -k2,2 -k3,3n -k5 table",
        inputs: &[("table", Made(|| inputs::table(24_000)))],
    },
    DebianProgram {
        name: "sqlite",
        location: Location::Path("/usr/bin/sqlite3"),
        package: "sqlite3",
        arguments: "-batch -init library.sql :memory: .quit",
        inputs: &[("library.sql", Kept(include_str!("debian/library.sql")))],
    },
    DebianProgram {
        name: "x264",
        location: Location::Path("/usr/bin/x264"),
        package: "x264",
        arguments: "--threads 1 --quiet --no-progress -o video.264 video.y4m",
        inputs: &[("video.y4m", Made(|| inputs::video(176, 144, 12)))],
    },
    DebianProgram {
        name: "xz",
        location: Location::Path("/usr/bin/xz"),
        package: "xz-utils",
        arguments: "-T1 -c text",
        inputs: &[("text", Made(|| inputs::text(160_000)))],
    },
    DebianProgram {
        name: "zstd",
        location: Location::Path("/usr/bin/zstd"),
        package: "zstd",
        arguments: "-q --single-thread --no-asyncio -12 -c text",
        inputs: &[("text", Made(|| inputs::text(500_000)))],
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::Stdio;

    use super::*;

    fn run(program: &DebianProgram, directory: &Path) -> std::process::Output {
        let words = program.prepare(directory).unwrap();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env_clear().envs(ENVIRONMENT).current_dir(directory);
        command.stdin(Stdio::null()).stdout(Stdio::null()).output().unwrap()
    }

    #[test]
    fn programs_have_names() {
        let names: BTreeSet<&str> = all().iter().map(|program| program.name).collect();
        assert_eq!(names.len(), all().len());
        assert_eq!(DebianProgram::find("xz").unwrap().package, "xz-utils");
        let error = DebianProgram::find("yz").err().unwrap();
        assert_eq!(error.to_string(), "there is no real program called yz");
        assert!(error.hint().unwrap().starts_with("there are bc, bzip2,"), "{error:?}");
    }

    #[test]
    fn inputs_are_the_same_every_time() {
        for (name, content) in all().iter().flat_map(|program| program.inputs) {
            let bytes = content.bytes();
            assert!(!bytes.is_empty() && bytes == content.bytes(), "{name}");
        }
    }

    #[test]
    fn what_is_installed_runs() {
        for program in all().iter().filter(|program| program.is_installed()) {
            let directory = tempfile::tempdir().unwrap();
            let output = run(program, directory.path());
            assert!(output.status.success(), "{}: {output:?}", program.name);
        }
    }
}
