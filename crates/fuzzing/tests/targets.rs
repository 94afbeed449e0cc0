//! Runs every target for a few seconds. Checks that the driver reaches the codecs and finds a
//! planted bug.

mod corpus;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::catch_unwind;
use std::time::Duration;

use fuzzing::driver::{self, Bounds};
use fuzzing::{TARGETS, framed};

/// Runs a target with its corpus.
fn check(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("there is such a target");
    let bounds = Bounds::from_environment();
    let count = driver::run(name, &driver::corpus(name), &bounds, target.run);
    println!("{name}: {count} inputs with seed {}", bounds.seed);
}

#[test]
fn open_takes_anything() {
    check("open");
}

#[test]
fn framed_takes_anything() {
    check("framed");
}

#[test]
fn accesses_takes_anything() {
    check("accesses");
}

#[test]
fn rings_takes_anything() {
    check("rings");
}

#[test]
fn port_bits_takes_anything() {
    check("port_bits");
}

#[test]
fn memory_trace_takes_anything() {
    check("memory_trace");
}

/// Mutations reach every codec: each decodes contents that no input of the corpus has.
#[test]
fn mutations_are_decoded_by_every_codec() {
    let corpus = driver::corpus("framed");
    let known: BTreeSet<(u8, u32)> = corpus.iter().flat_map(|input| framed(input)).collect();
    for codec in 0..5 {
        assert!(known.iter().any(|&(known, _)| known == codec), "the corpus has no chunk of codec {codec}");
    }
    let mut found: BTreeMap<u8, BTreeSet<u32>> = BTreeMap::new();
    let bounds = Bounds { seed: 7, count: 3000, time: Duration::from_secs(20) };
    driver::run("framed", &corpus, &bounds, |input| {
        for (codec, checksum) in framed(input).into_iter().filter(|decoded| !known.contains(decoded)) {
            found.entry(codec).or_default().insert(checksum);
        }
    });
    for codec in 0..5 {
        let count = found.get(&codec).map_or(0, BTreeSet::len);
        println!("codec {codec}: {count} new contents");
        assert!(count >= 10, "only {count} new contents came out of codec {codec}");
    }
}

/// The driver finds a bug behind a checksum and a codec, and names an input that repeats it.
#[test]
fn a_planted_bug_is_found() {
    let corpus = driver::corpus("framed");
    let known: BTreeSet<(u8, u32)> = corpus.iter().flat_map(|input| framed(input)).collect();
    for codec in 1..4 {
        let hunt = || {
            let bounds = Bounds { seed: 1, count: 3000, time: Duration::from_secs(20) };
            driver::run("planted", &corpus, &bounds, |input| {
                let decoded = framed(input);
                assert!(!decoded.iter().any(|decoded| decoded.0 == codec && !known.contains(decoded)), "planted");
            })
        };
        let failure = catch_unwind(hunt).expect_err("the bug is found");
        let text = failure.downcast_ref::<String>().expect("a message");
        assert!(text.contains("target planted failed with input") && text.contains("of seed 1"), "{text}");
        let kept = text.split(": ").last().and_then(|path| path.strip_suffix(')')).expect("the input is kept");
        std::fs::remove_file(kept).unwrap();
    }
}

/// Writes the corpus anew, apart from what crashes have added to it.
#[test]
#[ignore = "writes into the tree"]
fn write_corpus() {
    corpus::write();
}
