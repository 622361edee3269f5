//! A program whose processes serve their metrics to Prometheus: `cargo run -- 9464 60` in this folder, with the variables
//! of `disco::from_env`, such as `DISCO_SESSION=processes DISCO_WORKERS=4`. The arguments are the port and the number of
//! seconds to run.
//!
//! The controller's process serves at `http://127.0.0.1:9464/metrics`, and worker N, if it is a process of its own, at
//! port 9464 + N.

use std::env;
use std::process;
use std::time::{Duration, Instant};

use disco::metrics::SECONDS_BUCKETS;
use disco::prelude::*;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};

/// Records the metrics of this process, and serves them on a thread. `name` tells the processes of a session apart.
fn serve(port: u16, name: &str) -> Result<(), BuildError> {
    PrometheusBuilder::new()
        .with_http_listener(([127, 0, 0, 1], port))
        .add_global_label("process", name)
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS_BUCKETS)?
        .install()
}

/// Worker function: serves the metrics of a worker that is not a thread of the controller's process.
fn serve_worker(
    ctx: &mut WorkerContext,
    port: i64,
    controller: i64,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    if controller != i64::from(process::id()) {
        let port = u16::try_from(port + ctx.worker().index() as i64)?;
        serve(port, &ctx.worker().to_string())?;
    }
    Ok(())
}

/// Worker function: some work, and a sum over all workers.
fn step(ctx: &mut WorkerContext) -> disco::Result<()> {
    let tensor = Tensor::from_slice(&vec![1f32; 1 << 16], [1 << 16])?;
    let sum = Tensor::zeros(tensor.dtype(), tensor.shape().clone())?;
    ctx.comm()?.all_reduce(&tensor, &sum, Reduction::Sum)
}

disco::register_function!("metrics.serve", serve_worker);
disco::register_function!("metrics.step", step);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    disco::init();
    let mut args = env::args().skip(1);
    let port: u16 = args.next().map_or(Ok(9464), |port| port.parse())?;
    let seconds: u64 = args.next().map_or(Ok(60), |seconds| seconds.parse())?;
    serve(port, "controller")?;
    let session = disco::from_env()?;
    disco::block_on(async {
        session.call("metrics.serve", (i64::from(port), i64::from(process::id()))).await?;
        session.init_ccl("local", &[]).await?;
        session.sync_all().await?;
        println!("metrics at http://127.0.0.1:{port}/metrics");
        let step = session.function("metrics.step").await?;
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(seconds) {
            session.call(&step, ()).await?;
            session.sync_all().await?;
            std::thread::sleep(Duration::from_millis(10));
        }
        session.shutdown().await
    })?;
    Ok(())
}
