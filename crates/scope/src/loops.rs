//! Loops of a control-flow graph.
//!
//! A loop is a strongly connected part of a [`Graph`]. If control enters it at one node only, that
//! node is the loop's *header*. It dominates the loop, and the edges of the loop that lead to it
//! are the *back edges*. If control can enter at several nodes, the loop is *irreducible*. Loops
//! inside of a loop are those that remain when the edges to its entries are taken away. For a
//! reducible graph, this gives the natural loops of the compiler books, one for each header.
#![deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation)]

/// A control-flow graph. Its nodes are numbers from 0 on.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    successors: Vec<u32>,
    is_entry: bool,
}

/// A loop, or a region with several entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// The nodes at which control enters; exactly one, unless the loop is irreducible.
    pub entries: Vec<u32>,
    /// All nodes, those of inner loops included, in ascending order.
    pub nodes: Vec<u32>,
    /// The index of the loop around this one.
    pub parent: Option<u32>,
    /// 1 for an outermost loop.
    pub depth: u32,
}

impl Loop {
    /// Returns whether control can enter at several nodes.
    #[must_use]
    pub fn is_irreducible(&self) -> bool {
        self.entries.len() > 1
    }

    #[must_use]
    pub fn contains(&self, node: u32) -> bool {
        self.nodes.binary_search(&node).is_ok()
    }
}

/// The loops of a graph, each behind the loop around it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoopForest {
    loops: Vec<Loop>,
    /// The innermost loop of every node.
    innermost: Vec<Option<NodeLoop>>,
}

/// The innermost loop around a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLoop {
    pub index: u32,
    /// How many loops are around the node.
    pub depth: u32,
    /// Whether control enters the loop at this node.
    pub is_entry: bool,
}

impl Graph {
    /// Makes a graph without edges.
    #[must_use]
    pub fn new(node_count: u32) -> Self {
        Self { nodes: vec![Node::default(); node_count as usize] }
    }

    #[must_use]
    pub fn node_count(&self) -> u32 {
        u32::try_from(self.nodes.len()).unwrap_or(u32::MAX)
    }

    /// Adds an edge. An edge from or to a node that does not exist is left out.
    pub fn add_edge(&mut self, from: u32, to: u32) {
        if (to as usize) < self.nodes.len()
            && let Some(node) = self.nodes.get_mut(from as usize)
            && !node.successors.contains(&to)
        {
            node.successors.push(to);
        }
    }

    /// Notes that control enters the graph at a node.
    pub fn add_entry(&mut self, node: u32) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.is_entry = true;
        }
    }

    #[must_use]
    pub fn successors(&self, node: u32) -> &[u32] {
        self.nodes.get(node as usize).map_or(&[], |node| &node.successors)
    }

    fn is_entry(&self, node: u32) -> bool {
        self.nodes.get(node as usize).is_some_and(|node| node.is_entry)
    }

    /// Returns the nodes to which control that begins at a node does not come.
    pub(crate) fn unreached_from(&self, node: u32) -> impl Iterator<Item = u32> {
        (0..).zip(self.reached(vec![node], None)).filter(|&(_, is_reached)| !is_reached).map(|(node, _)| node)
    }

    /// Returns whether control comes to `node` through `gate` only. It begins at the entries, and
    /// at nodes to which no edge leads.
    pub(crate) fn dominates(&self, gate: u32, node: u32) -> bool {
        let targets = self.nodes.iter().flat_map(|node| &node.successors);
        let mut has_predecessor = vec![false; self.nodes.len()];
        targets.for_each(|&target| set(&mut has_predecessor, target, true));
        let is_root = |&root: &u32| root != gate && (self.is_entry(root) || !at(&has_predecessor, root));
        let roots = (0..self.node_count()).filter(is_root).collect();
        !at(&self.reached(roots, Some(gate)), node)
    }

    /// Returns, for each node, whether control that begins at other ones can come there without
    /// passing `gate`.
    fn reached(&self, mut waiting: Vec<u32>, gate: Option<u32>) -> Vec<bool> {
        let mut reached = vec![false; self.nodes.len()];
        waiting.iter().for_each(|&root| set(&mut reached, root, true));
        while let Some(node) = waiting.pop() {
            for &successor in self.successors(node).iter().filter(|&&successor| Some(successor) != gate) {
                if !at(&reached, successor) {
                    set(&mut reached, successor, true);
                    waiting.push(successor);
                }
            }
        }
        reached
    }
}

