//! Chapter 7 of Hadjipavlou 2025 with real programs, and what the thesis leaves for later: policies that learn, overlap, dependences, caches of traces.

mod beyond;
mod tables;

use std::path::Path;

use ::segment::{Class, InstructionMix, LengthWeight, Policy, Score, max_norm_ratios};
use report::Chart;
use serde::Serialize;
use trace::Trace;

use super::programs::{Place, once};
use super::real::{self, ENVIRONMENT, Real};
use super::{Findings, Named, open, write};
use crate::arguments::Input;
use crate::arguments::segment::ExperimentSegment;
use crate::failure::{FAILED, Failure};
use crate::output::{self, Stopped};
use crate::progress::Progress;
use crate::select;
use crate::verb::segment::cut::{Outcome, Wish, segment};
use crate::verb::segment::figures::Figures;
use crate::verb::segment::row::{Row, control_flow, rows};

/// A program, and what came of the experiments.
struct Measured {
    program: String,
    mix: InstructionMix,
    /// Every control-flow instruction ends a trace.
    strict: Outcome,
    /// The 32 policies of the first experiment.
    first: Vec<Outcome>,
    /// The best of them, by [`FIRST_WEIGHT`], with 255 instructions.
    long: Outcome,
    /// With two direct conditional jumps.
    two: Outcome,
    /// With 16 choices of direct conditional jumps.
    fourth: Vec<Outcome>,
    /// Policies that the thesis does not have, see [`beyond`].
    beyond: Vec<Outcome>,
}

/// What trace lengths are weighted by in the thesis: Tables 7.2 to 7.9 come out by coverage, Tables 7.12 to 7.15 by occurrences. Tables 7.10 and 7.11 subtract a
/// length by occurrences from the one by coverage of Table 7.2.
const FIRST_WEIGHT: LengthWeight = LengthWeight::Coverage;
const FOURTH_WEIGHT: LengthWeight = LengthWeight::Occurrences;

pub fn run(arguments: &ExperimentSegment) -> Result<u8, Stopped> {
    let subjects = subjects(arguments)?;
    for path in &arguments.traces {
        output::is_apart(path, arguments.results.output.file.as_deref())?;
    }
    let output = open(&arguments.results)?;
    let (measured, failed) = measure_all(&subjects, arguments)?;
    write(&arguments.results, output, &Study { measured })?;
    Ok(if failed { FAILED } else { 0 })
}

/// One that fails does not spoil the others; says whether any did.
fn measure_all(subjects: &[Subject<'_>], arguments: &ExperimentSegment) -> Result<(Vec<Measured>, bool), Failure> {
    let (mut measured, mut failures): (Vec<Measured>, Vec<Failure>) = (Vec::new(), Vec::new());
    let mut progress = Progress::new();
    for subject in subjects {
        progress.tick(|| subject.name());
        match subject.measure(arguments) {
            Ok(mut own) => {
                let same =
                    measured.iter().filter(|other| other.program.split(" (").next() == Some(&own.program)).count();
                // Files of the same name in several directories.
                if same > 0 {
                    own.program = format!("{} ({})", own.program, same + 1);
                }
                measured.push(own);
            }
            Err(Stopped::Failed(failure)) => failures.push(failure),
            Err(Stopped::Gone) => break,
        }
    }
    drop(progress);
    match failures.pop() {
        Some(failure) if measured.is_empty() => Err(failure),
        last => {
            let failed = last.is_some();
            failures.iter().chain(&last).for_each(|failure| eprintln!("trackway: left out: {}", failure.sentence));
            Ok((measured, failed))
        }
    }
}

/// What is measured.
enum Subject<'s> {
    Program(&'static Real),
    Recorded(&'s Path),
}

/// The traces or programs that are asked for, or all programs that are installed.
fn subjects(arguments: &ExperimentSegment) -> Result<Vec<Subject<'_>>, Failure> {
    if !arguments.traces.is_empty() {
        return Ok(arguments.traces.iter().map(|path| Subject::Recorded(path)).collect());
    }
    if !arguments.programs.is_empty() {
        return once(&arguments.programs).iter().map(|name| Ok(Subject::Program(Real::find(name)?))).collect();
    }
    let (there, missing): (Vec<&Real>, Vec<&Real>) = real::all().iter().partition(|real| real.is_installed());
    for real in &missing {
        eprintln!("trackway: {} is left out: it is not installed (package {})", real.name, real.package);
    }
    if there.is_empty() {
        let hint = format!("install {}", missing.iter().map(|real| real.package).collect::<Vec<_>>().join(", "));
        return Err(Failure::new("none of the programs is installed").hint(hint));
    }
    Ok(there.into_iter().map(Subject::Program).collect())
}

impl Subject<'_> {
    fn name(&self) -> String {
        match self {
            Self::Program(real) => real.name.to_owned(),
            Self::Recorded(path) => path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        }
    }

    fn measure(&self, arguments: &ExperimentSegment) -> Result<Measured, Stopped> {
        match self {
            Self::Program(real) => {
                let place = Place::new()?;
                let (file, command) = (place.path("program.trk"), real.prepare(place.directory())?);
                let (start, length) = (arguments.start.to_string(), arguments.length.to_string());
                let words = ["record", "-q", "--no-aslr", "--skip", &start, "--length", &length, "-o", &file, "--"];
                place.trackway_alone(&words, &command, &ENVIRONMENT)?;
                measure(self.name(), &Input { file: file.into(), thread: None, skip: 0, length: None })
            }
            Self::Recorded(path) => {
                let (skip, length) = (arguments.start, Some(arguments.length));
                measure(self.name(), &Input { file: (*path).to_owned(), thread: None, skip, length })
            }
        }
    }
}

