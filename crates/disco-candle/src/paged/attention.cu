// Attention of tokens of several sequences to keys and values in blocks of 16 slots. It is compiled after `machine.cuh` of
// disco-nccl.
//
// A row is a query head of a token. A thread block computes up to four rows: of tokens of one tile, and of the query heads
// that share one kv head. Its warps take the blocks of keys in turn. Each warp keeps a softmax over the blocks that it has
// seen: the highest score, the sum of the exponentials, and the sum of the values times their exponentials. At the end these
// are merged. A lane of a warp has each 32nd word of a row, so that a warp reads words that follow each other.
//
// The keys of a row are split over the warps of one thread block, and not over thread blocks.

constexpr unsigned LANES = 32;
constexpr unsigned SLOTS = 16;
constexpr unsigned ROWS = 4;
constexpr unsigned MAX_WARPS = 8;
// Less than all scores, and finite: the difference of two is 0.
constexpr float LOWEST = -3.402823466e38f;

// Element types: the elements of a word.
struct F32 {
    static constexpr unsigned ELEMENTS = 1;
    static __device__ __forceinline__ void widen(unsigned word, float *x) { x[0] = __uint_as_float(word); }
    static __device__ __forceinline__ unsigned narrow(const float *x) { return __float_as_uint(x[0]); }
};

struct F16 {
    static constexpr unsigned ELEMENTS = 2;
    static __device__ __forceinline__ void widen(unsigned word, float *x)
    {
        float2 two = from_f16(word);
        x[0] = two.x, x[1] = two.y;
    }
    static __device__ __forceinline__ unsigned narrow(const float *x) { return to_f16(x[0], x[1]); }
};

struct BF16 {
    static constexpr unsigned ELEMENTS = 2;
    static __device__ __forceinline__ void widen(unsigned word, float *x)
    {
        float2 two = from_bf16(word);
        x[0] = two.x, x[1] = two.y;
    }
    static __device__ __forceinline__ unsigned narrow(const float *x) { return to_bf16(x[0], x[1]); }
};

// Consecutive tokens of a sequence.
struct Tile {
    // The position of the first one in the sequence, and the number of tokens.
    unsigned first, count;
    // The place of the first one among all queries.
    unsigned place;
    // Where the sequence's blocks begin among all tables.
    unsigned table;
};

// A launch has a grid of tiles, kv heads, and parts of the rows of a tile.
struct Params {
    // [heads, tokens, words]
    const unsigned *query;
    // [blocks, kv heads, SLOTS, words]
    const unsigned *keys, *values;
    // The tiles; the first query head of each kv head, and the one after its last; the tables. As in `plan.rs`.
    const unsigned *plan;
    // As the query.
    unsigned *output;
    unsigned tokens, words;
    // The number of tokens that a token attends to, itself included.
    unsigned window;
    // Scores are between this and its negative; 0 if they have no limit.
    float cap;
    // A score of each query head beside those of its tokens; null if there are none.
    const float *sinks;
};

__device__ __forceinline__ unsigned own_lane()
{
    return threadIdx.x % LANES;
}

// The words of a row that the lane has, as numbers. Words behind the end are zeros.
template <class T, unsigned WORDS>
__device__ __forceinline__ void load(const unsigned *row, unsigned words, float (&x)[WORDS * T::ELEMENTS])
{
    UNROLL
    for (unsigned i = 0; i < WORDS; i++) {
        unsigned at = i * LANES + own_lane();
        T::widen(at < words ? row[at] : 0, x + i * T::ELEMENTS);
    }
}

__device__ __forceinline__ float of_lane(float x, unsigned distance)
{
    return __shfl_xor_sync(0xffffffffu, x, distance);
}

