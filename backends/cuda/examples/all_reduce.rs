//! Measures the bandwidth of the all-reduce between GPUs. Prints one line of JSON per size. Start one process for
//! each GPU:
//!
//! ```sh
//! torchrun --no-python --nproc-per-node 2 target/release/examples/all_reduce
//! ```
//!
//! `algorithm` is the number of bytes divided by the time. `bus` is `algorithm` times `2 (n - 1) / n`, which does not
//! depend on the number of ranks `n`. Both are in GB/s, as in NVIDIA's nccl-tests.

use std::time::Instant;

use cudarc::driver::{result, sys};
use meganeura_core::backend::DeviceBuffer;
use meganeura_core::distributed::{Communicator, CommunicatorOptions, DeviceTensor};
use meganeura_cuda::nccl::NcclCommunicator;

const ROUNDS: u32 = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ranks = NcclCommunicator::open(&CommunicatorOptions::default())?;
    let device = ranks
        .device()
        .and_then(|device| device.rsplit(':').next()?.parse().ok());
    let device = result::device::get(device.ok_or("a device without a number")?)?;
    // SAFETY: the device exists, and its context remains until the process ends.
    unsafe { result::ctx::set_current(result::primary_ctx::retain(device)?) }?;
    let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
    for megabytes in [1_usize, 16, 64, 256, 1024] {
        let elements = (megabytes << 20) / 4;
        // SAFETY: nothing refers to the memory yet. It is freed below, when no work is enqueued.
        let address = unsafe { result::malloc_sync(4 * elements) }?;
        let own = vec![ranks.rank() as f32; elements];
        // SAFETY: the allocation has the size of `own`.
        unsafe { result::memcpy_htod_sync(address, &own) }?;
        let tensor = DeviceTensor {
            buffer: DeviceBuffer {
                address,
                bytes: 4 * elements as u64,
                stream: Some(stream as u64),
            },
            elements,
            ready: None,
        };
        // SAFETY: the stream exists.
        let wait = || unsafe { result::stream::synchronize(stream) };
        ranks.all_reduce_mean_on_device("warming up", &[tensor])?;
        wait()?;
        let mut found = vec![0.0_f32; elements];
        // SAFETY: the allocation has the size of `found`.
        unsafe { result::memcpy_dtoh_sync(&mut found, address) }?;
        let mean = (ranks.size() - 1) as f32 / 2.0;
        if found.iter().any(|value| *value != mean) {
            return Err(format!("the mean of the ranks is {mean}, and {} was found", found[0]).into());
        }
        ranks.barrier("the measurement")?;
        let begun = Instant::now();
        for _ in 0..ROUNDS {
            ranks.all_reduce_mean_on_device("a measurement", &[tensor])?;
        }
        wait()?;
        let seconds = begun.elapsed().as_secs_f64() / f64::from(ROUNDS);
        // SAFETY: no work is enqueued.
        unsafe { result::free_sync(address) }?;
        if ranks.rank() == 0 {
            let algorithm = 4.0 * elements as f64 / seconds / 1e9;
            let bus = algorithm * 2.0 * (ranks.size() - 1) as f64 / ranks.size() as f64;
            println!(
                "{{\"all_reduce_mib\":{megabytes},\"ranks\":{},\"milliseconds\":{:.3},\"algorithm\":{algorithm:.1},\"bus\":{bus:.1}}}",
                ranks.size(),
                1e3 * seconds
            );
        }
    }
    // SAFETY: no work is enqueued.
    unsafe { sys::cuStreamDestroy_v2(stream) }.result()?;
    Ok(())
}
