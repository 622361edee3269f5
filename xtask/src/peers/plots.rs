//! Pictures of the collectives, which `disco plot` draws.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};

use super::data::{Collective, Data, spread};
use super::programs::{self, Programs};
use crate::built::root;

/// Operations with a picture. The tables have all.
const DRAWN: [(&str, usize); 2] = [("all_reduce", 2), ("all_reduce", 4)];

/// Draws `docs/images/OPERATION-RANKS.svg`.
///
/// # Errors
/// `disco plot` fails.
pub(crate) fn draw(data: &Data, programs: &Programs) -> Result<()> {
    let folder = root().join("target/peers");
    for (operation, ranks) in DRAWN {
        let mut files: Vec<PathBuf> = Vec::new();
        for of in data.collectives.iter().filter(|of| of.operation == operation && of.ranks == ranks) {
            let file = folder.join(format!("plot-{}.json", files.len()));
            fs::write(&file, serde_json::to_vec(&report(of))?)?;
            files.push(file);
        }
        if !files.is_empty() {
            let picture = root().join(format!("docs/images/{operation}-{ranks}.svg"));
            programs::output(Command::new(&programs.disco).arg("plot").args(files).arg("--out").arg(picture))?;
        }
    }
    Ok(())
}

/// The medians in the form of `disco bench --json`.
fn report(of: &Collective) -> Value {
    let row = |bytes: u64, us: f64| {
        let algbw = bytes as f64 / us / 1e3;
        let busbw = algbw * 2.0 * (of.ranks - 1) as f64 / of.ranks as f64;
        let figures = json!({ "time_us": us, "algbw": algbw, "busbw": busbw, "wrong": null });
        json!({
            "size": bytes, "count": bytes / 4, "type": "f32", "redop": "sum", "root": null,
            "out_of_place": figures, "in_place": null,
        })
    };
    let medians = of.sizes.iter().filter_map(|size| Some((size.bytes, spread(size.us.iter().copied())?[0])));
    let (system, session) = of.system.split_once(", ").unwrap_or((&of.system, "processes"));
    json!({
        "version": "", "operation": of.operation, "backend": system, "library": "", "workers": of.ranks,
        "session": session, "cpus": 0, "hop_ns": [null, null],
        "rows": medians.map(|(bytes, us)| row(bytes, us)).collect::<Vec<_>>(),
    })
}
