// Runs the kernels on threads of the host: `harness sums ROUNDS`, `harness faults`, or `harness ends`.

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <unistd.h>

#include "numbers.h"

namespace {

constexpr unsigned COUNTS[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 72, 100, 127, 129, 160};

[[noreturn]] void failed()
{
    std::fflush(stdout);
    std::_Exit(1);
}

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::printf("line %d: ", __LINE__);                                                                        \
            std::printf(__VA_ARGS__);                                                                                  \
            std::printf("\n");                                                                                         \
            failed();                                                                                                  \
        }                                                                                                              \
    } while (0)

// Runs the same launches on all ranks; checks that the results are correct and have the same bits on all ranks.
unsigned long long sums(Group &group, const std::vector<Launch> &launches)
{
    std::vector<std::vector<unsigned long long>> digests(group.world, std::vector<unsigned long long>(launches.size()));
    auto before = [&](unsigned rank, unsigned i) {
        if (launches[i].algorithm != BARRIER)
            fill(*group.devices[rank], launches[i], rank);
    };
    auto after = [&](unsigned rank, unsigned i) {
        Device &device = *group.devices[rank];
        unsigned report = load_relaxed(&device.report);
        CHECK(report == 0, "rank %u, launch %u: failed with %08x", rank, i, report);
        if (launches[i].algorithm != BARRIER && !check(device, launches[i], group.world, rank, digests[rank][i]))
            failed();
    };
    group.run(std::vector(group.world, launches), before, after);
    for (unsigned rank = 1; rank < group.world; rank++)
        for (unsigned i = 0; i < launches.size(); i++)
            CHECK(digests[rank][i] == digests[0][i], "launch %u: rank %u of %u has other bits", i, rank, group.world);
    return launches.size();
}

// Runs every kernel, dtype and count in turn on the same buffers. The counts of handshakes start at 0 or just below
// 2^32 or 2^31, so that they wrap or pass 2^31.
void every_sum(unsigned rounds)
{
    constexpr unsigned BLOCKS = 2;
    constexpr unsigned STARTS[] = {0u - 40, 0, (1u << 31) - 40};
    unsigned long long done = 0;
    for (unsigned world = 2; world <= MAX_WORLD; world++) {
        for (unsigned round = 0; round < rounds; round++) {
            Group group(world, BLOCKS, STARTS[round % 3]);
            group.rows = round % 2 == 0;
            std::vector<Launch> launches;
            for (unsigned count : COUNTS)
                for (unsigned kind = 0; kind < 10; kind++) {
                    unsigned i = launches.size() + round * 1000;
                    Algorithm algorithm = kind == 9 ? BARRIER : Algorithm(kind / 3);
                    if (algorithm == CUBE_MESH && world != 8)
                        continue;
                    unsigned blocks = algorithm == BARRIER ? 1 : 1 + mixed(i) % BLOCKS;
                    launches.push_back({algorithm, kind % 3, count, blocks, i, mixed(i) % 3 == 0, false});
                }
            done += sums(group, launches);
        }
    }
    std::printf("%llu launches of 2 to 8 ranks\n", done);
}

// A short run that detects injected faults.
void faults()
{
    Group group(3, 2, 0u - 12);
    group.timeout_ns = 2'000'000'000;
    std::vector<Launch> launches;
    for (unsigned i = 0; i < 24; i++)
        launches.push_back({i % 2 ? ONE_SHOT : TWO_SHOT, 0, 33 + i, 2, i, false, false});
    sums(group, launches);
}

unsigned status(Cause cause, Phase phase, unsigned peer)
{
    return cause << 24 | phase << 16 | peer << 8;
}

