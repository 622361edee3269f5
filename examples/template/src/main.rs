//! Each worker returns its share of a number of items.

use disco::prelude::*;

/// Runs on every worker: the number of items that this worker takes out of `total`.
fn share(ctx: &mut WorkerContext, total: usize) -> disco::Result<usize> {
    let (worker, workers) = (ctx.worker().index(), ctx.world().size());
    Ok(total * (worker + 1) / workers - total * worker / workers)
}

disco::register_function!("{{crate_name}}.share", share);

/// The shares of all workers of a session.
async fn shares(session: &dyn Session, total: usize) -> disco::Result<Vec<usize>> {
    let shares = session.call("{{crate_name}}.share", (total,)).await?;
    session.get_all(&shares).await
}

fn main() -> disco::Result<()> {
    disco::init();
    let session = disco::from_env()?;
    disco::block_on(async {
        println!("{:?}", shares(&session, 10).await?);
        session.shutdown().await
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workers_share_all_items() {
        disco::init_test!();
        let session = Builder::processes(4).start().unwrap();
        disco::block_on(async {
            assert_eq!(shares(&session, 10).await.unwrap(), [2, 3, 2, 3]);
            session.shutdown().await.unwrap();
        });
    }
}
