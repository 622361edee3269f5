// Handshakes between blocks of the same index on different GPUs, with timeout and abort.
//
// Each pair of ranks counts its handshakes for each block. In a handshake, each of the two writes the handshake's
// number to a flag in the other's memory, and waits until its own flag has that number. A rank is at most one handshake
// ahead, so numbers are compared by their signed difference and may wrap. The counts are kept in device memory between
// launches, so a replayed launch continues them.
//
// Memory order: after a handshake, the threads of a block see all earlier writes of the peer's block. On the writer,
// bar.sync orders them before the release store of the flag; on the reader, the acquire load of the flag comes before
// its bar.sync.

#pragma once

#include <machine.cuh>

constexpr unsigned MAX_WORLD = 8;
constexpr unsigned MAX_BLOCKS = 64;
constexpr unsigned MAX_THREADS = 512;

// The position of a handshake in a kernel, and the cause of a failure: parts of the failure report. As in `status.rs`.
enum Phase : unsigned { LEADING = 1, MID = 2, TRAILING = 3, ALONE = 4 };
enum Cause : unsigned { DEADLINE = 1, ABORTED = 2 };

// Polls of a flag between two checks of the clock and the abort flag.
constexpr unsigned POLLS_PER_CHECK = 64;

// A word on its own cache line.
struct alignas(128) Line {
    unsigned word;
};

// The state of a rank, which launches pass on to the next launch. Peers write only the flags. It starts as zeros.
struct State {
    // The number of the last handshake that the peer has reached, by block and peer.
    Line flags[MAX_BLOCKS][MAX_WORLD];
    // The number of completed handshakes, by block and peer.
    unsigned counts[MAX_BLOCKS][MAX_WORLD];
    // The report of the first failure, otherwise 0. After a failure, launches make no handshakes.
    Line status;
};

// The parameter of all kernels. As in `params.rs`.
struct Params {
    // Each rank's shared buffer.
    uint4 *data[MAX_WORLD];
    // Each rank's state.
    State *state[MAX_WORLD];
    const uint4 *input;
    uint4 *output;
    // The abort flag: the host writes a value other than 0.
    const unsigned *abort;
    // The failure report for the host.
    unsigned *report;
    // The limit of each wait for a peer, in nanoseconds.
    unsigned long long timeout_ns;
    // Vectors of 16 bytes in input and output.
    unsigned count;
    unsigned rank;
    unsigned world;
    // Hybrid cube mesh only: the mask of the ranks of this rank's half, and the relay, its partner in the other half.
    unsigned near;
    unsigned relay;
    unsigned unused;
};

static_assert(sizeof(State) == 67712 && alignof(State) == 128, "as in params.rs");
static_assert(sizeof(Params) == 192, "as in params.rs");

// The state of one thread in the handshakes of a launch. Thread n of a block synchronises with rank n.
struct Handshake {
    unsigned count;
    bool failed;
};

__device__ __forceinline__ bool has_peer(const Params &p)
{
    return threadIdx.x < p.world && threadIdx.x != p.rank;
}

__device__ __forceinline__ Handshake begin(const Params &p)
{
    Handshake handshake = {0, false};
    if (has_peer(p)) {
        State *own = p.state[p.rank];
        handshake.count = own->counts[blockIdx.x][threadIdx.x];
        handshake.failed = load_relaxed(&own->status.word) != 0;
    }
    return handshake;
}

// Whether no launch has failed so far. All threads of the block call this. After a failure, a launch must not write
// shared memory, because a peer that completed an earlier handshake may still read it.
__device__ __forceinline__ bool all_healthy(const Handshake &handshake)
{
#ifdef FAULT_FAILED
    return (void)handshake, true;
#else
    return !__syncthreads_or(handshake.failed);
#endif
}

// Reports the first failure of a rank. Later handshakes fail too, and write no flags that a peer could mistake for
// those of another launch.
__device__ __forceinline__ bool fail(const Params &p, Cause cause, Phase phase)
{
    unsigned status = cause << 24 | phase << 16 | threadIdx.x << 8 | blockIdx.x;
    if (set_if_zero(&p.state[p.rank]->status.word, status))
        store_release(p.report, status);
    return false;
}

__device__ __forceinline__ bool is_behind(unsigned seen, unsigned count)
{
#ifdef FAULT_COMPARE // The tests inject faults to prove that they detect them.
    return seen < count;
#else
    return static_cast<int>(seen - count) < 0;
#endif
}

// Waits until the peer has arrived, a failure or an abort. Returns whether the peer has arrived.
__device__ __forceinline__ bool wait_for_peer(const Params &p, Phase phase, unsigned count)
{
    State *own = p.state[p.rank];
    const unsigned *flag = &own->flags[blockIdx.x][threadIdx.x].word;
    unsigned long long start = 0;
    for (unsigned poll = 1; is_behind(load_acquire(flag), count); poll++) {
        if (poll % POLLS_PER_CHECK)
            continue;
        if (load_relaxed(&own->status.word))
            return false;
        if (load_relaxed(p.abort))
            return fail(p, ABORTED, phase);
        unsigned long long now = nanoseconds();
        start = start ? start : now;
        if (now - start > p.timeout_ns)
            return fail(p, DEADLINE, phase);
    }
    return true;
}

// One handshake with each rank in `mask`, whose bit of this rank is ignored. All threads of the block call this, and
// all get the same result: whether all peers have arrived.
__device__ __forceinline__ bool meet(const Params &p, Phase phase, unsigned mask, Handshake &handshake)
{
#ifdef FAULT_SKIP
    if (phase == FAULT_SKIP)
        return true;
#endif
    __syncthreads();
    if (has_peer(p) && (mask >> threadIdx.x & 1) && !handshake.failed) {
        handshake.count++;
        store_release(&p.state[threadIdx.x]->flags[blockIdx.x][p.rank].word, handshake.count);
        handshake.failed = !wait_for_peer(p, phase, handshake.count);
    }
    return !__syncthreads_or(handshake.failed);
}

// The last handshake of a launch; stores the counts for the next launch.
__device__ __forceinline__ void meet_last(const Params &p, Phase phase, unsigned mask, Handshake &handshake)
{
    if (meet(p, phase, mask, handshake) && has_peer(p))
        p.state[p.rank]->counts[blockIdx.x][threadIdx.x] = handshake.count;
}
