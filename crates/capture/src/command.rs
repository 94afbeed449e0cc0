//! Finds the program that a command names, as a shell does. Checks before the start whether it can
//! be run and traced.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};
use rustix::fs::{Access, AtFlags};

use crate::error::Error;

/// The search path if PATH is not set, as in the C library.
const DEFAULT_PATH: &str = "/bin:/usr/bin";
/// Runs scripts without an interpreter line.
const SHELL: &str = "/bin/sh";
/// The maximum number of interpreters of interpreters that the kernel follows.
const INTERPRETERS_MAX: usize = 4;
/// Bytes of a program that are read to identify it. Program headers lie at its start.
const SAMPLE_BYTES: u64 = 64 << 10;
const SET_UID: u32 = 0o4000;
/// Set-gid and executable by the group; set-gid alone means something else.
const SET_GID: u32 = 0o2010;

/// A command that can be started.
#[derive(Debug)]
pub struct Command {
    pub path: PathBuf,
    /// The program that the kernel executes.
    pub program: CString,
    pub arguments: Vec<CString>,
}

impl Command {
    /// Finds and checks the program of a command line.
    pub fn find(words: &[OsString]) -> Result<Self, Error> {
        let name = words.first().ok_or(Error::NoCommand)?;
        let path = search(name)?;
        let arguments = words.iter().map(|word| c_string(word.as_bytes())).collect::<Result<_, _>>()?;
        match check(&path, 0)? {
            ProgramKind::Program => Ok(Self { program: c_string(path.as_os_str().as_bytes())?, path, arguments }),
            ProgramKind::ShellScript => Self::for_shell(path, arguments),
        }
    }

    fn for_shell(path: PathBuf, arguments: Vec<CString>) -> Result<Self, Error> {
        let script = c_string(path.as_os_str().as_bytes())?;
        let mut with_shell = vec![c_string(SHELL.as_bytes())?, script];
        with_shell.extend(arguments.into_iter().skip(1));
        Ok(Self { program: c_string(SHELL.as_bytes())?, path, arguments: with_shell })
    }
}

fn c_string(bytes: &[u8]) -> Result<CString, Error> {
    CString::new(bytes).map_err(|_| Error::ZeroByte)
}

/// Returns the path of the program that a shell would run by this name.
#[must_use]
pub fn find_program(name: &OsStr) -> Option<PathBuf> {
    search(name).ok()
}

fn search(name: &OsStr) -> Result<PathBuf, Error> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let not_found = || Error::NotFound { name: name.to_string_lossy().into_owned() };
    if name.is_empty() {
        return Err(not_found());
    }
    let directories = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let candidates = env::split_paths(&directories).map(|directory| match directory.as_os_str().is_empty() {
        true => Path::new(".").join(name),
        false => directory.join(name),
    });
    let files: Vec<PathBuf> = candidates.filter(|path| path.is_file()).collect();
    let best = files.iter().find(|path| is_executable(path)).or(files.first());
    best.cloned().ok_or_else(not_found)
}