// One rank, `absentee`, runs other launches than its peers, or none. The peers end with the `expected` report, and
// their next launch makes no handshake and writes no shared memory.
void one_rank_is_out_of_step(unsigned world, unsigned absentee, Algorithm algorithm, std::vector<Launch> others,
                        std::function<unsigned(unsigned)> expected)
{
    constexpr unsigned START = 0u - 1;
    Group group(world, 1, START);
    group.timeout_ns = 1'500'000'000;
    Launch launch = {algorithm, 0, 33, 1, 1, false, false};
    // Its inputs differ, so that a write to the shared buffer, which peers may still read, would be noticed.
    const Launch next = {algorithm, 0, 33, 1, 2, false, false};
    std::vector launches(world, std::vector{launch, next});
    launches[absentee] = others;
    std::vector<unsigned> flags(world);
    std::vector<std::vector<uint4>> shared(world);
    auto before = [&](unsigned rank, unsigned i) {
        if (rank != absentee && algorithm != BARRIER)
            fill(*group.devices[rank], i ? next : launch, rank);
    };
    auto sum_of_flags = [&](unsigned rank) {
        unsigned sum = 0;
        for (unsigned peer = 0; peer < world; peer++)
            sum += load_relaxed(&group.devices[peer]->state.flags[0][rank].word);
        return sum;
    };
    auto after = [&](unsigned rank, unsigned i) {
        if (rank == absentee)
            return;
        unsigned report = load_relaxed(&group.devices[rank]->report);
        CHECK(report == expected(rank), "rank %u: %08x", rank, report);
        const uint4 *data = group.devices[rank]->data;
        if (i == 0) {
            flags[rank] = sum_of_flags(rank);
            shared[rank].assign(data, data + 2 * MAX_VECTORS);
        }
        CHECK(flags[rank] == sum_of_flags(rank), "rank %u goes on after it failed", rank);
        bool same = !std::memcmp(shared[rank].data(), data, sizeof(Device::data));
        CHECK(same, "rank %u writes what peers read after it failed", rank);
    };
    group.run(launches, before, after);
}

// Rank 0 never arrives. The timeout of its peers is long, but the host sets their abort flags.
void host_aborts(unsigned world)
{
    Group group(world, 2, 0);
    Launch launch = {TWO_SHOT, 1, 64, 2, 1, false, false};
    std::vector launches(world, std::vector{launch});
    launches[0][0].absent = true;
    std::thread host([&] {
        // Waits until all other ranks have reached each other, so that they wait for rank 0 only.
        for (unsigned from = 1; from < world; from++)
            for (unsigned to = 1; to < world; to++)
                for (unsigned b = 0; b < 2; b++)
                    while (from != to && load_relaxed(&group.devices[to]->state.flags[b][from].word) == 0)
                        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        for (auto &device : group.devices)
            __atomic_store_n(&device->abort, 1, __ATOMIC_RELAXED);
    });
    auto after = [&](unsigned rank, unsigned) {
        unsigned report = load_relaxed(&group.devices[rank]->report) & ~0xffu;
        CHECK(rank == 0 || report == status(ABORTED, LEADING, 0), "rank %u: %08x", rank, report);
    };
    group.run(launches, [](unsigned, unsigned) {}, after);
    host.join();
}

void ends()
{
    const Launch barrier = {BARRIER, 0, 0, 1, 1, false, false};
    auto missed = [](Phase phase, unsigned peer) { return [=](unsigned) { return status(DEADLINE, phase, peer); }; };
    one_rank_is_out_of_step(3, 2, ONE_SHOT, {}, missed(LEADING, 2));
    one_rank_is_out_of_step(5, 1, TWO_SHOT, {barrier}, missed(MID, 1));
    one_rank_is_out_of_step(2, 0, BARRIER, {}, missed(ALONE, 0));
    one_rank_is_out_of_step(2, 1, ONE_SHOT, {barrier}, missed(TRAILING, 1));
    one_rank_is_out_of_step(2, 0, TWO_SHOT, {barrier, barrier}, missed(TRAILING, 0));
    // The ranks of its half miss rank 5; the ranks of the other half miss their relays, which wait for it.
    one_rank_is_out_of_step(8, 5, CUBE_MESH, {}, [](unsigned rank) {
        return rank < 4 ? status(DEADLINE, MID, rank + 4) : status(DEADLINE, LEADING, 5);
    });
    for (unsigned world : {3, 8})
        host_aborts(world);
}

} // namespace

int main(int count, char **args)
{
    // Ends a hanging process.
    alarm(1200);
    const std::string what = count > 1 ? args[1] : "";
    if (what == "sums" && count > 2)
        every_sum(std::atoi(args[2]));
    else if (what == "faults")
        faults();
    else if (what == "ends")
        ends();
    else
        return 2;
    return 0;
}
