//! The three ABIs: types of handles, and the constants that a program normally gets from `mpi.h`.

use std::ffi::{CStr, c_int};
use std::fmt::Debug;

use disco_core::{DType, Reduction};
use disco_dl::Library;

/// A handle of a communicator, group, datatype, operation, request or error handler.
pub(crate) trait Handle: Copy + Eq + Debug + Send + Sync + 'static {
    /// The handle with these bits, as the program passes it.
    fn from_bits(bits: usize) -> Self;
}

impl Handle for c_int {
    fn from_bits(bits: usize) -> Self {
        bits as Self
    }
}

/// A pointer, or a small constant of pointer size.
impl Handle for usize {
    fn from_bits(bits: usize) -> Self {
        bits
    }
}

/// An ABI.
pub(crate) trait Abi: Debug + Send + Sync + 'static {
    type Handle: Handle;
    /// The name for users.
    const NAME: &'static str;
    /// Size of an `MPI_Status` in bytes.
    const STATUS: usize;

    /// The constants of a library. `version` is the text of `MPI_Get_library_version`.
    ///
    /// # Errors
    /// The library lacks the symbol of a constant.
    fn constants(library: &Library, version: &str) -> Result<Constants<Self::Handle>, String>;
}

/// Constants of one library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Constants<H> {
    pub(crate) comm_world: H,
    pub(crate) comm_self: H,
    pub(crate) comm_null: H,
    pub(crate) request_null: H,
    pub(crate) errors_return: H,
    pub(crate) byte: H,
    pub(crate) numbers: Numbers<H>,
    pub(crate) sum: H,
    pub(crate) prod: H,
    pub(crate) min: H,
    pub(crate) max: H,
    pub(crate) lor: H,
    pub(crate) land: H,
    /// `MPI_IN_PLACE`, an address.
    pub(crate) in_place: usize,
    /// `MPI_STATUS_IGNORE` and `MPI_STATUSES_IGNORE`, addresses.
    pub(crate) status_ignore: usize,
    pub(crate) thread_serialized: c_int,
    pub(crate) thread_multiple: c_int,
}

impl<H: Copy> Constants<H> {
    /// The datatype and the operation of a reduction, if the library has both. An average uses the operation of a sum.
    pub(crate) fn reduction(&self, dtype: DType, reduction: Reduction) -> Option<(H, H)> {
        let number = self.numbers.get(if dtype == DType::Bool { DType::U8 } else { dtype })?;
        let function = match (dtype, reduction) {
            (DType::Bool, Reduction::Sum | Reduction::Max) => self.lor,
            (DType::Bool, _) => self.land,
            (_, Reduction::Sum | Reduction::Avg) => self.sum,
            (_, Reduction::Prod) => self.prod,
            (_, Reduction::Min) => self.min,
            (_, Reduction::Max) => self.max,
            _ => return None,
        };
        Some((number, function))
    }
}

/// Datatypes that every library can reduce: i8, u8, i16, u16, i32, u32, i64, u64, f32, f64.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers<H>(pub(crate) [H; 10]);

impl<H: Copy> Numbers<H> {
    /// The library's datatype of a dtype, if the library can reduce it.
    pub(crate) fn get(&self, dtype: DType) -> Option<H> {
        let index = match dtype {
            DType::I8 => 0,
            DType::U8 => 1,
            DType::I16 => 2,
            DType::U16 => 3,
            DType::I32 => 4,
            DType::U32 => 5,
            DType::I64 => 6,
            DType::U64 => 7,
            DType::F32 => 8,
            DType::F64 => 9,
            _ => return None,
        };
        Some(self.0[index])
    }
}

/// `MPI_UNDEFINED`, which is equal in all three ABIs.
pub(crate) const UNDEFINED: c_int = -32766;

/// The ABI of MPICH, Intel MPI, Cray MPI and MVAPICH.
#[derive(Debug)]
pub(crate) struct Mpich;

/// The ABI of Open MPI, whose constants are addresses of its variables.
#[derive(Debug)]
pub(crate) struct OpenMpi;

/// The standard ABI of MPI 5.0.
#[derive(Debug)]
pub(crate) struct Standard;

