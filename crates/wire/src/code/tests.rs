//! The reader against records as the engine writes them, and against damaged ones.

use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn record(kind: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [kind.to_le_bytes(), (payload.len() as u32).to_le_bytes()].concat();
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(8), 0xee);
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn parse(kind: u32, payload: &[u8]) -> Option<Definition<'_>> {
    Record { kind, payload }.parse()
}

/// A payload as the engine writes it.
fn written<P: Payload>(record: P) -> Vec<u8> {
    let (mut bytes, length) = (Vec::new(), record.length());
    record.write(&mut |piece| bytes.extend_from_slice(piece));
    assert_eq!(bytes.len(), length);
    bytes
}

fn fragment(first_path: u32) -> FragmentId {
    FragmentId::new(PathId::new(first_path))
}

#[test]
fn records_follow_each_other_with_padding() {
    let bytes = [record(BLOCK, &[1; 17]), record(77, b""), record(UNMAP, &[2; 24])].concat();
    let mut records = Records::new(&bytes);
    let found: Vec<(u32, usize)> = records.by_ref().map(|record| (record.kind, record.payload.len())).collect();
    assert_eq!(found, [(BLOCK, 17), (77, 0), (UNMAP, 24)]);
    assert!(records.rest().is_empty());
}

#[test]
fn iteration_ends_before_an_incomplete_record() {
    let whole = record(BLOCK, &[1; 17]);
    for length in 1..whole.len() {
        let mut records = Records::new(&whole[..length]);
        assert!(records.next().is_none());
        assert_eq!(records.rest().len(), length);
    }
    let huge = [BLOCK.to_le_bytes(), u32::MAX.to_le_bytes()].concat();
    assert!(Records::new(&huge).next().is_none());
}

#[test]
fn blocks_have_code() {
    let payload = [&0x1234_u64.to_le_bytes()[..], &words(&[7, 0]), &[0x90, 0xc3]].concat();
    let Some(Definition::Block(block)) = parse(BLOCK, &payload) else { panic!("not a block") };
    let expected = BlockRecord { address: AppPc::new(0x1234), block: BlockId::new(7), code: &[0x90, 0xc3] };
    assert_eq!(block, expected);
    assert_eq!(written(block), payload);
    assert!(parse(BLOCK, &payload[..BLOCK_FIXED]).is_none());
    assert!(parse(BLOCK, &[0; BLOCK_FIXED + BLOCK_BYTES_MAX]).is_some());
    assert!(parse(BLOCK, &[0; BLOCK_FIXED + BLOCK_BYTES_MAX + 1]).is_none());
}

#[test]
fn modules_come_and_go() {
    let payload = [&[1_u64, 2, 3, 4].map(u64::to_le_bytes).concat()[..], b"/lib/x.so"].concat();
    let Some(Definition::Module(module)) = parse(MODULE, &payload) else { panic!("not a module") };
    let expected = ModuleRecord { address: 1, length: 2, file_offset: 3, tsc: Tsc::new(4), path: b"/lib/x.so" };
    assert_eq!(module, expected);
    assert_eq!(written(module), payload);
    assert!(parse(MODULE, &payload[..MODULE_FIXED - 1]).is_none());
    let Some(Definition::Unmap(unmap)) = parse(UNMAP, &payload) else { panic!("no range") };
    assert_eq!(unmap, UnmapRecord { address: 1, length: 2, tsc: Tsc::new(3) });
    assert_eq!(written(unmap), payload[..UNMAP_BYTES]);
    assert!(parse(UNMAP, &payload[..23]).is_none());
}

#[test]
fn fragments_have_as_many_blocks_and_exits_as_they_say() {
    let payload = words(&[17, 2, 1, UNINSTRUMENTED, 5 | TAKEN, 6, TERMINATOR_INDIRECT << 16 | 2]);
    let Some(Definition::Fragment(record)) = parse(FRAGMENT, &payload) else { panic!("not a fragment") };
    assert_eq!((record.fragment, record.is_uninstrumented), (fragment(17), true));
    let blocks: Vec<(u32, bool)> = record.blocks.map(|block| (block.block().get(), block.is_taken())).collect();
    assert_eq!(blocks, [(5, true), (6, false)]);
    let exits: Vec<(u16, u32)> = record.exits.map(|exit| (exit.block_count(), exit.terminator())).collect();
    assert_eq!(exits, [(2, TERMINATOR_INDIRECT)]);
    assert_eq!(written(record), payload);
    assert!(parse(FRAGMENT, &payload[..payload.len() - 1]).is_none());
    let many = FRAGMENT_BLOCKS_MAX as u32 + 1;
    assert!(parse(FRAGMENT, &words(&[1, many, 0, 0]).repeat(200)).is_none());
    assert!(parse(FRAGMENT, &words(&[1, 0, u32::MAX, 0])).is_none());
}

