/* A library that calls the plugin, as libnccl.so.2 does: the plugin learns the release from its caller, not from the
 * program. Under the name librccl.so it plays AMD's, whose tables differ. */
#include "../abi.h"

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int ncclGetVersion(int *version);
EXPORTED int ncclGetVersion(int *version)
{
    *version = 23007;
    return 0;
}

EXPORTED int fake_init(const struct lockstep_profiler *table, void **context, int *mask, lockstep_log_fn *log);
EXPORTED int fake_init(const struct lockstep_profiler *table, void **context, int *mask, lockstep_log_fn *log)
{
    const int result = table->init.v5(context, 0xabcdef, mask, "world", 2, 4, 0, log);

    return result; /* not a tail call: the plugin finds its caller by the address it returns to */
}
