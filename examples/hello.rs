//! Every worker returns its number and the name of its machine: `cargo run --example hello`. `docs/launching.md` runs
//! it on several machines.

use disco::prelude::*;

fn hello(ctx: &mut WorkerContext) -> disco::Result<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_else(|_| "a machine".into());
    Ok(format!("{} of {} on {}", ctx.worker(), ctx.world().size(), host.trim()))
}

disco::register_function!("hello", hello);

pub(crate) fn main() -> disco::Result<()> {
    disco::init();
    let session = disco::from_env()?;
    disco::block_on(async {
        let greetings = session.call(&session.function("hello").await?, ()).await?;
        for worker in session.world().workers() {
            let greeting: String = session.get(&greetings, worker).await?;
            println!("{greeting}");
        }
        session.shutdown().await
    })
}
