//! The example of that name, whose blocks come and go while others are multiplied.

#[path = "../../examples/overlap/overlap.rs"]
mod example;

use disco::block_on;

use crate::on_the_double;
use crate::p2p::{call, sharing};

on_the_double!(
    products_with_communication_at_their_side_are_those_without,
    ["GPU_DOUBLE_DEVICES" = "8", "GPU_DOUBLE_DELAY_US" = "200"],
    {
        for workers in [2, 3, 8] {
            let session = sharing(workers);
            for _ in 0..2 {
                block_on(call(&session, "example.all_gather_matmul", (24, 16, 12))).unwrap();
                block_on(call(&session, "example.matmul_reduce_scatter", (8, 16, 12))).unwrap();
            }
        }
    }
);
