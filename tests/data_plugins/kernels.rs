//! Tests of plugins' WGSL kernels on a Vulkan device, which may be emulated in software.

use std::sync::Arc;

use meganeura::attrs::Attrs;
use meganeura::backend::{Backend, Device};
use meganeura::blade::BladeBackend;
use meganeura::config::Config;
use meganeura::plugins::open_data;
use meganeura::reference::evaluate;
use meganeura::{Error, Graph, Mode, SessionConfig, build, registry};
use meganeura_conformance::{Options, Section};

use super::models::{load_router, routed};
use super::{folder, write};

/// Returns true if there is a Vulkan device. Without one, prints a note, or fails if one is required.
fn is_there() -> bool {
    let devices = BladeBackend.devices(&Config::default()).expect("a listing");
    let found = devices.iter().any(|d| d.rejected.is_none());
    assert!(
        found || std::env::var("MEGANEURA_REQUIRE_VULKAN").as_deref() != Ok("1"),
        "MEGANEURA_REQUIRE_VULKAN is 1, but there is no Vulkan device: {devices:?}"
    );
    if !found {
        eprintln!("NOT TESTED: kernels of plugins need a Vulkan device");
    }
    found
}

#[test]
fn the_example_fires_and_takes_fewer_dispatches_and_bytes() {
    if !is_there() {
        return;
    }
    load_router();
    let (plain, moved_plain, without) = routed("blade", &["router"]);
    let (fused, moved_fused, with) = routed("blade", &[]);
    assert!(fused.iter().any(|name| name == "router.choose"), "{fused:?}");
    assert!(
        fused.len() < plain.len() && moved_fused < moved_plain,
        "{plain:?} {fused:?}"
    );
    for (a, b) in without.concat().iter().zip(with.concat()) {
        assert!((a - b).abs() < 1e-5, "{a} {b}");
    }
}

/// Runs the conformance cases of an operator, and checks that there are some.
fn conforms(device: Arc<dyn Device>, operator: &str) {
    let options = Options {
        filter: Some(operator.into()),
        sections: vec![Section::Operators],
        ..Options::default()
    };
    let report = meganeura_conformance::run(device, &options);
    assert!(report.is_ok() && report.passed() > 5, "{report}");
}

#[test]
fn the_example_conforms() {
    if !is_there() {
        return;
    }
    load_router();
    let device = BladeBackend.open(0, &Config::default()).expect("it opens");
    // Cached plans depend on it.
    assert!(device.kernels().contains("router.choose"), "{}", device.kernels());
    conforms(device, "router.choose/");
}

/// Returns a plugin whose operator `twice` doubles its operand, with this body of a kernel that runs in one thread.
fn doubling(name: &str, body: &str) -> String {
    format!(
        "format = 1\nname = \"{name}\"\nversion = \"1\"\n[[op]]\nname = \"twice\"\nformula = \"2 x\"\n\
         inputs = [{{ name = \"x\", shape = [\"...\"] }}]\noutputs = [{{ name = \"y\", shape = [\"...\"] }}]\n\
         let = {{ y = \"(core.mul x 2)\" }}\n[op.wgsl]\ngroups = [1]\ntext = '''\n\
         @group(0) @binding(0) var<storage> x: array<f32>;\n\
         @group(0) @binding(1) var<storage, read_write> y: array<f32>;\n\
         var<workgroup> shared_words: array<f32, 4>;\n\
         @compute @workgroup_size(1)\nfn main() {{\n{body}\n}}\n'''\n"
    )
}

/// Kernel body that gives the right result.
const RIGHT: &str = "for (var i = 0u; i < numel; i += 1u) { y[i] = 2.0 * x[i]; }";

