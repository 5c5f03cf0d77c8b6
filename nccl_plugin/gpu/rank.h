/* What the files of the rank program share. One process is one rank; lab.py starts them. */
#ifndef LOCKSTEP_GPU_RANK_H
#define LOCKSTEP_GPU_RANK_H

#include "../wire.h"

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

/* NCCL's interface as far as it is used here, so that no header of NCCL is needed. */
struct nccl_id {
    char bytes[128];
};
typedef void *nccl_comm;
enum { NCCL_FLOAT32 = 7, NCCL_SUM = 0 };

struct nccl {
    int (*get_version)(int *);
    int (*get_id)(struct nccl_id *);
    int (*init)(nccl_comm *, int, struct nccl_id, int);
    int (*split)(nccl_comm, int, int, nccl_comm *, void *);
    int (*destroy)(nccl_comm);
    int (*group_start)(void);
    int (*group_end)(void);
    int (*all_reduce)(const void *, void *, size_t, int, int, nccl_comm, cudaStream_t);
    int (*all_gather)(const void *, void *, size_t, int, nccl_comm, cudaStream_t);
    int (*reduce_scatter)(const void *, void *, size_t, int, int, nccl_comm, cudaStream_t);
    int (*broadcast)(const void *, void *, size_t, int, int, nccl_comm, cudaStream_t);
    int (*send)(const void *, size_t, int, int, nccl_comm, cudaStream_t);
    int (*recv)(void *, size_t, int, int, nccl_comm, cudaStream_t);
};

enum { MAX_SIDES = 16, MAX_STEPS = 512 };

/* One NCCL in this process. Several copies of the library, each with another profiler plugin or none, live side by
 * side, so that what a plugin costs is told by comparing moments and not processes. */
struct side {
    char name[32];
    struct nccl nccl;
    nccl_comm comm;
    int ring; /* the plugin's ring file, -1 without one. Never closed: closing would drop the plugin's lock on it */
    uint64_t calls[WIRE_FUNCS];
};

/* A fault that is played from `step` on. */
struct fault {
    char kind[16]; /* sleep, spin, stop, notice */
    int rank;
    int step;
    uint64_t us;
};

struct program {
    int rank;
    int ranks;
    const char *folder; /* where the ranks meet: files with NCCL's ids */
    cudaStream_t stream;
    void *send;
    void *recv;
    struct side sides[MAX_SIDES];
    int side_count;
    struct side *side; /* the one in use */
    struct fault fault;
};

extern struct program program;

#define CUDA(call) check_cuda((call), #call)
#define NCCL(call) check_nccl((call), #call)
void check_cuda(cudaError_t error, const char *call);
void check_nccl(int error, const char *call);
void give_up(const char *what, const char *which);
uint64_t now_ns(void); /* CLOCK_REALTIME */
void synchronize(void);
void kernel_spin(uint64_t duration_ns, void *stream); /* kernels.cu */

void side_open(char *description);
void side_use(const char *name);
void side_request(uint32_t level, uint32_t share);
void call(enum wire_func func, nccl_comm comm, size_t bytes);
void train(int steps, int tp, size_t tp_bytes, size_t dp_bytes, uint64_t compute_us);

#endif
