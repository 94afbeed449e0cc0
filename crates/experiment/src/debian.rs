//! Programs of the Debian distribution, each with a typical task and inputs that are the same in
//! every run: text, pictures, tables, sources and scripts. A task takes some hundred million
//! instructions.
//!
//! Programs are run directly, without a shell script or a driver that starts other processes, and
//! with one thread where they have an option for it.

mod inputs;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// A program and its task.
pub struct DebianProgram {
    pub name: &'static str,
    location: Location,
    /// The package of the distribution.
    pub package: &'static str,
    /// Separated by spaces.
    arguments: &'static str,
    inputs: &'static [Input],
}

/// The location of a program. The name in `PATH` may be a wrapper that starts it.
enum Location {
    Path(&'static str),
    /// A program of the compiler, in a directory that has its version in its name.
    OfGcc(&'static str),
}

/// The name of an input file, and its content.
type Input = (&'static str, Content);

/// The content of an input.
enum Content {
    Generated(fn() -> Vec<u8>),
    Fixed(&'static str),
}
use Content::{Fixed, Generated};

/// The whole environment of programs: it decides about the order of text and of hash tables.
pub const ENVIRONMENT: [(&str, &str); 4] =
    [("LC_ALL", "C"), ("PERL_HASH_SEED", "0"), ("PERL_PERTURB_KEYS", "0"), ("PYTHONHASHSEED", "0")];

/// Returns all programs.
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

    /// Writes the inputs into a directory, and returns the command to be run there in our
    /// [`ENVIRONMENT`].
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
            Location::OfGcc(name) => path_in_gcc(name)?,
        };
        path.is_file().then_some(path)
    }
}

impl Content {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Generated(make) => make(),
            Fixed(text) => text.as_bytes().to_vec(),
        }
    }
}

