/* One rank at its work: all-reduces at a steady pace, with transfers and steps, until so many are done.
 *
 * usage: pace PATH_OF_THE_PLUGIN COMM_ID RANK NRANKS PER_SECOND OPERATIONS CHANNELS STEPS
 * Prints "ready", then "done" after the last operation, and stays until its standard input ends, as a rank that has
 * not been told to leave. What it did is known beforehand, so whoever reads its ring can be counted after.
 */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CHUNK_BYTES = 65536, NS_PER_S = 1000000000 };

static void move(const struct comm *comm, void *operation, int channel, int steps)
{
    const int next = (comm->rank + 1) % comm->nranks, before = (comm->rank + comm->nranks - 1) % comm->nranks;
    void *send = begin_transfer(comm, operation, next, channel, steps, true);
    void *recv = begin_transfer(comm, operation, before, channel, steps, false);

    for (int step = 0; step < steps; step++) {
        run_send_step(comm, send, step, CHUNK_BYTES);
        run_recv_step(comm, recv, step, CHUNK_BYTES);
    }
    stop(comm, send);
    stop(comm, recv);
}

static void wait_for_turn(struct timespec *turn, long pause_ns)
{
    turn->tv_nsec += pause_ns;
    turn->tv_sec += turn->tv_nsec / NS_PER_S;
    turn->tv_nsec %= NS_PER_S;
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, turn, NULL);
}

int main(int argc, char **argv)
{
    struct timespec turn;

    if (argc != 9) {
        fprintf(stderr, "usage: %s PATH_OF_THE_PLUGIN COMM_ID RANK NRANKS PER_SECOND OPERATIONS CHANNELS STEPS\n", argv[0]);
        return 2;
    }
    plugin_path = argv[1];
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct nccl nccl = load_plugin(NEWEST_VERSION);
    const struct comm comm = open_comm(&nccl, strtoull(argv[2], NULL, 10), atoi(argv[3]), atoi(argv[4]));
    const uint64_t operations = strtoull(argv[6], NULL, 10);
    const int channels = atoi(argv[7]), steps = atoi(argv[8]);
    puts("ready");
    clock_gettime(CLOCK_MONOTONIC, &turn);
    for (uint64_t seq = 0; seq < operations; seq++) {
        void *operation = enqueue_all_reduce(&comm, seq);
        for (int channel = 0; channel < channels; channel++)
            move(&comm, operation, channel, steps);
        wait_for_turn(&turn, NS_PER_S / atol(argv[5]));
    }
    puts("done");
    while (getchar() != EOF)
        ;
    close_comm(&comm);
    return 0;
}
