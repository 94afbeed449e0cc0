//! The forest against graphs whose loops are known, against every elementary cycle of small random
//! graphs, and against dominators as another library finds them.

use std::collections::BTreeSet;

use petgraph::algo::dominators;
use petgraph::graph::{DiGraph, NodeIndex};
use proptest::prelude::*;

use super::*;

fn graph(node_count: u32, edges: &[(u32, u32)]) -> Graph {
    let mut graph = Graph::new(node_count);
    graph.add_entry(0);
    edges.iter().for_each(|&(from, to)| graph.add_edge(from, to));
    graph
}

/// Entries, nodes and parent of every loop.
type Shape = (Vec<u32>, Vec<u32>, Option<u32>);

fn check(node_count: u32, edges: &[(u32, u32)], expected: &[Shape]) {
    let forest = LoopForest::of(&graph(node_count, edges));
    let loops: Vec<Shape> =
        forest.loops().iter().map(|found| (found.entries.clone(), found.nodes.clone(), found.parent)).collect();
    assert_eq!(loops, expected);
}

#[test]
fn loops_of_small_graphs() {
    check(3, &[(0, 1), (1, 2)], &[]);
    check(2, &[(0, 1), (1, 1)], &[(vec![1], vec![1], None)]);
    // The function's entry is the header.
    check(2, &[(0, 1), (1, 0)], &[(vec![0], vec![0, 1], None)]);
    // A nest of two loops, the inner one a single block.
    check(4, &[(0, 1), (1, 2), (2, 2), (2, 1), (1, 3)], &[(vec![1], vec![1, 2], None), (vec![2], vec![2], Some(0))]);
    // Two back edges to one header are one loop.
    check(4, &[(0, 1), (1, 2), (1, 3), (2, 1), (3, 1)], &[(vec![1], vec![1, 2, 3], None)]);
    // Two ways into a cycle.
    check(3, &[(0, 1), (0, 2), (1, 2), (2, 1)], &[(vec![1, 2], vec![1, 2], None)]);
    // A loop inside of an irreducible one.
    check(
        5,
        &[(0, 1), (0, 2), (1, 3), (3, 3), (3, 2), (2, 1)],
        &[(vec![1, 2], vec![1, 2, 3], None), (vec![3], vec![3], Some(0))],
    );
}

#[test]
fn a_cycle_that_nothing_enters_has_an_entry() {
    check(3, &[(1, 2), (2, 1)], &[(vec![1], vec![1, 2], None)]);
}

#[test]
fn edges_to_nowhere_are_left_out() {
    let mut graph = graph(1, &[(0, 7), (7, 0)]);
    graph.add_entry(9);
    assert_eq!(LoopForest::of(&graph).loops(), []);
    assert_eq!(LoopForest::of(&Graph::default()), LoopForest::default());
}

#[test]
fn a_deep_graph_needs_no_deep_stack() {
    let count = 200_000;
    let mut edges: Vec<(u32, u32)> = (0..count - 1).map(|node| (node, node + 1)).collect();
    edges.push((count - 1, 0));
    assert_eq!(LoopForest::of(&graph(count, &edges)).loops().len(), 1);
}

/// All elementary cycles, by brute force.
fn cycles(graph: &Graph) -> Vec<Vec<u32>> {
    fn extend(graph: &Graph, path: &mut Vec<u32>, cycles: &mut Vec<Vec<u32>>) {
        for &next in graph.successors(*path.last().unwrap()) {
            if next == path[0] {
                cycles.push(path.clone());
            } else if next > path[0] && !path.contains(&next) {
                path.push(next);
                extend(graph, path, cycles);
                path.pop();
            }
        }
    }
    let mut found = Vec::new();
    (0..graph.node_count()).for_each(|start| extend(graph, &mut vec![start], &mut found));
    found
}

/// Whether control can go from each node of a loop to each other one without leaving the loop.
fn can_be_cycled(graph: &Graph, inside: &Loop) -> bool {
    inside.nodes.iter().all(|&start| {
        let (mut seen, mut waiting) = (BTreeSet::new(), vec![start]);
        while let Some(node) = waiting.pop() {
            let next = graph.successors(node).iter().copied().filter(|&next| inside.contains(next));
            waiting.extend(next.filter(|&next| seen.insert(next)));
        }
        seen.len() == inside.nodes.len()
    })
}

