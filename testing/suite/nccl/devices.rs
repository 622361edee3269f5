//! Devices of workers, and memory on them.

use disco::{CommunicatorExt as _, DType, Device, DeviceKind, Tensor, WorkerContext, block_on};

use crate::alone::{
    answers, connected, has_nvrtc, nvrtc_of_the_double, session, sum, synchronize, text, to_host, works_again,
};
use crate::on_the_double;
use crate::p2p::{patient, reason};

fn where_are_you(ctx: &mut WorkerContext) -> disco::Result<String> {
    Ok(ctx.empty(DType::F32, [1])?.device().to_string())
}

/// Exports a tensor to DLPack and imports it again, without a copy.
fn through_dlpack(ctx: &mut WorkerContext) -> disco::Result<i64> {
    let host = Tensor::from_slice(&[1.0f32, 2.0], [2])?;
    let tensor = ctx.empty(DType::F32, [2])?;
    ctx.queue().copy_in(&tensor, &host)?;
    let managed = tensor.to_dlpack();
    #[allow(unsafe_code, reason = "DLPack is C")]
    // SAFETY: the managed tensor was just exported and is alive.
    let kind = unsafe { (*managed).dl_tensor.device.device_type };
    #[allow(unsafe_code, reason = "DLPack is C")]
    // SAFETY: the managed tensor is alive and is imported once.
    let back = unsafe { Tensor::from_dlpack(managed) }?;
    assert_eq!((back.data(), back.device()), (tensor.data(), tensor.device()));
    ctx.comm()?.all_reduce_in_place(&back, disco::Reduction::Sum)?;
    let sum = Tensor::zeros(DType::F32, [2])?;
    ctx.queue().copy_out(&sum, &tensor)?;
    assert_eq!(sum.to_vec::<f32>()?, [0.0, 0.0], "it comes with the synchronisation");
    synchronize(ctx)?;
    let workers = ctx.world().size() as f32;
    assert_eq!(sum.to_vec::<f32>()?, [workers, 2.0 * workers]);
    Ok(kind.into())
}

/// Copies by cudarc on the worker's stream, which is ordered with collectives.
fn with_cudarc(ctx: &mut WorkerContext) -> disco::Result<f64> {
    let tensor = ctx.empty(DType::F32, [4])?;
    let stream = disco::nccl::cuda::stream(ctx.queue())?;
    assert_eq!(stream.cu_stream().cast(), ctx.queue().raw());
    let ones = vec![1.0f32; 4];
    #[allow(unsafe_code, reason = "the driver's own call")]
    // SAFETY: the tensor on this device has the same size, and the elements live until the stream is synchronized.
    unsafe {
        let address = tensor.data() as disco::nccl::cudarc::driver::sys::CUdeviceptr;
        disco::nccl::cudarc::driver::result::memcpy_htod_async(address, &ones, stream.cu_stream())
            .map_err(|error| disco::Error::Invalid(error.to_string()))?;
    }
    ctx.comm()?.all_reduce_in_place(&tensor, disco::Reduction::Sum)?;
    stream.synchronize().map_err(|error| disco::Error::Invalid(error.to_string()))?;
    Ok(to_host(ctx, &tensor)?.to_vec::<f32>()?[3].into())
}

/// All-reduces memory allocated by the library, registered twice, and a window of it.
fn in_library_memory(ctx: &mut WorkerContext) -> disco::Result<f64> {
    let tensor = disco::nccl::BACKEND.empty(ctx.queue(), DType::F32, [4])?;
    let host = Tensor::from_slice(&[1.0f32, 2.0], [2])?;
    let window = tensor.window(1, [2])?;
    ctx.queue().copy_in(&window, &host)?;
    let comm = ctx.comm()?;
    let mut nccl = disco::nccl::extension(comm)?;
    nccl.register(&tensor)?;
    nccl.register(&window)?;
    comm.all_reduce_in_place(&window, disco::Reduction::Sum)?;
    assert!(disco::nccl::extension(comm)?.register(&host).unwrap_err().to_string().contains("is not on cuda:"));
    let all = to_host(ctx, &tensor)?.to_vec::<f32>()?;
    assert_eq!((all[0], all[3]), (0.0, 0.0), "it was zeroed");
    Ok((all[1] + all[2]).into())
}

disco::register_function!("tests.nccl.in_library_memory", in_library_memory);
disco::register_function!("tests.nccl.where_are_you", where_are_you);
disco::register_function!("tests.nccl.through_dlpack", through_dlpack);
disco::register_function!("tests.nccl.with_cudarc", with_cudarc);

on_the_double!(worker_i_uses_device_i_by_default_or_the_given_ordinal, [], {
    let session = session(2);
    block_on(async {
        for (ordinals, expected) in [(&[][..], ["cuda:0", "cuda:1"]), (&[3, 0], ["cuda:3", "cuda:0"])] {
            session.init_ccl("nccl", ordinals).await.unwrap();
            let answer = session.call("tests.nccl.where_are_you", ()).await.unwrap();
            assert_eq!(session.get_all::<String>(&answer).await.unwrap(), expected);
            assert_eq!(sum(&session).await.unwrap(), 3.0);
        }
    });
});

