//! Damaged files: nothing panics, everything intact is read, and what is missing is said.

mod support;

use std::num::NonZeroU64;
use std::time::Duration;

use support::{CODE, Clock, DATA, END, INDEX, PATH, Random, SampleRecording, Setting, chunks, record};
use trackway_trace::{
    AppPc, BlockId, Codec, DataMode, Event, Exit, Fragment, FragmentId, InstructionIndex, PathId, ReadError, Recording,
    RoundRobinUnit, ThreadId, ThreadInfo, Trace, WriteError, Writer, WriterOptions, partial_path,
};
use wire::code::{FragmentBlock, FragmentExit, TERMINATOR_TAKEN};
use wire::word;

/// A small trace with many chunks of every kind.
fn example(codec: Codec, seed: u64) -> (Vec<u8>, SampleRecording) {
    example_of(codec, seed, 14, 500)
}

fn example_of(codec: Codec, seed: u64, blocks: usize, runs: usize) -> (Vec<u8>, SampleRecording) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("example.trk");
    let options = WriterOptions {
        codec,
        chunk_words: 100,
        open_words: 1000,
        latency: Duration::from_secs(3600),
        ..WriterOptions::default()
    };
    let setting = Setting {
        seed,
        blocks,
        threads: 2,
        images: 1,
        runs,
        habit: 10,
        options,
        data: if seed.is_multiple_of(2) { DataMode::Values } else { DataMode::None },
        clock: Clock::default(),
        has_explicit_accesses: false,
        has_allocations: true,
    };
    let recorded = record(&path, &setting);
    (std::fs::read(&path).unwrap(), recorded)
}

