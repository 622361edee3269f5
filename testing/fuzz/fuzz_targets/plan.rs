//! The plan of a step of a server: bytes are refused, or the plan is the same after it was written and read again.

#![no_main]

use disco_models::Sampler;
use disco_models::serving::{Params, Plan, Row, Start, Tokens};

disco_fuzz::target!(check, seeds);

fn check(bytes: &[u8]) -> Result<(), String> {
    let plan = Plan::from_bytes(bytes)?;
    let written = plan.to_bytes()?;
    // As bytes: a number may be NaN.
    assert_eq!(Plan::from_bytes(&written)?.to_bytes()?, written);
    Ok(())
}

fn seeds() -> Vec<Vec<u8>> {
    let mut plan = Plan::new(7);
    let mut params = Params::new(Sampler::new(0.7, 0.9, 3));
    (params.bias, params.ends, params.logprobs) = (vec![(3, -1.5)], vec![2], Some(4));
    let mut first = Row::new(1, 0, Tokens::Given(vec![1, 2, 3, 4, 5]));
    (first.starts, first.blocks, first.samples) = (Some(Box::new(Start::new(params, 5))), vec![9], true);
    plan.rows = vec![first, Row::new(2, 40, Tokens::Last)];
    plan.to_bytes().into_iter().collect()
}