// Sums of COUNT numbers over all lanes. With SLOTS numbers, lane i gets the sum of number i / 2: in each step, a lane keeps
// half of its numbers, and adds those of a lane that keeps the same half.
template <unsigned COUNT> __device__ __forceinline__ float sum_over_lanes(float (&x)[SLOTS])
{
    if constexpr (COUNT == 1) {
        return x[0] + of_lane(x[0], 1);
    } else {
        const bool keeps_upper = own_lane() & COUNT;
        UNROLL
        for (unsigned i = 0; i < COUNT / 2; i++) {
            float given = keeps_upper ? x[i] : x[i + COUNT / 2], kept = keeps_upper ? x[i + COUNT / 2] : x[i];
            x[i] = kept + of_lane(given, COUNT);
        }
        return sum_over_lanes<COUNT / 2>(x);
    }
}

// The highest of the numbers of all slots, of which lane i has that of slot i / 2.
__device__ __forceinline__ float highest_of_slots(float x)
{
    UNROLL
    for (unsigned distance = LANES / 2; distance > 1; distance /= 2)
        x = fmaxf(x, of_lane(x, distance));
    return x;
}

__device__ __forceinline__ float sum_of_slots(float x)
{
    UNROLL
    for (unsigned distance = LANES / 2; distance > 1; distance /= 2)
        x += of_lane(x, distance);
    return x;
}

