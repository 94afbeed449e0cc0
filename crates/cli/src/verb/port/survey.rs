//! Takes a trace through all techniques that were asked for, on all processors.

use std::sync::Mutex;

use port::cores::Cores;
use port::{Config, Job, PortResult, PortSettings, Subject, Technique};
use trace::Trace;

use crate::arguments::Input;
use crate::failure::Failure;
use crate::output::{Output, Stopped};
use crate::progress::Together;
use crate::select;

pub struct Survey<'s> {
    pub trace: &'s Trace,
    pub input: &'s Input,
    pub techniques: &'s [Technique],
    pub configs: &'s [Config],
    pub settings: PortSettings,
    pub cores: &'s Cores,
    /// Where the bits of a technique go.
    pub bits: Option<(Technique, &'s Mutex<Output>)>,
}

pub struct Surveyed {
    /// In the order of techniques and configurations; those that others are compared with are always among them.
    pub outcomes: Vec<PortResult>,
    /// Places of the trace that could not be read.
    pub damaged: u64,
}

/// A job and what it may write to.
struct Task<'s> {
    job: Job,
    subject: Subject,
    bits: Option<&'s Mutex<Output>>,
}

/// What came of a job.
struct Walked {
    outcomes: Vec<PortResult>,
    damage: Vec<String>,
}

impl<'s> Survey<'s> {
    pub fn run(&self) -> Result<Surveyed, Stopped> {
        let tasks = self.tasks()?;
        let progress = Together::new(select::instructions(self.trace, self.input) * tasks.len() as u64);
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(tasks.len());
        let (tasks, ended) = (Mutex::new(tasks), Mutex::new(Vec::new()));
        // By itself, so that the others are not kept waiting.
        let next = || tasks.lock().expect("nobody panics with it").pop();
        let work = || {
            while let Some(task) = next() {
                let end = self.walk(task, &progress);
                ended.lock().expect("nobody panics with it").push(end);
            }
        };
        std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
        drop(progress);
        gather(ended.into_inner().expect("nobody panics with it"))
    }

    /// One for each filter and size, with all techniques that it serves; those that take longest come last, and are begun first.
    fn tasks(&self) -> Result<Vec<Task<'s>>, Failure> {
        let mut left = self.techniques.to_vec();
        left.extend(self.techniques.iter().map(|technique| technique.baseline()));
        left.sort_unstable();
        left.dedup();
        let mut tasks = Vec::new();
        while let Some(&first) = left.first() {
            let filter = first.filter();
            let served: Vec<Technique> = left.extract_if(.., |technique| technique.filter() == filter).collect();
            let configs = if filter.is_configured() { self.configs } else { &[Config::LARGE] };
            for config in configs {
                let bits = self.bits.filter(|(technique, _)| served.contains(technique)).map(|(_, bits)| bits);
                let job = Job::new(&served, Some(config), &self.settings, self.cores, bits.is_some())
                    .map_err(|error| Failure::new(error.to_string()))?;
                tasks.push(Task { job, subject: first.subject(), bits });
            }
        }
        Ok(tasks)
    }

    fn walk(&self, mut task: Task<'_>, progress: &Together) -> Result<Walked, Stopped> {
        let (blocks, mut writing) = (self.trace.blocks(), Ok(()));
        let damage = select::batches(self.trace, self.input, task.subject == Subject::Loads, |batch| {
            task.job.batch(blocks, batch);
            progress.add(batch.instructions());
            if writing.is_ok() {
                writing = task.write();
            }
        })?;
        writing?;
        task.job.finish();
        task.write_rest()?;
        Ok(Walked { outcomes: task.job.outcomes(), damage })
    }
}

impl Task<'_> {
    /// Writes the bytes that are complete.
    fn write(&mut self) -> Result<(), Stopped> {
        let Some(bits) = self.bits else { return Ok(()) };
        let bytes: Vec<u8> = self.job.ports().into_iter().flat_map(port::Port::take).collect();
        bits.lock().expect("nobody panics while writing").write(&bytes)
    }

    fn write_rest(&mut self) -> Result<(), Stopped> {
        let Some(bits) = self.bits else { return Ok(()) };
        let bytes: Vec<u8> = self.job.ports().into_iter().flat_map(port::Port::finish).collect();
        bits.lock().expect("nobody panics while writing").write(&bytes)
    }
}

/// Puts together what came of all jobs, and tells once what was damaged.
fn gather(ended: Vec<Result<Walked, Stopped>>) -> Result<Surveyed, Stopped> {
    let (mut outcomes, mut damage) = (Vec::new(), Vec::new());
    for end in ended {
        let walked = end?;
        outcomes.extend(walked.outcomes);
        if walked.damage.len() > damage.len() {
            damage = walked.damage;
        }
    }
    damage.iter().for_each(|problem| eprintln!("trackway: left out: {problem}"));
    outcomes
        .sort_by_key(|outcome| (outcome.technique, outcome.config.map(|config| (config.gshare, config.cache_bytes))));
    Ok(Surveyed { outcomes, damaged: damage.len() as u64 })
}
