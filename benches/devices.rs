//! The workloads of `meganeura bench --suite` with criterion: on the devices in `MEGANEURA_BENCH_DEVICES` (selectors
//! separated by commas), or on all devices that are not emulated in software. [`meganeura_bench::compare_devices`]
//! describes the options.
//!
//! ```text
//! MEGANEURA_BENCH_DEVICES=cpu,blade:0 cargo bench -p meganeura-bench --bench devices
//! MEGANEURA_PLUGINS=/path/to/libmine.so MEGANEURA_BENCH_DEVICES=cpu,mine cargo bench -p meganeura-bench --bench devices -- matmul
//! ```

fn main() -> std::process::ExitCode {
    meganeura_bench::compare_devices(&[])
}
