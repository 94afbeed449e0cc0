//! The benchmark's result as a table, for the terminal and for docs/performance.md.

use std::fmt::Write;

use super::tools::{MILLIONS, POLICY_COUNT};
use super::{LACKEY_SCALE, Measured, Peer, Report, Row, Tools, records};

const BEGIN: &str = "<!-- bench table: written by `cargo xtask bench --save` -->";
const END: &str = "<!-- end of bench table -->";

/// The table as text.
pub fn text(report: &Report) -> String {
    let mut rows = vec![heading()];
    rows.extend(report.programs.iter().map(cells));
    rows.push(mean_cells(report));
    let mut text = format!("{} on {}: {}\n\n", report.command, report.date, report.machine);
    text.push_str(&aligned(&rows));
    text.push('\n');
    text.push_str(&aligned(&tools(report)));
    text.push('\n');
    text.push_str(&locks(report, aligned));
    text.push_str(&seek(report, aligned));
    text.push_str(&pace(report));
    text.push_str(&notes());
    text
}

/// What synchronisation costs, beside the goals.
fn locks(report: &Report, table: fn(&[Vec<String>]) -> String) -> String {
    match &report.locks {
        None => String::new(),
        Some(Ok(rows)) => format!(
            "{}\nSizes are bits per instruction; that of the tree is over the trace of one thread.\n\n",
            table(&super::locks::cells(rows))
        ),
        Some(Err(missing)) => format!("What synchronisation costs could not be measured: {}\n\n", missing.problem),
    }
}

/// The time to a place in a long trace, beside the goal.
fn seek(report: &Report, table: fn(&[Vec<String>]) -> String) -> String {
    match &report.seek {
        None => String::new(),
        Some(Ok(rows)) => format!("{}\n", table(&super::seek::cells(rows))),
        Some(Err(missing)) => {
            format!("The time to a place in a long trace could not be measured: {}\n\n", missing.problem)
        }
    }
}

/// A sentence about the pace after leaving.
fn pace(report: &Report) -> String {
    match &report.pace {
        None => String::new(),
        Some(Ok(pace)) => format!(
            "Attached to and left five times, a program takes {:.0} microseconds for the same work before, {:.0} while it is \
             recorded, and {:.0} after: {:.3} times as long as before.\n\n",
            pace.before, pace.while_recorded, pace.after, pace.ratio
        ),
        Some(Err(missing)) => format!("The pace after leaving could not be measured: {}\n\n", missing.problem),
    }
}

/// The table in Markdown.
fn markdown(report: &Report) -> String {
    let mut text = format!("`{}` on {}: {}\n\n", report.command, report.date, report.machine);
    let rows = [heading()].into_iter().chain(report.programs.iter().map(cells)).chain([mean_cells(report)]);
    text.push_str(&ruled(&rows.collect::<Vec<_>>()));
    text.push('\n');
    text.push_str(&ruled(&tools(report)));
    text.push('\n');
    text.push_str(&locks(report, ruled));
    text.push_str(&seek(report, ruled));
    text.push_str(&pace(report));
    text.push_str(&notes());
    text
}

/// Rows in Markdown, the first one being the heading.
fn ruled(rows: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        writeln!(text, "| {} |", row.join(" | ")).expect("a string takes everything");
        if number == 0 {
            writeln!(text, "| ---{}|", " | ---:".repeat(row.len() - 1) + " ").expect("a string takes everything");
        }
    }
    text
}

/// What tools do, with a heading.
fn tools(report: &Report) -> Vec<Vec<String>> {
    let heading = [
        "program",
        "mcfTRaptor M branches/s",
        "mlvCFiat M accesses/s",
        "segment M/s",
        &format!("segment, {POLICY_COUNT} policies"),
        "port M/s",
    ];
    let row = |name: &str, tools: &Tools| {
        let speeds = [
            tools.mcftraptor_branches,
            tools.mlvcfiat_accesses,
            tools.segment_instructions,
            tools.segment_policies_instructions,
            tools.port_instructions,
        ];
        [name.to_owned()].into_iter().chain(speeds.map(|speed| format!("{speed:.0}"))).collect()
    };
    let programs = report.programs.iter().filter_map(|own| Some((own.name, &own.result.as_ref().ok()?.tools)));
    let mean = report.geometric_means.tools.iter().map(|tools| ("geometric mean", tools));
    let rows = programs.chain(mean).map(|(name, tools)| row(name, tools));
    [heading.map(String::from).into()].into_iter().chain(rows).collect()
}

fn notes() -> String {
    format!(
        "Times are the best of interleaved runs. Slowdowns are over native, those under \"addresses\" and \"values\" \
         with --data, file written and compressed; lackey ran on less work ({LACKEY_SCALE} s), compared \
         with native runs of the same.\nMemory is the recorder's peak without its rings; reading is on one core, in millions \
         of instructions per second.\nTools run over the first {MILLIONS} million instructions with values, command started and results \
         written: mcfTRaptor (branches of all kinds, direct ones included) and mlvCFiat with the thesis's defaults, segment \
         with one policy and with {POLICY_COUNT} (millions of instructions per second, policy and core), port with all techniques \
         and sizes.\n"
    )
}

