//! A step as a CUDA graph. Its launches are ordered only as far as their memory requires.

use std::sync::Arc;

use cudarc::driver::{DriverError, result, sys};

use crate::event::Event;
use crate::gpu::Gpu;
use crate::program::{Access, KernelCall, LibraryWork, Phase, PreparedLaunch, Work};

/// The port of a kernel that fires when all of its blocks have triggered their dependents, or have
/// ended.
const PROGRAMMATIC_PORT: u8 = 1;

/// Setting for the order of the launches of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Order {
    /// The order that the first steps measure as faster.
    #[default]
    Measured,
    /// Each launch waits for the launches whose memory it needs.
    Branches,
    /// Each launch waits for its predecessor.
    Chain,
}

/// An event that is recorded when all launches that use certain memory have ended.
pub(crate) struct Signal {
    /// Memory that the signal waits for. It counts as written, so that the signal waits for all launches that use it.
    pub(crate) accesses: Vec<Access>,
    pub(crate) event: Event,
}

/// An instantiated graph that can be launched.
pub(crate) struct Graph {
    gpu: Arc<Gpu>,
    executable: sys::CUgraphExec,
}

// SAFETY: graphs of CUDA belong to their context. They are not bound to a thread, and only exclusive references
// launch this one.
unsafe impl Send for Graph {}

impl Graph {
    /// Creates the graph of some launches. Each launch waits for the launches whose memory it needs or, if `chain`,
    /// for its predecessor. Also returns `true` if the graph is a chain.
    ///
    /// A signal is recorded when all launches that use its memory have ended. If no launch uses its memory, the
    /// signal is recorded at the beginning.
    ///
    /// With `programmatic`, a launch begins before its predecessor has ended, and its code waits, as that of every
    /// kernel does. This is used only between launches with a single dependency and a single dependent. With forks,
    /// it failed on an H100 with driver 580 (Xid 13, DEPENDENCE_COUNTER_UNDERFLOW).
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        stream: sys::CUstream,
        launches: &[&PreparedLaunch],
        signals: &[Signal],
        chain: bool,
        programmatic: bool,
    ) -> Result<(Self, bool), DriverError> {
        let launches: Vec<&PreparedLaunch> = launches.iter().copied().filter(|launch| !is_empty(launch)).collect();
        let accesses = launches.iter().map(|launch| &launch.accesses[..]);
        let accesses: Vec<&[Access]> = accesses.chain(signals.iter().map(|s| &s.accesses[..])).collect();
        let dependencies = order(&accesses, launches.len(), chain);
        let is_chain = (0..)
            .zip(&dependencies[..launches.len()])
            .all(|(later, before)| match later {
                0 => true,
                later => *before == [later - 1],
            });
        let mut followers = vec![0_usize; launches.len()];
        dependencies
            .iter()
            .flatten()
            .for_each(|&earlier| followers[earlier] += 1);
        let template = Template::new()?;
        let mut nodes: Vec<sys::CUgraphNode> = Vec::with_capacity(launches.len());
        for (launch, before) in launches.iter().zip(&dependencies) {
            let node = template.add_work(gpu, launch)?;
            for &earlier in before {
                let both_kernels = is_kernel(launch) && is_kernel(launches[earlier]);
                let is_chain = before.len() == 1 && followers[earlier] == 1;
                template.order(nodes[earlier], node, programmatic && both_kernels && is_chain)?;
            }
            nodes.push(node);
        }
        for (signal, before) in signals.iter().zip(&dependencies[launches.len()..]) {
            let before: Vec<_> = before.iter().map(|&earlier| nodes[earlier]).collect();
            template.add_event(&signal.event, &before)?;
        }
        Ok((template.instantiate(gpu, stream)?, is_chain))
    }

    /// Creates the graph of launches in phases. Each phase waits for the previous one. The graph records an event
    /// before the first phase and after each phase.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn measured(
        gpu: &Arc<Gpu>,
        stream: sys::CUstream,
        phases: &[&Phase],
        events: &[Event],
    ) -> Result<Self, DriverError> {
        let template = Template::new()?;
        let mut before = template.add_event(&events[0], &[])?;
        for (phase, event) in phases.iter().zip(&events[1..]) {
            let mut own = Vec::with_capacity(phase.len());
            for launch in phase.iter().filter(|launch| !is_empty(launch)) {
                let node = template.add_work(gpu, launch)?;
                template.order(before, node, false)?;
                own.push(node);
            }
            if own.is_empty() {
                own.push(before);
            }
            before = template.add_event(event, &own)?;
        }
        template.instantiate(gpu, stream)
    }

    /// Enqueues the launches of the graph.
    ///
    /// # Errors
    /// Errors of the driver.
    pub(crate) fn launch(&self, stream: sys::CUstream) -> Result<(), DriverError> {
        // SAFETY: the graph and the stream are valid. Everything that the launches use lives as long as the
        // executable that owns this graph.
        unsafe { result::graph::launch(self.executable, stream) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the driver created the graph, and keeps it alive while it runs.
        self.gpu
            .free(|| unsafe { result::graph::exec_destroy(self.executable) });
    }
}

