/* One NCCL rank: opens NCCL, plays the words of its command line in order, and says in lines of JSON what it did.
 *
 * rank RANK RANKS FOLDER WORD...
 *   side=NAME,LIBRARY,PLUGIN[,KEY=VALUE...]  opens a copy of NCCL with a profiler plugin (or `none`) and uses it from here on
 *   use=NAME                                 goes back to a side
 *   level=LEVEL:SHARE                        asks the plugin for a level of wire.h, steps of SHARE in 65,536 operations
 *   time=BYTES:COUNT                         that many all-reduces back to back, timed
 *   graph=BYTES:COUNT                        four all-reduces captured in a CUDA graph, replayed that often
 *   split=BYTES:COUNT                        all-reduces on a communicator that is split off and destroyed again
 *   AllReduce=BYTES:COUNT                    and AllGather, ReduceScatter, Broadcast, Ring, AllToAll: one after the other
 *   fault=KIND:RANK:STEP:US                  what goes wrong in the next `train`
 *   train=STEPS:TP:TP_BYTES:DP_BYTES:US      a training-like loop over two kinds of communicators
 */
#define _GNU_SOURCE

#include "rank.h"

#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BUFFER_BYTES = (64 << 20) + 4096, CAPTURED = 4, SETTLING_CALLS = 8 };

struct program program;

void give_up(const char *what, const char *which)
{
    fprintf(stderr, "rank %d: %s: %s\n", program.rank, what, which);
    exit(2);
}

void check_cuda(cudaError_t error, const char *call)
{
    if (error != cudaSuccess)
        give_up(call, cudaGetErrorString(error));
}

void check_nccl(int error, const char *call)
{
    char text[32];

    snprintf(text, sizeof text, "NCCL's error %d", error);
    if (error != 0)
        give_up(call, text);
}

uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void synchronize(void) { CUDA(cudaStreamSynchronize(program.stream)); }

/* Somebody's plugin may crash here; which one, the trace says. */
static void tell_where(int signal)
{
    void *frames[64];

    backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
    _exit(128 + signal);
}

static void play_calls(enum wire_func func, size_t bytes, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        call(func, program.side->comm, bytes);
        synchronize();
    }
}

/* A few calls before and none after: the time runs from a moment at which all ranks are here. The first of them has
 * the full size, because TCP forgets its window while another side is in use. */
static void play_time(size_t bytes, unsigned count)
{
    uint64_t began;

    play_calls(WIRE_ALL_REDUCE, bytes, 1);
    play_calls(WIRE_ALL_REDUCE, 8, 2);
    began = now_ns();
    for (unsigned i = 0; i < count; i++)
        call(WIRE_ALL_REDUCE, program.side->comm, bytes);
    synchronize();
    printf("{\"side\": \"%s\", \"bytes\": %zu, \"us\": %.3f}\n", program.side->name, bytes,
           (double)(now_ns() - began) / 1000.0 / count);
}

