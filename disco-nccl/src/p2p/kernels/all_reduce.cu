// All-reduce over ranks that access each other's memory. Every rank launches the same kernel with the same grid and the
// same number of vectors of 16 bytes. A thread works on the same vectors on all ranks, so a block needs to synchronise
// only with the blocks of the same index on the other ranks.
//
// Elements are added as f32 in the order of ranks, so all ranks get the same bits.

#include <handshake.cuh>

constexpr unsigned WORDS = 4;

// Element types: how a 32-bit word is added to a sum, and how a sum is packed into a word.
struct F32 {
    static constexpr unsigned LANES = 1;
    static __device__ __forceinline__ void add(float *sum, unsigned word) { sum[0] += __uint_as_float(word); }
    static __device__ __forceinline__ unsigned pack(const float *sum) { return __float_as_uint(sum[0]); }
};

struct F16 {
    static constexpr unsigned LANES = 2;
    static __device__ __forceinline__ void add(float *sum, unsigned word)
    {
        float2 two = from_f16(word);
        sum[0] += two.x;
        sum[1] += two.y;
    }
    static __device__ __forceinline__ unsigned pack(const float *sum) { return to_f16(sum[0], sum[1]); }
};

struct BF16 {
    static constexpr unsigned LANES = 2;
    static __device__ __forceinline__ void add(float *sum, unsigned word)
    {
        float2 two = from_bf16(word);
        sum[0] += two.x;
        sum[1] += two.y;
    }
    static __device__ __forceinline__ unsigned pack(const float *sum) { return to_bf16(sum[0], sum[1]); }
};

template <class T> struct Sum {
    float lanes[WORDS * T::LANES];

    // -0 is the neutral element of addition; a start at +0 would turn a sum of -0 into +0.
    __device__ __forceinline__ Sum()
    {
        UNROLL
        for (float &lane : lanes)
            lane = -0.0f;
    }

    __device__ __forceinline__ void add(uint4 vector)
    {
        T::add(lanes, vector.x);
        T::add(lanes + T::LANES, vector.y);
        T::add(lanes + 2 * T::LANES, vector.z);
        T::add(lanes + 3 * T::LANES, vector.w);
    }

    __device__ __forceinline__ uint4 pack() const
    {
        return make_uint4(T::pack(lanes), T::pack(lanes + T::LANES), T::pack(lanes + 2 * T::LANES),
                          T::pack(lanes + 3 * T::LANES));
    }
};

