//! Tests of the translation of single expressions and statements, and of rejected modules.

use meganeura_cuda::{Bounds, CudaSource, Options, WriteError, read, write};

use meganeura_cuda::Nvrtc;

fn written(text: &str, options: &Options) -> Result<CudaSource, WriteError> {
    let (module, info) = read(text).unwrap_or_else(|error| panic!("{error}"));
    write(&module, &info, "main", options)
}

fn unchecked() -> Options {
    Options {
        bounds: Bounds::Unchecked,
        ..Options::default()
    }
}

/// WGSL declarations of the test kernels.
const DECLARATIONS: &str = "
    var<storage, read_write> to: array<u32>;
    var<storage, read> u: array<u32>;
    var<storage, read> i: array<i32>;
    var<storage, read> f: array<vec4<f32>>;
    var<storage, read_write> a: array<atomic<u32>>;
    var<workgroup> w: array<u32, 64>;
    var<workgroup> flag: u32;
    @compute @workgroup_size(64)";
const ARGUMENTS: &str = "@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32";

fn of_body(body: &str, options: &Options) -> Result<CudaSource, WriteError> {
    written(&format!("{DECLARATIONS} fn main({ARGUMENTS}) {{ {body} }}"), options)
}

/// Returns the part of a source that contains the translated module.
fn module(written: &CudaSource) -> &str {
    written.source.split("namespace kernel {").nth(1).expect("the module")
}

fn assert_written(body: &str, options: &Options, expected: &[&str]) {
    let written = of_body(body, options).unwrap_or_else(|error| panic!("{body}: {error}"));
    for line in expected {
        assert!(module(&written).contains(line), "{line}\n{}", module(&written));
    }
}

#[test]
fn operators_are_those_of_cpp_where_they_do_the_same() {
    let options = unchecked();
    assert_written("to[0] = u[0] / 3u + u[1] % 4u;", &options, &["/ 3u) + (", "% 4u)"]);
    assert_written("to[0] = u[0] / u[1];", &options, &["= wgsl::div("]);
    assert_written("to[0] = u32(i[0] + 1);", &options, &["wgsl::to_u32(wgsl::add("]);
    assert_written("to[0] = u32(i[0] % -1);", &options, &["wgsl::rem("]);
    assert_written("to[0] = u[0] << 3u;", &options, &["<< 3u)"]);
    assert_written("to[0] = u[0] << u[1];", &options, &["wgsl::shl("]);
    assert_written("to[0] = select(1u, u[0], u[1] > 2u);", &options, &["> 2u) ? "]);
    assert_written(
        "to[0] = bitcast<u32>((f[0] * 2.0).x);",
        &options,
        &["wgsl::bits_u32(wgsl::mul(", ".at[0])"],
    );
    assert_written("to[0] = bitcast<u32>(f[0].x * -2.5e-7);", &options, &["* (-2.5e-7f))"]);
    assert_written("to[0] = bitcast<u32>(exp(f[0]).y);", &options, &["wgsl::exp("]);
}

#[test]
fn indices_are_clamped_where_they_may_be_out_of_bounds() {
    let within = "u[wgsl::within(local, wgsl::elements(u_bytes, 0u, 4u))]";
    assert_written(
        "to[local] = u[local];",
        &Options::default(),
        &[within, "wgsl::u64 u_bytes"],
    );
    assert_written(
        "to[0] = w[local];",
        &Options::default(),
        &["w.at[wgsl::within(local, 64u)]"],
    );
    assert_written("to[0] = w[63];", &Options::default(), &["w.at[63]"]);
    assert_written("to[0] = w[local];", &unchecked(), &["w.at[local]"]);
    let lengths = of_body("to[local] = u[local];", &Options::default())
        .expect("a kernel")
        .bindings;
    assert!(
        lengths
            .iter()
            .all(|binding| binding.has_length && binding.least_bytes == 4)
    );
    let lengths = of_body("to[local] = arrayLength(&u);", &unchecked())
        .expect("a kernel")
        .bindings;
    let lengths: Vec<(&str, bool)> = lengths
        .iter()
        .map(|binding| (binding.name.as_str(), binding.has_length))
        .collect();
    assert_eq!(lengths, [("to", false), ("u", true)]);
}

#[test]
fn parameters_are_the_buffers_that_are_used_in_the_order_of_their_bindings() {
    let text = "@group(0) @binding(3) var<storage, read_write> late: array<u32>;
        @group(0) @binding(1) var<uniform> early: u32;
        @group(0) @binding(2) var<storage, read> unused: u32;
        @compute @workgroup_size(4, 2, 2)
        fn main(@builtin(local_invocation_index) local: u32) { late[local] = early; }";
    let kernel = written(text, &unchecked()).expect("a kernel");
    let names: Vec<(&str, u32, bool)> = kernel
        .bindings
        .iter()
        .map(|b| (b.name.as_str(), b.binding, b.writable))
        .collect();
    assert_eq!(names, [("early", 1, false), ("late", 3, true)]);
    assert_eq!(kernel.threads, [4, 2, 2]);
    assert!(
        module(&kernel)
            .contains("__launch_bounds__(16) kernel_main(\n    const u32* __restrict__ early,\n    u32* late)")
    );
    assert!(module(&kernel).contains("((threadIdx.z * 2u + threadIdx.y) * 4u + threadIdx.x)"));
    let options = Options {
        restrict: false,
        ..unchecked()
    };
    assert!(
        !written(text, &options)
            .expect("a kernel")
            .source
            .contains("__restrict__")
    );
}

