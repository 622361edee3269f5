//! One program for all machines of a session. `cargo run --example node` starts both nodes on this machine. On two
//! machines:
//!
//! ```text
//! A$ disco token session.token                     # copy it to B
//! A$ node lead 0.0.0.0:4567 session.token
//! B$ node join A:4567 session.token
//! ```

use std::env;
use std::path::Path;

use disco::{Announce, Builder, Error, JoinOptions, Result, Token, WorkerContext};

/// Number of nodes, and of workers on each.
const NODES: usize = 2;
const PER_NODE: usize = 2;

/// Worker function: the sum of every `stride`-th number below `end`, starting at the worker's number.
fn partial_sum(ctx: &mut WorkerContext, end: i64) -> Result<i64> {
    let (first, stride) = (ctx.worker().index(), ctx.world().size());
    println!("adds every {stride}th number, starting at {first}");
    Ok((first as i64..end).step_by(stride).sum())
}

disco::register_function!("node.partial_sum", partial_sum);

fn main() -> Result<()> {
    // Must come first: the workers of a node are processes of this program.
    disco::init();
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => lead(Builder::nodes(NODES, PER_NODE)),
        ["lead", address, token] => {
            let token = Token::read(Path::new(token))?;
            lead(Builder::nodes(NODES, PER_NODE).node_options(|nodes| {
                nodes.listen = Some(address.into());
                nodes.token = Some(token);
                nodes.announce = Some(Announce::new(|announcement| {
                    println!("waiting for {} node at {}", announcement.nodes, announcement.address);
                    Ok(())
                }))
            }))
        }
        ["join", address, token] => disco::join(&JoinOptions::new(address, Token::read(Path::new(token))?)),
        _ => Err(Error::invalid("usage: node [lead HOST:PORT TOKEN_FILE | join HOST:PORT TOKEN_FILE]")),
    }
}

/// The controller, with the workers of node 0.
fn lead(builder: Builder) -> Result<()> {
    let session = builder.start()?;
    disco::block_on(async {
        let partial_sum = session.function("node.partial_sum").await?;
        let sums = session.call(&partial_sum, (1_000_000,)).await?;
        let mut total = 0;
        for worker in session.world().workers() {
            total += session.get::<i64>(&sums, worker).await?;
        }
        assert_eq!(total, 499_999_500_000);
        println!("{} workers on {NODES} nodes: {total}", session.world().size());
        session.shutdown().await
    })
}
