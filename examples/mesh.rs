//! A layer that is split over the workers along one axis of a mesh, and data that is divided along the other:
//! `cargo run --example mesh`. With `-- --processes`, the workers are processes.
//!
//! ```text
//!          tp 0       tp 1       tp 2
//! dp 0     worker 0   worker 1   worker 2     rows 0, 2, ..  ─ sum along tp: the outputs of these rows
//! dp 1     worker 3   worker 4   worker 5     rows 1, 3, ..
//!             └─ mean along dp: the loss of all rows
//! ```

use disco::{Builder, CommunicatorExt, Mesh, Reduction, Result, Tensor, WorkerContext};

const ROWS: usize = 8;
const COLUMNS: usize = 12;

fn input(row: usize, column: usize) -> f64 {
    (row * 5 + column * 3) as f64 % 7.0 - 3.0
}

fn weight(column: usize) -> f64 {
    (column as f64 + 1.0) / 4.0
}

/// Worker function: the mean of the squares of x·w over all rows.
fn loss(ctx: &mut WorkerContext, mesh: Mesh) -> Result<f64> {
    let (rows, columns) = (mesh.size_of("dp")?, mesh.size_of("tp")?);
    let own_rows = (0..ROWS).skip(mesh.coordinate("dp", ctx.worker())?).step_by(rows);
    let own_columns = (0..COLUMNS).skip(mesh.coordinate("tp", ctx.worker())?).step_by(columns);
    let parts = own_rows.map(|row| own_columns.clone().map(|column| input(row, column) * weight(column)).sum());
    let outputs = Tensor::from_vec(parts.collect::<Vec<f64>>(), ROWS / rows)?;
    ctx.comm_in(&mesh.along(&["tp"])?)?.all_reduce_in_place(&outputs, Reduction::Sum)?;

    let outputs = outputs.to_vec::<f64>()?;
    let mean = outputs.iter().map(|y| y * y).sum::<f64>() / outputs.len() as f64;
    let loss = Tensor::from_vec(vec![mean], 1)?;
    ctx.comm_in(&mesh.along(&["dp"])?)?.all_reduce_in_place(&loss, Reduction::Avg)?;
    Ok(loss.to_vec::<f64>()?[0])
}

disco::register_function!("example.mesh_loss", loss);

fn main() -> Result<()> {
    disco::init();
    let mesh = Mesh::new([("dp", 2), ("tp", 3)])?;
    let is_process = std::env::args().any(|arg| arg == "--processes");
    let builder = if is_process { Builder::processes(mesh.size()) } else { Builder::threads(mesh.size()) };
    let session = builder.start()?;
    disco::block_on(async {
        session.init_ccl("local", &[]).await?;
        let losses = session.call("example.mesh_loss", (&mesh,)).await?;
        let losses: Vec<f64> = session.get_all(&losses).await?;
        let output = |row| (0..COLUMNS).map(|column| input(row, column) * weight(column)).sum::<f64>();
        let expected = (0..ROWS).map(|row| output(row).powi(2)).sum::<f64>() / ROWS as f64;
        assert!(losses.iter().all(|loss| (loss - expected).abs() < 1e-9), "{losses:?} differ from {expected}");
        println!("{mesh}: the loss is {expected:.4} on each of {} workers", losses.len());
        session.shutdown().await
    })
}
