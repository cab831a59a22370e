//! Source lines of dispatches.

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Dispatch, ExecutionPlan};
use crate::error::SourceLocation;
use crate::graph::{Graph, NodeId};

/// A line of source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceLine {
    /// File, as the compiler names it.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// In a plan file, the first node of the graph that this line built. If the source was edited, the current line is
    /// found by this node.
    pub node: Option<NodeId>,
}

impl fmt::Display for SourceLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

impl SourceLine {
    fn is(&self, location: &SourceLocation) -> bool {
        self.line == location.line && self.file == location.file
    }
}

impl ExecutionPlan {
    /// Returns the line that a dispatch came from.
    pub fn source_of(&self, dispatch: &Dispatch) -> Option<&SourceLine> {
        self.sources.get(dispatch.source? as usize)
    }

    /// Returns the index of a location in the list of source lines, after adding it if it is new.
    pub(super) fn source_index(&mut self, location: SourceLocation) -> u32 {
        let known = self.sources.iter().position(|s| s.is(&location));
        let index = known.unwrap_or_else(|| {
            self.sources.push(SourceLine {
                file: location.file.to_owned(),
                line: location.line,
                node: None,
            });
            self.sources.len() - 1
        });
        index as u32
    }

    /// Records the node of each source in the graph that the plan was compiled from.
    pub(crate) fn tie_sources(&mut self, graph: &Graph) {
        let mut first: HashMap<SourceLocation, NodeId> = HashMap::new();
        for id in graph.node_ids() {
            if let Some(location) = graph.nodes()[id.index()].location {
                first.entry(location).or_insert(id);
            }
        }
        for source in &mut self.sources {
            let found = first.iter().find(|(location, _)| source.is(location));
            source.node = found.map(|(_, id)| *id);
        }
    }

    /// Updates the source lines from an equal graph, because its source may have been edited.
    pub(crate) fn renew_sources(&mut self, graph: &Graph) {
        for source in &mut self.sources {
            let node = source.node.and_then(|id| graph.nodes().get(id.index()));
            if let Some(location) = node.and_then(|node| node.location) {
                source.file = location.file.to_owned();
                source.line = location.line;
            }
            source.node = None;
        }
    }
}