fn heading() -> Vec<String> {
    [
        "program",
        "native s",
        "record s",
        "slowdown",
        "M instr.",
        "bits/instr.",
        "recorder cpu s",
        "memory MiB",
        "addresses",
        "bits/instr.",
        "values",
        "bits/instr.",
        "steps M/s",
        "instr. M/s",
        "valgrind none",
        "lackey",
    ]
    .map(String::from)
    .into()
}

/// One row.
pub fn cells(row: &Row) -> Vec<String> {
    let mut cells = vec![row.name.to_owned()];
    match &row.result {
        Ok(measured) => cells.extend(numbers(measured)),
        Err(missing) => {
            cells.push(missing.problem.clone());
            cells.resize(heading().len(), String::new());
        }
    }
    cells
}

fn numbers(measured: &Measured) -> [String; 15] {
    let recording = &measured.recording;
    [
        format!("{:.2}", measured.native_seconds),
        format!("{:.2}", recording.record_seconds),
        format!("{:.2}", measured.slowdown),
        format!("{:.0}", recording.instructions as f64 / 1e6),
        format!("{:.4}", recording.bits_per_instruction),
        format!("{:.2}", recording.recorder_cpu_seconds),
        format!("{:.0}", recording.recorder_memory_bytes as f64 / f64::from(1 << 20)),
        format!("{:.2}", measured.addresses.slowdown),
        format!("{:.2}", measured.addresses.recording.bits_per_instruction),
        format!("{:.2}", measured.values.slowdown),
        format!("{:.2}", measured.values.recording.bits_per_instruction),
        format!("{:.0}", measured.reading.read_steps_mips),
        format!("{:.0}", measured.reading.read_instructions_mips),
        peer(&measured.valgrind_none),
        peer(&measured.valgrind_lackey),
    ]
}

fn peer(peer: &Peer) -> String {
    match peer {
        Peer::Slowdown(slowdown) => format!("{slowdown:.2}"),
        Peer::Without(why) => (*why).to_owned(),
    }
}

fn mean_cells(report: &Report) -> Vec<String> {
    let means = &report.geometric_means;
    let number = |value: Option<f64>, digits: usize| value.map_or("-".into(), |value| format!("{value:.digits$}"));
    let empty = String::new;
    vec![
        "geometric mean".into(),
        empty(),
        empty(),
        number(means.slowdown, 2),
        empty(),
        number(means.bits_per_instruction, 4),
        empty(),
        empty(),
        number(means.addresses_slowdown, 2),
        number(means.addresses_bits_per_instruction, 2),
        number(means.values_slowdown, 2),
        number(means.values_bits_per_instruction, 2),
        number(means.read_steps_mips, 0),
        number(means.read_instructions_mips, 0),
        number(means.valgrind_none, 2),
        number(means.valgrind_lackey, 2),
    ]
}

/// Columns as wide as they have to be, numbers to the right.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let written = if column == 0 { write!(text, "{cell:<width$}") } else { write!(text, "  {cell:>width$}") };
            written.expect("a string takes everything");
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// Keeps a record under docs/performance/: files of one name, by their extensions.
pub fn keep(name: &str, files: &[(&str, &str)]) -> Result<(), String> {
    for (extension, content) in files {
        write(&format!("{}/{name}.{extension}", records().display()), content)?;
    }
    eprintln!("kept as {}/{name}", records().display());
    Ok(())
}

fn write(name: &str, content: &str) -> Result<(), String> {
    std::fs::write(crate::root().join(name), content).map_err(|error| format!("{name}: {error}"))
}

/// Keeps the result: a dated record, and the table in docs/performance.md.
pub fn save(report: &Report, json: &str) -> Result<(), String> {
    let name = format!("{}-{}", report.date, report.machine.revision);
    keep(&name, &[("json", json), ("txt", &text(report))])?;
    let page = "docs/performance.md";
    let old = std::fs::read_to_string(crate::root().join(page)).map_err(|error| format!("{page}: {error}"))?;
    let new = replace(&old, &markdown(report)).ok_or_else(|| format!("{page} has lost the markers of its table"))?;
    write(page, &new)?;
    eprintln!("the table is in {page}");
    Ok(())
}

/// The page with a new table between the markers.
fn replace(page: &str, table: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{table}\n{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows =
            [vec!["a".into(), "1.25".into()], vec!["bcd".into(), "10.5".into()], vec!["e".into(), String::new()]];
        assert_eq!(aligned(&rows), "a    1.25\nbcd  10.5\ne\n");
    }

    #[test]
    fn the_table_is_replaced_between_its_markers() {
        let page = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let new = replace(&page, "new").unwrap();
        assert_eq!(new, format!("before\n{BEGIN}\nnew\n{END}\nafter\n"));
        assert_eq!(replace("no markers", "new"), None);
    }

    #[test]
    fn the_page_has_its_markers() {
        let page = std::fs::read_to_string(crate::root().join("docs/performance.md")).unwrap();
        assert!(replace(&page, "").is_some());
    }
}