/// Uses everything a reader offers. Where `recorded` is given, what is read must be what was
/// executed.
fn exercise(file: Vec<u8>, recorded: Option<&SampleRecording>) -> Option<Trace> {
    let trace = Trace::from_bytes(file).ok()?;
    let damage = trace.damage();
    damage.iter().for_each(|damage| assert!(!damage.to_string().is_empty()));
    let report = trace.verify();
    assert!(damage.is_empty() || !report.is_sound());
    trace.par_chunks(|steps| check_chunk(&trace, steps, recorded));
    for thread in trace.threads() {
        let number = thread.info.thread;
        let mut steps = trace.steps(number).unwrap();
        for _ in 0..10_000 {
            match steps.next_batch() {
                Ok(None) => break,
                Ok(Some(batch)) => assert!(batch.items().count() == batch.steps().len() + batch.events().len()),
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        if let Ok(mut steps) = trace.steps_with_accesses(number) {
            for _ in 0..10_000 {
                match steps.next_batch() {
                    Ok(None) => break,
                    Ok(Some(batch)) => check_accesses(batch, recorded),
                    Err(error) => assert!(!error.to_string().is_empty()),
                }
            }
            if let Ok(mut steps) =
                trace.seek_with_accesses(number, InstructionIndex::new(thread.counts.instructions / 3))
            {
                let _ = steps.next_batch();
            }
        }
        let middle = InstructionIndex::new(thread.counts.instructions / 2);
        if let Ok(mut steps) = trace.seek(number, middle) {
            let _ = steps.next_batch();
        }
    }
    for mut merged in [trace.merged(), trace.merged().interleaved(2)] {
        (0..10_000).find(|_| matches!(merged.next_batch(), Ok(None)));
    }
    for mut merged in [trace.merged(), trace.merged().interleaved(2)].into_iter().chain(trace.merged_with_accesses()) {
        for number in [trace.totals().instructions / 2, u64::MAX] {
            let left = merged.seek(InstructionIndex::new(number));
            assert!(left <= number);
            (0..10).for_each(|_| drop(merged.next_batch().map(|batch| batch.map(trackway_trace::Batch::instructions))));
        }
    }
    for unit in [RoundRobinUnit::Branches, RoundRobinUnit::Accesses] {
        if let Ok(mut turns) = trace.round_robin(unit, NonZeroU64::MIN) {
            (0..10_000).find(|_| matches!(turns.next_batch(), Ok(None)));
        }
    }
    let mut merged = trace.merged();
    (0..10_000).find(|_| match merged.next_path_batch() {
        Ok(batch) => batch.map(|batch| batch.items().count()).is_none(),
        Err(_) => false,
    });
    if let Ok(mut merged) = trace.merged_with_accesses() {
        (0..10_000).find(|_| matches!(merged.visit_next(|_| IgnoringVisitor), Ok(false)));
    }
    Some(trace)
}

/// Computes the value of every access and ignores it.
struct IgnoringVisitor;

impl trackway_trace::AccessVisitor for IgnoringVisitor {
    fn executed(&mut self, _: u64) {}

    fn operand(&mut self, operand: trackway_trace::Operand<'_>) {
        std::hint::black_box(operand.value());
    }

    fn event(&mut self, _: &Event) {}
}

/// Compares the accesses of a batch, as far as it has any, with those that were made there.
fn check_accesses(batch: &trackway_trace::Batch, recorded: Option<&SampleRecording>) {
    let made = batch.accesses().take(1_000_000).count();
    let Some(recorded) = recorded.filter(|_| made > 0) else { return };
    if batch.events().iter().any(|(_, event)| *event == Event::Lost) {
        return;
    }
    let mut at = batch.first_instruction().get() as usize;
    for (number, step) in batch.steps().iter().enumerate() {
        let seen = &recorded.threads[batch.thread().get() as usize].seen[at..at + step.instructions() as usize];
        let expected = seen.iter().flatten().map(|own| (own.pc, own.address, Some(&own.value[..])));
        let read = batch.accesses_of_step(number).collect::<Vec<_>>();
        assert!(read.iter().map(|own| (own.pc(), own.address(), batch.value(own))).eq(expected));
        at += step.instructions() as usize;
    }
}

/// Compares what is read of one chunk with what was executed there.
fn check_chunk(trace: &Trace, steps: &mut trackway_trace::Steps<'_>, recorded: Option<&SampleRecording>) {
    while let Ok(Some(batch)) = steps.next_batch() {
        let Some(recorded) = recorded else { continue };
        if batch.events().iter().any(|(_, event)| *event == Event::Lost) {
            return;
        }
        let executed = &recorded.threads[batch.thread().get() as usize].instructions(&recorded.addresses[0]);
        let first = batch.first_instruction().get() as usize;
        let read: Vec<AppPc> =
            batch.steps().iter().flat_map(|step| trace.blocks().instructions(step)).map(|i| i.address).collect();
        assert!(read == executed[first..first + read.len()]);
    }
}

fn mutate(file: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(file.len());
    let length = (1 + random.below(60)).min(file.len() - at);
    match random.below(8) {
        0..4 => file[at] ^= 1 << random.below(8),
        4 => file[at..at + length].fill(random.next() as u8),
        5 => file.truncate(at),
        6 => _ = file.drain(at..at + length),
        _ => {
            let copy = file[at..at + length].to_vec();
            let to = random.below(file.len());
            file.splice(to..to, copy);
        }
    }
}

#[test]
fn thousands_of_mutations_do_no_harm() {
    for (codec, seed) in [(Codec::Predict, 1), (Codec::Fast, 2), (Codec::Zstd, 3), (Codec::Raw, 4)] {
        let (file, recorded) = example(codec, seed);
        let mut random = Random(seed);
        for _ in 0..700 {
            let mut changed = file.clone();
            for _ in 0..=random.below(3) {
                if !changed.is_empty() {
                    mutate(&mut changed, &mut random);
                }
            }
            exercise(changed, Some(&recorded));
        }
    }
}

/// Replaces the content of a chunk and makes all checksums right again; the index is left out.
fn reframe(file: &[u8], random: &mut Random) -> Vec<u8> {
    let chunks = chunks(file);
    let chosen = random.below(chunks.len() - 1);
    let mut out = file[..16].to_vec();
    for (place, &(start, payload, end)) in chunks[..chunks.len() - 1].iter().enumerate() {
        let (mut header, mut stored) = (file[start..payload].to_vec(), file[payload..end].to_vec());
        if place == chosen {
            let length = u32::from_le_bytes(header[12..16].try_into().unwrap());
            if header[5] == 1 {
                stored = zstd::bulk::decompress(&stored, length as usize).unwrap();
                header[5] = 0;
            }
            for _ in 0..=random.below(3) {
                mutate(&mut stored, random);
                if stored.is_empty() {
                    stored.push(0);
                }
            }
            if random.one_in(4) && header.len() > 32 {
                let at = 32 + random.below(header.len() - 32);
                header[at] ^= 1 << random.below(8);
            }
            let checksum = crc32fast::hash(&stored).to_le_bytes();
            header[8..12].copy_from_slice(&(stored.len() as u32).to_le_bytes());
            header[16..20].copy_from_slice(&checksum);
            if header[5] == 0 {
                header[12..16].copy_from_slice(&(stored.len() as u32).to_le_bytes());
                header[20..24].copy_from_slice(&checksum);
            }
            let whole = [&header[..28], &header[32..]].concat();
            header[28..32].copy_from_slice(&crc32fast::hash(&whole).to_le_bytes());
        }
        out.extend(header);
        out.extend(stored);
    }
    out
}

#[test]
fn wrong_content_with_right_checksums_does_no_harm() {
    for (codec, seed) in [(Codec::Predict, 5), (Codec::Fast, 6), (Codec::Raw, 7)] {
        let (file, _) = example(codec, seed);
        let mut random = Random(seed);
        for _ in 0..700 {
            let changed = reframe(&file, &mut random);
            assert!(exercise(changed, None).is_some());
        }
    }
}

#[test]
fn every_truncation_yields_the_chunks_before_it() {
    let (file, recorded) = example(Codec::Predict, 8);
    let chunks = chunks(&file);
    for length in (0..file.len()).step_by(37) {
        let Some(trace) = exercise(file[..length].to_vec(), Some(&recorded)) else {
            assert!(length < chunks[0].1, "{length}");
            continue;
        };
        let whole = chunks.iter().filter(|(_, _, end)| *end <= length).count() as u64;
        assert_eq!(trace.summary().chunks, whole);
        assert_eq!(trace.verify().intact_path_chunks, trace.path_chunks().count() as u64);
        assert!(!trace.damage().is_empty());
    }
}

#[test]
fn a_damaged_path_is_named_and_the_rest_is_read() {
    // Without data: that would be missing, too.
    let (file, recorded) = example(Codec::Predict, 9);
    let whole = Trace::from_bytes(file.clone()).unwrap();
    let paths: Vec<_> = chunks(&file).into_iter().filter(|(start, ..)| file[start + 4] == PATH).collect();
    for (place, &(_, payload, end)) in paths.iter().enumerate() {
        let header = *whole.path_chunks().nth(place).unwrap();
        let mut changed = file.clone();
        changed[(payload + end) / 2] ^= 0x10;
        let trace = exercise(changed, Some(&recorded)).unwrap();
        let damage = trace.damage();
        assert_eq!(damage.len(), 1, "{damage:?}");
        assert_eq!(damage[0].thread, Some(header.thread));
        let instructions = header.first_instruction..header.first_instruction + header.counts.instructions;
        assert_eq!(damage[0].instructions, Some(instructions));
        let report = trace.verify();
        assert_eq!(report.intact_path_chunks as usize, paths.len() - 1);
        assert_eq!(report.counts.instructions + header.counts.instructions, whole.totals().instructions);
        let errors = trace.steps(header.thread).unwrap().filter(Result::is_err).count();
        assert_eq!(errors, 1);
    }
}

#[test]
fn damaged_data_costs_nothing_else() {
    for codec in [Codec::Adaptive, Codec::Raw] {
        let (file, recorded) = example(codec, 14);
        let whole = Trace::from_bytes(file.clone()).unwrap();
        let data: Vec<_> = chunks(&file).into_iter().filter(|(start, ..)| file[start + 4] == DATA).collect();
        assert_eq!(data.len(), whole.path_chunks().count());
        for &(_, payload, end) in data.iter().filter(|(_, payload, end)| payload < end) {
            let mut changed = file.clone();
            changed[(payload + end) / 2] ^= 0x10;
            let trace = exercise(changed, Some(&recorded)).unwrap();
            assert_eq!(trace.totals(), whole.totals());
            let damage = trace.damage();
            assert!(damage.len() == 1 && damage[0].reason.starts_with("data chunk"), "{damage:?}");
            let report = trace.verify();
            assert_eq!(report.intact_path_chunks as usize, data.len());
            assert_eq!(report.intact_data_chunks as usize, data.len() - 1);
            let thread = damage[0].thread.unwrap();
            let (mut errors, mut instructions) = (0, 0);
            let mut steps = trace.steps_with_accesses(thread).unwrap();
            loop {
                match steps.next_batch() {
                    Ok(None) => break,
                    Ok(Some(batch)) => instructions += batch.instructions(),
                    Err(_) => errors += 1,
                }
            }
            assert_eq!((errors, instructions), (1, trace.threads()[thread.get() as usize].counts.instructions));
        }
    }
}

#[test]
fn a_destroyed_header_costs_one_chunk_and_the_gap_is_named() {
    let (file, recorded) = example(Codec::Fast, 10);
    let whole = Trace::from_bytes(file.clone()).unwrap();
    let chunks = chunks(&file);
    // Without the index the header is the only thing that says what there is.
    let index = chunks.iter().find(|(start, ..)| file[start + 4] == INDEX).unwrap().0;
    let paths: Vec<_> = chunks.iter().filter(|(start, ..)| file[start + 4] == PATH).collect();
    for (place, &&(start, ..)) in paths.iter().enumerate() {
        let mut changed = file[..index].to_vec();
        changed[start + 40] ^= 1;
        let trace = exercise(changed, Some(&recorded)).unwrap();
        assert_eq!(trace.path_chunks().count(), paths.len() - 1);
        let lost = whole.path_chunks().nth(place).unwrap();
        let is_last = whole.path_chunks().skip(place + 1).all(|later| later.thread != lost.thread);
        let range = lost.first_instruction..lost.first_instruction + lost.counts.instructions;
        let named = trace.damage().iter().any(|damage| damage.instructions == Some(range.clone()));
        assert!(named || is_last || range.is_empty());
    }
}

#[test]
fn a_file_without_an_index_is_read() {
    let (file, recorded) = example(Codec::Predict, 11);
    let whole = Trace::from_bytes(file.clone()).unwrap();
    let index = chunks(&file).iter().find(|(start, ..)| file[start + 4] == INDEX).copied().unwrap();
    for (changed, reason) in [
        (file[..index.0].to_vec(), "the index is missing"),
        (file[..index.2].to_vec(), "the index is damaged"),
        ([&file[..index.2], &[0; 28][..]].concat(), "no chunk begins here"),
    ] {
        let trace = exercise(changed, Some(&recorded)).unwrap();
        assert_eq!(trace.totals(), whole.totals());
        assert_eq!(trace.threads(), whole.threads());
        assert!(trace.is_finished());
        let damage = trace.damage();
        assert!(damage.len() == 1 && damage[0].reason == reason, "{damage:?}");
    }
    let end = chunks(&file).iter().find(|(start, ..)| file[start + 4] == END).unwrap().0;
    let trace = exercise(file[..end].to_vec(), Some(&recorded)).unwrap();
    assert!(!trace.is_finished());
    assert_eq!(trace.damage()[0].reason, "the recording was not finished");
}

#[test]
fn lost_code_loses_what_needs_it_only() {
    let (file, recorded) = example_of(Codec::Fast, 12, 300, 3000);
    let codes: Vec<_> = chunks(&file).into_iter().filter(|(start, ..)| file[start + 4] == CODE).collect();
    assert!(codes.len() > 3);
    for &(_, payload, _) in codes[1..].iter().take(5) {
        let mut changed = file.clone();
        changed[payload + 3] ^= 1;
        let trace = exercise(changed, Some(&recorded)).unwrap();
        assert!(trace.damage().iter().any(|damage| damage.reason.starts_with("code chunk")));
        assert!(trace.verify().intact_path_chunks > 0);
    }
}

#[test]
fn other_files_are_refused() {
    assert!(matches!(Trace::from_bytes(vec![]), Err(ReadError::NotATrace { .. })));
    assert!(matches!(Trace::from_bytes(vec![0x7f; 1000]), Err(ReadError::NotATrace { .. })));
    let (mut file, recorded) = example(Codec::Raw, 13);
    file[0] ^= 1;
    let trace = exercise(file.clone(), Some(&recorded)).unwrap();
    assert_eq!(trace.damage()[0].reason, "the file header is damaged");
    file[0] ^= 1;
    file[8] = 4;
    let checksum = crc32fast::hash(&file[..12]).to_le_bytes();
    file[12..16].copy_from_slice(&checksum);
    let error = Trace::from_bytes(file).unwrap_err();
    assert!(matches!(error, ReadError::Version { version: 4, supported: 3, .. }), "{error}");
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(Trace::open(directory.path()), Err(ReadError::Open { .. })));
    assert!(matches!(Trace::open(&directory.path().join("absent")), Err(ReadError::Open { .. })));
}

fn writer(path: &std::path::Path) -> Writer {
    let options = WriterOptions { chunk_words: 1, ..WriterOptions::default() };
    let mut writer = Writer::create_with(path, &Recording::default(), options).unwrap();
    writer.block(0, BlockId::new(1), AppPc::new(0x1000), &[0x75, 0xfe]).unwrap();
    define_fragment(&mut writer, 1, 1);
    writer.thread(&ThreadInfo::default()).unwrap();
    writer
}

/// Defines a fragment of one block with one exit.
fn define_fragment(writer: &mut Writer, path: u32, block: u32) {
    let (blocks, exits) = ([FragmentBlock::new(BlockId::new(block), false)], [FragmentExit::new(1, TERMINATOR_TAKEN)]);
    let fragment = FragmentId::new(PathId::new(path));
    writer.fragment(0, &Fragment { fragment, blocks: &blocks, exits: &exits }).unwrap();
}

#[test]
fn an_unfinished_recording_is_readable_and_replaces_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.trk");
    std::fs::write(&path, "older").unwrap();
    let mut writer = writer(&path);
    for _ in 0..10 {
        writer.path(0, ThreadId::FIRST, &[1, 1, 1]).unwrap();
    }
    drop(writer);
    assert_eq!(std::fs::read(&path).unwrap(), b"older");
    let trace = Trace::open(&partial_path(&path)).unwrap();
    assert!(!trace.is_finished());
    assert_eq!(trace.exit(), Exit::Unknown);
    // The last chunk was still open when the writer was dropped.
    assert_eq!(trace.totals().instructions, 27);
}

