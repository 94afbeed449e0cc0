//! Tests of the grammar: published examples, and a check of all invariants after every push.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::*;

/// Checks the invariants by looking at everything.
fn check_invariants(grammar: &Grammar) {
    let mut uses: HashMap<u32, u64> = HashMap::new();
    let mut digrams = HashMap::new();
    let mut run_count = 0;
    let mut reached = vec![START];
    let mut seen = HashSet::from([START]);
    while let Some(rule) = reached.pop() {
        let guard = grammar.rules[rule as usize].guard;
        let nodes = ring(grammar, guard);
        assert!(rule == START || nodes.len() >= 2, "rule {rule} has {} runs", nodes.len());
        run_count += nodes.len();
        for &node in &nodes {
            let run = grammar.arena.node(node);
            assert!(run.count > 0);
            if let Some(used) = run.value.as_rule() {
                *uses.entry(used).or_default() += run.count;
                reached.extend(seen.insert(used).then_some(used));
            }
        }
        for pair in nodes.windows(2) {
            let [first, second] = [pair[0], pair[1]].map(|node| grammar.arena.node(node));
            assert_ne!(first.value, second.value, "a symbol stands beside itself in rule {rule}");
            if pair[1] != grammar.last() {
                let key = (first.value.bits(), first.count, second.value.bits(), second.count);
                assert_eq!(digrams.insert(key, pair[0]), None, "a digram occurs twice");
            }
        }
    }
    assert_eq!(seen.len(), grammar.rule_count());
    assert_eq!(run_count, grammar.size());
    for (&rule, &uses) in &uses {
        assert!(uses >= 2, "rule {rule} is used once");
        assert_eq!(uses, grammar.rules[rule as usize].uses);
    }
    let indexed: HashSet<u32> = grammar.digrams.first_nodes().collect();
    assert_eq!(indexed, digrams.into_values().collect());
}

fn ring(grammar: &Grammar, guard: u32) -> Vec<u32> {
    let mut nodes = vec![guard];
    while let next = grammar.arena.next(nodes[nodes.len() - 1])
        && next != guard
    {
        assert_eq!(grammar.arena.previous(next), nodes[nodes.len() - 1]);
        nodes.push(next);
    }
    nodes.split_off(1)
}

/// Checks the invariants of finished rules, where no digram is open.
fn check_rules(rules: &Rules, terminals: &[u32]) {
    assert!(rules.terminals().eq(terminals.iter().copied()));
    assert_eq!(rules.length(), terminals.len() as u64);
    let mut digrams = Vec::new();
    let mut uses = vec![0; rules.rule_count()];
    for (number, runs) in rules.iter().enumerate() {
        assert!(runs.windows(2).all(|pair| pair[0].symbol != pair[1].symbol));
        digrams.extend(runs.windows(2));
        for run in runs {
            if let GrammarSymbol::Rule(rule) = run.symbol {
                assert!((rule as usize) < number);
                uses[rule as usize] += run.count;
            }
        }
    }
    assert!(uses.iter().rev().skip(1).all(|&uses| uses >= 2));
    assert!((1..digrams.len()).all(|at| !digrams[..at].contains(&digrams[at])));
    let mut bytes = Vec::new();
    rules.encode(&mut bytes);
    assert_eq!(Rules::decode(&bytes).as_ref(), Ok(rules));
}

/// Pushes terminals and checks everything after each.
fn check_pushes(terminals: &[u32]) {
    let mut grammar = Grammar::new();
    for (at, &terminal) in terminals.iter().enumerate() {
        grammar.push(terminal);
        check_invariants(&grammar);
        check_rules(&grammar.clone().take(), &terminals[..=at]);
    }
}

fn rules(terminals: impl IntoIterator<Item = u32>) -> Rules {
    let mut grammar = Grammar::new();
    terminals.into_iter().for_each(|terminal| grammar.push(terminal));
    grammar.take()
}

