//! Graphs: captured nodes that can be launched any number of times.
//!
//! A launch runs the nodes one after the other in the order of the capture, also the nodes of several streams.

use std::sync::Arc;

use super::abi::{self, Code};
use super::graph_memory::GraphMemory;
use super::stream::{Stream, Work};
use crate::handles::Handles;

/// A node makes new work for each launch.
pub(crate) type Node = Arc<dyn Fn() -> Work + Send + Sync>;

static GRAPHS: Handles<Graph> = Handles::new(0x9_0000_0000);
static EXECS: Handles<Graph> = Handles::new(0xA_0000_0000);

/// The captured nodes. Running launches keep their nodes.
pub(crate) struct Graph {
    nodes: Vec<Node>,
    /// Freed with the graph and its instances.
    _memory: Vec<Arc<GraphMemory>>,
}

/// A node with the same work at each launch.
pub(crate) fn node(work: Work) -> Node {
    let work = Arc::new(work);
    Arc::new(move || {
        let work = Arc::clone(&work);
        Box::new(move || work())
    })
}

/// A graph of these nodes, with the memory that they allocate.
pub(crate) fn insert((nodes, memory): (Vec<Node>, Vec<Arc<GraphMemory>>)) -> abi::Graph {
    GRAPHS.insert(Arc::new(Graph { nodes, _memory: memory }))
}

/// `cuGraphInstantiate`: an instance does not depend on its graph.
pub(crate) fn instantiate(graph: abi::Graph) -> Result<abi::GraphExec, Code> {
    GRAPHS.find(graph).map(|graph| EXECS.insert(graph)).ok_or(Code::INVALID_VALUE)
}

/// `cuGraphLaunch`. On a stream that is being captured, the nodes become nodes of that capture.
pub(crate) fn launch(exec: abi::GraphExec, stream: &Stream) -> Result<(), Code> {
    let graph = find(exec)?;
    graph.nodes.iter().for_each(|node| stream.launch(Arc::clone(node)));
    Ok(())
}

/// The instance of a handle.
pub(crate) fn find(exec: abi::GraphExec) -> Result<Arc<Graph>, Code> {
    EXECS.find(exec).ok_or(Code::INVALID_VALUE)
}

/// `cuGraphExecDestroy`: does not wait.
pub(crate) fn destroy_exec(exec: abi::GraphExec) -> Result<(), Code> {
    EXECS.remove(exec).map(drop).ok_or(Code::INVALID_VALUE)
}

/// `cuGraphDestroy`: instances stay valid.
pub(crate) fn destroy(graph: abi::Graph) -> Result<(), Code> {
    GRAPHS.remove(graph).map(drop).ok_or(Code::INVALID_VALUE)
}

/// The number of graphs and instances.
pub(crate) fn live() -> usize {
    GRAPHS.len() + EXECS.len()
}