/// Runs the operator `twice` of a plugin between unrelated tensors, and checks that none of these changes. Returns the
/// source texts of the kernels.
fn run_between_canaries(name: &str) -> Vec<String> {
    let op = registry::op(&format!("{name}.twice")).expect("registered");
    let len = 1000;
    let mut g = Graph::new();
    let before = g.parameter("before", &[4096]);
    let x = g.input("x", &[len]);
    let early = g.neg(x);
    let y = g.call(op, Attrs::new(), vec![x.into()]);
    let after = g.parameter("after", &[4096]);
    let sum = g.add(before, after);
    g.set_outputs(vec![y, early, sum]);
    let config = SessionConfig {
        device: Some("blade".into()),
        mode: Mode::Inference,
        ..SessionConfig::default()
    };
    let (mut session, _) = build(&g, config).expect("a session");
    let canary: Vec<f32> = (0..4096).map(|i| i as f32).collect();
    let fed: Vec<f32> = (0..len).map(|i| 1.0 + i as f32).collect();
    session.set_parameter("before", &canary);
    session.set_parameter("after", &canary);
    session.set_input("x", &fed);
    session.step();
    let read = |session: &mut meganeura::Session, i: usize, len: usize| {
        let mut found = vec![0.0; len];
        session.read_output_by_index(i, &mut found);
        found
    };
    let times = |of: &[f32], factor: f32| of.iter().map(|v| v * factor).collect::<Vec<f32>>();
    assert_eq!(read(&mut session, 0, len), times(&fed, 2.0), "{name}: its own result");
    assert_eq!(read(&mut session, 1, len), times(&fed, -1.0), "{name}: another result");
    assert_eq!(
        read(&mut session, 2, 4096),
        times(&canary, 2.0),
        "{name}: a third result"
    );
    assert_eq!(session.read_parameter("before"), canary, "{name}: the parameter before");
    assert_eq!(session.read_parameter("after"), canary, "{name}: the parameter after");
    let device = BladeBackend.open(0, &Config::default()).expect("it opens");
    let sources = device.kernel_sources(session.plan()).expect("texts");
    sources.into_iter().map(|s| s.text).collect()
}

#[test]
fn kernels_that_write_outside_reach_nothing() {
    if !is_there() {
        return;
    }
    let outside = "\
        for (var i = 0u; i < 20000u; i += 1u) { y[numel + i] = 1e9; y[i * 4096u] = 1e9; }\n\
        for (var i = 1; i < 1500; i += 1) { y[-i] = 1e9; }\n\
        var most = 4294967295u;\ny[most] = 1e9;\nlet p = &y[numel * 3u];\n*p = 1e9;\n\
        var own: array<f32, 4>;\nvar few: vec4<f32>;\nvar far = numel * 1000u;\n\
        own[far] = 1e9;\nfew[far] = 1e9;\nshared_words[far + 77u] = own[far + 1u] + few[far + 2u] + x[far];\n\
        y[arrayLength(&y)] = shared_words[far];\n";
    let place = folder();
    let text = doubling("outside", &format!("{outside}{RIGHT}"));
    open_data(&write(place.path(), &[("plugin.toml", &text)]), None).expect("it can be bounded");
    let sources = run_between_canaries("outside");
    assert!(
        sources
            .iter()
            .any(|s| s.contains("buffer_b") && s.contains("1000000000")),
        "its kernel is the one that ran: {sources:?}"
    );
}

/// Returns the problem that the registry reports for a plugin; empty if there is none.
fn problem(name: &str) -> String {
    let problems = registry::problems();
    let said = problems
        .iter()
        .map(ToString::to_string)
        .find(|p| p.contains(&format!("'{name}'")));
    said.unwrap_or_default()
}

#[test]
fn a_kernel_with_a_loop_without_an_end_is_not_used() {
    if !is_there() {
        return;
    }
    let place = folder();
    // The right result comes first, because no loop continues afterwards.
    let text = doubling(
        "endless",
        &format!("{RIGHT}\nvar n = 0u;\nloop {{ n += 1u; loop {{ n += x_at(n); }} }}"),
    )
    .replace(
        "@compute",
        "fn x_at(n: u32) -> u32 { loop { if (n == 0u) { return 1u; } } return 2u; }\n@compute",
    );
    open_data(&write(place.path(), &[("plugin.toml", &text)]), None).expect("it can be bounded");
    let sources = run_between_canaries("endless");
    assert!(sources.iter().all(|s| !s.contains("buffer_b")), "{sources:?}");
    let said = problem("endless");
    assert!(said.contains("did not end within its limit"), "{said}");
}

