//! Sharded weights: every part equals the slice of candle's own full read, each rank reads its own bytes alone, and bad
//! files are errors with a text.

mod bytes;
mod damage;
mod faults;
mod files;
mod gguf_faults;
mod parts;
mod plans;
mod runs;
mod saved;
