//! Types with serde's traits as arguments, results and errors of worker functions.
//!
//! `cargo run --features serde --example serde_values`; with processes, put `DISCO_SESSION=processes DISCO_WORKERS=3`
//! before the command.

use disco::{Json, WorkerContext};
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Layer {
    name: String,
    units: usize,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Shard {
    layer: String,
    first: usize,
    units: usize,
}

/// An error that comes back to the controller as a value, because `register_error!` registers it.
#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
#[error("{units} units of `{layer}` can't be shared by {workers} workers")]
struct Uneven {
    layer: String,
    units: usize,
    workers: usize,
}

disco::register_error!(Uneven);
disco::register_function!("serde_values.shard", shard);

/// Worker function: this worker's part of a layer.
fn shard(ctx: &mut WorkerContext, Json(layer): Json<Layer>) -> Result<Json<Shard>, Uneven> {
    let (workers, worker) = (ctx.world().size(), ctx.worker().index());
    if !layer.units.is_multiple_of(workers) {
        return Err(Uneven { layer: layer.name, units: layer.units, workers });
    }
    let units = layer.units / workers;
    Ok(Json(Shard { layer: layer.name, first: worker * units, units }))
}

fn main() -> disco::Result<()> {
    disco::init();
    let session = disco::from_env()?;
    let workers = session.world().size();
    disco::block_on(async {
        let layer = Layer { name: "dense".into(), units: 16 * workers };
        let shards = session.call("serde_values.shard", (Json(layer.clone()),)).await?;
        for (worker, Json(shard)) in session.get_all::<Json<Shard>>(&shards).await?.into_iter().enumerate() {
            println!("worker {worker}: {shard:?}");
            assert_eq!(shard, Shard { layer: "dense".into(), first: 16 * worker, units: 16 });
        }

        let odd = Layer { units: 16 * workers + 1, ..layer };
        session.call("serde_values.shard", (Json(odd),)).await?;
        match &session.sync_all().await {
            Err(error) if let Some(uneven) = error.downcast_ref::<Uneven>() => {
                println!("an error of {} units and {} workers came back: {error}", uneven.units, uneven.workers);
                assert_eq!((uneven.units, uneven.workers), (16 * workers + 1, workers));
            }
            Err(other) => return Err(other.clone()),
            // A single worker has the whole layer.
            Ok(()) => assert_eq!(workers, 1),
        }
        session.shutdown().await
    })
}
