//! Attention beside loops in f64, on the host and by the kernels of devices.

#[cfg(target_os = "linux")]
mod kernels;

use std::ops::Range;

use candle_core::{DType, Device, Shape, Tensor};
use half::{bf16, f16};

use super::{BLOCK, Plan, Run, Scope, Sinks, Sizes, attention, host};
use crate::products::Level;

/// Queries of a batch, and the memory of a layer. Slots that no token has written are NaN.
#[derive(Debug)]
struct Case {
    runs: Vec<Run>,
    groups: Vec<Range<usize>>,
    dtype: DType,
    width: usize,
    blocks: usize,
    window: Option<usize>,
    cap: Option<f64>,
    /// One for each head.
    sinks: Option<Sinks>,
    /// `[heads, tokens, width]`; the other ones are `[blocks, kv heads, 16, width]`. All are numbers of `dtype`.
    query: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// The sizes of a case.
#[derive(Clone, Copy, Debug)]
struct Shapes {
    dtype: DType,
    width: usize,
    /// The number of query heads of each kv head.
    groups: &'static [usize],
    window: Option<usize>,
    cap: Option<f64>,
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    /// A number of the type between -1 and 1.
    fn number(&mut self, dtype: DType) -> f32 {
        rounded((self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0, dtype)
    }
}

fn rounded(x: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(x).to_f32(),
        DType::BF16 => bf16::from_f32(x).to_f32(),
        _ => x,
    }
}

impl Case {
    /// Runs of these first positions and counts. Their blocks lie anywhere, and each second run begins with a block of the
    /// run before it, if both are long enough.
    fn new(shapes: Shapes, runs: &[(usize, usize)], random: &mut Random) -> Self {
        let Shapes { dtype, width, groups, window, cap } = shapes;
        let mut heads = 0;
        let groups = groups.iter().map(|count| {
            heads += count;
            heads - count..heads
        });
        let groups: Vec<_> = groups.collect();
        let blocks = runs.iter().map(|(first, count)| (first + count).div_ceil(BLOCK)).sum::<usize>() + 2;
        let mut free: Vec<_> = (0..blocks as u32).collect();
        let mut all: Vec<Run> = Vec::new();
        for (number, (first, count)) in runs.iter().copied().enumerate() {
            let mut take = || free.swap_remove(random.below(free.len()));
            let mut table: Vec<_> = (0..(first + count).div_ceil(BLOCK)).map(|_| take()).collect();
            let before = all.last().filter(|before| number % 2 == 1 && before.first + before.count >= BLOCK);
            if let Some(before) = before.filter(|_| first >= BLOCK) {
                table[0] = before.table[0];
            }
            all.push(Run::new(first, count, table));
        }
        let tokens: usize = all.iter().map(|run| run.count).sum();
        let query = (0..heads * tokens * width).map(|_| random.number(dtype)).collect();
        let mut memory = || {
            let mut memory = vec![f32::NAN; blocks * groups.len() * BLOCK * width];
            for run in &all {
                for position in 0..run.first + run.count {
                    for kv in 0..groups.len() {
                        let row = ((run.table[position / BLOCK] as usize * groups.len() + kv) * BLOCK
                            + position % BLOCK)
                            * width;
                        memory[row..row + width].fill_with(|| random.number(dtype));
                    }
                }
            }
            memory
        };
        let (keys, values) = (memory(), memory());
        Self { runs: all, groups, dtype, width, blocks, window, cap, sinks: None, query, keys, values }
    }

    /// The same with a sink for each head.
    fn with_sinks(self, random: &mut Random) -> Self {
        let heads = self.groups.last().map_or(0, |group| group.end);
        let values = (0..heads).map(|_| 3.0 * random.number(DType::F32)).collect();
        Self { sinks: Some(Sinks::new(values, &Device::Cpu).unwrap()), ..self }
    }

    fn plan(&self) -> Plan<'_> {
        Plan::new(&self.runs, &self.groups).unwrap()
    }