// WORDS: the words of a row that a lane has.
template <class T, unsigned WORDS> __device__ __forceinline__ void attend(const Params &p)
{
    constexpr unsigned ELEMENTS = WORDS * T::ELEMENTS;
    __shared__ float shares[MAX_WARPS][ROWS][SLOTS];
    __shared__ float tops[MAX_WARPS][ROWS], totals[MAX_WARPS][ROWS], sums[MAX_WARPS][ROWS][ELEMENTS][LANES];

    const unsigned *groups = p.plan + 4 * gridDim.x, *tables = groups + 2 * gridDim.y;
    const unsigned *numbers = p.plan + 4 * blockIdx.x;
    const Tile tile = {numbers[0], numbers[1], numbers[2], numbers[3]};
    const unsigned first_head = groups[2 * blockIdx.y], heads = groups[2 * blockIdx.y + 1] - first_head;
    const unsigned start = blockIdx.z * ROWS;
    if (start >= tile.count * heads)
        return;
    const unsigned rows = tile.count * heads - start < ROWS ? tile.count * heads - start : ROWS;
    const unsigned warp = threadIdx.x / LANES, warps = blockDim.x / LANES, lane = own_lane();
    auto position = [&](unsigned row) { return tile.first + (start + row) / heads; };
    // The first position that a token attends to.
    auto lowest = [&](unsigned position) { return position < p.window ? 0 : position + 1 - p.window; };
    auto head = [&](unsigned row) { return first_head + (start + row) % heads; };
    auto offset = [&](unsigned row) {
        unsigned place = tile.place + (start + row) / heads;
        return (static_cast<unsigned long long>(head(row)) * p.tokens + place) * p.words;
    };

    float query[ROWS][ELEMENTS], sum[ROWS][ELEMENTS] = {}, top[ROWS], total[ROWS] = {};
    UNROLL
    for (unsigned row = 0; row < ROWS; row++) {
        top[row] = LOWEST;
        if (row < rows)
            load<T, WORDS>(p.query + offset(row), p.words, query[row]);
    }
    const unsigned end = position(rows - 1) / SLOTS + 1;
    DO_NOT_UNROLL
    for (unsigned i = lowest(position(0)) / SLOTS + warp; i < end; i += warps) {
        const unsigned long long block = tables[tile.table + i];
        const unsigned long long from = (block * gridDim.y + blockIdx.y) * SLOTS * p.words;
        float products[ROWS][SLOTS];
        UNROLL
        for (unsigned slot = 0; slot < SLOTS; slot++) {
            float key[ELEMENTS];
            load<T, WORDS>(p.keys + from + slot * p.words, p.words, key);
            UNROLL
            for (unsigned row = 0; row < ROWS; row++) {
                products[row][slot] = 0;
                if (row < rows) {
                    UNROLL
                    for (unsigned e = 0; e < ELEMENTS; e++)
                        products[row][slot] += query[row][e] * key[e];
                }
            }
        }
        UNROLL
        for (unsigned row = 0; row < ROWS; row++) {
            if (row >= rows)
                continue;
            float score = sum_over_lanes<SLOTS>(products[row]);
            if (p.cap > 0)
                score = tanhf(score / p.cap) * p.cap;
            const unsigned at = i * SLOTS + lane / 2;
            const bool is_open = lowest(position(row)) <= at && at <= position(row);
            const float before = top[row];
            top[row] = fmaxf(before, highest_of_slots(is_open ? score : LOWEST));
            const float share = is_open ? expf(score - top[row]) : 0, factor = expf(before - top[row]);
            total[row] = total[row] * factor + share;
            UNROLL
            for (unsigned e = 0; e < ELEMENTS; e++)
                sum[row][e] *= factor;
            if (lane % 2 == 0)
                shares[warp][row][lane / 2] = share;
        }
        __syncwarp();
        UNROLL
        for (unsigned slot = 0; slot < SLOTS; slot++) {
            float value[ELEMENTS];
            load<T, WORDS>(p.values + from + slot * p.words, p.words, value);
            UNROLL
            for (unsigned row = 0; row < ROWS; row++) {
                const float share = row < rows ? shares[warp][row][slot] : 0;
                // Slots that are not written yet may have anything, NaN too.
                if (share != 0) {
                    UNROLL
                    for (unsigned e = 0; e < ELEMENTS; e++)
                        sum[row][e] += share * value[e];
                }
            }
        }
        // The next block overwrites the shares.
        __syncwarp();
    }

    UNROLL
    for (unsigned row = 0; row < ROWS; row++) {
        if (row >= rows)
            continue;
        const float all = sum_of_slots(total[row]);
        if (lane == 0)
            tops[warp][row] = top[row], totals[warp][row] = all;
        UNROLL
        for (unsigned e = 0; e < ELEMENTS; e++)
            sums[warp][row][e][lane] = sum[row][e];
    }
    __syncthreads();
    for (unsigned i = warp; i < rows * WORDS; i += warps) {
        const unsigned row = i / WORDS, word = i % WORDS;
        const float sink = p.sinks ? p.sinks[head(row)] : LOWEST;
        float highest = sink, x[T::ELEMENTS] = {};
        for (unsigned from = 0; from < warps; from++)
            highest = fmaxf(highest, tops[from][row]);
        float all = p.sinks ? expf(sink - highest) : 0;
        for (unsigned from = 0; from < warps; from++) {
            const float factor = expf(tops[from][row] - highest);
            all += factor * totals[from][row];
            UNROLL
            for (unsigned e = 0; e < T::ELEMENTS; e++)
                x[e] += factor * sums[from][row][word * T::ELEMENTS + e][lane];
        }
        UNROLL
        for (unsigned e = 0; e < T::ELEMENTS; e++)
            x[e] /= all;
        if (word * LANES + lane < p.words)
            p.output[offset(row) + word * LANES + lane] = T::narrow(x);
    }
}

// The number in a name is the largest width of a head.
#define KERNEL(name, T, WORDS)                                                                                         \
    extern "C" __global__ void __launch_bounds__(MAX_WARPS *LANES)                                                     \
        name(const unsigned *query, const unsigned *keys, const unsigned *values, const unsigned *plan,                \
             unsigned *output, unsigned tokens, unsigned words, unsigned window, float cap, const float *sinks)        \
    {                                                                                                                  \
        attend<T, WORDS>({query, keys, values, plan, output, tokens, words, window, cap, sinks});                      \
    }

KERNEL(disco_attention_f32_64, F32, 2)
KERNEL(disco_attention_f32_128, F32, 4)
KERNEL(disco_attention_f32_256, F32, 8)
KERNEL(disco_attention_f16_64, F16, 1)
KERNEL(disco_attention_f16_128, F16, 2)
KERNEL(disco_attention_f16_256, F16, 4)
KERNEL(disco_attention_bf16_64, BF16, 1)
KERNEL(disco_attention_bf16_128, BF16, 2)
KERNEL(disco_attention_bf16_256, BF16, 4)
