//! A nest of two loops of N iterations takes the same space for every N from 200 to 2000.

use std::sync::Mutex;

use trackway_memory::prsd::{Detector, MAX_LEVEL, Piece};
use trackway_memory::sequitur::Grammar;

/// The sizes: every one, or some without optimisation, with which a size takes a second.
fn sizes() -> impl Iterator<Item = u64> {
    (200..=2000).rev().step_by(if cfg!(debug_assertions) { 600 } else { 1 })
}

/// How many regular sections and irregular addresses the columns of a matrix are.
fn pieces(size: u64) -> (u64, u64) {
    let (mut regular, mut irregular) = (0, 0);
    let mut count = |piece: Piece<'_>| match piece {
        Piece::Regular(_) => regular += 1,
        Piece::Irregular(addresses) => irregular += addresses.len() as u64,
    };
    let mut detector = Detector::new(MAX_LEVEL);
    for i in 0..size {
        (0..size).for_each(|j| detector.push(0x10_0000 + 8 * (j * size + i), &mut count));
    }
    detector.finish(&mut count);
    (regular, irregular)
}

/// How many rules and symbols the order of the rows is: one for each iteration of the inner loop,
/// another one behind them.
fn rules(size: u64) -> (usize, usize) {
    let mut grammar = Grammar::new();
    for _ in 0..size {
        (0..size).for_each(|_| grammar.push(0));
        grammar.push(1);
    }
    let rules = grammar.take();
    (rules.rule_count(), rules.size())
}

#[test]
fn every_nest_is_one_section_and_one_grammar() {
    let waiting = Mutex::new(sizes());
    let check = || {
        let mut count = 0;
        while let Some(size) = { waiting.lock().unwrap().next() } {
            assert_eq!(pieces(size), (1, 0), "{size}");
            assert_eq!(rules(size), rules(3), "{size}");
            count += 1;
        }
        count
    };
    let counts: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2).map(|_| scope.spawn(check)).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    let (rules, symbols) = rules(2000);
    println!("{counts} sizes: 1 PRSD for each access point, a grammar of {rules} rules and {symbols} symbols");
}
