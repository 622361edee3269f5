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

/// Defines the variables that are numbers: the field, the name and the default of each.
macro_rules! numbers {
    ($($(#[$doc:meta])* $field:ident: $name:literal = $default:expr;)*) => {
        /// The values of the variables.
        #[derive(Debug)]
        pub(crate) struct Settings {
            $($(#[$doc])* $field: AtomicU64,)*
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
        }
    };
}

numbers! {
    devices: "GPU_DOUBLE_DEVICES" = 4;
    memory: "GPU_DOUBLE_MEMORY" = 1 << 30;
    nccl_version: "GPU_DOUBLE_NCCL_VERSION" = 22809;
    driver: "GPU_DOUBLE_DRIVER" = 13000;
    hip: "GPU_DOUBLE_HIP" = 60_342_131;
    init: "GPU_DOUBLE_INIT" = 0;
    connect: "GPU_DOUBLE_CONNECT" = 0;
    delay_us: "GPU_DOUBLE_DELAY_US" = 0;
    remote_errors: "GPU_DOUBLE_REMOTE_ERRORS" = 0;
    /// The number of the [`Machine`].
    nvlink: "GPU_DOUBLE_NVLINK" = Machine::Pcie as u64;
    peer_access: "GPU_DOUBLE_PEER_ACCESS" = 1;
    peer_frees: "GPU_DOUBLE_PEER_FREES" = 1;
    priorities: "GPU_DOUBLE_PRIORITIES" = 1;
    cuda_queues: "CUDA_DEVICE_MAX_CONNECTIONS" = 8;
    hip_queues: "GPU_MAX_HW_QUEUES" = 4;
    signal_memory: "GPU_STREAMOPS_CP_WAIT" = 0;
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

    /// Number of devices.
    pub(crate) fn devices(&self) -> usize {
        self.devices.load(Relaxed) as usize
    }

    /// Bytes of memory of each device.
    pub(crate) fn memory(&self) -> usize {
        self.memory.load(Relaxed) as usize
    }

    /// Result of `ncclGetVersion`.
    pub(crate) fn nccl_version(&self) -> i32 {
        self.nccl_version.load(Relaxed) as i32
    }

    /// Result of `cuDriverGetVersion`.
    pub(crate) fn driver(&self) -> i32 {
        self.driver.load(Relaxed) as i32
    }

    /// Result of `hipRuntimeGetVersion`.
    pub(crate) fn hip(&self) -> i32 {
        self.hip.load(Relaxed) as i32
    }

    /// Return code of `cuInit`, and of HIP's functions that need a device.
    pub(crate) fn init(&self) -> i32 {
        self.init.load(Relaxed) as i32
    }

    /// Whether all units of a non-blocking communicator are launched in the background, as NCCL does since 2.22.3 with
    /// a thread for each launch. Otherwise only units that connect ranks are.
    pub(crate) fn launches_in_background(&self) -> bool {
        match self.connect.load(Relaxed) {
            0 => self.nccl_version() >= 22_203,
            setting => setting > 1,
        }
    }

    /// Whether the abort of a rank becomes an error of its peers.
    pub(crate) fn remote_errors(&self) -> bool {
        self.remote_errors.load(Relaxed) != 0
    }

    /// The machine that NVML reports.
    pub(crate) fn machine(&self) -> Machine {
        Machine::numbered(self.nvlink.load(Relaxed))
    }

    /// Whether devices can access each other's memory.
    pub(crate) fn peer_access(&self) -> bool {
        self.peer_access.load(Relaxed) != 0
    }

    /// Whether frees also wait for the work of peers.
    pub(crate) fn peer_frees(&self) -> bool {
        self.peer_frees.load(Relaxed) != 0
    }

    /// Whether streams can have a priority other than the default.
    pub(crate) fn priorities(&self) -> bool {
        self.priorities.load(Relaxed) != 0
    }

    /// Hardware queues that the ordinary streams of a device share in CUDA.
    pub(crate) fn cuda_queues(&self) -> usize {
        self.cuda_queues.load(Relaxed) as usize
    }

    /// Hardware queues that the ordinary streams of a device share in HIP.
    pub(crate) fn hip_queues(&self) -> usize {
        self.hip_queues.load(Relaxed) as usize
    }

    /// Whether HIP's streams can wait for words in signal memory only.
    pub(crate) fn waits_in_signal_memory(&self) -> bool {
        self.signal_memory.load(Relaxed) != 0
    }

    /// Sleeps for the minimum duration of stream work, which is 0 by default.
    pub(crate) fn delay(&self) {
        self.delay_at_least(0);
    }

    /// Sleeps for that duration, or for `least_us` microseconds if this is longer.
    pub(crate) fn delay_at_least(&self, least_us: u64) {
        let delay = self.delay_us.load(Relaxed).max(least_us);
        if delay != 0 {
            thread::sleep(Duration::from_micros(delay));
        }
    }
}
