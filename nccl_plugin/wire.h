/* The ring file: what the plugin writes beside the training job and the collector reads. lockstep/wire.py mirrors this
 * file, and a compiled probe compares every offset.
 *
 * One file per process: a header, a control page, then tables and rings at the offsets that the header gives. All
 * numbers are little-endian, all times ticks of one counter; the clock table turns ticks into UNIX time. The reader
 * trusts nothing: whatever is here is a claim of a process that belongs to somebody else.
 *
 * Who writes what. The plugin alone writes everything but `struct wire_request`, which the collector writes. A thread
 * writes only its own ring, operations and transfers; set 0 of these is shared by the threads that found no free one.
 *
 * How a reader gets no torn record: `head` counts the records ever written (in the shared ring: begun, also those that
 * were lost); record i stands in slot i % count, with stamp i / count + 1, and with stamp WIRE_BUSY while it is being
 * written. A reader copies slots, reads `head` again and drops every record that the writer may have reached meanwhile.
 * Operations, transfers and communicators carry their own number first (0 while they change): equal and not 0 before and
 * after the copy means whole.
 */
#ifndef LOCKSTEP_WIRE_H
#define LOCKSTEP_WIRE_H

#include <stdint.h>

#define WIRE_MAGIC "LOCKSTEP"
#define WIRE_BUSY 0xFFFFFFFFu
#define WIRE_NO_COMM 0xFFFFu /* the communicator is another process's, or found no place */

enum {
    WIRE_VERSION = 1,
    WIRE_PAGE = 4096,
    WIRE_CLOCK_PAIRS = 64,
    WIRE_COMMS = 4096,
    WIRE_ROWS = 8192,
    WIRE_RING_RECORDS = 8192,     /* per ring at least; as many more as the file has room for */
    WIRE_RING_OPERATIONS = 1024,  /* per ring; a power of two */
    WIRE_RING_TRANSFERS = 512,    /* per ring; a power of two */
    WIRE_STEPS_AHEAD = 8,         /* steps of one transfer that NCCL keeps open at most */
    WIRE_MARKS = 4,               /* moments kept of a step: posted, two states, done */
};

/* How much is seen. A level holds what the ones below it hold. */
enum wire_level {
    WIRE_OFF = 0,        /* callbacks come and are dropped */
    WIRE_OPERATIONS = 1, /* what was enqueued */
    WIRE_TRANSFERS = 2,  /* and what its transfers did: 'ops' in the records */
    WIRE_STEPS = 3,      /* and the steps of sampled operations: 'steps' in the records */
    WIRE_TRACE = 4,      /* and one record per callback, for bug reports */
};

enum wire_clock_kind { WIRE_CLOCK_TSC = 1, WIRE_CLOCK_CNTVCT = 2, WIRE_CLOCK_MONOTONIC = 3, WIRE_CLOCK_REPLAY = 4 };

/* Why the level in force is below the one asked for. */
enum wire_lowered {
    WIRE_NOT_LOWERED = 0,
    WIRE_LOWERED_BY_CALLBACKS = 1, /* the time in our callbacks exceeds the budget */
    WIRE_LOWERED_BY_JOB = 2,       /* the job's own pace suffers more than the budget; earlier plugins decided so themselves */
};

enum wire_func {
    WIRE_FUNC_UNKNOWN, WIRE_ALL_REDUCE, WIRE_ALL_GATHER, WIRE_REDUCE_SCATTER, WIRE_BROADCAST, WIRE_REDUCE, WIRE_SEND,
    WIRE_RECV, WIRE_ALL_TO_ALL, WIRE_GATHER, WIRE_SCATTER, WIRE_FUNCS,
};

enum wire_dtype {
    WIRE_DTYPE_UNKNOWN, WIRE_INT8, WIRE_UINT8, WIRE_INT32, WIRE_UINT32, WIRE_INT64, WIRE_UINT64, WIRE_FLOAT16,
    WIRE_FLOAT32, WIRE_FLOAT64, WIRE_BFLOAT16, WIRE_FLOAT8E4M3, WIRE_FLOAT8E5M2, WIRE_DTYPES,
};

enum wire_algo {
    WIRE_ALGO_UNKNOWN, WIRE_TREE, WIRE_RING, WIRE_COLLNET_DIRECT, WIRE_COLLNET_CHAIN, WIRE_NVLS, WIRE_NVLS_TREE,
    WIRE_PAT, WIRE_ALGOS,
};

enum wire_proto { WIRE_PROTO_UNKNOWN, WIRE_LL, WIRE_LL128, WIRE_SIMPLE, WIRE_PROTOS };