/// Returns the path of a program of the compiler.
fn path_in_gcc(name: &str) -> Option<PathBuf> {
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
        inputs: &[("numbers.bc", Fixed(include_str!("debian/numbers.bc")))],
    },
    DebianProgram {
        name: "bzip2",
        location: Location::Path("/usr/bin/bzip2"),
        package: "bzip2",
        arguments: "-c text",
        inputs: &[("text", Generated(|| inputs::text(600_000)))],
    },
    DebianProgram {
        name: "convert",
        location: Location::Path("/usr/bin/convert"),
        package: "imagemagick",
        arguments: "-limit thread 1 picture.ppm -resize 60% -rotate 7 -median 1 -colors 32 \
                    -define png:exclude-chunks=date,time picture.png",
        inputs: &[("picture.ppm", Generated(|| inputs::picture(320, 240)))],
    },
    DebianProgram {
        name: "gcc",
        location: Location::OfGcc("cc1"),
        package: "gcc",
        arguments: "-quiet -O2 program.c -o program.s",
        inputs: &[("program.c", Generated(|| inputs::c_program(4)))],
    },
    DebianProgram {
        name: "gnugo",
        location: Location::Path("/usr/games/gnugo"),
        package: "gnugo",
        arguments: "--mode gtp --gtp-input game.gtp --seed 1 --level 4",
        inputs: &[("game.gtp", Fixed(include_str!("debian/game.gtp")))],
    },
    DebianProgram {
        name: "gzip",
        location: Location::Path("/usr/bin/gzip"),
        package: "gzip",
        // -n: without the time of the file.
        arguments: "-n -c text",
        inputs: &[("text", Generated(|| inputs::text(800_000)))],
    },
    DebianProgram {
        name: "jq",
        location: Location::Path("/usr/bin/jq"),
        package: "jq",
        arguments: "-f summary.jq people.json",
        inputs: &[
            ("people.json", Generated(|| inputs::people(320))),
            ("summary.jq", Fixed(include_str!("debian/summary.jq"))),
        ],
    },
    DebianProgram {
        name: "lua",
        location: Location::Path("/usr/bin/lua5.4"),
        package: "lua5.4",
        arguments: "life.lua",
        inputs: &[("life.lua", Fixed(include_str!("debian/life.lua")))],
    },
    DebianProgram {
        name: "mawk",
        location: Location::Path("/usr/bin/mawk"),
        package: "mawk",
        arguments: "-f report.awk table",
        inputs: &[
            ("table", Generated(|| inputs::table(40_000))),
            ("report.awk", Fixed(include_str!("debian/report.awk"))),
        ],
    },
    DebianProgram {
        name: "openssl",
        location: Location::Path("/usr/bin/openssl"),
        package: "openssl",
        arguments: "enc -aes-256-cbc -base64 -in text -out text.enc -iv 000102030405060708090a0b0c0d0e0f \
                    -K 00112233445566778899aabbccddeeff0123456789abcdef0123456789abcdef",
        inputs: &[("text", Generated(|| inputs::text(8_000_000)))],
    },
    DebianProgram {
        name: "perl",
        location: Location::Path("/usr/bin/perl"),
        package: "perl-base",
        arguments: "words.pl text",
        inputs: &[("text", Generated(|| inputs::text(100_000))), ("words.pl", Fixed(include_str!("debian/words.pl")))],
    },
    DebianProgram {
        name: "php",
        location: Location::Path("/usr/bin/php"),
        package: "php-cli",
        arguments: "-n pages.php",
        inputs: &[("pages.php", Fixed(include_str!("debian/pages.php")))],
    },
    DebianProgram {
        name: "povray",
        location: Location::Path("/usr/bin/povray"),
        package: "povray",
        arguments: "+Iscene.pov +Oscene.ppm +FP +W120 +H90 +WT1 -D -GA",
        inputs: &[("scene.pov", Fixed(include_str!("debian/scene.pov")))],
    },
    DebianProgram {
        name: "python",
        location: Location::Path("/usr/bin/python3"),
        package: "python3-minimal",
        // -S -s: without packages of the site or the user.
        arguments: "-S -s -B solve.py",
        inputs: &[("solve.py", Fixed(include_str!("debian/solve.py")))],
    },
    DebianProgram {
        name: "ruby",
        location: Location::Path("/usr/bin/ruby"),
        package: "ruby",
        arguments: "--disable=gems shop.rb",
        inputs: &[("shop.rb", Fixed(include_str!("debian/shop.rb")))],
    },
    DebianProgram {
        name: "sort",
        location: Location::Path("/usr/bin/sort"),
        package: "coreutils",
        arguments: "--parallel=1 --buffer-size=64M -k2,2 -k3,3n -k5 table",
        inputs: &[("table", Generated(|| inputs::table(24_000)))],
    },
    DebianProgram {
        name: "sqlite",
        location: Location::Path("/usr/bin/sqlite3"),
        package: "sqlite3",
        arguments: "-batch -init library.sql :memory: .quit",
        inputs: &[("library.sql", Fixed(include_str!("debian/library.sql")))],
    },
    DebianProgram {
        name: "x264",
        location: Location::Path("/usr/bin/x264"),
        package: "x264",
        arguments: "--threads 1 --quiet --no-progress -o video.264 video.y4m",
        inputs: &[("video.y4m", Generated(|| inputs::video(176, 144, 12)))],
    },
    DebianProgram {
        name: "xz",
        location: Location::Path("/usr/bin/xz"),
        package: "xz-utils",
        arguments: "-T1 -c text",
        inputs: &[("text", Generated(|| inputs::text(160_000)))],
    },
    DebianProgram {
        name: "zstd",
        location: Location::Path("/usr/bin/zstd"),
        package: "zstd",
        arguments: "-q --single-thread --no-asyncio -12 -c text",
        inputs: &[("text", Generated(|| inputs::text(500_000)))],
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
    fn installed_programs_run() {
        for program in all().iter().filter(|program| program.is_installed()) {
            let directory = tempfile::tempdir().unwrap();
            let output = run(program, directory.path());
            assert!(output.status.success(), "{}: {output:?}", program.name);
        }
    }
}
