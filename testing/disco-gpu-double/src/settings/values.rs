//! The variables of the double. The crate's documentation has a table of them.

use std::env;
use std::process;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use super::{Machine, faults};

/// The settings, which are read from the environment at their first use.
static SETTINGS: LazyLock<Settings> = LazyLock::new(Settings::from_env);

/// Defines the variables that are numbers: the method that reads it, its type, the name and the default of each.
macro_rules! numbers {
    ($($(#[$doc:meta])* $field:ident: $type:ty, $name:literal = $default:expr;)*) => {
        /// The values of the variables.
        #[derive(Debug)]
        pub(crate) struct Settings {
            $($field: AtomicU64,)*
        }

        /// The names of all variables.
        const NAMES: &[&str] = &[$($name,)* FAULTS];

        impl Settings {
            fn new() -> Self {
                Self { $($field: AtomicU64::new($default),)* }
            }

            /// The number of a variable.
            fn number(&self, name: &str) -> Option<&AtomicU64> {
                match name {
                    $($name => Some(&self.$field),)*
                    _ => None,
                }
            }

            $(
                $(#[$doc])*
                pub(crate) fn $field(&self) -> $type {
                    <$type>::of(self.$field.load(Relaxed))
                }
            )*
        }
    };
}

/// What the number of a variable means.
trait Meaning {
    fn of(number: u64) -> Self;
}

macro_rules! meanings {
    ($($type:ty: |$number:ident| $value:expr;)*) => {
        $(impl Meaning for $type {
            fn of($number: u64) -> Self {
                $value
            }
        })*
    };
}

meanings! {
    bool: |number| number != 0;
    i32: |number| number as i32;
    u64: |number| number;
    usize: |number| number as usize;
    Machine: |number| Machine::numbered(number);
}

numbers! {
    /// Number of devices.
    devices: usize, "GPU_DOUBLE_DEVICES" = 4;
    /// Bytes of memory of each device.
    memory: usize, "GPU_DOUBLE_MEMORY" = 1 << 30;
    /// Result of `ncclGetVersion`.
    nccl_version: i32, "GPU_DOUBLE_NCCL_VERSION" = 22809;
    /// Result of `cuDriverGetVersion`.
    driver: i32, "GPU_DOUBLE_DRIVER" = 13000;
    /// Result of `hipRuntimeGetVersion`.
    hip: i32, "GPU_DOUBLE_HIP" = 60_342_131;
    /// Return code of `cuInit`, and of HIP's functions that need a device.
    init: i32, "GPU_DOUBLE_INIT" = 0;
    /// Which units of a non-blocking communicator are launched in the background.
    connect: u64, "GPU_DOUBLE_CONNECT" = 0;
    /// Minimum duration of stream work in microseconds.
    delay_us: u64, "GPU_DOUBLE_DELAY_US" = 0;
    /// Whether the abort of a rank becomes an error of its peers.
    remote_errors: bool, "GPU_DOUBLE_REMOTE_ERRORS" = 0;
    /// The machine that NVML reports.
    machine: Machine, "GPU_DOUBLE_NVLINK" = Machine::Pcie as u64;
    /// Whether devices can access each other's memory.
    peer_access: bool, "GPU_DOUBLE_PEER_ACCESS" = 1;
    /// Whether frees also wait for the work of peers.
    peer_frees: bool, "GPU_DOUBLE_PEER_FREES" = 1;
    /// Whether streams can have a priority other than the default.
    priorities: bool, "GPU_DOUBLE_PRIORITIES" = 1;
    /// Hardware queues that the ordinary streams of a device share in CUDA.
    cuda_queues: usize, "CUDA_DEVICE_MAX_CONNECTIONS" = 8;
    /// Hardware queues that the ordinary streams of a device share in HIP.
    hip_queues: usize, "GPU_MAX_HW_QUEUES" = 4;
    /// Whether HIP's streams can wait for words in signal memory only.
    waits_in_signal_memory: bool, "GPU_STREAMOPS_CP_WAIT" = 0;
}

/// The variable with the rules of faults.
const FAULTS: &str = "GPU_DOUBLE_FAULTS";
/// The variable with the name of the [`Machine`].
const NVLINK: &str = "GPU_DOUBLE_NVLINK";

/// The settings.
pub(crate) fn read() -> &'static Settings {
    &SETTINGS
}

/// Sets a variable. Returns false if the variable does not exist or the value is invalid.
pub(crate) fn set(name: &str, value: &str) -> bool {
    SETTINGS.set(name, value)
}

impl Settings {
    fn from_env() -> Self {
        let settings = Self::new();
        for name in NAMES {
            let Ok(value) = env::var(name) else { continue };
            if !settings.set(name, &value) {
                // A test that continued without its settings or faults could pass for the wrong reason.
                eprintln!("gpu double: {name} has the invalid value {value:?}");
                process::abort();
            }
        }
        settings
    }

    fn set(&self, name: &str, value: &str) -> bool {
        let value = value.trim();
        let number = match name {
            FAULTS => return faults::set(value),
            NVLINK => Machine::named(value).map(|machine| machine as u64),
            _ => value.parse().ok(),
        };
        let (Some(at), Some(number)) = (self.number(name), number) else { return false };
        at.store(number, Relaxed);
        true
    }

    /// Whether all units of a non-blocking communicator are launched in the background, as NCCL does since 2.22.3 with
    /// a thread for each launch. Otherwise only units that connect ranks are.
    pub(crate) fn launches_in_background(&self) -> bool {
        match self.connect() {
            0 => self.nccl_version() >= 22_203,
            setting => setting > 1,
        }
    }

    /// Sleeps for the minimum duration of stream work, which is 0 by default.
    pub(crate) fn delay(&self) {
        self.delay_at_least(0);
    }

    /// Sleeps for that duration, or for `least_us` microseconds if this is longer.
    pub(crate) fn delay_at_least(&self, least_us: u64) {
        let delay = self.delay_us().max(least_us);
        if delay != 0 {
            thread::sleep(Duration::from_micros(delay));
        }
    }
}
