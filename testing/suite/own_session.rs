//! A session of another implementation, with nothing but the required methods: it has all methods of sessions.

use async_trait::async_trait;
use disco::{
    Arguments, Builder, DRef, DType, LaneSession, Placement, Reduction, Result, Scope, Session, Submission, Tensor,
    Value, WorkerContext, WorkerId, World, block_on,
};

fn add(_: &mut WorkerContext, a: i64, b: i64) -> Result<i64> {
    Ok(a + b)
}

fn is_first(ctx: &mut WorkerContext) -> Result<bool> {
    Ok(ctx.worker().index() == 0)
}

disco::register_function!("own_session.add", add);
disco::register_function!("own_session.is_first", is_first);

/// Passes the required methods on.
#[derive(Debug)]
struct Own(LaneSession);

#[async_trait]
impl Session for Own {
    fn world(&self) -> World {
        self.0.world()
    }

    async fn function(&self, name: &str) -> Result<DRef> {
        self.0.function(name).await
    }

    fn submit<'s>(&'s self, function: &'s DRef, args: Arguments) -> Submission<'s> {
        self.0.submit(function, args)
    }

    async fn sync_worker(&self, worker: WorkerId) -> Result<()> {
        self.0.sync_worker(worker).await
    }

    async fn value(&self, handle: &DRef, worker: WorkerId) -> Result<Value> {
        self.0.value(handle, worker).await
    }

    async fn set(&self, handle: &DRef, worker: WorkerId, value: Value) -> Result<()> {
        self.0.set(handle, worker, value).await
    }

    async fn copy_from_worker_0(&self, host: &Tensor, from: &DRef) -> Result<()> {
        self.0.copy_from_worker_0(host, from).await
    }

    async fn copy_to_worker_0(&self, host: &Tensor, to: &DRef) -> Result<()> {
        self.0.copy_to_worker_0(host, to).await
    }

    async fn recover(&self) -> Result<()> {
        self.0.recover().await
    }

    async fn shutdown(&self) -> Result<()> {
        self.0.shutdown().await
    }
}

#[test]
fn a_session_with_the_required_methods_has_all_others() {
    let own = Own(Builder::threads(3).start().unwrap());
    let session: &dyn Session = &own;
    block_on(async {
        let sums = session.call("own_session.add", (1, 2)).await?;
        session.set_each(&sums, |worker| 10 * worker.wire()).await?;
        let sums = session.call_each("own_session.add", |worker| (&sums, worker.wire())).await?;
        assert_eq!(session.get_all::<i64>(&sums).await?, [0, 11, 22]);
        assert_eq!(session.values(&sums).await?, [0, 11, 22].map(Value::Int));
        let some = session.call_on([2], "own_session.is_first", ()).await?;
        assert_eq!(session.get_all::<Option<bool>>(&some).await?, [None, None, Some(false)]);

        session.init_ccl("local", &[]).await?;
        let x = session.empty(DType::F64, [2], Placement::All).await?;
        session.broadcast(&Tensor::from_slice(&[1.5, 2.0], [2])?, &x).await?;
        session.all_reduce(&x, &x, Reduction::Sum, Scope::World).await?;
        for sum in session.get_all::<Tensor>(&x).await? {
            assert_eq!(sum.to_vec::<f64>()?, [4.5, 6.0]);
        }
        assert!(session.is_whole().await?);

        let refused = [
            session.cancel(&sums, "no need").unwrap_err(),
            session.replace_lost().await.unwrap_err(),
            session.resize(2).await.unwrap_err(),
        ];
        let expected = [
            "cancel: this session can't cancel calls",
            "replace_lost: this session can't start workers",
            "resize: this session can't start workers",
        ];
        assert_eq!(refused.map(|error| error.to_string()), expected);

        // An error of a worker is that of the default methods, too.
        session.call("own_session.add", ("one", 2)).await?;
        let error = session.sync_all().await.unwrap_err().to_string();
        assert!(error.starts_with("worker 0: own_session.add (command "), "{error}");
        session.recover().await?;
        session.sync_all().await?;
        session.shutdown().await
    })
    .unwrap();
}
