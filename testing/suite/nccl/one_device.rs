//! Ranks that share one device, each with its own stream. These tests run on the double, or with `DISCO_TEST_GPU=1` on
//! a GPU.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use disco::nccl::disco_ccl::p2p::{Consensus, Kernels, Workspace};
use disco::nccl::p2p::VENDOR;
use disco::{DType, Op, Reduction, Tensor};
use disco_core::store::View;

use crate::alone::nvrtc_of_the_double;
use crate::kernels::{DTYPES, SIZES, decode, encode, number};
use crate::on_the_double_or_a_gpu;
use crate::processes::GpuRank;

/// The shared memory of a rank, and the kernels over it.
pub(crate) fn start(gpu: &GpuRank, timeout: Duration) -> (Workspace, Box<dyn Kernels>) {
    let met = match gpu.meet().unwrap() {
        Consensus::Accepted(met) => met,
        Consensus::Declined(why) => panic!("apart: {why}"),
    };
    let prepared = (VENDOR.kernels)(&gpu.runtime).unwrap();
    let occupancy = (prepared.resident(), met.max_ranks_per_device);
    let kernels = prepared.start(&met.workspace, met.decision.topology, occupancy, timeout).unwrap();
    (met.workspace, kernels)
}

/// Every kernel of the topology, dtype and size, against sums in f64; all ranks get the same bits.
pub(crate) fn sums(gpu: &mut GpuRank) {
    let (shared, kernels) = start(gpu, Duration::from_secs(20));
    // No kernel spins while a peer's kernel is still being loaded.
    shared.main().barrier().unwrap();
    gpu.queue.synchronize(Duration::from_secs(30)).unwrap();
    for dtype in DTYPES {
        for vectors in SIZES.split(' ') {
            let len = 16 * vectors.parse::<usize>().unwrap() / dtype.size();
            let mine: Vec<f32> = (0..len).map(|at| number(gpu.rank, at, len)).collect();
            let dst = copy_in(gpu, dtype, &mine);
            let op = Op::AllReduce { src: None, dst: dst.clone(), reduction: Reduction::Sum };
            assert_eq!(kernels.launch(&op).unwrap(), Ok(()), "{dtype} x {len}");
            let host = Tensor::zeros(dtype, [len as i64]).unwrap();
            gpu.queue.copy_out(&host, &dst).unwrap();
            gpu.queue.synchronize(Duration::from_secs(30)).unwrap();
            kernels.check().unwrap();
            let sum = |at| (0..gpu.size).map(|rank| f64::from(number(rank, at, len))).sum::<f64>() as f32;
            assert_eq!(decode(&host), (0..len).map(sum).collect::<Vec<_>>(), "{dtype} x {len} on rank {}", gpu.rank);
        }
    }
    shared.main().barrier().unwrap();
    gpu.queue.synchronize(Duration::from_secs(30)).unwrap();
}

fn copy_in(gpu: &mut GpuRank, dtype: DType, numbers: &[f32]) -> Tensor {
    let storage = gpu.queue.alloc(numbers.len() * dtype.size()).unwrap();
    let tensor = Tensor::from_storage(storage, dtype, [numbers.len() as i64]).unwrap();
    gpu.queue.copy_in(&tensor, &encode(dtype, numbers)).unwrap();
    tensor
}

/// Runs `work` on `size` ranks of one device, each on a thread.
fn ranks(size: usize, work: fn(&mut GpuRank)) {
    let store = Arc::new(View::default());
    let rank = |rank| {
        let store = store.clone();
        thread::spawn(move || work(&mut GpuRank::new(rank, size, store, true)))
    };
    let threads: Vec<_> = (0..size).map(rank).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

on_the_double_or_a_gpu!(
    streams_of_one_device_sum,
    [
        "GPU_DOUBLE_DEVICES" = "1",
        "DISCO_P2P_TOPOLOGY" = "fully_connected",
        "DISCO_P2P_ONE_SHOT" = "1024",
        "DISCO_NVRTC_LIBRARY" = &nvrtc_of_the_double()
    ],
    {
        if crate::alone::has_nvrtc() {
            [2, 3, 4, 5, 6, 7, 8].into_iter().for_each(|size| ranks(size, sums));
        }
    }
);

on_the_double_or_a_gpu!(
    streams_of_one_device_sum_over_relays,
    [
        "GPU_DOUBLE_DEVICES" = "1",
        "DISCO_P2P_TOPOLOGY" = "hybrid_cube_mesh",
        "DISCO_NVRTC_LIBRARY" = &nvrtc_of_the_double()
    ],
    {
        if crate::alone::has_nvrtc() {
            ranks(8, sums);
        }
    }
);

/// Drops the shared memory while the stream waits for a signal in it.
fn drop_early(gpu: &mut GpuRank) {
    let Consensus::Accepted(met) = gpu.meet().unwrap() else { panic!("apart") };
    if gpu.rank == 0 {
        met.workspace.main().wait(1.into(), 0).unwrap();
    }
    drop(met);
    // This rank frees the memory after the deadline of the rendezvous.
    gpu.queue.synchronize(Duration::from_secs(30)).unwrap();
}

on_the_double_or_a_gpu!(a_wait_ends_soon_after_its_memory_is_dropped, ["GPU_DOUBLE_DEVICES" = "1"], {
    ranks(3, drop_early);
    crate::costs::check_nothing_is_left();
});
