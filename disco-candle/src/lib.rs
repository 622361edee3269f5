//! Models of [candle](candle_core) on Disco.

mod collective;
mod comm;
#[cfg(feature = "cuda")]
mod cuda;
mod dimension;
mod error;
mod heads;
mod lend;
mod linear;
mod matrix;
mod threads;
mod vocabulary;
pub mod weights;

pub use comm::{Comm, Stats};
pub use error::{find_disco_error, to_candle};
pub use heads::HeadPlan;
pub use linear::{ColumnParallelLinear, RowParallelLinear};
pub use matrix::Matrix;
pub use threads::compute_threads;
pub use vocabulary::{VocabParallelEmbedding, VocabParallelLogits};