impl LoopForest {
    /// Finds the loops of a graph.
    #[must_use]
    pub fn of(graph: &Graph) -> Self {
        let mut forest = Self { loops: Vec::new(), innermost: vec![None; graph.nodes.len()] };
        let mut search = ComponentSearch::new(graph);
        let mut regions = vec![Region { nodes: (0..graph.node_count()).collect(), parent: None }];
        while let Some(region) = regions.pop() {
            for component in search.components(&region.nodes) {
                let inside = forest.add(graph, component, region.parent);
                regions.push(search.without_entries(inside, &forest));
            }
        }
        forest
    }

    #[must_use]
    pub fn loops(&self) -> &[Loop] {
        &self.loops
    }

    /// Returns the innermost loop around a node.
    #[must_use]
    #[inline]
    pub fn innermost(&self, node: u32) -> Option<NodeLoop> {
        self.innermost.get(node as usize).copied().flatten()
    }

    /// Returns the loops around a node, the innermost first.
    pub fn around(&self, node: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(self.innermost(node).map(|innermost| innermost.index), |&index| {
            self.loops.get(index as usize)?.parent
        })
    }

    /// Adds a strongly connected component as a loop and returns its index.
    fn add(&mut self, graph: &Graph, mut nodes: Vec<u32>, parent: Option<u32>) -> u32 {
        nodes.sort_unstable();
        let index = u32::try_from(self.loops.len()).unwrap_or(u32::MAX);
        let depth = parent.and_then(|parent| self.loops.get(parent as usize)).map_or(1, |parent| parent.depth + 1);
        let entries = entries(graph, &nodes);
        for &node in &nodes {
            // An entry is in no inner loop, because the edges to it are taken away before those are
            // searched.
            let is_entry = entries.binary_search(&node).is_ok();
            set(&mut self.innermost, node, Some(NodeLoop { index, depth, is_entry }));
        }
        self.loops.push(Loop { entries, nodes, parent, depth });
        index
    }
}

/// A part of the graph whose loops are still to be found.
struct Region {
    nodes: Vec<u32>,
    parent: Option<u32>,
}

/// Returns the nodes of a component at which control enters. A component that nothing is known to
/// enter is entered at its lowest node.
fn entries(graph: &Graph, nodes: &[u32]) -> Vec<u32> {
    let mut entries: Vec<u32> = nodes.iter().copied().filter(|&node| graph.is_entry(node)).collect();
    let is_outside = |node: &u32| nodes.binary_search(node).is_err();
    for outside in (0..graph.node_count()).filter(is_outside) {
        entries.extend(graph.successors(outside).iter().filter(|&successor| !is_outside(successor)));
    }
    entries.sort_unstable();
    entries.dedup();
    if entries.is_empty() {
        entries.extend(nodes.first());
    }
    entries
}

/// Finds strongly connected components (Tarjan 1972), without recursion.
struct ComponentSearch<'g> {
    graph: &'g Graph,
    /// Which nodes belong to the region being searched: those with its number.
    region_of: Vec<u32>,
    region: u32,
    /// Nodes whose incoming edges are taken away.
    is_cut: Vec<bool>,
    order: Vec<u32>,
    low: Vec<u32>,
    is_open: Vec<bool>,
    next: u32,
    open: Vec<u32>,
    /// Nodes being visited, each with the number of successors that were looked at.
    visits: Vec<(u32, usize)>,
}

