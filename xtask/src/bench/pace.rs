//! The pace of a program after the recorder has detached, compared with before: nothing of the
//! recorder may stay behind.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The number of times that the recorder attaches.
const VISITS: usize = 5;
/// The time without the recorder before the first recording and after each.
const UNDISTURBED: Duration = Duration::from_millis(1500);
const VISIT_SECONDS: &str = "0.3";
/// The number of pieces of work that may have begun before detaching.
const MIXED: usize = 2;

/// Microseconds of processor time for the same piece of work.
#[derive(Serialize, Deserialize)]
pub struct Pace {
    pub before: f64,
    pub while_recorded: f64,
    pub after: f64,
    /// The time after over the time before.
    pub ratio: f64,
}

/// Runs a program that times itself, and attaches to it.
pub fn measure(trackway: &Path, directory: &Path) -> Result<Pace, String> {
    let program = build(directory)?;
    let output = directory.join("pace.times");
    let file = File::create(&output).map_err(|error| error.to_string())?;
    let child = Command::new(program).stdout(file).spawn().map_err(|error| error.to_string())?;
    let mut running = Running { child };
    std::thread::sleep(UNDISTURBED);
    let before = times(&output)?;
    let (mut recorded, mut after) = (Vec::new(), Vec::new());
    for _ in 0..VISITS {
        let start = times(&output)?.len();
        visit(trackway, directory, running.child.id())?;
        let end = times(&output)?.len();
        std::thread::sleep(UNDISTURBED);
        let all = times(&output)?;
        recorded.extend_from_slice(all.get(start + MIXED..end).unwrap_or_default());
        after.extend_from_slice(all.get(end + MIXED..).unwrap_or_default());
    }
    running.end()?;
    let [before, while_recorded, after] = [typical(before)?, typical(recorded)?, typical(after)?];
    Ok(Pace { before, while_recorded, after, ratio: after / before })
}

fn build(directory: &Path) -> Result<std::path::PathBuf, String> {
    let (source, program) = (directory.join("pace.c"), directory.join("pace"));
    let text = include_str!("../../../crates/acceptance/programs/pace.c");
    std::fs::write(&source, text).map_err(|error| error.to_string())?;
    succeed(Command::new("gcc").args(["-O2", "-o"]).arg(&program).arg(&source))?;
    Ok(program)
}

fn visit(trackway: &Path, directory: &Path, process: u32) -> Result<(), String> {
    let mut command = Command::new(trackway);
    command.args(["record", "--seconds", VISIT_SECONDS, "-p", &process.to_string(), "-o"]);
    succeed(command.arg(directory.join("pace.trk")))
}

fn succeed(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

struct Running {
    child: Child,
}

impl Running {
    fn end(&mut self) -> Result<(), String> {
        succeed(Command::new("kill").arg(self.child.id().to_string()))?;
        let status = self.child.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("the program that times itself ended with {status}")) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the times that the program has printed so far.
fn times(output: &Path) -> Result<Vec<f64>, String> {
    let text = std::fs::read_to_string(output).map_err(|error| error.to_string())?;
    let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    complete.lines().map(|line| line.parse().map_err(|_| format!("'{line}' is no time"))).collect()
}

/// Returns a low quantile: other load on the machine only makes times longer.
fn typical(mut times: Vec<f64>) -> Result<f64, String> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 10).copied().ok_or_else(|| "the program that times itself was too slow".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_typical_time_is_the_median() {
        let times: Vec<f64> = (0..100).rev().map(f64::from).collect();
        assert_eq!(typical(times), Ok(10.0));
        assert!(typical(Vec::new()).is_err());
    }
}
