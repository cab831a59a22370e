//! Layout of the nodes of a graph in layers, with operands above the calls that read them.
//!
//! The layered drawing of Sugiyama, Tagawa and Toda (1981): layers by longest paths, an order within each layer by the mean
//! position of the neighbours, and positions near this mean that keep the order.

use meganeura::graph::Graph;

/// Number of sweeps over all layers, alternately down and up; further ones change little.
const SWEEPS: usize = 6;

/// Positions of nodes, in units of one box: `x` to the right, `y` down.
pub(super) struct Layout {
    pub(super) x: Vec<f32>,
    pub(super) y: Vec<u32>,
}

impl Layout {
    /// Computes positions for all nodes of a verified graph; operands come first in `order`.
    pub(super) fn new(graph: &Graph, order: &[usize]) -> Self {
        let count = graph.nodes().len();
        let mut above: Vec<Vec<usize>> = vec![Vec::new(); count];
        let mut below: Vec<Vec<usize>> = vec![Vec::new(); count];
        for &id in order {
            let inputs = graph.nodes()[id].inputs.iter().map(|v| v.node.index());
            above[id].extend(inputs);
            above[id].sort_unstable();
            above[id].dedup();
            for &operand in &above[id] {
                below[operand].push(id);
            }
        }
        let y = ranks(order, &above, &below);
        let mut layers: Vec<Vec<usize>> = vec![Vec::new(); y.iter().max().map_or(0, |&y| y as usize + 1)];
        for &id in order {
            layers[y[id] as usize].push(id);
        }
        let mut x = vec![0.0; count];
        for layer in &layers {
            spread(layer, &mut x, &|i, _| i as f32 - layer.len() as f32 / 2.0);
        }
        for sweep in 0..SWEEPS {
            let neighbours = if sweep % 2 == 0 { &above } else { &below };
            for at in 0..layers.len() {
                let at = if sweep % 2 == 0 { at } else { layers.len() - 1 - at };
                let wanted: Vec<f32> = layers[at].iter().map(|&id| mean(&x, &neighbours[id], x[id])).collect();
                let mut sorted: Vec<usize> = (0..wanted.len()).collect();
                sorted.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
                layers[at] = sorted.iter().map(|&i| layers[at][i]).collect();
                spread(&layers[at], &mut x, &|i, _| wanted[sorted[i]]);
            }
        }
        let left = x.iter().copied().fold(f32::INFINITY, f32::min);
        x.iter_mut().for_each(|x| *x -= left);
        Layout { x, y }
    }
}

/// Returns the layers: below all operands; nodes without operands are just above their first reader.
fn ranks(order: &[usize], above: &[Vec<usize>], below: &[Vec<usize>]) -> Vec<u32> {
    let mut y = vec![1; above.len()];
    for &id in order {
        y[id] = above[id].iter().map(|&operand| y[operand] + 1).max().unwrap_or(1);
    }
    for &id in order.iter().filter(|&&id| above[id].is_empty()) {
        y[id] = below[id].iter().map(|&reader| y[reader] - 1).min().unwrap_or(0);
    }
    let first = y.iter().copied().min().unwrap_or(0);
    y.iter_mut().for_each(|y| *y -= first);
    y
}

fn mean(x: &[f32], neighbours: &[usize], otherwise: f32) -> f32 {
    match neighbours.len() {
        0 => otherwise,
        n => neighbours.iter().map(|&i| x[i]).sum::<f32>() / n as f32,
    }
}

/// Positions the nodes of a layer at least one unit apart, in order, with the least sum of squared distances from their wanted
/// positions: neighbours that would overlap move as one block (the pool-adjacent-violators algorithm).
fn spread(layer: &[usize], x: &mut [f32], wanted: &dyn Fn(usize, usize) -> f32) {
    // Blocks: first member, number of members, sum of the wanted positions minus the members' offsets.
    let mut blocks: Vec<(usize, usize, f32)> = Vec::new();
    let place = |&(_, members, sum): &(usize, usize, f32)| sum / members as f32;
    for (i, &id) in layer.iter().enumerate() {
        blocks.push((i, 1, wanted(i, id)));
        while let [.., a, b] = blocks[..]
            && place(&a) + a.1 as f32 > place(&b)
        {
            blocks.truncate(blocks.len() - 2);
            let shift = a.1 as f32 * b.1 as f32;
            blocks.push((a.0, a.1 + b.1, a.2 + b.2 - shift));
        }
    }
    for block in &blocks {
        for i in 0..block.1 {
            x[layer[block.0 + i]] = place(block) + i as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(graph: &Graph) -> Layout {
        let order: Vec<usize> = (0..graph.nodes().len()).collect();
        Layout::new(graph, &order)
    }

    #[test]
    fn operands_lie_above_and_nothing_overlaps() {
        let mut g = Graph::new();
        let x = g.input("x", &[4, 8]);
        let mut parts = Vec::new();
        for i in 0..7 {
            let w = g.parameter(&format!("w{i}"), &[8, 8]);
            let h = g.matmul(x, w);
            parts.push(if i % 2 == 0 { g.relu(h) } else { h });
        }
        let sum = parts.iter().copied().reduce(|a, b| g.add(a, b)).unwrap();
        g.set_outputs(vec![sum]);
        let places = layout(&g);
        for (id, node) in g.nodes().iter().enumerate() {
            for v in &node.inputs {
                assert!(places.y[v.node.index()] < places.y[id], "{id}");
            }
            for other in 0..id {
                let apart = (places.x[id] - places.x[other]).abs() > 0.99;
                assert!(apart || places.y[id] != places.y[other], "{id} on {other}");
            }
        }
        assert!(places.x.iter().all(|&x| x >= 0.0));
    }

    #[test]
    fn a_chain_is_a_line() {
        let mut g = Graph::new();
        let mut x = g.input("x", &[3]);
        for _ in 0..20 {
            x = g.relu(x);
        }
        g.set_outputs(vec![x]);
        let places = layout(&g);
        assert!(places.x.iter().all(|&x| x.abs() < 1e-3), "{:?}", places.x);
        assert_eq!(places.y, (0..=20).collect::<Vec<_>>());
    }

    #[test]
    fn leaves_stand_next_to_their_readers() {
        let mut g = Graph::new();
        let x = g.input("x", &[3]);
        let late = g.parameter("late", &[3]);
        let mut h = x;
        for _ in 0..5 {
            h = g.tanh(h);
        }
        let y = g.mul(h, late);
        g.set_outputs(vec![y]);
        let places = layout(&g);
        assert_eq!(places.y[late.index()] + 1, places.y[y.index()]);
    }
}
