//! Shared libraries.
pub mod abi;
mod call;
pub mod current;
mod decode;
mod encode;
mod foreign;
mod heap;
mod library;
mod raised;
mod raw;
mod stream;
mod table;
mod value;