fn measure(program: String, input: &Input) -> Result<Measured, Stopped> {
    let trace = select::open(input)?;
    if !trace.is_finished() {
        let sentence = format!("{} ends early (the recorder was killed or the file was cut)", input.file.display());
        return Err(Failure::new(sentence).into());
    }
    let cut = |policies: &[Policy], wish: &Wish| cut(&trace, input, policies, wish);
    let given = Policy::default();
    let strict = Class::ALL.into_iter().fold(given, |policy, class| policy.with(class, false));
    let (mut first, mix) = cut(&[given.first_experiment(), vec![strict]].concat(), &Wish::default())?;
    let missing = || Failure::new("a policy was lost");
    let strict = first.pop().ok_or_else(missing)?;
    if strict.instructions == 0 {
        return Err(Failure::new(format!("{program} executes nothing there")).hint("a smaller --start").into());
    }
    let policy = first[best(&first, FIRST_WEIGHT)].policy;
    let more: Vec<Policy> =
        [policy.long(), policy.two_conditional_jumps()].into_iter().chain(policy.fourth_experiment()).collect();
    let (mut more, _) = cut(&more, &Wish::default())?;
    let fourth = more.split_off(2);
    let two = more.pop().ok_or_else(missing)?;
    let long = more.pop().ok_or_else(missing)?;
    let beyond = beyond::measure(policy, |policies, wish| Ok(cut(policies, wish)?.0))?;
    Ok(Measured { program, mix, strict, first, long, two, fourth, beyond })
}

/// What came of policies; damage is no base for results.
fn cut(
    trace: &Trace,
    input: &Input,
    policies: &[Policy],
    wish: &Wish,
) -> Result<(Vec<Outcome>, InstructionMix), Stopped> {
    let (cut, damage) = segment(trace, input, policies, wish)?;
    match damage.first() {
        Some(problem) => Err(Failure::new(format!("{}: {problem}", input.file.display())).into()),
        None => Ok((cut.outcomes, cut.mix)),
    }
}

/// The policy with the highest max-norm ratio.
fn best(outcomes: &[Outcome], weight: LengthWeight) -> usize {
    highest(outcomes, &ratios(outcomes, weight))
}

/// Of equal ones, the one that lets the most classes stand inside.
fn highest(outcomes: &[Outcome], ratios: &[f64]) -> usize {
    let inside = |place: usize| Class::ALL.into_iter().filter(|&class| outcomes[place].policy.is_inside(class)).count();
    let compare = |&one: &usize, &other: &usize| {
        ratios[one].total_cmp(&ratios[other]).then_with(|| inside(one).cmp(&inside(other)))
    };
    (0..ratios.len()).max_by(compare).unwrap_or(0)
}

/// If traces that go the same way are one.
fn merged_ratios(outcomes: &[Outcome], weight: LengthWeight) -> Vec<f64> {
    max_norm_ratios(&outcomes.iter().map(|own| own.merged_score(weight)).collect::<Vec<_>>())
}

fn ratios(outcomes: &[Outcome], weight: LengthWeight) -> Vec<f64> {
    max_norm_ratios(&scores(outcomes, weight))
}

fn scores(outcomes: &[Outcome], weight: LengthWeight) -> Vec<Score> {
    outcomes.iter().map(|own| own.score(weight)).collect()
}

/// The classes of the first experiment, by the thesis's names.
const FIRST: [(&str, Class); 5] = [
    ("RET", Class::Return),
    ("DC", Class::DirectCall),
    ("IC", Class::IndirectCall),
    ("DCJ", Class::ForwardTaken),
    ("IUJ", Class::IndirectJump),
];

/// Those of the fourth.
const FOURTH: [(&str, Class); 4] = [
    ("forward taken", Class::ForwardTaken),
    ("forward not taken", Class::ForwardNotTaken),
    ("backward taken", Class::BackwardTaken),
    ("backward not taken", Class::BackwardNotTaken),
];

/// Whether classes may stand inside a policy's traces.
fn inside(policy: &Policy, classes: &[(&str, Class)]) -> Vec<bool> {
    classes.iter().map(|&(_, class)| policy.is_inside(class)).collect()
}

fn digits(inside: &[bool]) -> String {
    inside.iter().map(|&inside| if inside { '1' } else { '0' }).collect()
}

/// All programs.
struct Study {
    measured: Vec<Measured>,
}

