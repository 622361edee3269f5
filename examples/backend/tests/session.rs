//! A program that uses the backend.

use disco::{Builder, DType, Placement, Reduction, Result, Scope, Tensor};
use disco_mailbox as _;

#[test]
fn all_reduce_adds_up_the_tensors_of_three_workers() -> Result<()> {
    let session = Builder::threads(3).start()?;
    disco::block_on(async {
        session.init_ccl("mailbox", &[]).await?;
        let x = session.empty(DType::F32, [2], Placement::All).await?;
        session.broadcast(&Tensor::from_slice(&[1f32, 2.0], [2])?, &x).await?;
        session.all_reduce(&x, &x, Reduction::Sum, Scope::World).await?;
        for sum in session.get_all::<Tensor>(&x).await? {
            assert_eq!(sum.to_vec::<f32>()?, [3.0, 6.0]);
        }
        session.shutdown().await
    })
}
