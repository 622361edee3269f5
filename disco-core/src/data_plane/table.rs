//! Table of the worker functions of the data plane. Workers register the functions, and sessions call them, under the
//! names of this table.

/// Passes all rows of the table to the macro `$make`. A row is `Variant function_of_the_worker`.
macro_rules! data_plane_functions {
    ($make:ident) => {
        $make! {
            InitCcl init_ccl,
            IsWhole is_whole,
            Empty empty,
            BroadcastFrom broadcast_from,
            ScatterFrom scatter_from,
            GatherTo gather_to,
            Reduce reduce,
            AllReduce all_reduce,
            AllGather all_gather,
            AllGatherV all_gather_v,
            ReduceScatter reduce_scatter,
            AllToAll all_to_all,
            AllToAllV all_to_all_v,
            Barrier barrier,
            SendToNextGroup send_to_next_group,
            RecvFromPrevGroup recv_from_prev_group,
            SendToWorker send_to_worker,
            RecvFromWorker recv_from_worker,
        }
    };
}
pub(super) use data_plane_functions;

macro_rules! names {
    ($($variant:ident $function:ident,)*) => {
        /// A worker function of the data plane.
        #[derive(Clone, Copy, Debug)]
        pub(super) enum PlaneFunction {
            $($variant,)*
        }

        impl PlaneFunction {
            /// The name for messages.
            pub(super) const fn method(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($function),)*
                }
            }

            /// The name that the function is registered under.
            pub(super) const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => concat!("disco.", stringify!($function)),)*
                }
            }
        }

        /// Whether the data plane has a worker function of this name. Its functions need workers of Disco.
        pub fn is_data_plane_function(name: &str) -> bool {
            [$(PlaneFunction::$variant.name()),*].contains(&name)
        }
    };
}

data_plane_functions!(names);