/// A CUDA graph under construction. The instantiated [`Graph`] is launched.
struct Template(sys::CUgraph);

impl Drop for Template {
    fn drop(&mut self) {
        // SAFETY: the driver created the graph.
        let _ = unsafe { result::graph::destroy(self.0) };
    }
}

impl Template {
    /// Creates an empty graph.
    fn new() -> Result<Self, DriverError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a local graph.
        unsafe { sys::cuGraphCreate(&mut raw, 0) }.result()?;
        Ok(Template(raw))
    }

    /// Instantiates the graph.
    fn instantiate(&self, gpu: &Arc<Gpu>, stream: sys::CUstream) -> Result<Graph, DriverError> {
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph is complete, and the pointer is to a local.
        unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, self.0, 0) }.result()?;
        let graph = Graph {
            gpu: gpu.clone(),
            executable,
        };
        // Upload it, so that the first launch takes no longer than later ones.
        // SAFETY: the graph and the stream are valid.
        unsafe { result::graph::upload(graph.executable, stream) }?;
        Ok(graph)
    }

    /// Adds a node that records an event after the nodes `before`.
    fn add_event(&self, event: &Event, before: &[sys::CUgraphNode]) -> Result<sys::CUgraphNode, DriverError> {
        let mut node = std::ptr::null_mut();
        // SAFETY: the nodes belong to this graph, and the event lives as long as the graph.
        let added =
            unsafe { sys::cuGraphAddEventRecordNode(&mut node, self.0, before.as_ptr(), before.len(), event.raw()) };
        added.result()?;
        Ok(node)
    }

    /// Adds a node for a launch. The node has no dependencies yet.
    fn add_work(&self, gpu: &Arc<Gpu>, launch: &PreparedLaunch) -> Result<sys::CUgraphNode, DriverError> {
        match &launch.work {
            Work::Kernel(kernel) => self.add(kernel),
            Work::Library(work) => self.add_captured(gpu, work),
        }
    }

    /// Adds a node for a kernel. The node has no dependencies yet.
    fn add(&self, launch: &KernelCall) -> Result<sys::CUgraphNode, DriverError> {
        let ([x, y, z], [tx, ty, tz]) = launch.shape();
        let mut parameters = launch.parameters();
        let kernel = sys::CUDA_KERNEL_NODE_PARAMS {
            func: launch.function(),
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: tx,
            blockDimY: ty,
            blockDimZ: tz,
            sharedMemBytes: 0,
            kernelParams: parameters.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        let mut node = std::ptr::null_mut();
        // SAFETY: the kernel has this number of parameters. The driver copies them. There are no dependencies.
        unsafe { sys::cuGraphAddKernelNode_v2(&mut node, self.0, std::ptr::null(), 0, &kernel) }.result()?;
        Ok(node)
    }

    /// Adds a node for the work that a library enqueues. The node has no dependencies yet.
    fn add_captured(&self, gpu: &Arc<Gpu>, work: &LibraryWork) -> Result<sys::CUgraphNode, DriverError> {
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream was created above, and only the library enqueues work in it meanwhile.
        let captured = unsafe { result::stream::begin_capture(stream, mode) }.and_then(|()| {
            let launched = work.launch(stream);
            // SAFETY: as above. The capture ends even if the launch failed.
            let ended = unsafe { result::stream::end_capture(stream) };
            launched.and(ended)
        });
        // SAFETY: as above, and no work is enqueued in the stream.
        gpu.free(|| unsafe { result::stream::destroy(stream) });
        let child = Template(captured?);
        let mut node = std::ptr::null_mut();
        // SAFETY: both graphs are valid, and the driver copies the child.
        unsafe { sys::cuGraphAddChildGraphNode(&mut node, self.0, std::ptr::null(), 0, child.0) }.result()?;
        Ok(node)
    }

    /// Adds an edge that makes a launch wait for an earlier one.
    fn order(&self, earlier: sys::CUgraphNode, later: sys::CUgraphNode, programmatic: bool) -> Result<(), DriverError> {
        if !programmatic {
            // SAFETY: both nodes belong to this graph.
            return unsafe { sys::cuGraphAddDependencies(self.0, &earlier, &later, 1) }.result();
        }
        let edge = sys::CUgraphEdgeData {
            from_port: PROGRAMMATIC_PORT,
            to_port: 0,
            type_: sys::CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8,
            reserved: [0; 5],
        };
        // SAFETY: as above. The version of the driver has this function.
        unsafe { sys::cuGraphAddDependencies_v2(self.0, &earlier, &later, &edge, 1) }.result()
    }
}