#[test]
fn overrides_get_their_values() {
    let text = "override SIZE: u32 = 4u;
        @id(7) override FACTOR: f32;
        var<storage, read_write> to: array<f32>;
        var<workgroup> w: array<f32, SIZE>;
        @compute @workgroup_size(SIZE)
        fn main(@builtin(local_invocation_index) local: u32) {
            w[local] = FACTOR;
            to[local] = w[local];
        }";
    let missing = written(text, &unchecked()).expect_err("a factor without a value");
    assert!(
        matches!(&missing, WriteError::Override(why) if why.contains('7')),
        "{missing}"
    );
    let mut options = unchecked();
    options
        .overrides
        .extend([("7".to_owned(), 1.5), ("SIZE".to_owned(), 16.0)]);
    let kernel = written(text, &options).expect("a kernel");
    assert_eq!((kernel.threads, kernel.shared_bytes), ([16, 1, 1], 64));
    assert!(module(&kernel).contains("1.5f"), "{}", module(&kernel));
}

#[test]
fn names_of_wgsl_do_not_meet_those_of_cpp() {
    let text = "var<storage, read_write> int: array<f32>;
        struct Pair { made: f32, Pair: f32 }
        fn expf(double: f32) -> f32 { return double; }
        fn add(long: f32, kernel: f32) -> f32 { let add = long; return add + kernel; }
        fn made() -> f32 { let made = Pair(1.0, 2.0); return make_Pair(made) + made.Pair; }
        fn make_Pair(pair: Pair) -> f32 { return pair.made; }
        @compute @workgroup_size(1)
        fn main() { int[2] = made(); let threadIdx = expf(int[0]); let gridDim = add(threadIdx, 1.0); int[1] = max(gridDim, 2.0); }";
    let kernel = written(text, &unchecked()).expect("a kernel");
    for expected in [
        "f32* int_1",
        "kernel::expf(",
        "kernel::add(",
        "wgsl::max(",
        "threadIdx_1",
    ] {
        assert!(module(&kernel).contains(expected), "{expected}\n{}", module(&kernel));
    }
    if let Ok(nvrtc) = Nvrtc::open() {
        nvrtc
            .compile(&kernel.source, "sm_80")
            .unwrap_or_else(|log| panic!("{log}"));
    }
}

#[test]
fn what_cuda_does_not_have_is_refused() {
    let refused = |text: &str, what: &str| {
        let error = written(text, &Options::default()).expect_err(text);
        assert!(
            matches!(&error, WriteError::Unsupported(why) if why.contains(what)),
            "{error}"
        );
    };
    let kernel = |body: &str| format!("{DECLARATIONS} fn main({ARGUMENTS}) {{ {body} }}");
    refused(
        &kernel("let m = mat2x2<f32>(); to[0] = u32(m[0].x);"),
        "matrices of WGSL",
    );
    refused(&kernel("to[0] = u32(modf(f[0].x).whole);"), "Modf");
    refused(
        "var<storage, read_write> x: array<u32>;
        var<workgroup> w: array<u32, 20000>;
        @compute @workgroup_size(1) fn main() { w[0] = x[0]; x[1] = w[0]; }",
        "80000 bytes of workgroup memory",
    );
    refused("@compute @workgroup_size(32, 64) fn main() {}", "2048 threads");
    refused(
        "enable wgpu_cooperative_matrix;
        var<storage, read_write> x: array<f32>;
        @compute @workgroup_size(32)
        fn main() { let m = coopLoad<coop_mat8x8<f32,C>>(&x[0], 8u); coopStore(m, &x[64], 8u); }",
        "coop_mat8x8<f32,C>",
    );
    let (module, info) = read("@compute @workgroup_size(1) fn main() {}").expect("a module");
    let missing = write(&module, &info, "other", &Options::default());
    assert_eq!(missing, Err(WriteError::NoEntryPoint("other".to_owned())));
}