const UNSEEN: u32 = u32::MAX;

/// Returns the element of a table by node, or a default for a node that does not exist.
fn at<T: Copy + Default>(table: &[T], node: u32) -> T {
    table.get(node as usize).copied().unwrap_or_default()
}

fn set<T>(table: &mut [T], node: u32, value: T) {
    if let Some(element) = table.get_mut(node as usize) {
        *element = value;
    }
}

impl<'g> ComponentSearch<'g> {
    fn new(graph: &'g Graph) -> Self {
        let count = graph.nodes.len();
        Self {
            graph,
            region_of: vec![0; count],
            region: 0,
            is_cut: vec![false; count],
            order: vec![UNSEEN; count],
            low: vec![UNSEEN; count],
            is_open: vec![false; count],
            next: 0,
            open: Vec::new(),
            visits: Vec::new(),
        }
    }

    /// Takes the edges to the entries of a loop away and returns what is left of it.
    fn without_entries(&mut self, index: u32, forest: &LoopForest) -> Region {
        let Some(inside) = forest.loops.get(index as usize) else {
            return Region { nodes: Vec::new(), parent: None };
        };
        inside.entries.iter().for_each(|&entry| set(&mut self.is_cut, entry, true));
        Region { nodes: inside.nodes.clone(), parent: Some(index) }
    }

    /// Returns the components of a region that have a cycle.
    fn components(&mut self, nodes: &[u32]) -> Vec<Vec<u32>> {
        self.region += 1;
        self.next = 0;
        for &node in nodes {
            set(&mut self.region_of, node, self.region);
            set(&mut self.order, node, UNSEEN);
        }
        let mut components = Vec::new();
        for &node in nodes {
            if at(&self.order, node) == UNSEEN {
                self.visit_all(node, &mut components);
            }
        }
        components
    }

    fn visit_all(&mut self, root: u32, components: &mut Vec<Vec<u32>>) {
        self.begin(root);
        while let Some(&(node, seen)) = self.visits.last() {
            match self.graph.successors(node).get(seen) {
                Some(&successor) => {
                    if let Some(visit) = self.visits.last_mut() {
                        visit.1 += 1;
                    }
                    self.follow(node, successor);
                }
                None => {
                    self.visits.pop();
                    components.extend(self.end(node));
                }
            }
        }
    }

    fn begin(&mut self, node: u32) {
        set(&mut self.order, node, self.next);
        set(&mut self.low, node, self.next);
        set(&mut self.is_open, node, true);
        self.next += 1;
        self.open.push(node);
        self.visits.push((node, 0));
    }

    fn is_edge(&self, successor: u32) -> bool {
        at(&self.region_of, successor) == self.region && !at(&self.is_cut, successor)
    }

    fn follow(&mut self, node: u32, successor: u32) {
        if !self.is_edge(successor) {
            return;
        }
        if at(&self.order, successor) == UNSEEN {
            self.begin(successor);
        } else if at(&self.is_open, successor) {
            let low = at(&self.low, node).min(at(&self.order, successor));
            set(&mut self.low, node, low);
        }
    }

    /// Ends the visit of a node. Returns the component that it closes, if that has a cycle.
    fn end(&mut self, node: u32) -> Option<Vec<u32>> {
        let low = at(&self.low, node);
        if let Some(&(parent, _)) = self.visits.last() {
            let least = at(&self.low, parent).min(low);
            set(&mut self.low, parent, least);
        }
        if low != at(&self.order, node) {
            return None;
        }
        let start = self.open.iter().rposition(|&open| open == node)?;
        let component = self.open.split_off(start);
        component.iter().for_each(|&node| set(&mut self.is_open, node, false));
        let has_cycle = component.len() > 1 || (self.is_edge(node) && self.graph.successors(node).contains(&node));
        has_cycle.then_some(component)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests;