/* What the oldest unfinished step of a transfer waits for. */
enum wire_wait {
    WIRE_WAIT_UNKNOWN, /* steps are not recorded for this transfer, or it has none open */
    WIRE_WAIT_GPU,     /* send: the local GPU fills the buffer */
    WIRE_WAIT_PEER,    /* send: the receiver's clear-to-send */
    WIRE_WAIT_WIRE,    /* send: the network */
    WIRE_WAIT_RECV,    /* recv: the sender and the network */
    WIRE_WAIT_FLUSH,   /* recv: the flush to the GPU */
    WIRE_WAIT_RECV_GPU, /* recv: the local GPU takes the data */
    WIRE_WAITS,
};

/* Handles, as NCCL carries them and as records name operations and transfers: never an address.
 * tag 63..48 | kind 47..45 | sampled 44 | captured 43 | step 42..40 | generation 39..16 | slot 15..0
 * `tag` is the header's; another one means a handle of another process. A slot counts over all rings. */
enum wire_handle_kind { WIRE_HANDLE_API = 1, WIRE_HANDLE_OPERATION, WIRE_HANDLE_TRANSFER, WIRE_HANDLE_STEP, WIRE_HANDLE_KERNEL };
enum {
    WIRE_TAG_SHIFT = 48, WIRE_KIND_SHIFT = 45, WIRE_SAMPLED_SHIFT = 44, WIRE_CAPTURED_SHIFT = 43, WIRE_STEP_SHIFT = 40,
    WIRE_GENERATION_SHIFT = 16, WIRE_GENERATION_BITS = 24,
};

/* A table in the file. */
struct wire_section {
    uint64_t offset;
    uint32_t count;
    uint32_t stride; /* bytes from one element to the next; at least the size of what this version knows of it */
};

struct wire_header { /* the first page; written once, `ready` last */
    char magic[8];
    uint32_t version;
    uint32_t ready; /* 1 when all of the file is there */
    uint64_t file_bytes;
    uint64_t created_ns;  /* UNIX time; with pid it names this file among all of the host's */
    uint32_t pid;         /* in the process's own namespace; the kernel knows the host's */
    uint32_t tag;         /* 16 bits, in every handle */
    uint32_t clock_kind;
    uint32_t nccl_version; /* as ncclGetVersion gives it: 22809 for 2.28.9; 0 when unknown */
    uint32_t api_version;
    uint32_t kernel_channels; /* 1 when GPU times of kernels are asked for; never changes */
    struct wire_section requests;   /* 1 */
    struct wire_section status;     /* 1 */
    struct wire_section clocks;
    struct wire_section comms;
    struct wire_section rows;
    struct wire_section rings;      /* struct wire_ring; number 0 is the shared one */
    struct wire_section records;    /* `rings.count` times the same number */
    struct wire_section operations; /* `rings.count` times WIRE_RING_OPERATIONS */
    struct wire_section transfers;  /* the same, WIRE_RING_TRANSFERS each */
    int32_t world_rank;  /* -1 when the environment does not say */
    int32_t world_size;
    int32_t local_rank;
    uint32_t attempt;
    char plugin_version[16];
    char host[80];        /* texts end with 0 */
    char job[80];
    char visible_gpus[128]; /* CUDA_VISIBLE_DEVICES */
};

/* What the collector asks for: it writes the fields, then `stamp`, another one than before. */
struct wire_request {
    uint32_t stamp; /* 0: nothing was ever asked */
    uint32_t level;
    uint32_t share;      /* of operations whose steps are recorded, of 65,536 */
    uint32_t budget_ppm; /* what the job may pay, in millionths of its time; 0 leaves it as it is */
};

/* What is in force, and what it costs. */
struct wire_status {
    uint32_t stamp; /* of the last request carried out */
    uint32_t level;
    uint32_t share;
    uint32_t budget_ppm;
    uint32_t mask;    /* NCCL's event mask */
    uint32_t epoch;   /* counts from 1; a new one whenever recording was off */
    uint32_t lowered; /* enum wire_lowered */
    uint32_t callback_ppm; /* time in our callbacks, of the busiest thread's time */
    int32_t paid_ppm;      /* what the job pays: how much longer the windows with detail took than those without */
    uint32_t paid_error_ppm; /* half the width of its 95 % interval */
    uint32_t paid_pairs;     /* how many pairs of windows that rests on; 0: not measured yet */
    uint32_t dear;           /* 1 when the job surely pays more than the budget: the collector is to ask for less */
    uint64_t refused_comms;      /* found no place in the table */
    uint64_t refused_rows;
    uint64_t overwritten;        /* operations or transfers still open when their place was needed */
    uint64_t stale;              /* callbacks on handles that are over */
    uint64_t foreign;            /* transfers made for another process (PXN) */
    uint64_t shared_threads;     /* how often a thread found no free ring */
};

