//! Chapter 7 of Hadjipavlou 2025 with real programs, and what the thesis leaves for later: policies
//! that learn, overlap, dependences, trace caches.
//!
//! [`segment_trace`] and [`LiveSegmenter`] run policies over a trace or a running program;
//! [`Experiment`] runs those of the thesis over many programs.

mod beyond;
mod class_names;
mod figures;
mod row;
mod run;
mod tables;

use std::path::{Path, PathBuf};

use ::segment::{Class, InstructionMix, LengthWeight, Policy, Score, max_norm_ratios};
use report::Chart;
use serde::Serialize;
use trace::{Excerpt, InstructionIndex, Trace};

use crate::debian::{self, DebianProgram, ENVIRONMENT};
use crate::programs::{Workspace, without_duplicates};
use crate::{Error, Findings, NamedTable, Observer};

pub use class_names::{CLASSES, Classes, weights_text};
pub use figures::Figures;
pub use row::Report;
pub use run::{AnalysisOptions, LiveSegmenter, PolicyOutcome, Segmentation, TraceDetails, segment_trace};

use row::{Row, control_flow, rows};

/// The outcomes of a program.
struct ProgramOutcomes {
    program: String,
    mix: InstructionMix,
    /// Every control-flow instruction ends a trace.
    strict: PolicyOutcome,
    /// The 32 policies of the first experiment.
    first: Vec<PolicyOutcome>,
    /// The best of them, by [`FIRST_WEIGHT`], with 255 instructions.
    long: PolicyOutcome,
    /// With two direct conditional jumps.
    two: PolicyOutcome,
    /// With 16 choices of direct conditional jumps.
    fourth: Vec<PolicyOutcome>,
    /// Policies that the thesis does not have, see [`beyond`].
    beyond: Vec<PolicyOutcome>,
}

/// The weight of trace lengths in the thesis: Tables 7.2 to 7.9 come out by coverage, Tables 7.12
/// to 7.15 by occurrences. Tables 7.10 and 7.11 subtract a length by occurrences from the one by
/// coverage of Table 7.2.
const FIRST_WEIGHT: LengthWeight = LengthWeight::Coverage;
const FOURTH_WEIGHT: LengthWeight = LengthWeight::Occurrences;

/// The traces or programs to measure, and the part of each.
#[derive(Clone, Debug)]
pub struct Options {
    /// Recorded traces, instead of programs.
    pub traces: Vec<PathBuf>,
    /// Names of programs; those that are installed if there is none.
    pub programs: Vec<String>,
    /// The first instruction of the part, and the number of instructions in it.
    pub start: InstructionIndex,
    pub length: u64,
    /// The path of the `trackway` command.
    pub trackway: PathBuf,
}

/// The experiment before it runs.
pub struct Experiment {
    options: Options,
    subjects: Vec<Subject>,
}

impl Experiment {
    /// Finds the programs. Warns of those that are not installed.
    pub fn new(options: Options, observer: &dyn Observer) -> Result<Self, Error> {
        Ok(Self { subjects: subjects(&options, observer)?, options })
    }

    /// Measures all programs. Leaves out a program that fails, with a warning; fails if all do.
    pub fn run(&self, observer: &dyn Observer) -> Result<Study, Error> {
        let (mut measured, mut failures): (Vec<ProgramOutcomes>, Vec<Error>) = (Vec::new(), Vec::new());
        for subject in &self.subjects {
            observer.stage(&|| subject.name());
            match subject.measure(&self.options, observer) {
                Ok(mut own) => {
                    let is_same = |other: &&ProgramOutcomes| other.program.split(" (").next() == Some(&own.program);
                    let same = measured.iter().filter(is_same).count();
                    // Files of the same name in several directories.
                    if same > 0 {
                        own.program = format!("{} ({})", own.program, same + 1);
                    }
                    measured.push(own);
                }
                Err(error) => failures.push(error),
            }
        }
        if measured.is_empty()
            && let Some(error) = failures.pop()
        {
            return Err(error);
        }
        failures.iter().for_each(|error| observer.warn(&format!("left out: {error}")));
        Ok(Study { measured, is_complete: failures.is_empty() })
    }
}

