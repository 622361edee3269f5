//! The page: its parts in order, its style.

use super::measured::Measured;
use super::svg::Text;
use super::{bandwidths, imbalance, shares, waits};
use crate::calls::Calls;
use crate::explain::{findings, head};
use crate::trace::Trace;

/// Colors as in the pictures of `disco plot`, which color-blind readers can distinguish.
const STYLE: &str = include_str!("style.css");

pub(super) fn page(trace: &Trace, measured: &[Measured]) -> String {
    let calls = Calls::of(trace);
    let program = Text(&trace.program);
    let (summary, findings) = (head(trace), findings(trace, &calls));
    let parts = [
        shares::section(trace),
        waits::section(trace, &calls),
        bandwidths::section(&calls, measured),
        imbalance::section(trace, &calls),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>Trace of {program}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Trace of {program}</h1>\n\
         <pre>{}</pre>\n<h2>Findings</h2>\n<pre>{}</pre>\n{}</body>\n</html>\n",
        Text(&summary),
        Text(&findings),
        parts.join("\n")
    )
}
