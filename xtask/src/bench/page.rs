//! Keeps results: dated records under docs/performance/, and docs/performance.md, which has a
//! section for each vendor of processors.
//!
//! A section is computed from one record, so that all of its numbers are of the same run. Only a
//! complete record has a section; without one, a paragraph says what is missing.

use std::path::Path;

use super::rounds::Rounds;
use super::{Measurement, PeerResult, Report, table};

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

/// Keeps the result of a run. A complete one replaces the section of its vendor; an incomplete one
/// only takes the place of another incomplete one.
pub fn save(report: &Report, json: &str) -> Result<(), String> {
    let name = record_name(report);
    keep(&name, &[("json", json), ("txt", &table::text(report))])?;
    let (page, vendor) = (read(PAGE)?, report.machine.vendor());
    let complete = Some(report).filter(|report| is_complete(report));
    if complete.is_none() && complete_report(&record_of(&page, vendor)?)?.is_some() {
        eprintln!("{PAGE} stays as it is: only a part was measured");
        return Ok(());
    }
    write(PAGE, &replace(&page, vendor, &section(&name, complete))?)
}

/// Writes all sections again from the records that they name.
pub fn write_again() -> Result<(), String> {
    let mut page = read(PAGE)?;
    for vendor in vendors(&page) {
        let name = record_of(&page, &vendor)?;
        page = replace(&page, &vendor, &section(&name, complete_report(&name)?.as_ref()))?;
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

/// Returns whether a report has everything that the page describes: every program with all rounds
/// and valgrind, and all further tables. Memory accesses are missing in records from before they
/// were measured.
fn is_complete(report: &Report) -> bool {
    let programs = report.programs.iter().all(|row| row.result.as_ref().is_ok_and(has_every_column));
    let tables = [&report.locks, &report.seek].into_iter().all(|table| matches!(table, Some(Ok(_))));
    let memory = !matches!(report.memory, Some(Err(_)));
    is_whole(&report.command) && programs && tables && memory && matches!(report.pace, Some(Ok(_)))
}

fn has_every_column(measured: &Measurement) -> bool {
    let Rounds { native_seconds, record_seconds, addresses_seconds, values_seconds, reading, tools } = &measured.rounds;
    let seconds = [native_seconds, record_seconds, addresses_seconds, values_seconds];
    let peers = [&measured.valgrind_none, &measured.valgrind_lackey];
    !seconds.iter().any(|rounds| rounds.is_empty())
        && !reading.is_empty()
        && !tools.is_empty()
        && peers.iter().all(|peer| matches!(peer, PeerResult::Slowdown(_)))
}

/// Returns the section of a complete record, or for an incomplete one the paragraph in its place.
/// The name of the record comes first in both: see [`record_of`].
fn section(name: &str, complete: Option<&Report>) -> String {
    match complete {
        Some(report) => format!("Record: `{RECORDS}/{name}.json`\n\n{}", table::markdown(report)),
        None => format!(
            "There is no complete record from such a machine yet. The last incomplete one is\n\
             `{RECORDS}/{name}.json`. `cargo xtask bench --save` on such a machine\n\
             writes this section.\n"
        ),
    }
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

/// Returns the report of a record if it is complete. Records of the first days lack fields that a
/// [`Report`] has, so they are incomplete, too.
fn complete_report(name: &str) -> Result<Option<Report>, String> {
    let text = read(&format!("{RECORDS}/{name}.json"))?;
    Ok(serde_json::from_str(&text).ok().filter(is_complete))
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
    use crate::bench::{FurtherTable, MissingResult};

    #[test]
    fn a_section_is_replaced_between_its_markers() {
        let ((begin, end), (other, _)) = (markers("amd"), markers("intel"));
        let page = format!("before\n{begin}\nold\n{end}\n{other}\n");
        assert_eq!(replace(&page, "amd", "new\n").unwrap(), format!("before\n{begin}\nnew\n{end}\n{other}\n"));
        assert!(replace(&page, "intel", "new\n").is_err());
    }

    /// The fields that all records have, old ones included.
    #[derive(serde::Deserialize)]
    struct Heading {
        date: String,
        machine: crate::machine::Machine,
    }

    fn heading(name: &str) -> Heading {
        serde_json::from_str(&read(&format!("{RECORDS}/{name}.json")).unwrap()).unwrap()
    }

    /// Names of all records but comparisons, by date.
    fn records() -> Vec<String> {
        let entries = std::fs::read_dir(crate::root().join(RECORDS)).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
            .filter(|name| !name.contains("-since-"))
            .collect();
        names.sort();
        assert!(names.len() >= 2, "the records are not found: {names:?}");
        names
    }

    /// A complete report, with the name of its record.
    fn complete_record() -> (String, Report) {
        let found = records().into_iter().rev().find_map(|name| Some((complete_report(&name).unwrap()?, name)));
        let (report, name) = found.expect("run `cargo xtask bench --save`");
        (name, report)
    }

    #[test]
    fn every_section_is_what_its_record_gives() {
        let page = read(PAGE).unwrap();
        assert_eq!(vendors(&page), ["amd", "intel"]);
        for vendor in vendors(&page) {
            let name = record_of(&page, &vendor).unwrap();
            assert_eq!(heading(&name).machine.vendor(), vendor, "{name} is of another processor");
            let (_, written, _) = split(&page, &vendor).unwrap();
            let given = section(&name, complete_report(&name).unwrap().as_ref());
            assert_eq!(written.trim_start(), given, "write it again: cargo xtask bench --page");
        }
    }

    /// A section is of the last complete record. Without one, its paragraph names the last record.
    #[test]
    fn no_record_is_younger_than_its_section() {
        let page = read(PAGE).unwrap();
        for name in records() {
            let record = heading(&name);
            let vendor = record.machine.vendor();
            assert!(name.starts_with(&format!("{}-{vendor}-", record.date)), "{name} has another date or vendor in it");
            let shown = record_of(&page, vendor).unwrap();
            let is_complete = |name: &str| complete_report(name).unwrap().is_some();
            let (record_is_complete, shown_is_complete) = (is_complete(&name), is_complete(&shown));
            assert!(shown_is_complete || !record_is_complete, "the section for {vendor} does not show {name}");
            assert!(
                record_is_complete != shown_is_complete || record.date <= heading(&shown).date,
                "{name} is younger than the section for {vendor}"
            );
        }
    }

    #[test]
    fn a_complete_record_gives_all_columns_and_tables() {
        let (name, report) = complete_record();
        let section = section(&name, Some(&report));
        assert!(section.starts_with(&format!("Record: `{RECORDS}/{name}.json`")));
        let headings: Vec<&str> = section.lines().filter(|line| line.starts_with("| ---")).collect();
        let further = usize::from(report.memory.is_some());
        assert_eq!(headings.len(), 4 + further, "programs, tools, locks, seek, memory");
        for text in ["| valgrind none | lackey |", "| segment, 48 policies |", "| 2 threads |", "instructions skipped"]
        {
            assert!(section.contains(text), "no '{text}'");
        }
        let first = section.lines().find(|line| line.starts_with("| xz |")).unwrap();
        assert!(first.contains('–'), "no spread of the rounds: {first}");
        assert!(!section.contains(crate::bench::NOT_ASKED_FOR));
    }

    /// Records from before memory accesses were measured are shown without their table.
    #[test]
    fn memory_accesses_are_shown_if_they_were_measured() {
        let (name, mut report) = complete_record();
        report.memory = None;
        let without = section(&name, Some(&report).filter(|report| is_complete(report)));
        assert!(without.contains("| 2 threads |") && !without.contains("memory accesses compressed"));
        let cells = vec![vec!["memory accesses compressed".into(), "M".into()], vec!["fft".into(), "50".into()]];
        report.memory = Some(Ok(FurtherTable::new(&0, cells, "A note.").unwrap()));
        let with = section(&name, Some(&report).filter(|report| is_complete(report)));
        assert!(
            with.contains("| memory accesses compressed | M |\n| --- | ---: |\n| fft | 50 |\n\nA note.\n"),
            "{with}"
        );
    }

    #[test]
    fn a_vendor_without_complete_record_gets_a_paragraph() {
        let page = read(PAGE).unwrap();
        let page = replace(&page, "intel", &section("2026-11-16-intel-d10b4e9", None)).unwrap();
        let (_, paragraph, _) = split(&page, "intel").unwrap();
        assert!(paragraph.contains("There is no complete record from such a machine yet."));
        assert!(paragraph.contains("`cargo xtask bench --save`"));
        assert!(!paragraph.contains('|'), "a table: {paragraph}");
        assert_eq!(record_of(&page, "intel").unwrap(), "2026-11-16-intel-d10b4e9");
    }

    /// Takes each part of a complete report away in turn.
    #[test]
    fn a_record_without_rounds_valgrind_or_tables_is_incomplete() {
        fn measured(report: &mut Report) -> &mut Measurement {
            report.programs[0].result.as_mut().ok().unwrap()
        }
        let omissions: [fn(&mut Report); 10] = [
            |report| report.command.push_str(" --quick"),
            |report| report.locks = None,
            |report| report.seek = None,
            |report| report.pace = None,
            |report| report.memory = Some(Err(MissingResult { problem: "no compiler".into() })),
            |report| measured(report).rounds.native_seconds.clear(),
            |report| measured(report).rounds.values_seconds.clear(),
            |report| measured(report).rounds.reading.clear(),
            |report| measured(report).rounds.tools.clear(),
            |report| measured(report).valgrind_lackey = PeerResult::Without("not asked for".into()),
        ];
        assert!(is_complete(&complete_record().1));
        for (number, omit) in omissions.iter().enumerate() {
            let mut report = complete_record().1;
            omit(&mut report);
            assert!(!is_complete(&report), "omission {number}");
        }
        assert!(complete_report("2026-11-16-intel-d10b4e9").unwrap().is_none());
        assert!(complete_report("2026-11-15-amd-5fd1a5a-dirty").unwrap().is_none());
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
        let (name, mut report) = complete_record();
        report.command = "cargo xtask bench --quick --programs xz,locks".into();
        assert_eq!(record_name(&report), format!("{name}-quick-programs-xz-locks"));
        report.command = "cargo xtask bench --rounds 5".into();
        assert_eq!(record_name(&report), name);
    }
}