#[test]
fn access_descriptors_are_read_as_they_lie_in_memory() {
    let descriptor = AccessDescriptor {
        block: 0x0102,
        offset: 0x0304,
        size: 0x0506,
        kind: MASKED,
        flags: WRITES | HAS_BASE,
        base: 0x0708,
        index: 0x090a,
        value: CONSTANT,
        mask: 0x0b0c,
        count: 13,
        mask_kind: MASK_SIGNS,
        index_bytes: 8,
        reserved: [0; 5],
        displacement: -77,
        constant: 0x1122_3344_5566_7788,
    };
    // The layout of the structure in memory is that of the record.
    // SAFETY: the structure is `repr(C)` and consists of integers without padding between them.
    let in_memory: [u8; ACCESS_DESCRIPTOR_BYTES] = unsafe { core::mem::transmute(descriptor) };
    let payload = [words(&[3, 2, 1, 0, 8, 12]), in_memory.to_vec()].concat();
    let Some(Definition::AccessDescriptors(record)) = parse(ACCESS_DESCRIPTORS, &payload) else {
        panic!("no descriptors")
    };
    assert_eq!(record.fragment, fragment(3));
    assert_eq!(record.lengths.collect::<Vec<_>>(), [8, 12]);
    assert_eq!(record.accesses.collect::<Vec<_>>(), [descriptor]);
    assert_eq!(written(record), payload);
    assert!(parse(ACCESS_DESCRIPTORS, &payload[..payload.len() - 1]).is_none());
    assert!(parse(ACCESS_DESCRIPTORS, &words(&[3, 0, u32::MAX, 0])).is_none());
    assert!(parse(ACCESS_DESCRIPTORS, &words(&[3, FRAGMENT_BLOCKS_MAX as u32 + 1, 0, 0]).repeat(99)).is_none());
}

#[test]
fn other_kinds_are_refused() {
    for kind in [0, 6, u32::MAX] {
        assert!(parse(kind, &[0; 64]).is_none());
    }
}

proptest! {
    #[test]
    fn fragments_come_back(
        first_path in any::<u32>(),
        is_uninstrumented: bool,
        blocks in prop::collection::vec((0..=FragmentBlock::BLOCK_MAX, any::<bool>()), 0..=FRAGMENT_BLOCKS_MAX),
        exits in prop::collection::vec((any::<u16>(), 0..=u32::from(u16::MAX)), 0..=FRAGMENT_BLOCKS_MAX),
    ) {
        let block = |&(number, is_taken): &(u32, bool)| FragmentBlock::new(BlockId::new(number), is_taken);
        let exit = |&(block_count, terminator): &(u16, u32)| FragmentExit::new(block_count, terminator);
        let (blocks, exits) = (blocks.iter().map(block), exits.iter().map(exit));
        let fragment = fragment(first_path);
        let bytes =
            written(FragmentRecord { fragment, is_uninstrumented, blocks: blocks.clone(), exits: exits.clone() });
        let Some(Definition::Fragment(back)) = parse(FRAGMENT, &bytes) else { panic!("not a fragment") };
        prop_assert_eq!((back.fragment, back.is_uninstrumented), (fragment, is_uninstrumented));
        prop_assert!(back.blocks.eq(blocks) && back.exits.eq(exits));
    }

    #[test]
    fn blocks_come_back(
        address: u64,
        block: u32,
        code in prop::collection::vec(any::<u8>(), 1..=BLOCK_BYTES_MAX),
    ) {
        let record = BlockRecord { address: AppPc::new(address), block: BlockId::new(block), code: &code };
        let bytes = written(record);
        let Some(Definition::Block(back)) = parse(BLOCK, &bytes) else { panic!("not a block") };
        prop_assert_eq!(back, record);
    }

    #[test]
    fn modules_and_ranges_come_back(
        [address, length, file_offset, tsc] in any::<[u64; 4]>(),
        path in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let tsc = Tsc::new(tsc);
        let (module, unmap) =
            (ModuleRecord { address, length, file_offset, tsc, path: &path }, UnmapRecord { address, length, tsc });
        let bytes = written(module);
        let Some(Definition::Module(back)) = parse(MODULE, &bytes) else { panic!("not a module") };
        prop_assert_eq!(back, module);
        let bytes = written(unmap);
        let Some(Definition::Unmap(back)) = parse(UNMAP, &bytes) else { panic!("no range") };
        prop_assert_eq!(back, unmap);
    }

    #[test]
    fn access_descriptors_come_back(
        first_path in any::<u32>(),
        lengths in prop::collection::vec(any::<u32>(), 0..=FRAGMENT_BLOCKS_MAX),
        descriptors in prop::collection::vec(any::<[[u8; 8]; ACCESS_DESCRIPTOR_BYTES / 8]>(), 0..50),
    ) {
        let descriptors: Vec<AccessDescriptor> =
            descriptors.iter().filter_map(|words| AccessDescriptor::read(words.as_flattened())).collect();
        let (fragment, accesses) = (fragment(first_path), descriptors.iter().copied());
        let bytes = written(AccessDescriptorsRecord { fragment, lengths: lengths.iter().copied(), accesses });
        let Some(Definition::AccessDescriptors(back)) = parse(ACCESS_DESCRIPTORS, &bytes) else {
            panic!("no descriptors")
        };
        prop_assert_eq!(back.fragment, fragment);
        prop_assert!(back.lengths.eq(lengths) && back.accesses.eq(descriptors));
    }

    /// A record that parses lies in the payload.
    #[test]
    fn payloads_of_any_bytes_parse_or_are_refused(
        kind in 0u32..7,
        payload in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let again = match parse(kind, &payload) {
            None => Vec::new(),
            Some(Definition::Block(record)) => written(record),
            Some(Definition::Module(record)) => written(record),
            Some(Definition::Unmap(record)) => written(record),
            Some(Definition::Fragment(record)) => written(record),
            Some(Definition::AccessDescriptors(record)) => written(record),
        };
        prop_assert!(again.len() <= payload.len());
    }
}