/// Conformance fails although the decomposition replaces a refused kernel and gives right results: the refusal is the
/// problem.
#[test]
fn conformance_fails_where_the_kernel_was_refused() {
    if !is_there() {
        return;
    }
    let place = folder();
    let wrong = RIGHT.replace("2.0 *", "3.0 *");
    open_data(
        &write(place.path(), &[("plugin.toml", &doubling("triples", &wrong))]),
        None,
    )
    .expect("it can be bounded");
    let options = Options {
        filter: Some("triples.twice/".into()),
        sections: vec![Section::Operators],
        seeds: 0..1,
        ..Options::default()
    };
    let device = BladeBackend.open(0, &Config::default()).expect("it opens");
    let report = meganeura_conformance::run(device.clone(), &options);
    let forward: Vec<_> = report.cases.iter().filter(|c| c.id.contains("/forward/")).collect();
    assert!(!forward.is_empty() && !report.is_ok(), "{report}");
    for case in forward {
        let said = case.outcome.detail();
        assert!(
            case.outcome.is_failure() && said.contains("the kernel did not run"),
            "{case}"
        );
        assert!(said.contains("'triples'") && said.contains("element 0"), "why: {said}");
    }
    let refused = device.refused_kernel("triples.twice").expect("it was tried");
    assert!(refused.to_string().contains("triples.twice"), "{refused}");
    assert!(
        device.refused_kernel("core.matmul").is_none(),
        "its own kernels are not asked about"
    );
}

/// A loop that ends for the numbers of tests, but not for the user's numbers, makes the step fail.
#[test]
fn a_loop_that_has_to_be_ended_is_an_error_of_the_step() {
    if !is_there() {
        return;
    }
    let place = folder();
    let body = format!("var n = 0u; loop {{ if (f32(n) >= x[0]) {{ break; }} n += 1u; }}\n{RIGHT}");
    let text = doubling("waits", &body);
    open_data(&write(place.path(), &[("plugin.toml", &text)]), None).expect("it can be bounded");
    let mut g = Graph::new();
    let x = g.input("x", &[64]);
    let y = g.call(
        registry::op("waits.twice").expect("registered"),
        Attrs::new(),
        vec![x.into()],
    );
    let sum = g.state("sum", &[64]);
    let new = g.add(sum, y);
    g.assign(sum, new);
    g.set_outputs(vec![y]);
    let config = SessionConfig {
        device: Some("blade".into()),
        mode: Mode::Inference,
        ..SessionConfig::default()
    };
    let (mut session, _) = build(&g, config).expect("a session");
    for (value, sum) in [(1.5, 3.0), (1e9, 3.0), (f32::NAN, 3.0), (100.0, 203.0)] {
        session.set_input("x", &[value; 64]);
        let outcome = session.try_step().and_then(|()| session.try_wait().map(|_| ()));
        match outcome {
            Ok(()) => assert!(value < 1e3, "{value}"),
            Err(Error::Plugin { plugin, message, .. }) => {
                assert!(
                    plugin.contains("'waits'") && message.contains("did not end within its limit"),
                    "{message}"
                );
                assert!(value.is_nan() || value > 1e3);
            }
            Err(other) => panic!("{other}"),
        }
        assert_eq!(session.read_state("sum"), [sum; 64], "{value}");
    }
}

#[test]
fn shared_memory_begins_with_zeros() {
    if !is_there() {
        return;
    }
    let place = folder();
    // Other kernels leave data in shared memory: each workgroup adds to the existing contents.
    let body = "if (i == 0u) { for (var k = 0u; k < 4u; k += 1u) { shared_words[k] += 1.0; } }\nworkgroupBarrier();\n\
                let at = group.x * 64u + i;\nif (at < numel) { y[at] = 2.0 * x[at] * shared_words[at % 4u]; }";
    let text = doubling("clean", body)
        .replace(
            "fn main()",
            "fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) i: u32)",
        )
        .replace("@workgroup_size(1)", "@workgroup_size(64)")
        .replace("groups = [1]", "groups = [\"(ceil-div numel 64)\"]");
    open_data(&write(place.path(), &[("plugin.toml", &text)]), None).expect("it can be bounded");
    let sources = run_between_canaries("clean");
    assert!(
        sources.iter().any(|s| s.contains("buffer_b")),
        "{sources:?} {}",
        problem("clean")
    );
}

