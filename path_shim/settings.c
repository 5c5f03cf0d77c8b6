/* What both halves read of their environment, and the fence that no process goes back behind. */
#include "shim.h"

#include <stdlib.h>
#include <string.h>

void lockstep_read_setting(const char *name, char value[LOCKSTEP_PATH_BYTES])
{
    const char *told = getenv(name);
    if (told == NULL)
        return;
    size_t length = strlen(told);
    if (length >= LOCKSTEP_PATH_BYTES)
        length = 0; /* what does not fit is nowhere, rather than somewhere else */
    memcpy(value, told, length);
    value[length] = '\0';
}

bool lockstep_is_stale(_Atomic uint64_t *newest, uint64_t generation)
{
    uint64_t before = atomic_load(newest);
    while (generation > before)
        if (atomic_compare_exchange_weak(newest, &before, generation))
            return false;
    return generation < before;
}
