//! Compiles a program of the catalogue, once per text and flags. Knows nothing of what the programs do.

use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::catalog::{self, Program, Variant};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no program called {0} among the workloads")]
    Unknown(String),
    #[error("{program} cannot be built as {variant}")]
    Variant { program: &'static str, variant: Variant },
    #[error("building {program} needs a C compiler, and {} cannot be run ({source}); install one or set CC", .compiler.display())]
    NoCompiler { program: &'static str, compiler: OsString, source: io::Error },
    #[error("the C compiler refuses {program}: {message}")]
    Refused { program: &'static str, message: String },
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} belongs to somebody else", .0.display())]
    Foreign(PathBuf),
}

/// The executable of program `name`, compiled now unless it was before.
///
/// # Errors
///
/// If there is no such program or variant, no working C compiler, or no place to write to.
pub fn build(name: &str, variant: Variant) -> Result<PathBuf, Error> {
    Builder::default().build(name, variant)
}

/// Where and with what programs are built.
#[derive(Clone, Debug)]
pub struct Builder {
    pub compiler: OsString,
    /// Every program has a directory of its own in here.
    pub directory: PathBuf,
}

impl Default for Builder {
    /// `$CC` or `cc`; in cargo's target directory if we run out of it, else in a directory for temporary files.
    fn default() -> Self {
        Self { compiler: std::env::var_os("CC").unwrap_or_else(|| "cc".into()), directory: default_directory() }
    }
}

fn default_directory() -> PathBuf {
    let executable = std::env::current_exe().unwrap_or_default();
    // Cargo marks its target directory as a cache.
    let target = executable.ancestors().find(|directory| directory.join("CACHEDIR.TAG").is_file());
    match target {
        Some(target) => target.join("trackway-workloads"),
        // SAFETY: takes nothing and cannot fail.
        None => std::env::temp_dir().join(format!("trackway-workloads-{}", unsafe { libc::geteuid() })),
    }
}

impl Builder {
    /// As [`build`], with this compiler and directory.
    ///
    /// # Errors
    ///
    /// As [`build`].
    pub fn build(&self, name: &str, variant: Variant) -> Result<PathBuf, Error> {
        let program = catalog::find(name).ok_or_else(|| Error::Unknown(name.to_owned()))?;
        if !program.variants.contains(&variant) {
            return Err(Error::Variant { program: program.name, variant });
        }
        let home = self.directory.join(format!("{name}-{variant}-{:016x}", self.digest(program, variant)));
        let executable = home.join(name);
        if !executable.exists() {
            self.build_into(program, variant, &home)?;
        }
        Ok(executable)
    }

    fn digest(&self, program: &Program, variant: Variant) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.compiler.hash(&mut hasher);
        (program.sources, program.flags(variant)).hash(&mut hasher);
        hasher.finish()
    }

    /// Builds beside `home` and moves the whole directory there at once: others may be building the same.
    fn build_into(&self, program: &Program, variant: Variant, home: &Path) -> Result<(), Error> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        self.make_directory()?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let draft = home.with_extension(format!("draft-{}-{serial}", std::process::id()));
        fs::create_dir(&draft).map_err(at(&draft))?;
        let built = self.compile(program, variant, &draft, home);
        let moved = built.and_then(|()| move_unless_there(&draft, home));
        if moved.is_err() {
            // What went wrong first is what matters.
            let _ = fs::remove_dir_all(&draft);
        }
        moved
    }

    /// The directory may be in a place that everybody writes to: it must be ours, and ours alone.
    fn make_directory(&self) -> Result<(), Error> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&self.directory).map_err(at(&self.directory))?;
        let owner = fs::metadata(&self.directory).map_err(at(&self.directory))?.uid();
        // SAFETY: takes nothing and cannot fail.
        if owner == unsafe { libc::geteuid() } { Ok(()) } else { Err(Error::Foreign(self.directory.clone())) }
    }

    fn compile(&self, program: &Program, variant: Variant, draft: &Path, home: &Path) -> Result<(), Error> {
        for source in program.sources {
            let path = draft.join(source.name);
            fs::write(&path, source.text).map_err(at(&path))?;
        }
        // Debug information names the place where the sources will be.
        let mut prefix_map = OsString::from("-ffile-prefix-map=");
        prefix_map.push(draft);
        prefix_map.push("=");
        prefix_map.push(home);
        let output = Command::new(&self.compiler)
            .current_dir(draft)
            .arg(prefix_map)
            .args(["-o", program.name, program.sources[0].name])
            .args(program.flags(variant))
            .output()
            .map_err(|source| Error::NoCompiler { program: program.name, compiler: self.compiler.clone(), source })?;
        if output.status.success() {
            return Ok(());
        }
        let message = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        Err(Error::Refused { program: program.name, message })
    }
}

fn move_unless_there(draft: &Path, home: &Path) -> Result<(), Error> {
    match fs::rename(draft, home) {
        Err(_) if home.is_dir() => fs::remove_dir_all(draft).map_err(at(draft)),
        result => result.map_err(at(home)),
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path, source }
}
