//! The page: its parts in order.

use super::measured::Measured;
use super::{bandwidths, device, imbalance, shares, waits};
use crate::calls::Calls;
use crate::drawing::{self, Text};
use crate::explain::{findings, head};
use crate::trace::Trace;

pub(super) fn page(trace: &Trace, measured: &[Measured]) -> String {
    let calls = Calls::of(trace);
    let (summary, findings) = (head(trace), findings(trace, &calls));
    let parts = [
        shares::section(trace),
        waits::section(trace, &calls),
        bandwidths::section(&calls, measured),
        device::section(trace, &calls),
        imbalance::section(trace, &calls),
    ];
    let body = format!(
        "<pre>{}</pre>\n<h2>Findings</h2>\n<pre>{}</pre>\n{}",
        Text(&summary),
        Text(&findings),
        parts.join("\n")
    );
    drawing::page(&format!("Trace of {}", trace.program), &body)
}
