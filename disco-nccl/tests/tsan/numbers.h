// Inputs of the ranks, and checks of the outputs.

#pragma once

#include <cmath>
#include <cstdio>

#include "group.h"

inline unsigned long long mixed(unsigned long long x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

inline unsigned lanes_of(unsigned dtype)
{
    return dtype == 0 ? 1 : 2;
}

inline unsigned pack(unsigned dtype, float first, float second)
{
    return dtype == 0 ? __float_as_uint(first) : dtype == 1 ? to_f16(first, second) : to_bf16(first, second);
}

inline float2 unpack(unsigned dtype, unsigned word)
{
    return dtype == 0 ? float2{__uint_as_float(word), 0} : dtype == 1 ? from_f16(word) : from_bf16(word);
}

inline float number(const Launch &launch, unsigned rank, unsigned lane)
{
    unsigned long long bits = mixed((launch.seed * 8ull + rank) << 32 | lane);
    if (launch.seed % 2 == 0)
        return static_cast<float>(static_cast<int>(bits % 17) - 8);
    return std::ldexp(static_cast<float>(static_cast<int>(bits % 20001) - 10000) / 10000, static_cast<int>(bits >> 60) - 8);
}

inline unsigned word(const Launch &launch, unsigned rank, unsigned i)
{
    unsigned lanes = lanes_of(launch.dtype);
    return pack(launch.dtype, number(launch, rank, lanes * i), number(launch, rank, lanes * i + 1));
}

inline void fill(Device &device, const Launch &launch, unsigned rank)
{
    unsigned *to = reinterpret_cast<unsigned *>(launch.in_place ? device.output : device.input);
    for (unsigned i = 0; i < launch.count * WORDS; i++)
        to[i] = word(launch, rank, i);
    for (unsigned i = 0; i < WORDS; i++)
        reinterpret_cast<unsigned *>(device.output + launch.count)[i] = SENTINEL;
}

// Compares the output with sums in double precision. Adds all bits of the output to `digest`, for comparison between
// ranks.
inline bool check(const Device &device, const Launch &launch, unsigned world, unsigned rank, unsigned long long &digest)
{
    const unsigned *words = reinterpret_cast<const unsigned *>(device.output);
    const unsigned lanes = lanes_of(launch.dtype);
    // The relative rounding error of the element type: half of the distance between 1 and the next number.
    const double epsilon = std::ldexp(1, launch.dtype == 0 ? -24 : launch.dtype == 1 ? -11 : -8);
    for (unsigned i = 0; i < launch.count * WORDS; i++) {
        digest = mixed(digest ^ words[i]);
        double want[2] = {}, weight[2] = {};
        for (unsigned peer = 0; peer < world; peer++) {
            float2 two = unpack(launch.dtype, word(launch, peer, i));
            want[0] += two.x, want[1] += two.y;
            weight[0] += std::fabs(two.x), weight[1] += std::fabs(two.y);
        }
        float2 two = unpack(launch.dtype, words[i]);
        const float got[2] = {two.x, two.y};
        for (unsigned lane = 0; lane < lanes; lane++) {
            double off = std::ldexp(world * weight[lane], -24) + std::ldexp(1, -24);
            off += launch.algorithm == CUBE_MESH ? 2 * epsilon * weight[lane] : epsilon * std::fabs(want[lane]);
            if (launch.seed % 2 == 0 ? got[lane] != want[lane] : !(std::fabs(got[lane] - want[lane]) <= off)) {
                std::printf("rank %u of %u, algorithm %d, dtype %u, %u vectors, word %u: %.9g instead of %.9g\n", rank, world,
                            launch.algorithm, launch.dtype, launch.count, i, got[lane], want[lane]);
                return false;
            }
        }
    }
    for (unsigned i = 0; i < WORDS; i++)
        if (words[launch.count * WORDS + i] != SENTINEL) {
            std::printf("rank %u of %u writes behind its output of %u vectors\n", rank, world, launch.count);
            return false;
        }
    return true;
}
