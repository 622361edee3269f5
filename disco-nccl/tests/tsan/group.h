// A group of ranks whose GPU threads are threads of this process, and the memory that stands for their GPUs.

#pragma once

#include <memory>
#include <thread>
#include <vector>

#include <all_reduce.cu>

constexpr unsigned MAX_VECTORS = 160;
constexpr unsigned SENTINEL = 0xdeadbeef;

using Kernel = void (*)(Params);

enum Algorithm { ONE_SHOT, TWO_SHOT, CUBE_MESH, BARRIER };

constexpr Kernel KERNELS[3][3] = {
    {disco_one_shot_f32, disco_one_shot_f16, disco_one_shot_bf16},
    {disco_two_shot_f32, disco_two_shot_f16, disco_two_shot_bf16},
    {disco_hybrid_cube_mesh_f32, disco_hybrid_cube_mesh_f16, disco_hybrid_cube_mesh_bf16},
};

// One launch of a rank.
struct Launch {
    Algorithm algorithm;
    unsigned dtype;
    unsigned count;
    unsigned blocks;
    // The seed of the inputs. An even seed makes integers, whose sums are exact.
    unsigned seed;
    bool in_place;
    // The rank skips this launch, as if it were dead.
    bool absent;
};

// The memory and the blocks of a rank's GPU.
struct Device {
    State state = {};
    uint4 data[2 * MAX_VECTORS];
    uint4 input[MAX_VECTORS], output[MAX_VECTORS + 1];
    unsigned abort = 0, report = 0;
    // Synchronises all threads of the rank between launches. Ranks are not synchronised with each other.
    pthread_barrier_t gate;
    Block blocks[MAX_BLOCKS] = {};
};

class Group {
  public:
    const unsigned world;
    std::vector<std::unique_ptr<Device>> devices;
    unsigned long long timeout_ns = 60'000'000'000;
    // The halves of a hybrid cube mesh: ranks 0 to 3 and 4 to 7 (true), or even and odd ranks (false).
    bool rows = true;

    Group(unsigned world, unsigned blocks, unsigned start) : world(world), blocks(blocks)
    {
        for (unsigned rank = 0; rank < world; rank++) {
            devices.push_back(std::make_unique<Device>());
            Device &device = *devices.back();
            pthread_barrier_init(&device.gate, nullptr, blocks * threads());
            for (unsigned b = 0; b < blocks; b++) {
                pthread_barrier_init(&device.blocks[b].barrier, nullptr, threads());
                for (unsigned peer = 0; peer < world; peer++)
                    device.state.flags[b][peer].word = device.state.counts[b][peer] = start;
            }
        }
    }

    unsigned threads() const { return world; }

    // Runs the launches of every rank. One thread of the rank calls `before` before each launch and `after` after it,
    // with the rank and the index of the launch.
    template <class Before, class After>
    void run(const std::vector<std::vector<Launch>> &launches, Before before, After after)
    {
        std::vector<std::thread> all;
        // All threads start together, so that the creation of threads does not count towards timeouts.
        pthread_barrier_t start;
        pthread_barrier_init(&start, nullptr, world * blocks * threads());
        for (unsigned rank = 0; rank < world; rank++)
            for (unsigned b = 0; b < blocks; b++)
                for (unsigned t = 0; t < threads(); t++)
                    all.emplace_back([=, this, &launches, &start] {
                        pthread_barrier_wait(&start);
                        Device &device = *devices[rank];
                        threadIdx = {t, 0, 0}, blockIdx = {b, 0, 0}, blockDim = {threads(), 1, 1};
                        block = &device.blocks[b];
                        for (unsigned i = 0; i < launches[rank].size(); i++) {
                            const Launch &launch = launches[rank][i];
                            if (b + t == 0)
                                before(rank, i);
                            pthread_barrier_wait(&device.gate);
                            gridDim = {launch.blocks, 1, 1};
                            if (b < launch.blocks && !launch.absent)
                                kernel(launch)(params(rank, launch));
                            pthread_barrier_wait(&device.gate);
                            if (b + t == 0)
                                after(rank, i);
                        }
                    });
        for (std::thread &thread : all)
            thread.join();
    }

  private:
    const unsigned blocks;

    static Kernel kernel(const Launch &launch)
    {
        return launch.algorithm == BARRIER ? disco_barrier : KERNELS[launch.algorithm][launch.dtype];
    }

    Params params(unsigned rank, const Launch &launch)
    {
        Params p = {};
        for (unsigned peer = 0; peer < world; peer++) {
            p.data[peer] = devices[peer]->data;
            p.state[peer] = &devices[peer]->state;
        }
        Device &own = *devices[rank];
        p.input = launch.in_place ? own.output : own.input;
        p.output = own.output;
        p.abort = &own.abort;
        p.report = &own.report;
        p.timeout_ns = timeout_ns;
        p.count = launch.count;
        p.rank = rank;
        p.world = world;
        p.near = rows ? 0xfu << rank / 4 * 4 : 0x55u << rank % 2;
        p.relay = rows ? rank ^ 4 : rank ^ 1;
        return p;
    }
};