on_the_double!(two_workers_on_one_device_are_an_error_that_names_the_remedy, [], {
    let session = session(3);
    let error = text(block_on(session.init_ccl("nccl", &[0, 1, 0])));
    assert!(error.contains("rank 0 and rank 2 are both on device "), "{error}");
    assert!(error.contains("give each worker its own device with `--devices`"), "{error}");
    works_again(&session);
});

on_the_double!(
    workers_share_a_device_if_nccl_permits_several_ranks,
    [
        "GPU_DOUBLE_DEVICES" = "1",
        "GPU_DOUBLE_NCCL_VERSION" = "23003",
        "NCCL_MULTI_RANK_GPU_ENABLE" = "1",
        "DISCO_SHARE_DEVICES" = "1",
        "DISCO_P2P_TOPOLOGY" = "fully_connected",
        "DISCO_NVRTC_LIBRARY" = &nvrtc_of_the_double()
    ],
    {
        let session = patient(2);
        for backend in ["nccl", "cuda_p2p"] {
            block_on(session.init_ccl(backend, &[0, 0])).unwrap();
            assert_eq!(block_on(sum(&session)).unwrap(), 3.0);
        }
        if has_nvrtc() {
            assert_eq!(reason(&session), "kernels are launched");
        }
    }
);

on_the_double!(
    shared_devices_with_an_old_nccl_are_an_error_that_names_its_version,
    ["GPU_DOUBLE_NCCL_VERSION" = "22809", "NCCL_MULTI_RANK_GPU_ENABLE" = "1", "DISCO_SHARE_DEVICES" = "1"],
    {
        let session = session(2);
        let error = text(block_on(session.init_ccl("cuda_p2p", &[0, 0])));
        assert!(error.contains("rank 0 and rank 1 are both on device "), "{error}");
        assert!(error.contains("NCCL 2.28.9 supports one rank per device: name NCCL 2.30.3 or later"), "{error}");
        works_again(&session);
    }
);

on_the_double!(
    shared_devices_without_nccl_s_variable_are_an_error_that_names_it,
    ["GPU_DOUBLE_NCCL_VERSION" = "23003", "DISCO_SHARE_DEVICES" = "1"],
    {
        let session = session(2);
        let error = text(block_on(session.init_ccl("nccl", &[0, 0])));
        assert!(error.contains("only with NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment of each rank"), "{error}");
        works_again(&session);
    }
);

on_the_double!(fewer_devices_than_workers_are_an_error_with_the_number, ["GPU_DOUBLE_DEVICES" = "1"], {
    let session = session(2);
    let error = text(block_on(session.init_ccl("nccl", &[])));
    assert!(error.contains("cuda:1 does not exist: this process sees 1 cuda device."), "{error}");
    assert!(block_on(session.sync_all()).is_err());
});

on_the_double!(device_tensors_make_a_round_trip_through_dlpack, [], {
    let kinds: Vec<i64> = answers(&connected(2), "tests.nccl.through_dlpack", ());
    assert_eq!(kinds[1], i64::from(Device::new(DeviceKind::Cuda, 1).kind.dlpack()));
});

on_the_double!(a_worker_s_stream_is_usable_through_cudarc, [], {
    let sums: Vec<f64> = answers(&connected(2), "tests.nccl.with_cudarc", ());
    assert_eq!(sums[0], 2.0);
});

on_the_double!(memory_allocated_by_the_library_is_registered, [], {
    let sums: Vec<f64> = answers(&connected(2), "tests.nccl.in_library_memory", ());
    assert_eq!(sums[0], 6.0);
});

/// Tests with the drivers and devices of both vendors.
mod both {
    use super::*;

    on_the_double!(gpus_of_both_vendors_serve_one_program, [], {
        let session = session(2);
        block_on(async {
            for (backend, devices) in [("nccl", "cuda:1"), ("rccl", "rocm:1"), ("local", "cpu"), ("nccl", "cuda:1")] {
                session.init_ccl(backend, &[]).await.unwrap();
                let answer = session.call("tests.nccl.where_are_you", ()).await.unwrap();
                let found: String = session.get(&answer, 1.into()).await.unwrap();
                assert_eq!(found, devices);
                assert_eq!(sum(&session).await.unwrap(), 3.0);
            }
            let x = session.empty(DType::F32, [1], disco::Placement::All).await.unwrap();
            session.sync_all().await.unwrap();
            session.init_ccl("rccl", &[]).await.unwrap();
            session.all_reduce(&x, &x, disco::Reduction::Sum, disco::Scope::World).await.unwrap();
            let error = text(session.sync_all().await);
            // Either worker may fail first.
            let expected = |n| format!("all_reduce: tensor f32[1] on cuda:{n} is not on rocm:{n}, where rccl works");
            assert!((0..2).any(|n| error.contains(&expected(n))), "{error}");
        });
    });
}
