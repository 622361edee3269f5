// How blocks of the same number meet over GPUs, and how that ends where a peer does not come.
//
// Two ranks count their handshakes, block by block. In each, both write the number that it has to the other's memory
// and wait until the other's is there. Nobody gets further than one ahead, so that numbers are compared by their
// difference and may start again from 0; and they are kept in memory between launches, so that a launch that is
// replayed takes the next.
//
// What a block's threads did before is seen by the threads of those that it met: bar.sync orders it before the release
// of the thread that writes the number, and the peer's acquire before its own bar.sync.

#pragma once

#include <machine.cuh>

constexpr unsigned MAX_WORLD = 8;
constexpr unsigned MAX_BLOCKS = 64;
constexpr unsigned MAX_THREADS = 512;

// Which handshake of a kernel: part of what is reported. As in `status.rs`.
enum Phase : unsigned { LEADING = 1, MID = 2, TRAILING = 3, ALONE = 4 };
enum Cause : unsigned { DEADLINE = 1, ABORTED = 2 };

// Looks at a flag until the clock and whether all is called off are looked at.
constexpr unsigned POLLS_PER_CHECK = 64;

// A word on a line of its own.
struct alignas(128) Line {
    unsigned word;
};

// What a rank has for each launch after the other. Peers write flags, nothing else; it starts as zeros.
struct State {
    // The number of the last handshake that a peer has come to, by block and peer.
    Line flags[MAX_BLOCKS][MAX_WORLD];
    // How many handshakes were completed, by block and peer.
    unsigned counts[MAX_BLOCKS][MAX_WORLD];
    // Why the first that failed did; nobody is met from then on.
    Line status;
};

// Of all kernels. As in `params.rs`.
struct Params {
    // Each rank's shared buffer.
    uint4 *data[MAX_WORLD];
    // Each rank's state.
    State *state[MAX_WORLD];
    const uint4 *input;
    uint4 *output;
    // Not 0: give up. The host writes it.
    const unsigned *abort;
    // Where the host is told why this failed.
    unsigned *report;
    // How long to wait for a peer, in nanoseconds.
    unsigned long long timeout_ns;
    // Of input and output, in 16 bytes.
    unsigned count;
    unsigned rank;
    unsigned world;
    // A hybrid cube mesh: a bit for this rank and each neighbour but the relay, and the relay.
    unsigned near;
    unsigned relay;
    unsigned unused;
};

static_assert(sizeof(State) == 67712 && alignof(State) == 128, "as in params.rs");
static_assert(sizeof(Params) == 192, "as in params.rs");

// One thread's part. The thread of number n meets rank n.
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

// Whether no launch has failed so far. All threads of the block come. One that follows a failure leaves shared memory
// alone: a peer that met this rank before may still read it.
__device__ __forceinline__ bool all_healthy(const Handshake &handshake)
{
#ifdef FAULT_FAILED
    return (void)handshake, true;
#else
    return !__syncthreads_or(handshake.failed);
#endif
}

// The first that fails is reported. What comes later fails, too, and writes no flag that a peer could take for another.
__device__ __forceinline__ bool fail(const Params &p, Cause cause, Phase phase)
{
    unsigned status = cause << 24 | phase << 16 | threadIdx.x << 8 | blockIdx.x;
    if (set_if_zero(&p.state[p.rank]->status.word, status))
        store_release(p.report, status);
    return false;
}

__device__ __forceinline__ bool is_behind(unsigned seen, unsigned count)
{
#ifdef FAULT_COMPARE // The tests plant faults, to show that they would find them.
    return seen < count;
#else
    return static_cast<int>(seen - count) < 0;
#endif
}

// Waits until the peer has come. Says whether it has.
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

// Meets the ranks in `mask`; this one's bit says nothing. All threads of the block come, and all get the same answer:
// whether all that they met have come.
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

// The last handshake of a launch: what is counted is kept.
__device__ __forceinline__ void meet_last(const Params &p, Phase phase, unsigned mask, Handshake &handshake)
{
    if (meet(p, phase, mask, handshake) && has_peer(p))
        p.state[p.rank]->counts[blockIdx.x][threadIdx.x] = handshake.count;
}