fn is_executable(path: &Path) -> bool {
    rustix::fs::accessat(rustix::fs::CWD, path, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

enum ProgramKind {
    /// The kernel can execute it.
    Program,
    /// Text without an interpreter line.
    ShellScript,
}

fn check(path: &Path, depth: usize) -> Result<ProgramKind, Error> {
    let owned = || path.to_owned();
    let metadata = path.metadata().map_err(|error| Error::NotAccessible { path: owned(), error })?;
    if metadata.is_dir() {
        return Err(Error::Directory { path: owned() });
    }
    if !metadata.is_file() {
        return Err(Error::NotAFile { path: owned() });
    }
    if !is_executable(path) {
        return Err(Error::NotExecutable { path: owned() });
    }
    let sample = sample(path)?;
    if sample.starts_with(b"#!") {
        check_script(path, &sample, depth)?;
        return Ok(ProgramKind::Program);
    }
    if is_privileged(path, &metadata) {
        return Err(Error::Privileged { path: owned() });
    }
    if sample.starts_with(&elf::ELFMAG) {
        check_elf(path, &sample)?;
        return Ok(ProgramKind::Program);
    }
    let first_line = sample.split(|&byte| byte == b'\n').next().unwrap_or_default();
    if first_line.contains(&0) {
        return Err(Error::NotAProgram { path: owned(), reason: "it is neither an ELF file nor a script" });
    }
    Ok(ProgramKind::ShellScript)
}

fn sample(path: &Path) -> Result<Vec<u8>, Error> {
    let mut sample = Vec::new();
    let read = File::open(path).and_then(|file| file.take(SAMPLE_BYTES).read_to_end(&mut sample));
    match read {
        Ok(_) => Ok(sample),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(Error::NotReadable { path: path.to_owned() })
        }
        Err(error) => Err(Error::NotAccessible { path: path.to_owned(), error }),
    }
}

/// Returns whether exec would change the credentials. It does not do so for a process that an
/// ordinary user traces.
pub fn is_privileged(path: &Path, metadata: &Metadata) -> bool {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if user.is_root() {
        return false;
    }
    let mode = metadata.permissions().mode();
    let other_user = mode & SET_UID != 0 && metadata.uid() != user.as_raw();
    let other_group = mode & SET_GID == SET_GID && metadata.gid() != group.as_raw();
    let mut nothing: [u8; 0] = [];
    let capabilities = rustix::fs::getxattr(path, "security.capability", &mut nothing).is_ok_and(|length| length > 0);
    other_user || other_group || capabilities
}

fn check_script(path: &Path, sample: &[u8], depth: usize) -> Result<(), Error> {
    let line = sample[2..].split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii();
    let name = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    if name.is_empty() {
        return Err(Error::NotAProgram { path: path.to_owned(), reason: "its first line names no interpreter" });
    }
    if depth == INTERPRETERS_MAX {
        return Err(Error::NotAProgram { path: path.to_owned(), reason: "its interpreters are scripts without end" });
    }
    let interpreter = PathBuf::from(OsString::from_vec(name.to_vec()));
    if !interpreter.exists() {
        return Err(Error::MissingInterpreter { path: path.to_owned(), interpreter });
    }
    match check(&interpreter, depth + 1) {
        Ok(ProgramKind::Program) => Ok(()),
        Ok(ProgramKind::ShellScript) => {
            let reason = "its interpreter is neither an ELF file nor a script with an interpreter of its own";
            Err(Error::NotAProgram { path: path.to_owned(), reason })
        }
        Err(error) => Err(Error::BadInterpreter { path: path.to_owned(), interpreter, error: Box::new(error) }),
    }
}

fn check_elf(path: &Path, sample: &[u8]) -> Result<(), Error> {
    let broken = |reason| Error::NotAProgram { path: path.to_owned(), reason };
    match sample.get(4) {
        Some(&elf::ELFCLASS64) => {}
        Some(&elf::ELFCLASS32) => return Err(Error::Not64Bit { path: path.to_owned() }),
        _ => return Err(broken("its ELF header is damaged")),
    }
    if sample.get(5) == Some(&elf::ELFDATA2MSB) {
        let machine = sample.get(18..20).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        return Err(Error::ForeignMachine { path: path.to_owned(), machine });
    }
    let endian = object::LittleEndian;
    let header =
        elf::FileHeader64::<object::LittleEndian>::parse(sample).map_err(|_| broken("its ELF header is damaged"))?;
    let machine = header.e_machine(endian);
    if machine != elf::EM_X86_64 {
        return Err(Error::ForeignMachine { path: path.to_owned(), machine });
    }
    if !matches!(header.e_type(endian), elf::ET_EXEC | elf::ET_DYN) {
        return Err(broken("it is an ELF file, but not an executable one"));
    }
    let programs = header.program_headers(endian, sample).map_err(|_| broken("its program headers are damaged"))?;
    for program in programs {
        if let Ok(Some(interpreter)) = program.interpreter(endian, sample) {
            let interpreter = PathBuf::from(OsStr::from_bytes(interpreter));
            if !interpreter.exists() {
                return Err(Error::MissingInterpreter { path: path.to_owned(), interpreter });
            }
        }
    }
    Ok(())
}
