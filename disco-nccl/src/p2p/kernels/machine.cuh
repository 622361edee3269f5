// Instructions of the GPU: system-scope memory accesses, the clock, and conversions of 16-bit floats. The tests have a
// file of the same name that implements these functions on the host.

#pragma once

#define UNROLL _Pragma("unroll")
#define DO_NOT_UNROLL _Pragma("unroll 1")

// Release store at system scope: a thread of any GPU that loads the value with load_acquire sees all earlier writes.
__device__ __forceinline__ void store_release(unsigned *word, unsigned value)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

// Acquire load at system scope.
__device__ __forceinline__ unsigned load_acquire(const unsigned *word)
{
    unsigned value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

// Relaxed load at system scope: orders no other memory access.
__device__ __forceinline__ unsigned load_relaxed(const unsigned *word)
{
    unsigned value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

// Sets a word of this GPU if it is 0. Returns whether it was 0.
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

// Conversions of two 16-bit floats in a word, the first one in the lower half.

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

// Rounds to nearest, ties to even; keeps NaN.
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
