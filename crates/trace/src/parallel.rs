//! Decoding chunks in parallel. [`Trace::par_chunks`] is for analyses that can treat each chunk
//! alone.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use entity::ThreadId;
use rayon::prelude::*;

use crate::cursor::Cursor;
use crate::decode::DecodeBuffers;
use crate::error::ReadError;
use crate::model::DataMode;
use crate::steps::Steps;
use crate::trace::Trace;

/// Values that are expensive to make and used by one thread at a time.
#[derive(Default)]
pub(crate) struct Pool<T>(Mutex<Vec<T>>);

impl<T: Default> Pool<T> {
    pub(crate) fn take(&self) -> T {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    pub(crate) fn give_back(&self, thing: T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(thing);
    }
}

impl Trace {
    /// Calls `each` for every path chunk with the steps of that chunk, on all cores, and returns
    /// the results in the order of the file. A chunk's thread, image and first instruction are
    /// those of its batches.
    ///
    /// ```
    /// # use trackway_trace::example;
    /// # let directory = tempfile::tempdir()?;
    /// # let path = example::write(&directory.path().join("example.trk"));
    /// let trace = trackway_trace::Trace::open(&path)?;
    /// let counts = trace.par_chunks(|steps| {
    ///     let mut instructions = 0;
    ///     while let Some(batch) = steps.next_batch()? {
    ///         instructions += batch.instructions();
    ///     }
    ///     Ok::<u64, trackway_trace::ReadError>(instructions)
    /// });
    /// let total: u64 = counts.into_iter().sum::<Result<u64, _>>()?;
    /// assert_eq!(total, trace.totals().instructions);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn par_chunks<R: Send>(&self, each: impl Fn(&mut Steps<'_>) -> R + Sync) -> Vec<R> {
        self.chunk_by_chunk(|thread, place| Cursor::at_chunk(self, thread, place), each)
    }

    /// As [`Self::par_chunks`], with memory accesses.
    pub fn par_chunks_with_accesses<R: Send>(
        &self,
        each: impl Fn(&mut Steps<'_>) -> R + Sync,
    ) -> Result<Vec<R>, ReadError> {
        match self.data() {
            DataMode::None => Err(ReadError::NoData),
            _ => {
                let cursor = |thread, place| Cursor::at_chunk(self, thread, place)?.with_accesses();
                Ok(self.chunk_by_chunk(cursor, each))
            }
        }
    }

    fn chunk_by_chunk<'t, R: Send>(
        &'t self,
        cursor: impl Fn(ThreadId, usize) -> Result<Cursor<'t>, ReadError> + Sync,
        each: impl Fn(&mut Steps<'_>) -> R + Sync,
    ) -> Vec<R> {
        let mut counts = BTreeMap::new();
        let places: Vec<(ThreadId, usize)> = self
            .path_chunks()
            .map(|path| {
                let place = counts.entry(path.thread).or_insert(0);
                *place += 1;
                (path.thread, *place - 1)
            })
            .collect();
        let buffers = Pool::<DecodeBuffers>::default();
        let decode = |(thread, place): (ThreadId, usize)| {
            let cursor = cursor(thread, place).ok()?;
            let mut steps = Steps::new(cursor, buffers.take());
            let result = each(&mut steps);
            buffers.give_back(steps.into_buffers());
            Some(result)
        };
        places.into_par_iter().map(decode).flatten_iter().collect()
    }
}
