//! A call of a communication function, in the form that a rank sends to the host.

use super::wire::{Reader, Writer};
use crate::cuda::arena::BlockLocator;
use crate::cuda::location::Location;
use crate::nccl::abi::{DataType, RedOp};
use crate::nccl::call::{Call, Kind};
use crate::nccl::reduce::{Operation, Scalar, Source};

/// A kind is sent as its index in this list.
const KINDS: [Kind; 10] = [
    Kind::AllReduce,
    Kind::Reduce,
    Kind::ReduceScatter,
    Kind::AllGather,
    Kind::Broadcast,
    Kind::AlltoAll,
    Kind::Gather,
    Kind::Scatter,
    Kind::Send,
    Kind::Recv,
];

/// A call that refers to memory by locations, which another process can open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentCall {
    kind: Kind,
    send: Option<Location>,
    recv: Option<Location>,
    count: usize,
    dtype: DataType,
    operation: SentOperation,
    root: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
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

    /// Appends the call to a frame.
    pub(crate) fn write(&self, to: &mut Writer) {
        let kind = KINDS.iter().position(|&kind| kind == self.kind).unwrap_or(KINDS.len());
        to.word(kind as u64).word(self.count as u64).signed(self.dtype.0).word(self.root as u64);
        write_location(self.send.as_ref(), to);
        write_location(self.recv.as_ref(), to);
        match &self.operation {
            SentOperation::Built(op) => _ = to.word(0_u64).signed(op.0),
            SentOperation::HostScalar(dtype, bytes) => _ = to.word(1_u64).signed(dtype.0).bytes(bytes),
            SentOperation::DeviceScalar(dtype, location) => {
                to.word(2_u64).signed(dtype.0);
                write_location(Some(location), to);
            }
        }
    }

    /// Reads the next call of a frame.
    pub(crate) fn read(from: &mut Reader<'_>) -> Option<Self> {
        let kind = *KINDS.get(from.index()?)?;
        let (count, dtype, root) = (from.index()?, DataType(from.signed()?), from.index()?);
        let (send, recv) = (read_location(from)?, read_location(from)?);
        let operation = match from.word()? {
            0 => SentOperation::Built(RedOp(from.signed()?)),
            1 => SentOperation::HostScalar(DataType(from.signed()?), from.bytes()?.to_vec()),
            2 => SentOperation::DeviceScalar(DataType(from.signed()?), read_location(from)??),
            _ => return None,
        };
        Some(Self { kind, send, recv, count, dtype, operation, root })
    }
}

/// Appends a flag, and the location if there is one.
fn write_location(location: Option<&Location>, to: &mut Writer) {
    let Some(Location { process, device, locator, offset, bytes }) = location else {
        to.word(0_u64);
        return;
    };
    to.word(1_u64).word(*process).word(*device).word(*offset).word(*bytes);
    to.word(locator.file).word(locator.offset).word(locator.bytes).word(locator.stamp);
}

fn read_location(from: &mut Reader<'_>) -> Option<Option<Location>> {
    if from.word()? == 0 {
        return Some(None);
    }
    let (process, device) = (from.word()?.try_into().ok()?, from.word()?.try_into().ok()?);
    let (offset, bytes) = (from.word()?, from.word()?);
    let file = from.word()?.try_into().ok()?;
    let locator = BlockLocator { file, offset: from.word()?, bytes: from.word()?, stamp: from.word()? };
    Some(Some(Location { process, device, locator, offset, bytes }))
}
