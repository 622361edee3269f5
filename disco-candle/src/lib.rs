//! Models of [candle](candle_core) on Disco.

pub mod weights;