/// A program or a trace that is measured.
enum Subject {
    Program(&'static DebianProgram),
    Recorded(PathBuf),
}

/// Returns the traces or programs of the options, or all programs that are installed.
fn subjects(options: &Options, observer: &dyn Observer) -> Result<Vec<Subject>, Error> {
    if !options.traces.is_empty() {
        return Ok(options.traces.iter().cloned().map(Subject::Recorded).collect());
    }
    if !options.programs.is_empty() {
        let names = without_duplicates(&options.programs);
        return names.iter().map(|name| Ok(Subject::Program(DebianProgram::find(name)?))).collect();
    }
    let (installed, missing): (Vec<&DebianProgram>, Vec<&DebianProgram>) =
        debian::all().iter().partition(|program| program.is_installed());
    for DebianProgram { name, package, .. } in &missing {
        observer.warn(&format!("{name} is left out: it is not installed (package {package})"));
    }
    if installed.is_empty() {
        let packages = missing.iter().map(|program| program.package).collect::<Vec<_>>().join(", ");
        return Err(Error::NoneInstalled { packages });
    }
    Ok(installed.into_iter().map(Subject::Program).collect())
}

impl Subject {
    fn name(&self) -> String {
        match self {
            Self::Program(program) => program.name.to_owned(),
            Self::Recorded(path) => path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        }
    }

