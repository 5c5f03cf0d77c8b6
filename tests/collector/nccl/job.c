/* A job as the plugin sees it, for a reader of its ring file: job LIBRARY. Each line of input is a number of all-reduces,
 * each with one transfer; the last of a line is left open. Answers every line with the number enqueued so far. */
#include "abi.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *start(const struct lockstep_profiler *profiler, void *context, const struct abi_descriptor_v4 *descriptor)
{
    void *handle = NULL;

    profiler->start(context, &handle, descriptor);
    return handle;
}

static void *reduce(const struct lockstep_profiler *profiler, void *context, uint64_t seq)
{
    struct abi_descriptor_v4 collective = {.type = ABI_COLL, .rank = 3};
    struct abi_descriptor_v4 transfer = {.type = ABI_PROXY_OP, .rank = 3};
    void *operation;

    collective.coll = (struct abi_coll_v4){.seq = seq, .func = "AllReduce", .count = 1000 + seq, .dtype = "ncclFloat32",
                                           .channels = 1, .algo = "RING", .proto = "SIMPLE"};
    operation = start(profiler, context, &collective);
    profiler->stop(operation);
    transfer.parent = operation;
    transfer.proxy_op = (struct abi_proxy_op){.pid = getpid(), .channel = 5, .peer = 4, .steps = 8, .send = 1};
    return start(profiler, context, &transfer);
}

int main(int arguments, char **argument)
{
    void *library = arguments == 2 ? dlopen(argument[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    const struct lockstep_profiler *profiler = library == NULL ? NULL : dlsym(library, "ncclProfiler_v4");
    void *context = NULL, *open_transfer = NULL;
    uint64_t seq = 0;
    char line[32];
    int mask = 0;

    if (profiler == NULL || profiler->init.v4(&context, &mask, "world", 0xABCDEF, 2, 8, 3, NULL) != LOCKSTEP_SUCCESS)
        return 1;
    while (fgets(line, sizeof line, stdin) != NULL) {
        for (long left = atol(line); left > 0; left--) {
            if (open_transfer != NULL)
                profiler->stop(open_transfer);
            open_transfer = reduce(profiler, context, seq++);
        }
        printf("%llu\n", (unsigned long long)seq);
        fflush(stdout);
    }
    return 0;
}