#[test]
fn indices_of_a_kernel_are_looked_at() {
    if !is_there() {
        return;
    }
    let place = folder();
    let text = "format = 1\nname = \"rows_of\"\nversion = \"1\"\n[[op]]\nname = \"pick\"\nformula = \"rows of t\"\n\
        inputs = [{ name = \"ids\", dtype = \"u32\", shape = [\"m\"], below = \"n\" }, \
        { name = \"t\", dtype = \"f32\", shape = [\"n\", \"d\"] }]\n\
        outputs = [{ name = \"y\", dtype = \"f32\", shape = [\"m\", \"d\"] }]\n\
        let = { y = \"(core.gather 0 ids t)\" }\n\
        [op.wgsl]\ngroups = [\"(ceil-div numel 64)\"]\ntext = '''\n\
        var<storage> ids: array<u32>;\nvar<storage> t: array<f32>;\nvar<storage, read_write> y: array<f32>;\n\
        @compute @workgroup_size(64)\nfn main(@builtin(global_invocation_id) id: vec3<u32>) {\n\
        if (id.x < numel) { y[id.x] = t[ids[id.x / d] * d + id.x % d]; }\n}\n'''\n";
    open_data(&write(place.path(), &[("plugin.toml", text)]), None).expect("it is fine");
    let op = registry::op("rows_of.pick").expect("registered");
    let device = BladeBackend.open(0, &Config::default()).expect("it opens");
    assert!(device.kernels().contains("rows_of.pick"), "{}", device.kernels());
    for computed in [false, true] {
        let mut g = Graph::new();
        let mut ids = g.input_u32("ids", &[3]);
        if computed {
            let zeros = g.input_u32("zeros", &[3]);
            ids = g.add(ids, zeros);
        }
        let t = g.input("t", &[4, 2]);
        let y = g.call(op, Attrs::new(), vec![ids.into(), t.into()]);
        let seen = g.state("seen", &[3, 2]);
        g.assign(seen, y);
        g.set_outputs(vec![y]);
        let config = SessionConfig {
            device: Some("blade".into()),
            mode: Mode::Inference,
            ..SessionConfig::default()
        };
        let (mut session, _) = build(&g, config).expect("a session");
        let sources = device.kernel_sources(session.plan()).expect("texts");
        assert!(
            sources.iter().any(|s| s.text.contains("buffer_c")),
            "{sources:?} {}",
            problem("rows_of")
        );
        if computed {
            session.set_input_u32("zeros", &[0; 3]);
        }
        session.set_input("t", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        session.set_input_u32("ids", &[0, 9, 4]);
        match session.try_step().and_then(|()| session.try_wait().map(|_| ())) {
            Err(Error::IndexOutOfRange { index: 9, rows: 4, .. }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(session.read_state("seen"), [0.0; 6]);
        session.set_input_u32("ids", &[0, 3, 1]);
        session.step();
        assert_eq!(session.read_output(6), [1.0, 2.0, 7.0, 8.0, 3.0, 4.0]);
    }
    conforms(device, "rows_of.pick/");
}

/// The kernel of the example agrees with its decomposition on unusual rows: equal entries, distant entries, and rows
/// without probabilities.
#[test]
fn the_example_agrees_with_its_decomposition_on_odd_rows() {
    if !is_there() {
        return;
    }
    load_router();
    let (nan, inf, largest) = (f32::NAN, f32::INFINITY, f32::MAX);
    let rows: [[f32; 6]; 14] = [
        [1.0, 3.0, 3.0, 2.0, 3.0, 0.0],
        [0.0; 6],
        [-1.0, -1.0, -1.0, -1.0, -1.0, 4.0],
        [0.0, -0.0, 0.0, -0.0, 0.0, -0.0],
        [nan, 1.0, 2.0, 3.0, 4.0, 5.0],
        [1.0, 2.0, 3.0, 4.0, 5.0, nan],
        [nan; 6],
        [inf, 1.0, 2.0, 3.0, 4.0, 5.0],
        [inf, inf, 1.0, -inf, 0.0, nan],
        [-inf, 1.0, -inf, 2.0, -inf, 1.0],
        [-inf, -inf, -inf, -inf, -inf, 1.0],
        [-inf; 6],
        [largest, largest, -largest, 0.0, 1.0, largest],
        [-500.0, 400.0, 300.0, 399.0, -largest, 400.0],
    ];
    let op = registry::op("router.choose").expect("registered");
    for k in [1i64, 2, 3, 6] {
        let mut g = Graph::new();
        let x = g.input("x", &[rows.len(), 6]);
        let best = g.call(op, Attrs::new().with("k", k), vec![x.into()]);
        let chosen = g.port(best, 1);
        g.set_outputs(vec![best.into(), chosen]);
        let feeds = rows.concat().iter().map(|&v| f64::from(v)).collect();
        let expected = evaluate(&g, &[("x".to_owned(), feeds)].into()).expect("it can be evaluated");
        let config = SessionConfig {
            device: Some("blade".into()),
            mode: Mode::Inference,
            ..SessionConfig::default()
        };
        let (mut session, _) = build(&g, config).expect("a session");
        assert!(
            session
                .plan()
                .dispatches
                .iter()
                .any(|d| d.kernel.name == "router.choose")
        );
        session.set_input("x", &rows.concat());
        session.step();
        let len = rows.len() * k as usize;
        let (mut weights, mut experts) = (vec![0.0; len], vec![0u32; len]);
        session.read_output_by_index(0, &mut weights);
        session.try_read_output_u32(1, &mut experts).expect("places");
        let want = expected.get(best).expect("weights");
        for (i, (got, want)) in weights.iter().zip(&want.data).enumerate() {
            let same = (got.is_nan() && want.is_nan()) || (f64::from(*got) - want).abs() < 1e-5;
            assert!(same, "k {k}, row {:?}: weight {got}, not {want}", rows[i / k as usize]);
        }
        let want = expected.get(chosen).expect("places");
        for (i, (got, want)) in experts.iter().zip(&want.data).enumerate() {
            assert_eq!(f64::from(*got), *want, "k {k}, row {:?}", rows[i / k as usize]);
        }
    }
}

#[test]
fn a_kernel_that_computes_something_else_is_not_used() {
    if !is_there() {
        return;
    }
    let place = folder();
    let text = doubling(
        "mistaken",
        &RIGHT.replace("2.0 * x[i]", "2.0 * x[i] + select(0.0, 0.1, i == 2u)"),
    );
    open_data(&write(place.path(), &[("plugin.toml", &text)]), None).expect("its form is fine");
    let sources = run_between_canaries("mistaken");
    assert!(sources.iter().all(|s| !s.contains("buffer_b")), "{sources:?}");
    let problems = registry::problems();
    let said = problems
        .iter()
        .map(ToString::to_string)
        .find(|p| p.contains("'mistaken'"));
    let said = said.expect("it is told");
    assert!(
        said.contains("'mistaken.twice' is not used on blade") && said.contains("element 2"),
        "{said}"
    );
}

/// A kernel that is wrong only for large numbers or at large indices is not used.
#[test]
fn kernels_that_are_wrong_far_out_are_not_used() {
    if !is_there() {
        return;
    }
    for (name, wrong) in [
        ("farvalues", "2.0 * x[i] + select(0.0, 5.0, abs(x[i]) > 50.0)"),
        ("farplaces", "2.0 * x[i] + select(0.0, 0.1, i > 3000u)"),
    ] {
        let place = folder();
        let text = doubling(name, &RIGHT.replace("2.0 * x[i]", wrong));
        open_data(&write(place.path(), &[("plugin.toml", &text)]), None).expect("its form is fine");
        let sources = run_between_canaries(name);
        assert!(sources.iter().all(|s| !s.contains("buffer_b")), "{name}: {sources:?}");
        let problems = registry::problems();
        let said = format!("'{name}.twice' is not used on blade");
        assert!(
            problems.iter().any(|p| p.to_string().contains(&said)),
            "{name}: {problems:?}"
        );
    }
}

/// A kernel that does not write all elements is not used, because these elements would contain data of other tensors.
#[test]
fn a_kernel_that_leaves_elements_out_is_not_used() {
    if !is_there() {
        return;
    }
    let place = folder();
    let text = doubling(
        "partial",
        &RIGHT.replace("y[i] =", "if (x[i] <= 0.0) { continue; }\ny[i] ="),
    )
    .replace("(core.mul x 2)", "(core.mul (core.relu x) 2)");
    open_data(&write(place.path(), &[("plugin.toml", &text)]), None).expect("its form is fine");
    let sources = run_between_canaries("partial");
    assert!(sources.iter().all(|s| !s.contains("buffer_b")), "{sources:?}");
    let problems = registry::problems();
    let said = problems
        .iter()
        .map(ToString::to_string)
        .find(|p| p.contains("'partial'"));
    let said = said.unwrap_or_default();
    assert!(
        said.contains("'partial.twice' is not used on blade") && said.contains("NaN"),
        "{said}"
    );
}

#[test]
fn a_reduction_with_barriers_in_loops_runs() {
    if !is_there() {
        return;
    }
    let place = folder();
    let text = r#"
format = 1
name = "rows"
version = "1"
[[op]]
name = "squares"
formula = "the sum of x^2 in each row"
inputs = [{ name = "x", dtype = "f32", shape = ["m", "n"] }]
outputs = [{ name = "y", dtype = "f32", shape = ["m"] }]
let = { y = '(core.sum "[1]" false (core.mul x x))' }
[op.wgsl]
groups = ["m"]
text = '''
var<storage> x: array<f32>;
var<storage, read_write> y: array<f32>;
var<workgroup> tile: array<f32, 16>;
var<workgroup> sums: array<f32, 16>;
@compute @workgroup_size(16)
fn main(@builtin(workgroup_id) row: vec3<u32>, @builtin(local_invocation_index) i: u32) {
    sums[i] = 0.0;
    for (var k = 0u; k < n; k += 16u) {
        if (k + i < n) { tile[i] = x[row.x * n + k + i]; } else { tile[i] = 0.0; }
        workgroupBarrier();
        let other = tile[15u - i];
        sums[i] += other * other;
        workgroupBarrier();
    }
    for (var half = 8u; half > 0u; half /= 2u) {
        if (i < half) { sums[i] += sums[i + half]; }
        workgroupBarrier();
    }
    if (i == 0u) { y[row.x] = sums[0]; }
}
'''
"#;
    open_data(&write(place.path(), &[("plugin.toml", text)]), None).expect("all threads come to its barriers");
    let device = BladeBackend.open(0, &Config::default()).expect("it opens");
    let kernels = device.kernels();
    let used = kernels
        .split(", ")
        .any(|k| k.starts_with("rows.squares") && k.ends_with("true"));
    assert!(used, "{kernels} {:?}", registry::problems());
    conforms(device, "rows.squares/");
}

#[test]
fn scalars_and_constants_are_operands_like_others() {
    if !is_there() {
        return;
    }
    let place = folder();
    let text = "format = 1\nname = \"scaled\"\nversion = \"1\"\n[[op]]\nname = \"by\"\nformula = \"x s + c\"\n\
        inputs = [{ name = \"x\", dtype = \"f32\", shape = [\"n\"] }, { name = \"s\", dtype = \"f32\", shape = [] }, \
        { name = \"c\", dtype = \"f32\", shape = [\"n\"] }]\n\
        outputs = [{ name = \"y\", dtype = \"f32\", shape = [\"n\"] }]\nlet = { y = \"(core.add (core.mul x s) c)\" }\n\
        [op.wgsl]\ngroups = [\"(ceil-div n 64)\"]\ntext = '''\n\
        var<storage> x: array<f32>;\nvar<storage> s: array<f32>;\nvar<storage> c: array<f32>;\n\
        var<storage, read_write> y: array<f32>;\n@compute @workgroup_size(64)\n\
        fn main(@builtin(global_invocation_id) id: vec3<u32>) {\n\
        if (id.x < n) { y[id.x] = x[id.x] * s[0] + c[id.x]; }\n}\n'''\n";
    open_data(&write(place.path(), &[("plugin.toml", text)]), None).expect("it is fine");
    let op = registry::op("scaled.by").expect("registered");
    let mut g = Graph::new();
    let x = g.input("x", &[5]);
    let s = g.scalar_input("s", meganeura::DType::F32);
    let c = g.constant(vec![0.5; 5], &[5]);
    let y = g.call(op, Attrs::new(), vec![x.into(), s.into(), c.into()]);
    g.set_outputs(vec![y]);
    let config = SessionConfig {
        device: Some("blade".into()),
        mode: Mode::Inference,
        ..SessionConfig::default()
    };
    let (mut session, _) = build(&g, config).expect("a session");
    for scale in [3.0f32, -1.0] {
        session.set_input("x", &[1.0, 2.0, 3.0, 4.0, 5.0]);
        session.set_scalar("s", f64::from(scale));
        session.step();
        let expected: Vec<f32> = (1..=5).map(|i| i as f32 * scale + 0.5).collect();
        assert_eq!(session.read_output(5), expected);
    }
    let device = BladeBackend.open(0, &Config::default()).expect("it opens");
    let sources = device.kernel_sources(session.plan()).expect("texts");
    assert!(sources.iter().any(|s| s.text.contains("buffer_d")), "{sources:?}");
}