#[test]
fn threads_work_together() {
    let options = unchecked();
    let body = "
        w[local] = u[local];
        workgroupBarrier();
        if (local == 0u) { flag = 3u; }
        let all = workgroupUniformLoad(&flag);
        let old = atomicAdd(&a[0u], all);
        atomicSub(&a[1], old); atomicMin(&a[2], old); atomicMax(&a[3], old); atomicAnd(&a[4], old);
        atomicOr(&a[5], old); atomicXor(&a[6], old);
        let result = atomicCompareExchangeWeak(&a[7u], 1u, 2u);
        if (result.exchanged) { atomicStore(&a[8], result.old_value + atomicLoad(&a[9])); }
        storageBarrier();
        to[local] = w[63u - local];";
    assert_written(
        body,
        &options,
        &[
            "__syncthreads();",
            "wgsl::atomic_add(&a[0u], all)",
            "wgsl::atomic_compare_exchange(&a[7u], 1u, 2u)",
            "wgsl::atomic_load(&a[9u])",
        ],
    );
    let text = format!(
        "{DECLARATIONS} fn main({ARGUMENTS}, @builtin(subgroup_id) id: u32, @builtin(subgroup_size) size: u32,
            @builtin(subgroup_invocation_id) lane: u32, @builtin(num_subgroups) count: u32,
            @builtin(num_workgroups) groups: vec3<u32>, @builtin(global_invocation_id) global: vec3<u32>,
            @builtin(local_invocation_id) own: vec3<u32>) {{
            let x = u[local] + id + size + lane + count + groups.y + global.z + own.x;
            let y = f[local];
            var sum = subgroupAdd(x) + subgroupMul(x) + subgroupMin(x) + subgroupMax(x) + subgroupAnd(x) + subgroupOr(x)
                + subgroupXor(x) + subgroupInclusiveAdd(x) + subgroupExclusiveAdd(x) + subgroupInclusiveMul(x)
                + subgroupExclusiveMul(x) + subgroupBroadcast(x, 3u) + subgroupBroadcastFirst(x) + subgroupShuffle(x, 31u - lane)
                + subgroupShuffleUp(x, 1u) + subgroupShuffleDown(x, 2u) + subgroupShuffleXor(x, 4u) + quadBroadcast(x, 1u)
                + quadSwapX(x) + quadSwapY(x) + quadSwapDiagonal(x) + subgroupBallot(x > 3u).x;
            if (subgroupAll(x > 1u) || subgroupAny(x > 2u)) {{ sum += u32(dot(subgroupAdd(y), subgroupExclusiveMul(y))); }}
            to[local] = sum;
        }}"
    );
    let subgroups = written(&text, &options).unwrap_or_else(|error| panic!("{error}"));
    let Ok(nvrtc) = Nvrtc::open() else { return };
    for kernel in [of_body(body, &options).expect("a kernel"), subgroups] {
        for architecture in ["sm_80", "sm_90"] {
            nvrtc
                .compile(&kernel.source, architecture)
                .unwrap_or_else(|log| panic!("{log}"));
        }
    }
}

#[test]
fn matrices_come_from_everywhere() {
    let text = "enable wgpu_cooperative_matrix;
        enable f16;
        alias Left = coop_mat16x16<f16,A>;
        alias Right = coop_mat16x16<f16,B>;
        alias Sum = coop_mat16x16<f32,C>;
        var<storage, read> a: array<f16>;
        var<storage, read> b: array<vec4<f16>>;
        var<storage, read_write> c: array<f32>;
        var<workgroup> w: array<f16, 256>;
        @compute @workgroup_size(32)
        fn main(@builtin(local_invocation_index) local: u32) {
            w[local] = a[local];
            workgroupBarrier();
            var sum = coopLoad<Sum>(&c[0], 16u);
            sum = coopMultiplyAdd(coopLoad<Left>(&a[0], 16u), coopLoadT<Right>(&b[0], 4u), sum);
            sum = coopMultiplyAdd(coopLoadT<Left>(&a[0], 16u), coopLoad<Right>(&b[0], 4u), sum + sum);
            sum = coopMultiplyAdd(coopLoad<Left>(&w[0], 16u), coopLoad<Right>(&w[0], 16u), sum - coopLoadT<Sum>(&c[0], 16u));
            coopStore(sum * 2.0, &c[256], 16u);
        }";
    let kernel = written(text, &unchecked()).unwrap_or_else(|error| panic!("{error}"));
    for expected in [
        "wgsl::load_c<false>(&c[0u], 16u)",
        "wgsl::load_a_global<false>(&a[0u], 16u)",
        "wgsl::load_b_global<true>(&b[0u], 4u * 4u)",
        "wgsl::load_b_shared<false>(&w.at[0], 16u)",
        "wgsl::store_c<false>(wgsl::mul(",
    ] {
        assert!(module(&kernel).contains(expected), "{expected}\n{}", module(&kernel));
    }
    assert!(
        written(text, &Options::default())
            .is_err_and(|error| error.to_string().contains("bounds checks for cooperative matrices"))
    );
    let Ok(nvrtc) = Nvrtc::open() else { return };
    for architecture in ["sm_75", "sm_80", "sm_90"] {
        nvrtc
            .compile(&kernel.source, architecture)
            .unwrap_or_else(|log| panic!("{log}"));
    }
}