fn is_kernel(launch: &PreparedLaunch) -> bool {
    matches!(launch.work, Work::Kernel(_))
}

/// Returns `true` if a launch has no blocks, as for a call without elements. CUDA rejects such a launch.
fn is_empty(launch: &PreparedLaunch) -> bool {
    match &launch.work {
        Work::Kernel(kernel) => kernel.is_empty(),
        Work::Library(_) => false,
    }
}

/// Returns the indices of the launches that each launch waits for, and then of the launches that each signal waits
/// for. A launch waits for the launches whose memory it needs or, if `chain`, for its predecessor. No launch waits
/// for a signal.
fn order(accesses: &[&[Access]], launches: usize, chain: bool) -> Vec<Vec<usize>> {
    dependencies(accesses.len(), |earlier, later| {
        let conflict = |own| accesses[earlier].iter().any(|other| other.conflicts(own));
        if chain && later < launches {
            earlier + 1 == later
        } else {
            earlier < launches && accesses[later].iter().any(conflict)
        }
    })
}

/// Returns the earlier launches that each of `count` launches must wait for: all launches that it `conflicts` with,
/// except launches for which another of its dependencies already waits.
fn dependencies(count: usize, conflicts: impl Fn(usize, usize) -> bool) -> Vec<Vec<usize>> {
    // All direct and indirect dependencies of each launch, as a bit set.
    let words = count.div_ceil(64);
    let mut reached: Vec<Vec<u64>> = Vec::with_capacity(count);
    let mut all = Vec::with_capacity(count);
    for later in 0..count {
        let (mut own, mut direct) = (vec![0_u64; words], Vec::new());
        for earlier in (0..later).rev() {
            let is_reached = own[earlier / 64] >> (earlier % 64) & 1 == 1;
            if !is_reached && conflicts(earlier, later) {
                direct.push(earlier);
                own[earlier / 64] |= 1 << (earlier % 64);
                for (word, other) in own.iter_mut().zip(&reached[earlier]) {
                    *word |= other;
                }
            }
        }
        reached.push(own);
        all.push(direct);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::Access;

    #[test]
    fn launches_wait_for_those_that_nobody_waits_for_on_their_behalf() {
        let access = |start: u64, writes| Access {
            slab: 0,
            bytes: start..start + 8,
            writes,
        };
        // Launch 0 writes a, 1 writes b, 2 reads a and writes c, 3 reads b and c and writes d, 4 writes a, 5 reads e.
        let launches = [
            vec![access(0, true)],
            vec![access(8, true)],
            vec![access(0, false), access(16, true)],
            vec![access(8, false), access(16, false), access(24, true)],
            vec![access(4, true)],
            vec![access(32, false)],
        ];
        let found = dependencies(launches.len(), |earlier, later| {
            launches[later]
                .iter()
                .any(|own| launches[earlier].iter().any(|other| other.conflicts(own)))
        });
        let expected: [&[usize]; 6] = [&[], &[], &[0], &[2, 1], &[3], &[]];
        assert_eq!(found, expected);
    }

    #[test]
    fn signals_wait_for_the_last_launches_that_use_their_memory() {
        let access = |start: u64, writes| Access {
            slab: 0,
            bytes: start..start + 8,
            writes,
        };
        // Launch 0 writes a, 1 reads a and writes b, 2 reads a, 3 writes c. The signals wait for a, for b and c, for
        // the unused d, and for a again.
        let accesses: [&[Access]; 8] = [
            &[access(0, true)],
            &[access(0, false), access(8, true)],
            &[access(0, false)],
            &[access(16, true)],
            &[access(0, true)],
            &[access(8, true), access(16, true)],
            &[access(24, true)],
            &[access(0, true)],
        ];
        let branches: [&[usize]; 8] = [&[], &[0], &[0], &[], &[2, 1], &[3, 1], &[], &[2, 1]];
        assert_eq!(order(&accesses, 4, false), branches);
        let chain: [&[usize]; 8] = [&[], &[0], &[1], &[2], &[2], &[3], &[], &[2]];
        assert_eq!(order(&accesses, 4, true), chain);
    }

    #[test]
    fn other_allocations_and_two_readers_do_not_conflict() {
        let access = |slab, writes| Access {
            slab,
            bytes: 0..8,
            writes,
        };
        assert!(access(0, true).conflicts(&access(0, false)));
        assert!(!access(0, true).conflicts(&access(1, true)));
        assert!(!access(0, false).conflicts(&access(0, false)));
    }
}