__device__ __forceinline__ unsigned first_vector()
{
    return blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ unsigned vector_stride()
{
    return gridDim.x * blockDim.x;
}

__device__ __forceinline__ unsigned all_ranks(const Params &p)
{
    return (1u << p.world) - 1;
}

// The largest number of ranks, and the number of vectors of each rank's buffer that a thread loads before it uses the
// first, which hides the latency of memory. A thread holds 8 vectors in its 64 registers.
struct Two {
    static constexpr unsigned RANKS = 2, BATCH = 4;
};
struct Four {
    static constexpr unsigned RANKS = 4, BATCH = 2;
};
struct All {
    static constexpr unsigned RANKS = MAX_WORLD, BATCH = 1;
};

// The index of a batch's vector `at`. Beyond the end, the thread loads its first vector again, and stores nothing: that
// takes no branch, and no vector of another thread.
__device__ __forceinline__ unsigned index_of(unsigned first, unsigned at, unsigned end)
{
    unsigned i = first + at * vector_stride();
    return i < end ? i : first;
}

template <unsigned BATCH> __device__ __forceinline__ void copy_batches(const uint4 *from, uint4 *to, unsigned end)
{
    const unsigned stride = vector_stride();
    DO_NOT_UNROLL
    for (unsigned i = first_vector(); i < end; i += BATCH * stride) {
        uint4 vectors[BATCH];
        UNROLL
        for (unsigned at = 0; at < BATCH; at++)
            vectors[at] = from[index_of(i, at, end)];
        UNROLL
        for (unsigned at = 0; at < BATCH; at++)
            if (i + at * stride < end)
                to[i + at * stride] = vectors[at];
    }
}

// Copies the input to the shared buffer.
__device__ __forceinline__ void copy_in(const Params &p)
{
    if (p.count <= vector_stride())
        copy_batches<1>(p.input, p.data[p.rank], p.count);
    else
        copy_batches<4>(p.input, p.data[p.rank], p.count);
}

template <class T, class Size>
__device__ __forceinline__ void sum_batches(const Params &p, unsigned mask, unsigned start, unsigned end, uint4 *to)
{
    const unsigned stride = vector_stride();
    DO_NOT_UNROLL
    for (unsigned i = start + first_vector(); i < end; i += Size::BATCH * stride) {
        uint4 vectors[Size::RANKS][Size::BATCH];
        UNROLL
        for (unsigned rank = 0; rank < Size::RANKS; rank++)
            if (mask >> rank & 1) {
                UNROLL
                for (unsigned at = 0; at < Size::BATCH; at++)
                    vectors[rank][at] = p.data[rank][index_of(i, at, end)];
            }
        UNROLL
        for (unsigned at = 0; at < Size::BATCH; at++) {
            Sum<T> sum;
            UNROLL
            for (unsigned rank = 0; rank < Size::RANKS; rank++)
                if (mask >> rank & 1)
                    sum.add(vectors[rank][at]);
            if (i + at * stride < end)
                to[i + at * stride] = sum.pack();
        }
    }
}

// Stores the sums of the vectors from `start` to `end` over the ranks in `mask`.
template <class T>
__device__ __forceinline__ void store_sums(const Params &p, unsigned mask, unsigned start, unsigned end, uint4 *to)
{
    // The choice is the same for all threads.
    if (end - start <= vector_stride() || p.world > Four::RANKS)
        sum_batches<T, All>(p, mask, start, end, to);
    else if (p.world > Two::RANKS)
        sum_batches<T, Four>(p, mask, start, end, to);
    else
        sum_batches<T, Two>(p, mask, start, end, to);
}

// The sum of vector `i` over the ranks in `mask`. All loads are issued before the first addition.
template <class T> __device__ __forceinline__ uint4 sum_of(const Params &p, unsigned mask, unsigned i)
{
    uint4 vectors[MAX_WORLD];
    UNROLL
    for (unsigned rank = 0; rank < MAX_WORLD; rank++)
        if (mask >> rank & 1)
            vectors[rank] = p.data[rank][i];
    Sum<T> sum;
    UNROLL
    for (unsigned rank = 0; rank < MAX_WORLD; rank++)
        if (mask >> rank & 1)
            sum.add(vectors[rank]);
    return sum.pack();
}

// Each rank reads all inputs.
template <class T> __device__ __forceinline__ void one_shot(const Params &p)
{
    Handshake handshake = begin(p);
    if (!all_healthy(handshake))
        return;
    copy_in(p);
    if (!meet(p, LEADING, all_ranks(p), handshake))
        return;
    store_sums<T>(p, all_ranks(p), 0, p.count, p.output);
    meet_last(p, TRAILING, all_ranks(p), handshake);
}

// Vectors of each rank's slice: a multiple of a line of 128 bytes, so the last slices may be smaller or empty. As in
// `grid.rs`.
__device__ __forceinline__ unsigned vectors_per_slice(const Params &p)
{
    return (p.count + p.world * 8 - 1) / (p.world * 8) * 8;
}

// Copies vector `j` of each slice.
template <class From, class To>
__device__ __forceinline__ void copy_vector_of_each_slice(const Params &p, unsigned slice, unsigned j, From from, To to)
{
    uint4 vectors[MAX_WORLD];
    UNROLL
    for (unsigned rank = 0; rank < MAX_WORLD; rank++)
        if (rank < p.world && rank * slice + j < p.count)
            vectors[rank] = from(rank)[rank * slice + j];
    UNROLL
    for (unsigned rank = 0; rank < MAX_WORLD; rank++)
        if (rank < p.world && rank * slice + j < p.count)
            to[rank * slice + j] = vectors[rank];
}

// Each rank sums one slice, then reads the sums of the other slices.
template <class T> __device__ __forceinline__ void two_shot(const Params &p)
{
    Handshake handshake = begin(p);
    if (!all_healthy(handshake))
        return;
    const unsigned slice = vectors_per_slice(p);
    uint4 *own = p.data[p.rank];
    auto input = [&](unsigned) { return p.input; };
    for (unsigned j = first_vector(); j < slice; j += vector_stride())
        copy_vector_of_each_slice(p, slice, j, input, own);
    if (!meet(p, LEADING, all_ranks(p), handshake))
        return;
    for (unsigned j = first_vector(); j < slice; j += vector_stride()) {
        unsigned i = p.rank * slice + j;
        if (i < p.count)
            own[i] = sum_of<T>(p, all_ranks(p), i);
    }
    if (!meet(p, MID, all_ranks(p), handshake))
        return;
    auto data = [&](unsigned rank) { return p.data[rank]; };
    for (unsigned j = first_vector(); j < slice; j += vector_stride())
        copy_vector_of_each_slice(p, slice, j, data, p.output);
    meet_last(p, TRAILING, all_ranks(p), handshake);
}

// Each rank sums the inputs of its half, four connected ranks, and stores the sum after its input in the shared buffer.
// Then it adds the sum of its relay, a rank of the other half.
template <class T> __device__ __forceinline__ void hybrid_cube_mesh(const Params &p)
{
    Handshake handshake = begin(p);
    if (!all_healthy(handshake))
        return;
    copy_in(p);
    if (!meet(p, LEADING, p.near, handshake))
        return;
    uint4 *own = p.data[p.rank] + p.count;
    store_sums<T>(p, p.near, 0, p.count, own);
    if (!meet(p, MID, 1u << p.relay, handshake))
        return;
    const uint4 *other = p.data[p.relay] + p.count;
    for (unsigned i = first_vector(); i < p.count; i += vector_stride()) {
        Sum<T> sum;
        sum.add(own[i]);
        sum.add(other[i]);
        p.output[i] = sum.pack();
    }
    meet_last(p, TRAILING, p.near | 1u << p.relay, handshake);
}

#define KERNEL(name, body)                                                                                             \
    extern "C" __global__ void __launch_bounds__(MAX_THREADS) name(const __grid_constant__ Params p) { body; }

KERNEL(disco_one_shot_f32, one_shot<F32>(p))
KERNEL(disco_one_shot_f16, one_shot<F16>(p))
KERNEL(disco_one_shot_bf16, one_shot<BF16>(p))
KERNEL(disco_two_shot_f32, two_shot<F32>(p))
KERNEL(disco_two_shot_f16, two_shot<F16>(p))
KERNEL(disco_two_shot_bf16, two_shot<BF16>(p))
KERNEL(disco_hybrid_cube_mesh_f32, hybrid_cube_mesh<F32>(p))
KERNEL(disco_hybrid_cube_mesh_f16, hybrid_cube_mesh<F16>(p))
KERNEL(disco_hybrid_cube_mesh_bf16, hybrid_cube_mesh<BF16>(p))

// One block. When this kernel ends on any rank, earlier work of all ranks' streams has ended.
KERNEL(disco_barrier, Handshake handshake = begin(p); meet_last(p, ALONE, all_ranks(p), handshake))