/// Returns the rules as text: the start rule as S, the others as A, B, … in the order of their
/// first uses.
fn text(rules: &Rules, name: impl Fn(u32) -> String) -> String {
    let mut order = vec![rules.rule_count() as u32 - 1];
    let mut lines = Vec::new();
    let letter = |at: usize| char::from(if at == 0 { b'S' } else { b'A' + at as u8 - 1 });
    while let Some(&rule) = order.get(lines.len()) {
        let mut words = vec![format!("{} →", letter(lines.len()))];
        for run in rules.rule(rule as usize).unwrap() {
            let symbol = match run.symbol {
                GrammarSymbol::Terminal(terminal) => name(terminal),
                GrammarSymbol::Rule(used) => {
                    let at = order.iter().position(|&known| known == used).unwrap_or_else(|| {
                        order.push(used);
                        order.len() - 1
                    });
                    letter(at).to_string()
                }
            };
            let count = if run.count > 1 { format!("^{}", run.count) } else { String::new() };
            words.push(format!("{symbol}{count}"));
        }
        lines.push(words.join(" "));
    }
    lines.join("; ")
}

fn check_text(input: &str, expected: &str) {
    let terminals: Vec<u32> = input.bytes().map(u32::from).collect();
    check_pushes(&terminals);
    let name = |terminal: u32| char::from(terminal as u8).to_string();
    assert_eq!(text(&rules(terminals), name), expected, "{input}");
}

/// Nevill-Manning and Witten 1997, Figure 1 and the example of the two constraints at work. Two of
/// a symbol are a run here.
#[test]
fn published_examples() {
    check_text("abcdbc", "S → a A d A; A → b c");
    check_text("abcdbcabcdbc", "S → A^2; A → a B d B; B → b c");
    check_text("abcdbcabcd", "S → A B A; A → a B d; B → b c");
    check_text("abcabdabcabd", "S → A^2; A → B c B d; B → a b");
}

/// The rhyme that illustrates hierarchies in the papers, word by word.
#[test]
fn published_rhyme() {
    let rhyme = "pease porridge hot , pease porridge cold , pease porridge in the pot , nine days old . \
                 some like it hot , some like it cold , some like it in the pot , nine days old .";
    let words: Vec<&str> = rhyme.split(' ').collect();
    let number = |word: &&str| words.iter().position(|known| known == word).unwrap() as u32;
    let terminals: Vec<u32> = words.iter().map(number).collect();
    check_pushes(&terminals);
    let expected = "S → A hot B cold B C D hot E cold E C; A → pease porridge; B → , A; \
                    C → in the pot , nine days old .; D → some like it; E → , D";
    assert_eq!(text(&rules(terminals), |word| words[word as usize].to_owned()), expected);
}

#[test]
fn runs_are_compared_when_they_are_complete() {
    check_text("aaaaaaa", "S → a^7");
    check_text("abbcabbbc", "S → a b^2 c a b^3 c");
    check_text("abbcabbbdabbc", "S → A a b^3 d A; A → a b^2 c");
}

/// Returns the number of runs and of rules for an N×N nest whose inner loop executes `paths`.
fn nest_size(n: u32, paths: u32) -> (usize, usize) {
    let mut grammar = Grammar::new();
    let row = || (0..n * paths).map(|at| at % paths).chain([paths]);
    (0..n).flat_map(|_| row()).for_each(|terminal| grammar.push(terminal));
    check_invariants(&grammar);
    let rules = grammar.take();
    assert_eq!(rules.length(), u64::from(n) * u64::from(n * paths + 1));
    assert!(rules.terminals().take(1 << 16).eq((0..n).flat_map(|_| row()).take(1 << 16)));
    (rules.size(), rules.rule_count())
}

#[test]
fn a_nest_of_loops_has_the_same_size_for_every_length() {
    for n in (200..=2000).step_by(120) {
        assert_eq!(nest_size(n, 1), (3, 2), "{n}");
        assert_eq!(nest_size(n, 3), (6, 3), "{n}");
    }
    assert_eq!(nest_size(200, 50), (53, 3));
}

