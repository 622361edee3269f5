//! The functions of MPI that this crate calls, with the handles of an ABI.

use std::ffi::{c_char, c_int, c_void};

/// Memory that is read.
type In = *const c_void;
/// Memory that is written.
type Out = *mut c_void;
/// A status, or the address of `MPI_STATUS_IGNORE`.
type Status = *mut c_void;
/// Callback when a communicator with an attribute is duplicated.
type Copied<H> = extern "C" fn(H, c_int, *mut c_void, *mut c_void, *mut c_void, *mut c_int) -> c_int;
/// Callback when an attribute is deleted.
type Freed<H> = extern "C" fn(H, c_int, *mut c_void, *mut c_void) -> c_int;

disco_dl::functions! {
    /// Functions that don't take handles.
    pub(crate) struct Early {
        get_library_version: c"MPI_Get_library_version"(*mut c_char, *mut c_int);
        get_version: c"MPI_Get_version"(*mut c_int, *mut c_int);
        initialized: c"MPI_Initialized"(*mut c_int);
        finalized: c"MPI_Finalized"(*mut c_int);
        init_thread: c"MPI_Init_thread"(*mut c_int, *mut c_void, c_int, *mut c_int);
        query_thread: c"MPI_Query_thread"(*mut c_int);
        finalize: c"MPI_Finalize"();
        error_string: c"MPI_Error_string"(c_int, *mut c_char, *mut c_int);
    }
}

disco_dl::functions! {
    /// Functions that take handles `H`.
    pub(crate) struct Table<H> {
        comm_rank: c"MPI_Comm_rank"(H, *mut c_int);
        comm_size: c"MPI_Comm_size"(H, *mut c_int);
        comm_dup: c"MPI_Comm_dup"(H, *mut H);
        comm_split: c"MPI_Comm_split"(H, c_int, c_int, *mut H);
        comm_group: c"MPI_Comm_group"(H, *mut H);
        comm_create_group: c"MPI_Comm_create_group"(H, H, c_int, *mut H);
        comm_free: c"MPI_Comm_free"(*mut H);
        comm_create_keyval: c"MPI_Comm_create_keyval"(Copied<H>, Freed<H>, *mut c_int, *mut c_void);
        comm_set_attr: c"MPI_Comm_set_attr"(H, c_int, *mut c_void);
        comm_set_errhandler: c"MPI_Comm_set_errhandler"(H, H);
        group_incl: c"MPI_Group_incl"(H, c_int, *const c_int, *mut H);
        group_free: c"MPI_Group_free"(*mut H);
        test: c"MPI_Test"(*mut H, *mut c_int, Status);
        testall: c"MPI_Testall"(c_int, *mut H, *mut c_int, Status);
        reduce_local: c"MPI_Reduce_local"(In, Out, c_int, H, H);
        get_count: c"MPI_Get_count"(*const c_void, H, *mut c_int);
        waitall: c"MPI_Waitall"(c_int, *mut H, Status);
        allreduce: c"MPI_Allreduce"(In, Out, c_int, H, H, H);
        iallreduce: c"MPI_Iallreduce"(In, Out, c_int, H, H, H, *mut H);
        reduce: c"MPI_Reduce"(In, Out, c_int, H, H, c_int, H);
        ireduce: c"MPI_Ireduce"(In, Out, c_int, H, H, c_int, H, *mut H);
        reduce_scatter_block: c"MPI_Reduce_scatter_block"(In, Out, c_int, H, H, H);
        ireduce_scatter_block: c"MPI_Ireduce_scatter_block"(In, Out, c_int, H, H, H, *mut H);
        allgather: c"MPI_Allgather"(In, c_int, H, Out, c_int, H, H);
        iallgather: c"MPI_Iallgather"(In, c_int, H, Out, c_int, H, H, *mut H);
        bcast: c"MPI_Bcast"(Out, c_int, H, c_int, H);
        ibcast: c"MPI_Ibcast"(Out, c_int, H, c_int, H, *mut H);
        gather: c"MPI_Gather"(In, c_int, H, Out, c_int, H, c_int, H);
        igather: c"MPI_Igather"(In, c_int, H, Out, c_int, H, c_int, H, *mut H);
        scatter: c"MPI_Scatter"(In, c_int, H, Out, c_int, H, c_int, H);
        iscatter: c"MPI_Iscatter"(In, c_int, H, Out, c_int, H, c_int, H, *mut H);
        alltoall: c"MPI_Alltoall"(In, c_int, H, Out, c_int, H, H);
        ialltoall: c"MPI_Ialltoall"(In, c_int, H, Out, c_int, H, H, *mut H);
        send: c"MPI_Send"(In, c_int, H, c_int, c_int, H);
        isend: c"MPI_Isend"(In, c_int, H, c_int, c_int, H, *mut H);
        recv: c"MPI_Recv"(Out, c_int, H, c_int, c_int, H, Status);
        irecv: c"MPI_Irecv"(Out, c_int, H, c_int, c_int, H, *mut H);
        barrier: c"MPI_Barrier"(H);
        ibarrier: c"MPI_Ibarrier"(H, *mut H);
    }
}
