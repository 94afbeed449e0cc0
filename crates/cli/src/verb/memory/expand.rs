//! `trackway memory expand`.

use memory::{AccessRecord, MemoryTrace};
use trace::ThreadId;

use crate::arguments::Format;
use crate::arguments::memory::Expand;
use crate::descriptor::memory::{Descriptor, Fields};
use crate::descriptor::{BinaryOptions, RecordFormat};
use crate::digits::grouped;
use crate::failure::Failure;
use crate::output::{LineBuffer, Output, Stopped};
use crate::progress::Progress;
use crate::verb::dump::high_thread;

pub fn run(arguments: &Expand) -> Result<u8, Stopped> {
    let trace = super::open(&arguments.file)?;
    let format = format_of(arguments);
    let is_narrow = matches!(format, RecordFormat::Binary(BinaryOptions { wide: false, .. }));
    let output = Output::open_apart_from(&arguments.file, arguments.output.file.as_deref())?;
    let (mut lines, mut progress) = (LineBuffer::new(output), Progress::new());
    for (done, record) in (0u64..).zip(trace.merged()) {
        let (thread, record) = record.map_err(|error| super::failure(&arguments.file, &error))?;
        if is_narrow && thread > ThreadId::new(u8::MAX.into()) {
            return Err(high_thread(thread).into());
        }
        descriptor(&trace, thread, record)?.write(format, Fields::All, None, &mut lines.bytes);
        lines.flush_if_long()?;
        if done.is_multiple_of(1 << 20) {
            progress.tick(|| format!("{} of {} accesses", grouped(done), grouped(trace.accesses())));
        }
    }
    lines.finish()?;
    Ok(0)
}

fn format_of(arguments: &Expand) -> RecordFormat {
    match (arguments.json, arguments.format) {
        (true, _) => RecordFormat::Json,
        (false, Format::Ascii) => RecordFormat::Ascii,
        (false, Format::Binary) => {
            RecordFormat::Binary(BinaryOptions { wide: arguments.wide, ..BinaryOptions::default() })
        }
    }
}

fn descriptor(trace: &MemoryTrace, thread: ThreadId, record: AccessRecord) -> Result<Descriptor<'static>, Failure> {
    let unknown = || Failure::new("the memory trace names an access point that it does not define");
    let point = trace.point(record.point).ok_or_else(unknown)?;
    Ok(Descriptor {
        thread,
        store: point.is_write,
        address: point.pc,
        operand: record.address,
        size: point.size,
        value: None,
    })
}
