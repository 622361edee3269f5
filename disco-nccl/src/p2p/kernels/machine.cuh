// What only a GPU has: words that other GPUs and the host see, time, and numbers of two bytes. The tests have a file of
// this name that does the same on the host.

#pragma once

#define UNROLL _Pragma("unroll")

// Writes a word; who observes it sees all that came before, on any GPU.
__device__ __forceinline__ void store_release(unsigned *word, unsigned value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

// Reads a word that may have been published.
__device__ __forceinline__ unsigned load_acquire(const unsigned *word)
{
    unsigned value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

// Reads a word as it is now, and nothing that it may stand for.
__device__ __forceinline__ unsigned load_relaxed(const unsigned *word)
{
    unsigned value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

// Sets a word of this GPU that is 0. Says whether it was.
__device__ __forceinline__ bool set_if_zero(unsigned *word, unsigned value)
{
    return atomicCAS(word, 0u, value) == 0;
}

__device__ __forceinline__ unsigned long long nanoseconds()
{
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Two numbers in a word, the first in its lower half.

__device__ __forceinline__ float2 from_f16(unsigned word)
{
    float2 two;
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
        : "=f"(two.x), "=f"(two.y)
        : "r"(word));
    return two;
}

__device__ __forceinline__ unsigned to_f16(float first, float second)
{
    unsigned word;
    asm("{ .reg .b16 a, b; cvt.rn.f16.f32 a, %1; cvt.rn.f16.f32 b, %2; mov.b32 %0, {a, b}; }"
        : "=r"(word)
        : "f"(first), "f"(second));
    return word;
}

__device__ __forceinline__ float2 from_bf16(unsigned word)
{
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

#if __CUDA_ARCH__ >= 800

__device__ __forceinline__ unsigned to_bf16(float first, float second)
{
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(word) : "f"(first), "f"(second));
    return word;
}

#else

// To the nearest, of two as near to the even one; what is no number stays none.
__device__ __forceinline__ unsigned bf16_of(float number)
{
    unsigned bits = __float_as_uint(number);
    return number != number ? 0x7fffu : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

__device__ __forceinline__ unsigned to_bf16(float first, float second)
{
    return bf16_of(first) | bf16_of(second) << 16;
}

#endif
