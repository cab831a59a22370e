//! Tests of files that specify large sizes without data of this size.

use super::*;

/// Returns the report of one node `op` with the inputs `a`, `b`... of these sizes, and the known integers `k`.
fn said_of(op: &str, inputs: &[&str], sizes: &[&[i64]], known: &[i64], attributes: Vec<AttributeProto>) -> String {
    let report = report(|graph| {
        graph.input = ["a", "b"]
            .iter()
            .zip(sizes)
            .map(|(name, dims)| value(name, dims))
            .collect();
        graph.node = vec![NodeProto {
            attribute: attributes,
            ..node(op, "large", inputs, &["y"])
        }];
        graph.initializer = vec![ints("k", known)];
        graph.output = vec![value("y", &[1])];
    });
    report.to_string()
}

/// Huge sizes are refused before memory is allocated for them. Most of these files once used all memory, or took
/// minutes.
#[test]
fn sizes_that_a_file_only_names_are_refused_before_anything_is_made() {
    const HUGE: i64 = 1 << 40;
    let begun = std::time::Instant::now();
    let one = |name: &str, i| vec![int_attribute(name, i)];
    let axes: Vec<i64> = (0..60_000).collect();
    for size in [HUGE, 1 << 30, 1 << 25] {
        let blocks = |op: &str| said_of(op, &["a"], &[&[1, 8, 2, 2]], &[], one("blocksize", size));
        for (said, wanted) in [
            (blocks("DepthToSpace"), "blocksize: "),
            (blocks("SpaceToDepth"), "blocksize: "),
            (
                said_of("LRN", &["a"], &[&[1, 4, 2]], &[], one("size", size)),
                "channels exceed the maximum",
            ),
            (
                said_of("Hardmax", &["a"], &[&[size]], &[], one("axis", 0)),
                "is too large",
            ),
            (
                said_of(
                    "Conv",
                    &["a", "b"],
                    &[&[1, 1, 2 * size, 1, 1], &[1, 1, size, 1, 1]],
                    &[],
                    vec![],
                ),
                "taps of a kernel exceed the maximum",
            ),
            (
                said_of("Split", &["a"], &[&[size]], &[], one("num_outputs", size)),
                "cannot be split",
            ),
            (
                said_of("Resize", &["a", "", "", "k"], &[&[2]], &[size], vec![]),
                " elements",
            ),
            (
                said_of("OneHot", &["a", "k", "b"], &[&[2], &[2]], &[size], vec![]),
                "is too large",
            ),
            (
                said_of("Unsqueeze", &["a", "k"], &[&[1]], &axes, vec![]),
                "axes are more than",
            ),
        ] {
            assert!(said.contains(wanted), "{said:?} lacks {wanted:?}");
        }
    }
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn sizes_that_overflow_are_errors() {
    for list in [[i64::MAX, i64::MAX], [1 << 40, 1 << 40], [-5, 2]] {
        let (_, message) = issue(|g| {
            g.initializer.push(ints("shape", &list));
            g.node[1] = node("Expand", "grow", &["p", "shape"], &["y"]);
        });
        assert!(message.contains("`grow`"), "{message}");
    }
    // Large, but possible: nothing is computed at import.
    let report = report(|g| {
        g.initializer.push(ints("shape", &[1 << 20, 2, 2]));
        g.node[1] = node("Expand", "grow", &["p", "shape"], &["y"]);
    });
    assert!(report.is_supported(), "{report}");
}

/// Returns a chain of additions.
fn chain(count: usize) -> Model {
    changed(|g| {
        g.node = (0..count)
            .map(|i| node("Add", "", &[&format!("v{i}"), "w"], &[&format!("v{}", i + 1)]))
            .collect();
        g.initializer = vec![floats("w", &[4], &[1.0, 2.0, 3.0, 4.0])];
        g.input = vec![value("v0", &[4])];
        g.output = vec![value(&format!("v{count}"), &[4])];
    })
}

/// With quadratic work, 100,000 nodes took more than a minute, and a concatenation of 4,000 inputs 6.5 GB.
#[test]
fn many_nodes_and_operands_take_linear_time() {
    let begun = std::time::Instant::now();
    let import = chain(100_000)
        .import(&crate::ImportOptions::default())
        .expect("supported");
    assert!(import.graph.nodes().len() >= 100_000);
    let names: Vec<String> = (0..4000).map(|i| format!("x{i}")).collect();
    let wide = changed(|g| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut concat = node("Concat", "all", &names, &["y"]);
        concat.attribute = vec![int_attribute("axis", 0)];
        g.node = vec![concat];
        g.initializer = Vec::new();
        g.input = names.iter().map(|name| value(name, &[1])).collect();
        g.output = vec![value("y", &[4000])];
    });
    let import = wide.import(&crate::ImportOptions::default()).expect("supported");
    assert!(import.graph.nodes().len() < 20_000, "{}", import.graph.nodes().len());
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}

#[test]
fn more_nodes_than_the_limit_are_refused() {
    let refused = chain(crate::import::MAX_NODES + 1).preflight(&Dims::new());
    assert!(refused.to_string().contains("more than 1048576 nodes"), "{refused}");
}
