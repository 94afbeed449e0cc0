//! Keeps results: dated records under docs/performance/, and docs/performance.md, which has a
//! section for each vendor of processors.
//!
//! A section is computed from one record, so that all of its numbers are of the same run.

use std::path::Path;

use super::{Report, table};

const PAGE: &str = "docs/performance.md";
const RECORDS: &str = "docs/performance";

/// Keeps a record: files of one name with several extensions.
pub fn keep(name: &str, files: &[(&str, &str)]) -> Result<(), String> {
    for (extension, content) in files {
        write(&format!("{RECORDS}/{name}.{extension}"), content)?;
    }
    eprintln!("kept as {RECORDS}/{name}");
    Ok(())
}

/// Keeps the result of a run; that of a whole run on the page, too.
pub fn save(report: &Report, json: &str) -> Result<(), String> {
    let name = record_name(report);
    keep(&name, &[("json", json), ("txt", &table::text(report))])?;
    if !is_whole(&report.command) {
        eprintln!("{PAGE} stays as it is: only a part was measured");
        return Ok(());
    }
    let page = replace(&read(PAGE)?, report.machine.vendor(), &section(&name, report))?;
    write(PAGE, &page)
}

/// Writes all sections again from the records that they name.
pub fn write_again() -> Result<(), String> {
    let mut page = read(PAGE)?;
    for vendor in vendors(&page) {
        let name = record_of(&page, &vendor)?;
        page = replace(&page, &vendor, &section(&name, &parse(&name)?))?;
    }
    write(PAGE, &page)
}

/// Returns the date, the vendor and the revision; for a part of a run also its options.
fn record_name(report: &Report) -> String {
    let options = report.command.trim_start_matches("cargo xtask bench").split([' ', ',', '-']);
    let part = if is_whole(&report.command) {
        String::new()
    } else {
        options.filter(|word| !word.is_empty()).map(|word| format!("-{word}")).collect()
    };
    format!("{}-{}-{}{part}", report.date, report.machine.vendor(), report.machine.revision)
}

/// Returns whether everything was measured, at full size.
fn is_whole(command: &str) -> bool {
    !["--quick", "--programs", "--no-valgrind"].iter().any(|option| command.contains(option))
}

fn section(name: &str, report: &Report) -> String {
    format!("Record: `{RECORDS}/{name}.json`\n\n{}", table::markdown(report))
}

/// Returns the vendors that a page has sections for.
fn vendors(page: &str) -> Vec<String> {
    let ends = page.lines().filter_map(|line| line.strip_prefix("<!-- end of bench "));
    ends.map(|rest| rest.trim_end_matches(" -->").to_owned()).collect()
}

/// Returns the page before, in and behind a section.
fn split<'a>(page: &'a str, vendor: &str) -> Result<(&'a str, &'a str, &'a str), String> {
    let (begin, end) = markers(vendor);
    let parts = page.split_once(&begin).and_then(|(before, rest)| {
        let (section, after) = rest.split_once(&end)?;
        Some((before, section, after))
    });
    parts.ok_or_else(|| format!("{PAGE} has no markers for {vendor}: `{begin}` and `{end}`"))
}

fn markers(vendor: &str) -> (String, String) {
    (
        format!("<!-- bench {vendor}: written by `cargo xtask bench --save` -->"),
        format!("<!-- end of bench {vendor} -->"),
    )
}

/// Returns the page with a new section between the markers.
fn replace(page: &str, vendor: &str, section: &str) -> Result<String, String> {
    let (before, _, after) = split(page, vendor)?;
    let (begin, end) = markers(vendor);
    Ok(format!("{before}{begin}\n{section}{end}{after}"))
}

/// Returns the record that a section names.
fn record_of(page: &str, vendor: &str) -> Result<String, String> {
    let (_, section, _) = split(page, vendor)?;
    let name = section.split('`').nth(1).and_then(|path| Path::new(path).file_stem());
    Ok(name.ok_or_else(|| format!("the section for {vendor} names no record"))?.to_string_lossy().into_owned())
}

fn parse(name: &str) -> Result<Report, String> {
    let text = read(&format!("{RECORDS}/{name}.json"))?;
    serde_json::from_str(&text).map_err(|error| format!("{RECORDS}/{name}.json: {error}"))
}

fn read(name: &str) -> Result<String, String> {
    std::fs::read_to_string(crate::root().join(name)).map_err(|error| format!("{name}: {error}"))
}

