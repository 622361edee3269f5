// Runs a launch of an attention kernel on threads of the host, one block after the other:
// `harness KERNEL GRID_X GRID_Y GRID_Z WARPS TOKENS WORDS WINDOW CAP FOLDER`. The folder has the files `query`, `keys`,
// `values`, `plan` and perhaps `sinks`; the file `output` is written.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <machine.cuh>

#include <attention.cu>

namespace {

using Words = std::vector<unsigned>;
using Kernel = decltype(&disco_attention_f32_64);

#define NAMED(name) {#name, name}

constexpr struct {
    const char *name;
    Kernel kernel;
} KERNELS[] = {
    NAMED(disco_attention_f32_64),  NAMED(disco_attention_f32_128),  NAMED(disco_attention_f32_256),
    NAMED(disco_attention_f16_64),  NAMED(disco_attention_f16_128),  NAMED(disco_attention_f16_256),
    NAMED(disco_attention_bf16_64), NAMED(disco_attention_bf16_128), NAMED(disco_attention_bf16_256),
};

constexpr unsigned SENTINEL = 0xdeadbeef;

Words read(const std::string &file)
{
    std::ifstream stream(file, std::ios::binary);
    std::vector<char> bytes((std::istreambuf_iterator<char>(stream)), {});
    Words words(bytes.size() / sizeof(unsigned));
    memcpy(words.data(), bytes.data(), words.size() * sizeof(unsigned));
    return words;
}

} // namespace

int main(int count, char **args)
{
    // Ends a hanging process.
    alarm(1200);
    if (count != 11)
        return 2;
    Kernel kernel = nullptr;
    for (auto &row : KERNELS)
        if (std::string(args[1]) == row.name)
            kernel = row.kernel;
    if (!kernel)
        return 2;
    auto number = [&](int i) { return static_cast<unsigned>(std::strtoul(args[i], nullptr, 10)); };
    const uint3 grid = {number(2), number(3), number(4)};
    const unsigned warps = number(5), threads = warps * LANES, tokens = number(6), words = number(7), window = number(8);
    const float cap = std::strtof(args[9], nullptr);
    const std::string folder = std::string(args[10]) + "/";
    const Words query = read(folder + "query"), keys = read(folder + "keys"), values = read(folder + "values");
    const Words plan = read(folder + "plan"), sinks = read(folder + "sinks");
    const float *given = sinks.empty() ? nullptr : reinterpret_cast<const float *>(sinks.data());
    Words output(query.size(), SENTINEL);

    Block whole = {};
    pthread_barrier_init(&whole.barrier, nullptr, threads);
    std::vector<Warp> of_warps(warps);
    for (Warp &one : of_warps)
        pthread_barrier_init(&one.barrier, nullptr, LANES);
    std::vector<std::thread> all;
    for (unsigned t = 0; t < threads; t++)
        all.emplace_back([&, t] {
            threadIdx = {t, 0, 0}, blockDim = {threads, 1, 1}, gridDim = grid;
            block = &whole, warp = &of_warps[t / LANES];
            for (unsigned z = 0; z < grid.z; z++)
                for (unsigned y = 0; y < grid.y; y++)
                    for (unsigned x = 0; x < grid.x; x++) {
                        blockIdx = {x, y, z};
                        kernel(query.data(), keys.data(), values.data(), plan.data(), output.data(), tokens, words, window,
                               cap, given);
                        __syncthreads();
                    }
        });
    for (std::thread &thread : all)
        thread.join();
    std::ofstream stream(folder + "output", std::ios::binary);
    stream.write(reinterpret_cast<const char *>(output.data()), output.size() * sizeof(unsigned));
    return stream.flush() ? 0 : 2;
}
