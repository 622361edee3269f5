//! Weights of TVM's models: `tensor-cache.json` with its files, and the shards of each worker.

mod cache;
mod info;
mod loader;
mod read;

pub use loader::{ShardLoader, Shards};