#[test]
fn an_unknown_word_is_an_error_and_the_words_before_it_are_kept() {
    for bad in [2, 0, word::event(99, 0), word::event(word::TIME, 0)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.trk");
        let mut writer = writer(&path);
        let result =
            writer.path(0, ThreadId::FIRST, &[1, 1, bad]).and_then(|()| writer.finish(Exit::Code(0)).map(|_| ()));
        let error = result.unwrap_err();
        assert!(matches!(error, WriteError::UnknownWord { thread: ThreadId::FIRST, word } if word == bad), "{error}");
        assert_eq!(Trace::open(&partial_path(&path)).unwrap().totals().instructions, 2);
    }
}

#[test]
fn wrong_definitions_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.trk");
    let finish = |writer: Writer| writer.finish(Exit::Unknown).map(|_| ()).unwrap_err();
    let mut bad = writer(&path);
    let address = AppPc::new(0x2000);
    bad.block(0, BlockId::new(1), address, &[0xc3]).unwrap();
    assert!(matches!(finish(bad), WriteError::BlockTwice { id } if id.get() == 1));
    let mut bad = writer(&path);
    bad.block(0, BlockId::new(2), address, &[0xc3, 0xc3]).unwrap();
    assert!(matches!(finish(bad), WriteError::Block { id, .. } if id.get() == 2));
    let mut bad = writer(&path);
    define_fragment(&mut bad, 9, 7);
    let error = finish(bad);
    assert!(matches!(error, WriteError::UnknownBlock { .. }));
    assert_eq!(error.to_string(), "the fragment of path 9 names block 7, which is not defined");
    let mut bad = writer(&path);
    let error = bad.path(0, ThreadId::new(5), &[1]).unwrap_err();
    assert!(matches!(error, WriteError::UnknownThread { thread } if thread.get() == 5));
    assert!(matches!(Writer::create(directory.path(), &Recording::default()), Err(WriteError::Create { .. })));
    let absent = directory.path().join("absent").join("a.trk");
    assert!(matches!(Writer::create(&absent, &Recording::default()), Err(WriteError::Create { .. })));
}