#[test]
fn a_nest_of_three_loops_has_the_same_size_for_every_length() {
    for n in [2u32, 3, 10, 100] {
        let row = move || (0..n).map(|_| 1).chain([2]);
        let plane = move || (0..n).flat_map(move |_| row()).chain([3]);
        let found = rules((0..n).flat_map(|_| plane()));
        assert_eq!(text(&found, |terminal| terminal.to_string()), format!("S → A^{n}; A → B^{n} 3; B → 1^{n} 2"));
    }
}

/// A loop that is left in the middle continues as runs of its rule.
#[test]
fn an_incomplete_repetition_is_appended_as_runs() {
    check_text("abbbcabbbcabbbcabbd", "S → A^3 a b^2 d; A → a b^3 c");
    check_text("abcddabcddabcddabx", "S → A^3 B x; A → B c d^2; B → a b");
    // Inside a rule of a rule, and in the middle of a run.
    check_text("aabaabcaabaabcaabax", "S → A^2 B a x; A → B^2 c; B → a^2 b");
    check_text("aabaabcaabaabcaabaabaabx", "S → A^2 B^3 x; A → B^2 c; B → a^2 b");
}

/// Pseudorandom numbers (xorshift).
fn random() -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

fn check_long(terminals: &[u32]) -> Rules {
    let mut grammar = Grammar::new();
    terminals.iter().for_each(|&terminal| grammar.push(terminal));
    check_invariants(&grammar);
    let rules = grammar.take();
    assert!(rules.terminals().eq(terminals.iter().copied()));
    rules
}

#[test]
fn long_random_inputs_come_back() {
    let mut random = random();
    for alphabet in [2, 5, 100, 10_000, 1 << 32] {
        let terminals: Vec<u32> = (0..100_000).map(|_| (random() % alphabet) as u32).collect();
        assert!(check_long(&terminals).size() <= terminals.len());
    }
}

/// Loops of random length around random bodies, with branches.
#[test]
fn long_structured_inputs_come_back() {
    let (mut random, mut terminals) = (random(), Vec::new());
    while terminals.len() < 200_000 {
        let (start, length) = (random() % 50 * 10, 1 + random() % 8);
        for _ in 0..random() % 40 {
            let branch = if random() % 16 == 0 { 5 } else { 0 };
            terminals.extend((start..start + length).map(|path| (path + branch) as u32));
        }
    }
    assert!(check_long(&terminals).size() < terminals.len() / 4);
}

#[test]
fn a_grammar_is_as_new_after_it_was_taken() {
    let mut grammar = Grammar::new();
    assert_eq!(grammar.take(), Rules::default());
    let push = |grammar: &mut Grammar| [1, 2, 1, 2, 1].into_iter().for_each(|terminal| grammar.push(terminal));
    push(&mut grammar);
    assert_eq!((grammar.length(), grammar.rule_count()), (5, 2));
    let rules = grammar.take();
    assert_eq!((grammar.length(), grammar.size(), grammar.rule_count()), (0, 0, 1));
    push(&mut grammar);
    assert_eq!(grammar.take(), rules);
}

/// Terminals, and copies of what came before.
fn any_terminals() -> impl Strategy<Value = Vec<u32>> {
    let part = prop_oneof![(0u32..4).prop_map(Err), (any::<prop::sample::Index>(), 0usize..25).prop_map(Ok)];
    prop::collection::vec(part, 0..40).prop_map(|parts| {
        let mut terminals = vec![0];
        for part in parts {
            match part {
                Err(terminal) => terminals.push(terminal),
                Ok((from, length)) => {
                    let from = from.index(terminals.len());
                    for at in from..from + length {
                        terminals.push(terminals[at]);
                    }
                }
            }
        }
        terminals
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn invariants_hold_with_copies(terminals in any_terminals()) {
        check_pushes(&terminals);
    }

    #[test]
    fn invariants_hold_after_every_push(terminals in prop::collection::vec(0u32..3, 0..150)) {
        check_pushes(&terminals);
    }

    #[test]
    fn invariants_hold_with_runs(runs in prop::collection::vec((0u32..3, 1usize..5), 0..60)) {
        let terminals: Vec<u32> = runs.into_iter().flat_map(|(terminal, count)| vec![terminal; count]).collect();
        check_pushes(&terminals);
    }
}