static void play_graph(size_t bytes, unsigned count)
{
    cudaGraph_t graph;
    cudaGraphExec_t replayed;

    CUDA(cudaStreamBeginCapture(program.stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < CAPTURED; i++)
        call(WIRE_ALL_REDUCE, program.side->comm, bytes);
    CUDA(cudaStreamEndCapture(program.stream, &graph));
    CUDA(cudaGraphInstantiate(&replayed, graph, 0));
    for (unsigned i = 0; i < count; i++)
        CUDA(cudaGraphLaunch(replayed, program.stream));
    synchronize();
    program.side->calls[WIRE_ALL_REDUCE] += CAPTURED * (uint64_t)(count - 1); /* capturing counted them once */
    CUDA(cudaGraphExecDestroy(replayed));
    CUDA(cudaGraphDestroy(graph));
}

static void play_split(size_t bytes, unsigned count)
{
    nccl_comm half;

    NCCL(program.side->nccl.split(program.side->comm, program.rank % 2, program.rank, &half, NULL));
    for (unsigned i = 0; i < count && program.ranks > 3; i++) /* a communicator of one rank reports nothing */
        call(WIRE_ALL_REDUCE, half, bytes);
    synchronize();
    NCCL(program.side->nccl.destroy(half));
}

/* The plugin looks at requests in its callbacks, and every rank must make as many calls as the others. */
static void play_level(uint32_t level, uint32_t share)
{
    side_request(level, share);
    play_calls(WIRE_ALL_REDUCE, 8, SETTLING_CALLS);
}

static int play_collective(const char *word, size_t bytes, unsigned count)
{
    static const struct {
        const char *word;
        enum wire_func func;
    } COLLECTIVES[] = {{"AllReduce", WIRE_ALL_REDUCE}, {"AllGather", WIRE_ALL_GATHER}, {"Ring", WIRE_SEND},
                       {"ReduceScatter", WIRE_REDUCE_SCATTER}, {"Broadcast", WIRE_BROADCAST}, {"AllToAll", WIRE_ALL_TO_ALL}};

    for (size_t i = 0; i < sizeof COLLECTIVES / sizeof COLLECTIVES[0]; i++)
        if (strcmp(word, COLLECTIVES[i].word) == 0) {
            play_calls(COLLECTIVES[i].func, bytes, count);
            return 1;
        }
    return 0;
}

static int play_train(const char *arguments)
{
    unsigned steps, tp;
    unsigned long tp_bytes, dp_bytes, compute_us;

    if (sscanf(arguments, "%u:%u:%lu:%lu:%lu", &steps, &tp, &tp_bytes, &dp_bytes, &compute_us) != 5 || tp == 0)
        return 0;
    train((int)steps, (int)tp, tp_bytes, dp_bytes, compute_us);
    return 1;
}

static int play_fault(const char *arguments)
{
    unsigned long us;

    if (sscanf(arguments, "%15[^:]:%d:%d:%lu", program.fault.kind, &program.fault.rank, &program.fault.step, &us) != 4)
        return 0;
    program.fault.us = us;
    return 1;
}

static int play_numbers(const char *word, const char *arguments)
{
    unsigned long first;
    unsigned second;

    if (sscanf(arguments, "%lu:%u", &first, &second) != 2)
        return 0;
    if (strcmp(word, "level") == 0)
        play_level((uint32_t)first, second);
    else if (strcmp(word, "time") == 0)
        play_time(first, second);
    else if (strcmp(word, "graph") == 0)
        play_graph(first, second);
    else if (strcmp(word, "split") == 0)
        play_split(first, second);
    else
        return play_collective(word, first, second);
    return 1;
}

static void play(char *word)
{
    char *arguments = strchr(word, '=');
    int known = 1;

    if (arguments == NULL)
        give_up("no such word", word);
    *arguments++ = '\0';
    if (strcmp(word, "side") == 0)
        side_open(arguments);
    else if (strcmp(word, "use") == 0)
        side_use(arguments);
    else if (strcmp(word, "train") == 0)
        known = play_train(arguments);
    else if (strcmp(word, "fault") == 0)
        known = play_fault(arguments);
    else
        known = play_numbers(word, arguments);
    if (!known)
        give_up("cannot play", word);
    fflush(stdout);
}

static void close_side(struct side *side)
{
    static const char *const NAMES[WIRE_FUNCS] = {[WIRE_ALL_REDUCE] = "AllReduce", [WIRE_ALL_GATHER] = "AllGather",
        [WIRE_REDUCE_SCATTER] = "ReduceScatter", [WIRE_BROADCAST] = "Broadcast", [WIRE_SEND] = "Send", [WIRE_RECV] = "Recv"};
    const char *separator = "";

    NCCL(side->nccl.destroy(side->comm));
    printf("{\"side\": \"%s\", \"calls\": {", side->name);
    for (int func = 0; func < WIRE_FUNCS; func++)
        if (NAMES[func] != NULL) {
            printf("%s\"%s\": %llu", separator, NAMES[func], (unsigned long long)side->calls[func]);
            separator = ", ";
        }
    printf("}}\n");
}

int main(int count, char **arguments)
{
    if (count < 5) {
        fprintf(stderr, "usage: rank RANK RANKS FOLDER WORD...\n");
        return 2;
    }
    program.rank = atoi(arguments[1]);
    program.ranks = atoi(arguments[2]);
    program.folder = arguments[3];
    program.fault.rank = -1;
    signal(SIGSEGV, tell_where);
    CUDA(cudaSetDevice(0));
    CUDA(cudaStreamCreateWithFlags(&program.stream, cudaStreamNonBlocking));
    CUDA(cudaMalloc(&program.send, BUFFER_BYTES));
    CUDA(cudaMalloc(&program.recv, BUFFER_BYTES));
    CUDA(cudaMemset(program.send, 0, BUFFER_BYTES));
    for (int i = 4; i < count; i++)
        play(arguments[i]);
    for (int i = 0; i < program.side_count; i++)
        close_side(&program.sides[i]);
    return 0;
}