struct wire_clock_pair { /* number i stands at i % WIRE_CLOCK_PAIRS; `stamp` is i + 1, written last */
    uint64_t ticks;
    uint64_t unix_ns;
    uint64_t error_ticks; /* the two readings lie this far apart at most */
    uint64_t stamp;
};

struct wire_comm {
    uint64_t incarnation; /* 0: never used, or changing; the same place may serve a later communicator */
    uint64_t id;
    uint64_t init_ticks;
    uint64_t destroy_ticks; /* 0 while it lives */
    uint32_t rank;
    uint32_t nranks; /* 0 when the API does not say (before v4) */
    uint32_t nnodes;
    uint32_t kernel_untrusted; /* 1 when NCCL's kernel times are known to be wrong from here on (self send in 2.26 to 2.30) */
    char name[80];
};

/* What a hang looks like from outside: one row per (communicator, function, peer). The three counts are sequence
 * numbers plus one, each written whole. */
struct wire_row {
    uint64_t key; /* comm + 1 in 63..40 | func in 39..32 | peer in 31..0 (all ones: none); 0: empty, all ones: cleared */
    uint64_t enqueued;
    uint64_t started;
    uint64_t done;
    uint64_t enqueued_ticks;
    uint64_t started_ticks;
    uint64_t done_ticks;
    uint32_t epoch;
    uint32_t replay; /* how often `enqueued` was seen again: CUDA graphs */
};

struct wire_ring { /* alone in two cache lines, so that threads do not disturb one another */
    uint64_t head;
    uint64_t lost;      /* shared ring only: records dropped because another thread was in the slot */
    uint64_t callbacks; /* how many came through this ring */
    uint64_t sampled_callbacks;
    uint64_t sampled_ticks; /* time spent in those */
    uint64_t taken_ticks;   /* when a thread took the ring last */
    uint32_t thread;        /* 0: free; its id in the process's namespace */
    uint32_t unused[19];
};

struct wire_operation {
    uint64_t handle; /* 0 while changing */
    uint64_t seq;
    uint64_t bytes;
    uint64_t enqueue_ticks;
    uint16_t comm;
    uint8_t func;
    uint8_t dtype;
    uint8_t algo;
    uint8_t proto;
    uint8_t channels;
    uint8_t flags;
    int32_t peer; /* -1 unless send or recv */
    uint32_t replay;
    uint32_t row;  /* place in `rows`, WIRE_BUSY when it has none */
    uint32_t open; /* transfers and kernel channels begun and not ended */
    uint32_t epoch;
    uint32_t began; /* transfers and kernel channels ever begun */
};

/* A transfer, or (WIRE_FLAG_KERNEL) one channel of a kernel: then `bytes` is the GPU's start time in ns, `charged_ticks` its
 * stop time, and waits and steps mean nothing. An open one with `last_ticks` 0 is what a hang hangs on. */
struct wire_transfer {
    uint64_t handle;    /* 0 while changing */
    uint64_t operation; /* handle; another process's when `pid` is not 0 */
    uint64_t wait;      /* enum wire_wait in 63..56 | ticks since when in 55..0; written whole */
    uint64_t bytes;
    uint64_t first_ticks;
    uint64_t last_ticks; /* 0 while it is open */
    uint32_t pid;
    int32_t peer;
    uint16_t comm;
    uint8_t channel;
    uint8_t flags;
    uint32_t steps; /* as announced */
    uint32_t done_steps;
    uint32_t head_step; /* the oldest unfinished one */
    uint64_t wait_ticks[4]; /* charged to the oldest unfinished step: gpu, peer, wire, flush; recv has no wire */
    uint64_t charged_ticks; /* up to when */
    uint64_t unused[2];
    struct wire_open_step {
        uint64_t marks[WIRE_MARKS]; /* posted, SendPeerWait or RecvFlushWait, SendWait or RecvGPUWait, done; 0: not seen */
        uint64_t bytes;
        uint32_t step;
        uint8_t wait;
        uint8_t state; /* 0 free, 1 open, 2 done and waiting for older ones */
        uint16_t unused;
    } ahead[WIRE_STEPS_AHEAD]; /* step s stands at s % WIRE_STEPS_AHEAD */
};

enum wire_record_kind {
    WIRE_ENQUEUED = 1,
    WIRE_TRANSFER_CLOSED = 2,
    WIRE_KERNEL_CLOSED = 3,
    WIRE_STEP_CLOSED = 4,
    WIRE_CALLBACK = 5,
};

