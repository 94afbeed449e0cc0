//! Compiles a program of the catalogue, once per text and flags. Does not know what the programs
//! do.

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
    #[error(
        "building {program} needs a C compiler, and {} cannot be run ({source}); install one or set CC",
        .compiler.display()
    )]
    NoCompiler { program: &'static str, compiler: OsString, source: io::Error },
    #[error("the C compiler refuses {program}: {message}")]
    Refused { program: &'static str, message: String },
    #[error("{}: {source}", .path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{} belongs to another user", .0.display())]
    Foreign(PathBuf),
}

/// Returns the executable of program `name`, compiled now unless it was before.
///
/// # Errors
///
/// If there is no such program or variant, no working C compiler, or no directory to write to.
pub fn build(name: &str, variant: Variant) -> Result<PathBuf, Error> {
    Builder::default().build(name, variant)
}

/// The compiler and the directory for programs.
#[derive(Clone, Debug)]
pub struct Builder {
    pub compiler: OsString,
    /// Every program has a directory of its own in here.
    pub directory: PathBuf,
}

impl Default for Builder {
    /// Returns `$CC` or `cc`, and a directory in the target directory of cargo if this program is
    /// in it, else a temporary directory.
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
        None => std::env::temp_dir().join(format!("trackway-workloads-{}", rustix::process::geteuid().as_raw())),
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

    /// Builds beside `home` and renames the whole directory at once: another process may be
    /// building the same.
    fn build_into(&self, program: &Program, variant: Variant, home: &Path) -> Result<(), Error> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        self.make_directory()?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let staging = home.with_extension(format!("staging-{}-{serial}", std::process::id()));
        fs::create_dir(&staging).map_err(at(&staging))?;
        let built = self.compile(program, variant, &staging, home);
        let moved = built.and_then(|()| move_unless_there(&staging, home));
        if moved.is_err() {
            // The first error matters.
            let _ = fs::remove_dir_all(&staging);
        }
        moved
    }

    /// Creates the directory. Its parent may be writable for all users, so the directory must
    /// belong to this user.
    fn make_directory(&self) -> Result<(), Error> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(&self.directory).map_err(at(&self.directory))?;
        let owner = fs::metadata(&self.directory).map_err(at(&self.directory))?.uid();
        if owner == rustix::process::geteuid().as_raw() { Ok(()) } else { Err(Error::Foreign(self.directory.clone())) }
    }

    fn compile(&self, program: &Program, variant: Variant, staging: &Path, home: &Path) -> Result<(), Error> {
        for source in program.sources {
            let path = staging.join(source.name);
            fs::write(&path, source.text).map_err(at(&path))?;
        }
        // Debug information contains the final path of the sources.
        let mut prefix_map = OsString::from("-ffile-prefix-map=");
        prefix_map.push(staging);
        prefix_map.push("=");
        prefix_map.push(home);
        let output = Command::new(&self.compiler)
            .current_dir(staging)
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

fn move_unless_there(staging: &Path, home: &Path) -> Result<(), Error> {
    match fs::rename(staging, home) {
        Err(_) if home.is_dir() => fs::remove_dir_all(staging).map_err(at(staging)),
        result => result.map_err(at(home)),
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { path, source }
}
