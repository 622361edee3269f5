// The functions of the kernels' `machine.cuh` for the host. A thread of the process stands for one GPU thread. The tests of
// disco-candle include it, too.

#pragma once

#include <cstdint>
#include <cstring>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(threads)
// One block of a process runs at a time if its kernel has shared memory.
#define __shared__ static
#define UNROLL
#define DO_NOT_UNROLL

struct uint3 {
    unsigned x, y, z;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct float2 {
    float x, y;
};

inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

// The synchronisation of a block's threads.
struct Block {
    pthread_barrier_t barrier;
    // Double buffering: one word is reset while the other is in use.
    unsigned any[2];
};

inline thread_local uint3 threadIdx, blockIdx, blockDim, gridDim;
inline thread_local Block *block;
inline thread_local unsigned turn;

inline void __syncthreads()
{
    pthread_barrier_wait(&block->barrier);
}

inline int __syncthreads_or(int value)
{
    unsigned *any = &block->any[turn++ & 1];
    if (value)
        __atomic_store_n(any, 1, __ATOMIC_RELAXED);
    __syncthreads();
    int result = __atomic_load_n(any, __ATOMIC_RELAXED);
    __syncthreads();
    if (threadIdx.x == 0)
        __atomic_store_n(any, 0, __ATOMIC_RELAXED);
    return result;
}

// The synchronisation of the lanes of a warp, and what they exchange.
struct Warp {
    pthread_barrier_t barrier;
    // Double buffering: one is filled while the other may still be read.
    float exchanged[2][32];
};

inline thread_local Warp *warp;
inline thread_local unsigned exchange;

inline void __syncwarp()
{
    pthread_barrier_wait(&warp->barrier);
}

extern "C" void AnnotateIgnoreSyncBegin(const char *file, int line);
extern "C" void AnnotateIgnoreSyncEnd(const char *file, int line);

// A shuffle orders no other memory access, so the sanitizer does not see its barrier.
inline float __shfl_xor_sync(unsigned, float value, unsigned distance)
{
    float *exchanged = warp->exchanged[exchange++ & 1];
    __atomic_store(exchanged + threadIdx.x % 32, &value, __ATOMIC_RELAXED);
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    pthread_barrier_wait(&warp->barrier);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
    float other;
    __atomic_load(exchanged + (threadIdx.x % 32 ^ distance), &other, __ATOMIC_RELAXED);
    return other;
}

#ifdef FAULT_STORE
#define STORE_ORDER __ATOMIC_RELAXED
#else
#define STORE_ORDER __ATOMIC_RELEASE
#endif

#ifdef FAULT_LOAD
#define LOAD_ORDER __ATOMIC_RELAXED
#else
#define LOAD_ORDER __ATOMIC_ACQUIRE
#endif

inline void store_release(unsigned *word, unsigned value)
{
    __atomic_store_n(word, value, STORE_ORDER);
}

inline unsigned load_acquire(const unsigned *word)
{
    // Yields, because there are more threads than cores.
    sched_yield();
    return __atomic_load_n(word, LOAD_ORDER);
}

inline unsigned load_relaxed(const unsigned *word)
{
    return __atomic_load_n(word, __ATOMIC_RELAXED);
}

inline bool set_if_zero(unsigned *word, unsigned value)
{
    unsigned none = 0;
    return __atomic_compare_exchange_n(word, &none, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

inline unsigned long long nanoseconds()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

template <class To, class From> To bits(From from)
{
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

inline float __uint_as_float(unsigned word)
{
    return bits<float>(word);
}

inline unsigned __float_as_uint(float number)
{
    return bits<unsigned>(number);
}

inline float2 from_f16(unsigned word)
{
    return {static_cast<float>(bits<_Float16>(static_cast<uint16_t>(word))),
            static_cast<float>(bits<_Float16>(static_cast<uint16_t>(word >> 16)))};
}

inline unsigned to_f16(float first, float second)
{
    return bits<uint16_t>(static_cast<_Float16>(first)) |
           static_cast<unsigned>(bits<uint16_t>(static_cast<_Float16>(second))) << 16;
}

inline float2 from_bf16(unsigned word)
{
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}

inline unsigned bf16_of(float number)
{
    unsigned word = __float_as_uint(number);
    return number != number ? 0x7fffu : (word + 0x7fffu + (word >> 16 & 1u)) >> 16;
}

inline unsigned to_bf16(float first, float second)
{
    return bf16_of(first) | bf16_of(second) << 16;
}
