//! The machine and the day in the record of a measurement, without the name of the machine.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub struct Machine {
    pub processor: String,
    pub cores: usize,
    pub memory_mib: u64,
    pub system: String,
    pub revision: String,
}

pub fn describe() -> Machine {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let memory = value(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
    let kibibytes: u64 = memory.split(' ').next().and_then(|digits| digits.parse().ok()).unwrap_or(0);
    Machine {
        processor: value(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown processor".into()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        memory_mib: kibibytes / 1024,
        system: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
        revision: revision(),
    }
}

fn revision() -> String {
    let output = Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(crate::root()).output();
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => "unknown revision".into(),
    }
}

impl Machine {
    /// Returns the vendor of the processor: results of different vendors are kept apart.
    pub fn vendor(&self) -> &'static str {
        match () {
            () if self.processor.contains("AMD") => "amd",
            () if self.processor.contains("Intel") => "intel",
            () => "other",
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { processor, cores, memory_mib, system, revision } = self;
        write!(f, "{processor}, {cores} cores, {memory_mib} MiB, {system}, revision {revision}")
    }
}

/// Returns the current day in UTC as 2031-12-24.
pub fn today() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |duration| duration.as_secs());
    let (year, month, day) = civil(seconds / 86400);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Returns the Gregorian date of a day since 1970-01-01: counts in eras of 400 years that start on
/// a first of March.
fn civil(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let (era, day_of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day_of_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(11_017), (2000, 3, 1));
        assert_eq!(civil(20_454), (2026, 1, 1));
    }
}