impl Abi for Mpich {
    type Handle = c_int;
    const NAME: &'static str = "MPICH";
    const STATUS: usize = 20;

    fn constants(_: &Library, _: &str) -> Result<Constants<c_int>, String> {
        Ok(Constants {
            comm_world: 0x4400_0000,
            comm_self: 0x4400_0001,
            comm_null: 0x0400_0000,
            request_null: 0x2c00_0000,
            errors_return: 0x5400_0001,
            byte: 0x4c00_010d,
            numbers: Numbers([
                0x4c00_0137,
                0x4c00_013b,
                0x4c00_0238,
                0x4c00_023c,
                0x4c00_0439,
                0x4c00_043d,
                0x4c00_083a,
                0x4c00_083e,
                0x4c00_040a,
                0x4c00_080b,
            ]),
            sum: 0x5800_0003,
            prod: 0x5800_0004,
            min: 0x5800_0002,
            max: 0x5800_0001,
            lor: 0x5800_0007,
            land: 0x5800_0005,
            in_place: usize::MAX,
            status_ignore: 1,
            thread_serialized: 2,
            thread_multiple: 3,
        })
    }
}

impl Abi for OpenMpi {
    type Handle = usize;
    const NAME: &'static str = "Open MPI";
    const STATUS: usize = 24;

    fn constants(library: &Library, _: &str) -> Result<Constants<usize>, String> {
        let address = |symbol: &CStr| {
            let found = library.address(symbol).map(|address| address.expose_provenance());
            found.ok_or_else(|| format!("it lacks {}", symbol.to_string_lossy()))
        };
        Ok(Constants {
            comm_world: address(c"ompi_mpi_comm_world")?,
            comm_self: address(c"ompi_mpi_comm_self")?,
            comm_null: address(c"ompi_mpi_comm_null")?,
            request_null: address(c"ompi_request_null")?,
            errors_return: address(c"ompi_mpi_errors_return")?,
            byte: address(c"ompi_mpi_byte")?,
            numbers: Numbers([
                address(c"ompi_mpi_int8_t")?,
                address(c"ompi_mpi_uint8_t")?,
                address(c"ompi_mpi_int16_t")?,
                address(c"ompi_mpi_uint16_t")?,
                address(c"ompi_mpi_int32_t")?,
                address(c"ompi_mpi_uint32_t")?,
                address(c"ompi_mpi_int64_t")?,
                address(c"ompi_mpi_uint64_t")?,
                address(c"ompi_mpi_float")?,
                address(c"ompi_mpi_double")?,
            ]),
            sum: address(c"ompi_mpi_op_sum")?,
            prod: address(c"ompi_mpi_op_prod")?,
            min: address(c"ompi_mpi_op_min")?,
            max: address(c"ompi_mpi_op_max")?,
            lor: address(c"ompi_mpi_op_lor")?,
            land: address(c"ompi_mpi_op_land")?,
            in_place: 1,
            status_ignore: 0,
            thread_serialized: 2,
            thread_multiple: 3,
        })
    }
}

impl Abi for Standard {
    type Handle = usize;
    const NAME: &'static str = "MPI 5 standard";
    const STATUS: usize = 32;

    fn constants(_: &Library, version: &str) -> Result<Constants<usize>, String> {
        // Intel MPI has exchanged the values of MPI_ERRORS_RETURN and MPI_ERRORS_ABORT.
        let errors_return = if version.starts_with("Intel(R) MPI") { 0x142 } else { 0x143 };
        Ok(Constants {
            comm_world: 0x101,
            comm_self: 0x102,
            comm_null: 0x100,
            request_null: 0x180,
            errors_return,
            byte: 0x247,
            numbers: Numbers([0x240, 0x241, 0x248, 0x249, 0x250, 0x251, 0x258, 0x259, 0x210, 0x214]),
            sum: 0x21,
            prod: 0x24,
            min: 0x22,
            max: 0x23,
            lor: 0x31,
            land: 0x30,
            in_place: 1,
            status_ignore: 0,
            thread_serialized: 2048,
            thread_multiple: 4096,
        })
    }
}