/// The natural loops of the graph's back edges, joined by header.
fn natural_loops(graph: &Graph) -> BTreeSet<(u32, Vec<u32>)> {
    let mut other: DiGraph<(), ()> = DiGraph::new();
    for _ in 0..graph.node_count() {
        other.add_node(());
    }
    let node = |number: u32| NodeIndex::new(number as usize);
    let edges: Vec<(u32, u32)> =
        (0..graph.node_count()).flat_map(|from| graph.successors(from).iter().map(move |&to| (from, to))).collect();
    for &(from, to) in &edges {
        other.add_edge(node(from), node(to), ());
    }
    let dominators = dominators::simple_fast(&other, node(0));
    let dominates = |header: u32, inner: u32| {
        dominators.dominators(node(inner)).is_some_and(|mut all| all.any(|dominator| dominator == node(header)))
    };
    let mut loops = BTreeSet::new();
    for header in 0..graph.node_count() {
        let mut nodes = BTreeSet::from([header]);
        let latches = edges.iter().filter(|&&(from, to)| to == header && dominates(header, from));
        let mut waiting: Vec<u32> = latches.map(|&(from, _)| from).collect();
        let is_loop = !waiting.is_empty();
        while let Some(inner) = waiting.pop() {
            if nodes.insert(inner) {
                let before = edges.iter().filter(|&&(from, to)| to == inner && dominates(header, from));
                waiting.extend(before.map(|&(from, _)| from));
            }
        }
        if is_loop {
            loops.insert((header, nodes.into_iter().collect()));
        }
    }
    loops
}

/// A graph in which every node can be reached from node 0.
fn reachable(graph: &Graph) -> bool {
    let (mut seen, mut waiting) = (BTreeSet::from([0]), vec![0]);
    while let Some(node) = waiting.pop() {
        waiting.extend(graph.successors(node).iter().copied().filter(|&next| seen.insert(next)));
    }
    seen.len() == graph.node_count() as usize
}

fn any_graph() -> impl Strategy<Value = Graph> {
    (2u32..9).prop_flat_map(|count| {
        let edges = prop::collection::vec((0..count, 0..count), 1..20);
        // Each node has an edge from a lower one, so that all of them are reachable.
        let tree = prop::collection::vec(any::<prop::sample::Index>(), count as usize - 1);
        (edges, tree).prop_map(move |(mut edges, tree)| {
            edges.extend(
                (1..).zip(tree).map(|(node, parent)| (u32::try_from(parent.index(node as usize)).unwrap(), node)),
            );
            graph(count, &edges)
        })
    })
}

proptest! {
    #[test]
    fn every_cycle_is_in_a_loop_and_every_loop_can_be_cycled(graph in any_graph()) {
        let forest = LoopForest::of(&graph);
        for cycle in cycles(&graph) {
            // The smallest loop with all nodes of the cycle: the cycle goes through an entry of it,
            // so that each turn is counted there.
            let around = forest.loops().iter().filter(|found| cycle.iter().all(|&node| found.contains(node)));
            let smallest = around.min_by_key(|found| found.nodes.len());
            prop_assert!(smallest.is_some_and(|found| cycle.iter().any(|node| found.entries.contains(node))));
        }
        for found in forest.loops() {
            prop_assert!(can_be_cycled(&graph, found));
        }
    }

    #[test]
    fn loops_are_disjoint_or_nested(graph in any_graph()) {
        let forest = LoopForest::of(&graph);
        for (index, found) in (0..).zip(forest.loops()) {
            let parent = found.parent.map(|parent| &forest.loops()[parent as usize]);
            prop_assert_eq!(found.depth, parent.map_or(1, |parent| parent.depth + 1));
            prop_assert!(parent.is_none_or(|parent| found.nodes.iter().all(|&node| parent.contains(node))));
            for node in 0..graph.node_count() {
                prop_assert_eq!(forest.around(node).any(|around| around == index), found.contains(node));
            }
        }
    }

    #[test]
    fn reducible_loops_are_the_natural_loops(graph in any_graph()) {
        prop_assert!(reachable(&graph));
        let forest = LoopForest::of(&graph);
        let natural = natural_loops(&graph);
        let reducible = |index: u32| !forest.loops()[index as usize].is_irreducible();
        for (index, found) in (0..).zip(forest.loops()) {
            // Inside of an irreducible region, a header need not dominate anything.
            if found.parent.is_none() && reducible(index) {
                prop_assert!(natural.contains(&(found.entries[0], found.nodes.clone())));
            }
        }
        if forest.loops().iter().all(|found| !found.is_irreducible()) {
            let found: BTreeSet<_> =
                forest.loops().iter().map(|found| (found.entries[0], found.nodes.clone())).collect();
            prop_assert_eq!(found, natural);
        }
    }
}
