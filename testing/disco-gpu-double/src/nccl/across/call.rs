//! A call of a communication function, in the form that a rank sends to the host.

use serde::{Deserialize, Serialize};

use crate::cuda::location::Location;
use crate::nccl::abi::{DataType, RedOp};
use crate::nccl::call::{Call, Kind};
use crate::nccl::reduce::{Operation, Scalar, Source};

/// A call that refers to memory by locations, which another process can open.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct SentCall {
    kind: Kind,
    send: Option<Location>,
    recv: Option<Location>,
    count: usize,
    dtype: DataType,
    operation: SentOperation,
    root: usize,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
enum SentOperation {
    Built(RedOp),
    /// `ncclRedOpCreatePreMulSum` with the value of the scalar.
    HostScalar(DataType, Vec<u8>),
    /// `ncclRedOpCreatePreMulSum` with a scalar in device memory, which is read when the collective runs.
    DeviceScalar(DataType, Location),
}

impl SentCall {
    /// Makes the sent form of a call of this process. `None` if other processes can't open its memory.
    pub(crate) fn of(call: &Call) -> Option<Self> {
        let locate = |span: &Option<_>| span.as_ref().map_or(Some(None), |span| Location::of(span).map(Some));
        let operation = match &call.operation {
            Operation::Built(op) => SentOperation::Built(*op),
            Operation::PreMulSum(Scalar { dtype, source: Source::Host(bytes) }) => {
                SentOperation::HostScalar(*dtype, bytes.clone())
            }
            Operation::PreMulSum(Scalar { dtype, source: Source::Device(span) }) => {
                SentOperation::DeviceScalar(*dtype, Location::of(span)?)
            }
        };
        let Call { kind, count, dtype, root, .. } = *call;
        Some(Self { kind, send: locate(&call.send)?, recv: locate(&call.recv)?, count, dtype, operation, root })
    }

    /// Opens the memory of a received call, for the proxy. `None` if this fails.
    pub(crate) fn open(&self) -> Option<Call> {
        let open = |location: &Option<Location>| location.map_or(Some(None), |location| location.open().map(Some));
        let operation = match &self.operation {
            SentOperation::Built(op) => Operation::Built(*op),
            SentOperation::HostScalar(dtype, bytes) => {
                Operation::PreMulSum(Scalar { dtype: *dtype, source: Source::Host(bytes.clone()) })
            }
            SentOperation::DeviceScalar(dtype, location) => {
                Operation::PreMulSum(Scalar { dtype: *dtype, source: Source::Device(location.open()?) })
            }
        };
        let (send, recv) = (open(&self.send)?, open(&self.recv)?);
        let Self { kind, count, dtype, root, .. } = *self;
        Some(Call { kind, send, recv, count, dtype, operation, root, launched: 0, fault: None })
    }
}