enum wire_flag {
    WIRE_FLAG_SAMPLED = 1,    /* steps are recorded */
    WIRE_FLAG_CAPTURED = 2,   /* replayed from a CUDA graph */
    WIRE_FLAG_SEQ_VALID = 4,  /* `seq` may be compared with other ranks' */
    WIRE_FLAG_SEND = 8,       /* a transfer that sends */
    WIRE_FLAG_STEPS = 16,     /* wait times of this transfer are real */
    WIRE_FLAG_KERNEL = 32,    /* not a transfer: one channel of a kernel. Of an operation in its slot: its kernel has begun */
    WIRE_FLAG_UNTIMED = 64,   /* enqueued while nothing was asked of NCCL that would tell its start and end */
    WIRE_FLAG_AWAITS_KERNEL = 128, /* of an operation in its slot: NCCL tells when its kernel begins, and has not yet */
};

/* A duration in 32 bits: mantissa in 26..0, shifted left by 31..27. Exact below 2^27 ticks, to 2^-26 above.
 * All ones: not seen. */

struct wire_enqueued {
    uint64_t operation;
    uint64_t seq;
    uint64_t bytes;
    uint64_t ticks;
    int32_t peer;
    uint32_t replay;
    uint8_t func;
    uint8_t dtype;
    uint8_t algo;
    uint8_t proto;
    uint8_t channels;
    uint8_t unused;
    uint16_t epoch;
    int32_t root; /* -1 unless it matters */
    uint32_t padding;
};

struct wire_transfer_closed {
    uint64_t operation;
    uint64_t first_ticks;
    uint64_t bytes; /* 0 when steps were not recorded: the reader knows the operation */
    int32_t peer;
    uint32_t pid; /* 0 unless `operation` is another process's */
    uint32_t duration;
    uint32_t channel_steps; /* channel in 31..24 | steps in 23..0 */
    uint32_t waits[4];      /* gpu, peer, wire, flush; recv: peer is RecvWait, wire 0 */
};

struct wire_kernel_closed {
    uint64_t operation;
    uint64_t gpu_start_ns; /* the GPU's own clock */
    uint64_t gpu_stop_ns;
    uint64_t start_ticks; /* when the host heard of it */
    uint64_t stop_ticks;
    uint32_t channel;
    uint32_t unused[3];
};

struct wire_step_closed {
    uint64_t operation;
    uint64_t posted_ticks;
    uint64_t bytes;
    uint32_t marks[3]; /* durations since posted. send: peer wait, wire wait, done. recv: arrived, flushed, done */
    uint32_t padding;
    uint32_t step;
    int32_t peer;
    uint32_t channel;
    uint32_t unused;
};

struct wire_callback { /* as it came; what is not of its type is 0 */
    uint64_t ticks;
    uint64_t handle; /* what the plugin gave for the event; a step's may come again after eight steps */
    uint64_t parent;
    uint32_t thread;
    uint8_t phase; /* 0 start, 1 stop, 2 state */
    uint8_t type;  /* number of the event type's bit */
    uint8_t state;
    uint8_t channel;
    union {
        struct { uint64_t seq, count; uint8_t func, dtype, algo, proto, channels, warps, captured, unused; } coll;
        struct { uint64_t count; int32_t peer; uint8_t func, dtype, channels, captured; uint64_t unused; } p2p;
        struct { int32_t peer, steps, chunk, pid; uint32_t send, unused; } transfer;
        struct { uint64_t value, unused[2]; } one; /* step number, GPU time, bytes, stream or depth */
    };
};

struct wire_record {
    uint32_t stamp;
    uint8_t kind;
    uint8_t flags;
    uint16_t comm;
    union {
        struct wire_enqueued enqueued;
        struct wire_transfer_closed transfer;
        struct wire_kernel_closed kernel;
        struct wire_step_closed step;
        struct wire_callback callback;
    };
};

_Static_assert(sizeof(struct wire_header) <= WIRE_PAGE, "the header is one page");
_Static_assert(sizeof(struct wire_clock_pair) == 32, "clock pair");
_Static_assert(sizeof(struct wire_comm) == 128, "communicator");
_Static_assert(sizeof(struct wire_row) == 64, "row");
_Static_assert(sizeof(struct wire_ring) == 128, "ring");
_Static_assert(sizeof(struct wire_operation) == 64, "operation");
_Static_assert(sizeof(struct wire_transfer) == 512, "transfer");
_Static_assert(sizeof(struct wire_record) == 64, "record");

#endif