    fn measure(&self, options: &Options, observer: &dyn Observer) -> Result<ProgramOutcomes, Error> {
        match self {
            Self::Program(program) => {
                let workspace = Workspace::new(&options.trackway)?;
                let (file, command) = (workspace.path("program.trk"), program.prepare(workspace.directory())?);
                let (start, length) = (options.start.to_string(), options.length.to_string());
                let words = ["record", "-q", "--no-aslr", "--skip", &start, "--length", &length, "-o", &file, "--"];
                workspace.run_isolated(&words, &command, &ENVIRONMENT)?;
                measure(self.name(), Path::new(&file), Excerpt::default(), observer)
            }
            Self::Recorded(path) => {
                let excerpt = Excerpt { thread: None, start: options.start, length: Some(options.length) };
                measure(self.name(), path, excerpt, observer)
            }
        }
    }
}

fn measure(program: String, path: &Path, excerpt: Excerpt, observer: &dyn Observer) -> Result<ProgramOutcomes, Error> {
    let trace = Trace::open(path)?;
    if !trace.is_finished() {
        return Err(Error::Unfinished(path.to_owned()));
    }
    let cut = |policies: &[Policy], options: &AnalysisOptions| {
        let (segmentation, damage) = segment_trace(&trace, excerpt, policies, options, observer)?;
        // A damaged trace would give wrong results.
        match damage.into_iter().next() {
            Some(error) => Err(Error::Damaged { path: path.to_owned(), error }),
            None => Ok((segmentation.outcomes, segmentation.mix)),
        }
    };
    let given = Policy::default();
    let strict = Class::ALL.into_iter().fold(given, |policy, class| policy.with(class, false));
    let (mut first, mix) = cut(&[given.first_experiment(), vec![strict]].concat(), &AnalysisOptions::default())?;
    const COMPLETE: &str = "there is an outcome for each policy";
    let strict = first.pop().expect(COMPLETE);
    if strict.instructions == 0 {
        return Err(Error::Empty(program));
    }
    let policy = first[best(&first, FIRST_WEIGHT)].policy;
    let more: Vec<Policy> =
        [policy.long(), policy.two_conditional_jumps()].into_iter().chain(policy.fourth_experiment()).collect();
    let (mut more, _) = cut(&more, &AnalysisOptions::default())?;
    let fourth = more.split_off(2);
    let two = more.pop().expect(COMPLETE);
    let long = more.pop().expect(COMPLETE);
    let beyond = beyond::measure(policy, |policies, options| Ok(cut(policies, options)?.0))?;
    Ok(ProgramOutcomes { program, mix, strict, first, long, two, fourth, beyond })
}

/// Returns the index of the policy with the highest max-norm ratio.
fn best(outcomes: &[PolicyOutcome], weight: LengthWeight) -> usize {
    highest(outcomes, &ratios(outcomes, weight))
}

/// Returns the index of the highest ratio; of equal ones, that of the policy with the most classes
/// inside.
fn highest(outcomes: &[PolicyOutcome], ratios: &[f64]) -> usize {
    let inside = |place: usize| Class::ALL.into_iter().filter(|&class| outcomes[place].policy.is_inside(class)).count();
    let compare = |&one: &usize, &other: &usize| {
        ratios[one].total_cmp(&ratios[other]).then_with(|| inside(one).cmp(&inside(other)))
    };
    (0..ratios.len()).max_by(compare).unwrap_or(0)
}

/// Returns the ratios with traces of the same path merged.
fn merged_ratios(outcomes: &[PolicyOutcome], weight: LengthWeight) -> Vec<f64> {
    max_norm_ratios(&outcomes.iter().map(|own| own.merged_score(weight)).collect::<Vec<_>>())
}

fn ratios(outcomes: &[PolicyOutcome], weight: LengthWeight) -> Vec<f64> {
    max_norm_ratios(&scores(outcomes, weight))
}

fn scores(outcomes: &[PolicyOutcome], weight: LengthWeight) -> Vec<Score> {
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

/// The classes of the fourth experiment.
const FOURTH: [(&str, Class); 4] = [
    ("forward taken", Class::ForwardTaken),
    ("forward not taken", Class::ForwardNotTaken),
    ("backward taken", Class::BackwardTaken),
    ("backward not taken", Class::BackwardNotTaken),
];

/// Returns for each class whether it may stand inside a trace of the policy.
fn inside(policy: &Policy, classes: &[(&str, Class)]) -> Vec<bool> {
    classes.iter().map(|&(_, class)| policy.is_inside(class)).collect()
}

fn digits(inside: &[bool]) -> String {
    inside.iter().map(|&inside| if inside { '1' } else { '0' }).collect()
}

/// The outcomes of all programs.
pub struct Study {
    measured: Vec<ProgramOutcomes>,
    is_complete: bool,
}

/// The JSON of a program.
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

/// The JSON of a table.
#[derive(Serialize)]
struct TableRows {
    name: &'static str,
    caption: String,
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// The JSON of the experiment.
#[derive(Serialize)]
struct StudyRows {
    programs: Vec<ProgramRows>,
    tables: Vec<TableRows>,
}

impl Findings for Study {
    fn tables(&self) -> Vec<NamedTable> {
        self.all_tables()
    }

    fn figures(&self) -> Vec<(String, String)> {
        let charts = self.charts().into_iter().map(|(name, svg)| (format!("{name}.svg"), svg));
        self.measured.iter().flat_map(ProgramOutcomes::figures).chain(charts).collect()
    }

    fn json(&self) -> impl Serialize {
        let rows = |own: &ProgramOutcomes| ProgramRows {
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
        let table = |(name, table): NamedTable| TableRows {
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
    /// Returns whether no program had to be left out.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Returns the programs by the ratio of their best policy.
    fn ranked(&self, weight: LengthWeight) -> Vec<(&ProgramOutcomes, f64)> {
        let ratio = |own: &ProgramOutcomes| ratios(&own.first, weight).into_iter().fold(0.0, f64::max);
        let mut ranked: Vec<(&ProgramOutcomes, f64)> = self.measured.iter().map(|own| (own, ratio(own))).collect();
        ranked.sort_by(|one, other| one.1.total_cmp(&other.1));
        ranked
    }

    /// Returns Figure 7.4, and tables as figures.
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
        let best = |own: &ProgramOutcomes| own.base().score(FIRST_WEIGHT);
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

impl ProgramOutcomes {
    /// Returns the best policy of the first experiment, on which the other experiments are based.
    fn base(&self) -> &PolicyOutcome {
        &self.first[best(&self.first, FIRST_WEIGHT)]
    }

    /// Figures 7.1 to 7.3 of the program.
    fn figures(&self) -> Vec<(String, String)> {
        let name = |own: &PolicyOutcome| digits(&inside(&own.policy, &FIRST));
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
