//! Metrics of commands, calls, waits and operations, for the recorder that the program has installed (crate `metrics`,
//! feature `metrics`). Without the feature, the functions do nothing and take no time.
//!
//! The guide's chapter on status and metrics is the table of names, labels and units.

#[cfg_attr(not(feature = "metrics"), path = "off.rs")]
mod record;

pub(crate) use self::record::{Calls, Running, Wait, command, describe, failure, loss, replaced};

/// Upper bounds of buckets, in seconds, that suit the histograms of Disco: from 5 µs to 5 minutes.
#[cfg(feature = "metrics")]
pub const SECONDS_BUCKETS: [f64; 17] =
    [5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25, 1.0, 5.0, 30.0, 300.0];