/// What is printed of a program, for programs.
#[derive(Serialize)]
struct ProgramRows {
    program: String,
    instructions: u64,
    control_flow: serde_json::Map<String, serde_json::Value>,
    first: Vec<Row>,
    best: usize,
    best_by_occurrences: usize,
    second: Vec<Row>,
    third: Vec<Row>,
    fourth: Vec<Row>,
    best_of_fourth: usize,
    best_of_fourth_by_coverage: usize,
    beyond: Vec<Row>,
}

/// A table, for programs.
#[derive(Serialize)]
struct TableRows {
    name: &'static str,
    caption: String,
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// All that is printed for programs.
#[derive(Serialize)]
struct StudyRows {
    programs: Vec<ProgramRows>,
    tables: Vec<TableRows>,
}

impl Findings for Study {
    fn tables(&self) -> Vec<Named> {
        self.all_tables()
    }

    fn figures(&self) -> Vec<(String, String)> {
        let charts = self.charts().into_iter().map(|(name, svg)| (format!("{name}.svg"), svg));
        self.measured.iter().flat_map(Measured::figures).chain(charts).collect()
    }

    fn json(&self) -> impl Serialize {
        let rows = |own: &Measured| ProgramRows {
            program: own.program.clone(),
            instructions: own.first.first().map_or(0, |first| first.instructions),
            control_flow: control_flow(&own.mix),
            first: rows(&own.first, FIRST_WEIGHT),
            best: best(&own.first, FIRST_WEIGHT),
            best_by_occurrences: best(&own.first, LengthWeight::Occurrences),
            second: rows([own.base(), &own.long], FIRST_WEIGHT),
            third: rows([own.base(), &own.two], FIRST_WEIGHT),
            fourth: rows(&own.fourth, FOURTH_WEIGHT),
            best_of_fourth: best(&own.fourth, FOURTH_WEIGHT),
            best_of_fourth_by_coverage: best(&own.fourth, LengthWeight::Coverage),
            beyond: rows(&own.beyond, FIRST_WEIGHT),
        };
        let table = |(name, table): Named| TableRows {
            name,
            caption: table.caption().to_owned(),
            heads: table.heads().to_vec(),
            rows: table.rows().to_vec(),
        };
        StudyRows {
            programs: self.measured.iter().map(rows).collect(),
            tables: self.tables().into_iter().map(table).collect(),
        }
    }
}

impl Study {
    /// Programs by the ratio of their best policy.
    fn ranked(&self, weight: LengthWeight) -> Vec<(&Measured, f64)> {
        let ratio = |own: &Measured| ratios(&own.first, weight).into_iter().fold(0.0, f64::max);
        let mut ranked: Vec<(&Measured, f64)> = self.measured.iter().map(|own| (own, ratio(own))).collect();
        ranked.sort_by(|one, other| one.1.total_cmp(&other.1));
        ranked
    }

    /// Figure 7.4, and other tables as pictures.
    fn charts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("figure-7-4", self.winners()),
            ("table-7-1", self.mix_chart()),
            ("table-7-6", self.distance_chart()),
            ("table-7-9", self.weights_chart()),
            ("reasons", self.reasons_chart()),
        ]
    }

    /// Figure 7.4.
    fn winners(&self) -> String {
        let ranked = self.ranked(FIRST_WEIGHT);
        let chart = Chart::bars("Figure 7.4: the best policy of each program, ranked by max-norm ratio").log_y();
        let best = |own: &Measured| own.base().score(FIRST_WEIGHT);
        chart
            .x("programs")
            .y("instructions; traces; ratio")
            .categories(ranked.iter().map(|(own, _)| &own.program))
            .series("trace length", ranked.iter().map(|(own, _)| best(own).length).collect::<Vec<_>>())
            .series("trace count", ranked.iter().map(|(own, _)| best(own).count).collect::<Vec<_>>())
            .series("max-norm ratio", ranked.iter().map(|&(_, ratio)| ratio).collect::<Vec<_>>())
            .svg()
    }
}

impl Measured {
    /// The best policy of the first experiment, which the others start from.
    fn base(&self) -> &Outcome {
        &self.first[best(&self.first, FIRST_WEIGHT)]
    }

    /// Figures 7.1 to 7.3 of the program.
    fn figures(&self) -> Vec<(String, String)> {
        let name = |own: &Outcome| digits(&inside(&own.policy, &FIRST));
        let outcomes = self.first.iter().map(|own| (name(own), own)).collect();
        let classes = FIRST.map(|(name, _)| name).join(", ");
        let subject = format!("{} ({classes}: 1 if inside)", self.program);
        let figures = Figures { subject: &subject, weight: FIRST_WEIGHT, outcomes };
        vec![
            (format!("figure-7-1-{}.svg", self.program), figures.coverage()),
            (format!("figure-7-1-{}.csv", self.program), figures.coverage_table().csv()),
            (format!("figure-7-2-{}.svg", self.program), figures.length_and_count()),
            (format!("figure-7-3-{}.svg", self.program), figures.ratio()),
            (format!("figure-7-3-{}.csv", self.program), figures.table().csv()),
        ]
    }
}
