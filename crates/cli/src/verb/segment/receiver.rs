//! Passes the execution of a running program to the segmenter.

use experiment::segment::LiveSegmenter;
use trace::{LiveTrace, ThreadInfo};

use crate::live::{Receiver, ThreadWords};
use crate::output::Stopped;

impl Receiver for LiveSegmenter<'_> {
    fn thread(&mut self, _: &ThreadInfo) -> Result<(), Stopped> {
        Ok(())
    }

    fn path(&mut self, live: &mut LiveTrace, executed: ThreadWords<'_>) -> Result<(), Stopped> {
        let ThreadWords { image, thread, words, data } = executed;
        live.path(image, thread, words, data, |blocks, batch| {
            self.add_batch(blocks, batch);
            Ok(())
        })
    }

    fn finish(&mut self, live: &mut LiveTrace) -> Result<(), Stopped> {
        live.finish(|blocks, batch| {
            self.add_batch(blocks, batch);
            Ok::<_, Stopped>(())
        })?;
        LiveSegmenter::finish(self, live.blocks());
        Ok(())
    }
}