    fn scope<'a>(&'a self, plan: &'a Plan<'a>) -> Scope<'a> {
        Scope { window: self.window, cap: self.cap, sinks: self.sinks.as_ref(), ..Scope::new(plan) }
    }

    fn sizes(&self) -> Sizes {
        let range = |x: &Vec<f32>| (0, x.len());
        let ranges = [&self.query, &self.keys, &self.values].map(range);
        Sizes { kv_heads: self.groups.len(), width: self.width, ranges }
    }

    /// Fails unless `found` is what loops in f64 give.
    fn check(&self, found: &[f32], what: &str) {
        let difference = self.difference(found);
        assert!(difference.is_none(), "{what}: {difference:?}");
    }

    /// The first difference between `found` and what loops in f64 give.
    fn difference(&self, found: &[f32]) -> Option<String> {
        let (kv_heads, width, plan) = (self.groups.len(), self.width, self.plan());
        assert_eq!(found.len(), self.query.len());
        let mut place = 0;
        for run in &self.runs {
            for position in run.first..run.first + run.count {
                for (kv, head) in
                    self.groups.iter().enumerate().flat_map(|(kv, group)| group.clone().map(move |h| (kv, h)))
                {
                    let row = |memory: &'_ [f32], at: usize| -> Vec<f64> {
                        let block = run.table[at / BLOCK] as usize;
                        let start = ((block * kv_heads + kv) * BLOCK + at % BLOCK) * width;
                        memory[start..start + width].iter().copied().map(f64::from).collect()
                    };
                    let start = (head * plan.tokens + place) * width;
                    let query = &self.query[start..start + width];
                    let lowest = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
                    let sink = self.sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks.values[head]).exp());
                    let (mut total, mut sums) = (sink, vec![0.0; width]);
                    for at in lowest..=position {
                        let score: f64 = row(&self.keys, at).iter().zip(query).map(|(k, q)| k * f64::from(*q)).sum();
                        let share = self.cap.map_or(score, |cap| (score / cap).tanh() * cap).exp();
                        total += share;
                        sums.iter_mut().zip(row(&self.values, at)).for_each(|(sum, value)| *sum += share * value);
                    }
                    let bits = match self.dtype {
                        DType::F16 => -11,
                        DType::BF16 => -8,
                        _ => -24,
                    };
                    for (found, sum) in found[start..start + width].iter().zip(sums) {
                        let (found, expected) = (f64::from(*found), sum / total);
                        let allowed = 2e-5 + expected.abs() * f64::powi(2.0, bits);
                        // NaN is not close.
                        let is_close = (found - expected).abs() <= allowed;
                        if !is_close {
                            let Self { dtype, window, cap, .. } = self;
                            return Some(format!(
                                "{found} instead of {expected}: head {head}, position {position}, width {width}, {dtype:?}, \
                                 window {window:?}, cap {cap:?}"
                            ));
                        }
                    }
                }
                place += 1;
            }
        }
        None
    }
}

#[test]
fn attention_on_the_host_is_that_of_loops_in_f64() {
    let random = &mut Random(1);
    for width in [4, 24, 64] {
        for (window, cap) in [(None, None), (Some(7), None), (Some(17), Some(0.8))] {
            for dtype in [DType::F32, DType::F16, DType::BF16] {
                let shapes = Shapes { dtype, width, groups: &[2, 3], window, cap };
                let case = Case::new(shapes, &[(0, 37), (20, 1), (15, 3)], random);
                let case = if width == 24 { case.with_sinks(random) } else { case };
                let plan = case.plan();
                let scope = case.scope(&plan);
                let (query, memory) = ((1, plan.heads, plan.tokens, width), (case.blocks, 2, BLOCK, width));
                let tensor = |x: &[f32], shape: Shape| {
                    Tensor::from_slice(x, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
                };
                let [keys, values] = [&case.keys, &case.values].map(|x| tensor(x, memory.into()));
                let found = attention(&tensor(&case.query, query.into()), &keys, &values, scope).unwrap();
                let found = found.to_dtype(DType::F32).unwrap().flatten_all().unwrap();
                case.check(&found.to_vec1::<f32>().unwrap(), "tensors");
                if dtype == DType::F32 {
                    let [plain, best] = [Level::Scalar, Level::detect()].map(|level| {
                        let elements = case.sizes().elements([&case.query, &case.keys, &case.values]);
                        host::compute(&scope, level, &elements, |x| x)
                    });
                    case.check(&best, "vectors");
                    assert!(
                        plain.iter().map(|x| x.to_bits()).eq(best.iter().map(|x| x.to_bits())),
                        "the levels differ"
                    );
                }
            }
        }
    }
}

#[test]
fn tensors_of_other_shapes_than_the_plan_are_errors() {
    let runs = [Run::new(0, 2, vec![3])];
    let plan = Plan::new(&runs, &[0..1, 1..2]).unwrap();
    let zeros = |shape: [usize; 4]| Tensor::zeros(&shape, DType::F32, &Device::Cpu).unwrap();
    let error = |query, memory| {
        let memory = zeros(memory);
        attention(&zeros(query), &memory, &memory, Scope::new(&plan)).unwrap_err().to_string()
    };
    for (query, memory) in [
        ([1, 2, 3, 8], [4, 2, 16, 8]),
        ([1, 3, 2, 8], [4, 2, 16, 8]),
        ([1, 2, 2, 8], [3, 2, 16, 8]),
        ([1, 2, 2, 8], [4, 1, 16, 8]),
        ([1, 2, 2, 8], [4, 2, 16, 4]),
    ] {
        let error = error(query, memory);
        assert!(error.contains("the plan has 2 tokens, 2 heads, 2 kv heads and 4 blocks"), "{error}");
    }
}
