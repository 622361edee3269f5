// Measures collectives of MPI through its blocking calls, in the way of `disco bench`: operations follow each other
// without a barrier, and the time is that of the slowest rank.
//
// Arguments: OPERATION[,OPERATION...] SIZE... Prints lines `SIZE MICROSECONDS`. A size is that of the larger of a rank's
// buffers in bytes.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double TARGET_SECONDS = 0.02;
static const double WARM_UP_SECONDS = 0.2;
static const int MIN_ITERS = 5;

static int rank, ranks;

static void operation(const char *name, const float *from, float *to, int count) {
  int block = count / ranks;
  if (strcmp(name, "all_reduce") == 0) {
    MPI_Allreduce(from, to, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (strcmp(name, "all_reduce_in_place") == 0) {
    MPI_Allreduce(MPI_IN_PLACE, to, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (strcmp(name, "all_gather") == 0) {
    MPI_Allgather(from, block, MPI_FLOAT, to, block, MPI_FLOAT, MPI_COMM_WORLD);
  } else if (strcmp(name, "broadcast") == 0) {
    MPI_Bcast(to, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
  } else if (strcmp(name, "reduce_scatter") == 0) {
    MPI_Reduce_scatter_block(from, to, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (strcmp(name, "all_to_all") == 0) {
    MPI_Alltoall(from, block, MPI_FLOAT, to, block, MPI_FLOAT, MPI_COMM_WORLD);
  } else if (strcmp(name, "reduce") == 0) {
    MPI_Reduce(from, to, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
  } else if (strcmp(name, "gather") == 0) {
    MPI_Gather(from, block, MPI_FLOAT, to, block, MPI_FLOAT, 0, MPI_COMM_WORLD);
  } else if (strcmp(name, "scatter") == 0) {
    MPI_Scatter(from, block, MPI_FLOAT, to, block, MPI_FLOAT, 0, MPI_COMM_WORLD);
  } else if (strcmp(name, "barrier") == 0) {
    MPI_Barrier(MPI_COMM_WORLD);
  } else {
    fprintf(stderr, "there is no operation %s\n", name);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
}

// Seconds of one of `iters` operations on the slowest rank.
static double timed(const char *name, const float *from, float *to, int count, long iters) {
  for (int warm_up = 0; warm_up < 3; warm_up++) operation(name, from, to, count);
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  for (long iter = 0; iter < iters; iter++) operation(name, from, to, count);
  double seconds = (MPI_Wtime() - start) / iters, slowest;
  MPI_Allreduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

// The result of an operation on ones, or of a broadcast of `to`. Values stay finite in place too.
static void check(const char *name, float *from, float *to, int count) {
  int in_place = strcmp(name, "all_reduce_in_place") == 0, broadcast = strcmp(name, "broadcast") == 0;
  int reduces = strstr(name, "reduce") != NULL, scatters = strstr(name, "scatter") != NULL;
  int at_root = strcmp(name, "reduce") == 0 || strcmp(name, "gather") == 0;
  int results = scatters ? count / ranks : count;
  if (strcmp(name, "barrier") == 0 || (at_root && rank > 0)) results = 0;
  for (int i = 0; i < count; i++) {
    from[i] = 1;
    to[i] = in_place || (broadcast && rank == 0);
  }
  operation(name, from, to, count);
  for (int i = 0; i < results; i++) {
    if (to[i] != (reduces ? ranks : 1)) {
      fprintf(stderr, "%s: element %d of %d is %f\n", name, i, count, to[i]);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  for (int i = 0; i < count; i++) to[i] = from[i] = 0;
}

static float *buffer(size_t bytes) {
  void *memory = NULL;
  if (posix_memalign(&memory, 4096, bytes) != 0) MPI_Abort(MPI_COMM_WORLD, 3);
  memset(memory, 0, bytes);
  return memory;
}

static void bench(const char *name, int sizes, char **size) {
  for (int index = 0; index < sizes; index++) {
    size_t bytes = strtoull(size[index], NULL, 10);
    // At least one element per block.
    int has_blocks = strstr(name, "scatter") != NULL || strstr(name, "gather") != NULL || strcmp(name, "all_to_all") == 0;
    int blocks = has_blocks ? ranks : 1;
    int count = (int)(bytes / 4 / blocks);
    count = (count > 0 ? count : 1) * blocks;
    float *from = buffer(count * 4ul), *to = buffer(count * 4ul);
    check(name, from, to, count);
    double start = MPI_Wtime(), once = 0;
    int again = 1;
    while (index == 0 && again) {
      once = timed(name, from, to, count, 10);
      again = MPI_Wtime() - start < WARM_UP_SECONDS;
      MPI_Bcast(&again, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    once = timed(name, from, to, count, MIN_ITERS);
    double wanted = TARGET_SECONDS / once;
    long iters = wanted < MIN_ITERS ? MIN_ITERS : wanted > 1e6 ? 1000000 : (long)wanted;
    MPI_Bcast(&iters, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    double seconds = timed(name, from, to, count, iters);
    if (rank == 0) {
      printf("%zu %.4f\n", bytes, seconds * 1e6);
      fflush(stdout);
    }
    free(from);
    free(to);
  }
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc < 3) {
    fprintf(stderr, "usage: ranks OPERATION[,OPERATION...] SIZE...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  for (char *name = strtok(argv[1], ","); name; name = strtok(NULL, ",")) bench(name, argc - 2, argv + 2);
  MPI_Finalize();
  return 0;
}
