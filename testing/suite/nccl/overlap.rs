//! The example `overlap`, which communicates blocks while it multiplies others.

#[path = "../../../examples/overlap/overlap.rs"]
mod example;

use disco::block_on;

use crate::on_the_double;
use crate::p2p::{call, sharing};

on_the_double!(
    overlapped_products_equal_those_without_overlap,
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
