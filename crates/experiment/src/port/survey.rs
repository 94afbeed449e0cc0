//! Encodes a trace with all selected techniques, on all processors.

use std::sync::Mutex;

use port::cores::Cores;
use port::{Config, Job, PortResult, PortSettings, Subject, Technique};
use trace::{Excerpt, ReadError, Trace};

use crate::observer::InstructionCounter;
use crate::{Error, Observer};

/// Writes bits of a technique; `E` is the error of the caller.
pub type BitSink<'s, E> = dyn FnMut(&[u8]) -> Result<(), E> + Send + 's;

/// A part of a trace, and the techniques that encode it.
pub struct Survey<'s, E> {
    pub trace: &'s Trace,
    pub excerpt: Excerpt,
    pub techniques: &'s [Technique],
    pub configs: &'s [Config],
    pub settings: PortSettings,
    pub cores: &'s Cores,
    /// A technique whose bits are written.
    pub bits: Option<(Technique, &'s Mutex<BitSink<'s, E>>)>,
    pub observer: &'s dyn Observer,
}

/// The result of a [`Survey`].
pub struct SurveyResult {
    /// In the order of techniques and configurations, baselines included.
    pub outcomes: Vec<PortResult>,
    /// The number of damaged places that were left out.
    pub damaged: u64,
}

/// A job, and the destination of its bits.
struct Task<'s, E> {
    job: Job,
    subject: Subject,
    bits: Option<&'s Mutex<BitSink<'s, E>>>,
}

/// The result of a [`Task`].
struct TaskResult {
    outcomes: Vec<PortResult>,
    damage: Vec<ReadError>,
}

impl<'s, E: From<Error> + Send> Survey<'s, E> {
    /// Runs one task for each filter and size, on all processors.
    pub fn run(&self) -> Result<SurveyResult, E> {
        let tasks = self.tasks()?;
        let total = self.excerpt.instructions(self.trace) * tasks.len() as u64;
        let progress = InstructionCounter::new(self.observer, total);
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(tasks.len());
        let (tasks, ended) = (Mutex::new(tasks), Mutex::new(Vec::new()));
        // A function of its own, so that the lock is not held during the work.
        let next = || tasks.lock().expect("workers do not panic with the lock").pop();
        let work = || {
            while let Some(task) = next() {
                let end = self.run_task(task, &progress);
                ended.lock().expect("workers do not panic with the lock").push(end);
            }
        };
        std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
        self.merge(ended.into_inner().expect("workers do not panic with the lock"))
    }

    /// Returns a task for each filter and size, with all techniques that it serves. The longest
    /// tasks come last and are started first.
    fn tasks(&self) -> Result<Vec<Task<'s, E>>, Error> {
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
                    .map_err(|error| Error::Settings(error.to_string()))?;
                tasks.push(Task { job, subject: first.subject(), bits });
            }
        }
        Ok(tasks)
    }

    fn run_task(&self, mut task: Task<'_, E>, progress: &InstructionCounter<'_>) -> Result<TaskResult, E> {
        let (blocks, mut writing) = (self.trace.blocks(), Ok(()));
        let with_accesses = task.subject == Subject::Loads;
        let damage = self.excerpt.for_each_batch(self.trace, with_accesses, |batch| {
            task.job.batch(blocks, batch);
            progress.add(batch.instructions());
            if writing.is_ok() {
                writing = task.write();
            }
        });
        let damage = damage.map_err(Error::from)?;
        writing?;
        task.job.finish();
        task.write_rest()?;
        Ok(TaskResult { outcomes: task.job.outcomes(), damage })
    }

    /// Merges the results of all tasks, and warns once of damage.
    fn merge(&self, results: Vec<Result<TaskResult, E>>) -> Result<SurveyResult, E> {
        let (mut outcomes, mut damage) = (Vec::new(), Vec::new());
        for result in results {
            let result = result?;
            outcomes.extend(result.outcomes);
            if result.damage.len() > damage.len() {
                damage = result.damage;
            }
        }
        damage.iter().for_each(|problem| self.observer.warn(&format!("left out: {problem}")));
        let sizes = |config: Config| (config.gshare, config.cache_bytes);
        outcomes.sort_by_key(|outcome: &PortResult| (outcome.technique, outcome.config.map(sizes)));
        Ok(SurveyResult { outcomes, damaged: damage.len() as u64 })
    }
}

impl<E> Task<'_, E> {
    /// Writes the bytes that are complete.
    fn write(&mut self) -> Result<(), E> {
        let Some(bits) = self.bits else { return Ok(()) };
        let bytes: Vec<u8> = self.job.ports().into_iter().flat_map(port::Port::take).collect();
        bits.lock().expect("writers do not panic")(&bytes)
    }

    fn write_rest(&mut self) -> Result<(), E> {
        let Some(bits) = self.bits else { return Ok(()) };
        let bytes: Vec<u8> = self.job.ports().into_iter().flat_map(port::Port::finish).collect();
        bits.lock().expect("writers do not panic")(&bytes)
    }
}
