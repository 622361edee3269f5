/* A C program that uses MPI itself. It uses Disco first on a communicator of its own, and then in a session on all of its ranks:
 *
 *     cargo build --release --features mpi --example c_host
 *     mpicc examples/c_host/host.c -L target/release/examples -lc_host -o host
 *     LD_LIBRARY_PATH=target/release/examples mpiexec -n 3 ./host
 */
#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int disco_all_reduce(uintptr_t comm, float *data, size_t count);
void disco_init(void);
int disco_session(size_t workers);

int main(int argc, char **argv) {
    /* Sessions start threads; a communicator alone does not. */
    int wanted = argc > 1 && strcmp(argv[1], "single") == 0 ? MPI_THREAD_SINGLE : MPI_THREAD_MULTIPLE;
    int provided, rank, size;
    MPI_Comm reversed;
    MPI_Init_thread(&argc, &argv, wanted, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);

    float data[] = {1, (float)rank};
    if (disco_all_reduce((uintptr_t)reversed, data, 2)) MPI_Abort(MPI_COMM_WORLD, 1);
    if (rank == 0) printf("a communicator's sum: %g ranks, %g\n", data[0], data[1]);
    fflush(stdout);
    MPI_Comm_free(&reversed);

    disco_init();
    int failed = disco_session((size_t)size);
    /* The other ranks are inside disco_init. They exit when rank 0 finalises MPI. */
    MPI_Finalize();
    return failed;
}