fn write(name: &str, content: &str) -> Result<(), String> {
    std::fs::write(crate::root().join(name), content).map_err(|error| format!("{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_replaced_between_its_markers() {
        let ((begin, end), (other, _)) = (markers("amd"), markers("intel"));
        let page = format!("before\n{begin}\nold\n{end}\n{other}\n");
        assert_eq!(replace(&page, "amd", "new\n").unwrap(), format!("before\n{begin}\nnew\n{end}\n{other}\n"));
        assert!(replace(&page, "intel", "new\n").is_err());
    }

    #[test]
    fn every_section_is_what_its_record_gives() {
        let page = read(PAGE).unwrap();
        assert_eq!(vendors(&page), ["amd", "intel"]);
        for vendor in vendors(&page) {
            let name = record_of(&page, &vendor).unwrap();
            let report = parse(&name).unwrap();
            assert_eq!(report.machine.vendor(), vendor, "{name} is of another processor");
            let (_, written, _) = split(&page, &vendor).unwrap();
            assert_eq!(written.trim_start(), section(&name, &report), "write it again: cargo xtask bench --page");
        }
    }

    /// The fields that all records have, old ones included.
    #[derive(serde::Deserialize)]
    struct Heading {
        command: String,
        date: String,
        machine: crate::machine::Machine,
    }

    /// Records are named by date and vendor; a section is of the last whole run.
    #[test]
    fn no_whole_record_is_younger_than_its_section() {
        let page = read(PAGE).unwrap();
        let mut names: Vec<String> = std::fs::read_dir(crate::root().join(RECORDS))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
            .filter(|name| !name.contains("-since-"))
            .collect();
        names.sort();
        assert!(names.len() >= 2, "the records are not found: {names:?}");
        for name in names {
            let text = read(&format!("{RECORDS}/{name}.json")).unwrap();
            let record: Heading = serde_json::from_str(&text).unwrap();
            let vendor = record.machine.vendor();
            assert!(name.starts_with(&format!("{}-{vendor}-", record.date)), "{name} has another date or vendor in it");
            let shown = parse(&record_of(&page, vendor).unwrap()).unwrap();
            assert!(
                !is_whole(&record.command) || record.date <= shown.date,
                "{name} is younger than the section for {vendor}"
            );
        }
    }

    /// The page describes all tables; at least one section has all of them.
    #[test]
    fn a_section_has_everything() {
        let page = read(PAGE).unwrap();
        let records = vendors(&page).into_iter().map(|vendor| parse(&record_of(&page, &vendor).unwrap()).unwrap());
        let has_everything = |report: &Report| {
            let means = &report.geometric_means;
            let further = [&report.locks, &report.seek].into_iter().all(|table| matches!(table, Some(Ok(_))));
            is_whole(&report.command) && further && means.tools.is_some() && means.valgrind_lackey.is_some()
        };
        assert!(records.into_iter().any(|report| has_everything(&report)), "run `cargo xtask bench --save`");
    }

    /// Returns whether a line contains a measurement.
    fn has_measurement(line: &str) -> bool {
        const UNITS: [&str; 8] = [" ns", " ms", " s ", " %", " times", " MB", " MiB", "×"];
        line.match_indices(|letter: char| letter.is_ascii_digit()).any(|(at, digit)| {
            let rest = &line[at + digit.len()..];
            let is_fraction =
                rest.strip_prefix('.').is_some_and(|rest| rest.starts_with(|next: char| next.is_ascii_digit()));
            is_fraction || UNITS.iter().any(|unit| rest.starts_with(unit))
        })
    }

    /// Numbers in prose would not change with the record.
    #[test]
    fn the_prose_has_no_measurements() {
        let page = read(PAGE).unwrap();
        let prose = vendors(&page).iter().fold(page, |page, vendor| replace(&page, vendor, "").unwrap());
        let measured: Vec<&str> = prose.lines().filter(|line| has_measurement(line)).collect();
        assert!(measured.is_empty(), "these numbers are from no record: {measured:#?}");
        assert!(has_measurement("takes 1.5 times") && has_measurement("15 % of it") && has_measurement("3 ns"));
        assert!(!has_measurement("two cores, -O2, 2026-11-16."));
    }

    #[test]
    fn a_part_of_a_run_says_so_in_its_name() {
        let name = record_of(&read(PAGE).unwrap(), "intel").unwrap();
        let mut report = parse(&name).unwrap();
        report.command = "cargo xtask bench --quick --programs xz,locks".into();
        assert_eq!(record_name(&report), format!("{name}-quick-programs-xz-locks"));
        report.command = "cargo xtask bench --rounds 5".into();
        assert_eq!(record_name(&report), name);
    }
}
