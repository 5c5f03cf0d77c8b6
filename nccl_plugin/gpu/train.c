/* A training-like loop: per step twice (compute, tensor-parallel all-reduce), then a data-parallel all-reduce. */
#define _GNU_SOURCE

#include "rank.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int is_faulty(const char *kind, int step)
{
    return program.rank == program.fault.rank && step >= program.fault.step && strcmp(program.fault.kind, kind) == 0;
}

static int begins(const char *kind, int step) { return is_faulty(kind, step) && step == program.fault.step; }

/* +-3 % per rank and step, the same in every run. */
static uint64_t jittered_ns(uint64_t us, int step)
{
    const uint64_t mixed = ((uint64_t)program.rank * 1000003u + (uint64_t)step) * UINT64_C(0x9E3779B97F4A7C15) >> 40;

    return us * (970 + mixed % 61);
}

static void misbehave(int step)
{
    if (begins("stop", step) || begins("notice", step)) {
        printf("{\"onset\": %d, \"ns\": %llu}\n", step, (unsigned long long)now_ns());
        fflush(stdout);
    }
    if (begins("stop", step))
        raise(SIGSTOP);
    if (is_faulty("sleep", step))
        usleep((useconds_t)program.fault.us);
}

static void train_step(int step, nccl_comm tp, nccl_comm dp, size_t tp_bytes, size_t dp_bytes, uint64_t compute_us)
{
    const uint64_t us = compute_us + (is_faulty("spin", step) ? program.fault.us : 0);

    misbehave(step);
    for (int half = 0; half < 2; half++) {
        kernel_spin(jittered_ns(us / 2, step), program.stream);
        call(WIRE_ALL_REDUCE, tp, tp_bytes);
    }
    call(WIRE_ALL_REDUCE, dp, dp_bytes);
    synchronize();
}

static void print_steps(const uint64_t *began_ns, int steps)
{
    printf("{\"steps\": [");
    for (int step = 0; step <= steps; step++)
        printf("%s%llu", step == 0 ? "" : ", ", (unsigned long long)began_ns[step]);
    printf("]}\n");
}

void train(int steps, int tp, size_t tp_bytes, size_t dp_bytes, uint64_t compute_us)
{
    static uint64_t began_ns[MAX_STEPS + 1];
    const struct nccl *nccl = &program.side->nccl;
    nccl_comm tp_comm, dp_comm;

    if (steps > MAX_STEPS)
        give_up("train", "at most 512 steps");
    NCCL(nccl->split(program.side->comm, program.rank / tp, program.rank, &tp_comm, NULL));
    NCCL(nccl->split(program.side->comm, program.rank % tp, program.rank, &dp_comm, NULL));
    for (int step = 0; step < steps; step++) {
        began_ns[step] = now_ns();
        train_step(step, tp_comm, dp_comm, tp_bytes, dp_bytes, compute_us);
    }
    began_ns[steps] = now_ns();
    NCCL(nccl->destroy(tp_comm));
    NCCL(nccl->destroy(dp_comm));
    print_steps(began_ns, steps);
}
