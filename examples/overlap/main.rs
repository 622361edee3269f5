//! Two matrix products that overlap with communication: in one the left operand is distributed over the ranks, in the
//! other the result. The GPU's copy engine moves blocks while other blocks are multiplied.
//!
//! ```text
//! cargo run --release --features nccl --example overlap
//! ```

#![cfg_attr(not(feature = "nccl"), allow(unused))]

#[cfg(feature = "nccl")]
mod overlap;

#[cfg(feature = "nccl")]
fn main() -> disco::Result<()> {
    use disco::DeviceApi as _;

    let devices = disco::nccl::cuda::Cuda.count()?;
    let session = disco::Builder::threads(devices.min(8)).start()?;
    disco::block_on(async {
        session.init_ccl("cuda_p2p", &[]).await?;
        for name in ["example.all_gather_matmul", "example.matmul_reduce_scatter"] {
            let function = session.function(name).await?;
            session.call(&function, (96, 64, 48)).await?;
            session.sync_all().await?;
            println!("{name}: the same result as without overlap, on {} workers", devices.min(8));
        }
        session.shutdown().await
    })
}

#[cfg(not(feature = "nccl"))]
fn main() {
    eprintln!("this example needs the feature `nccl`");
}
