//! Every worker says where it is: `cargo run --example hello`, or on several machines as docs/launching.md says.

use disco::{Session, SessionExt, WorkerContext};

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
            let greeting: String = session.get_as(&greetings, worker).await?;
            println!("{greeting}");
        }
        session.shutdown().await
    })
}
