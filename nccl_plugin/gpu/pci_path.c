/* Preloaded into a rank: the device of the verbs stand-in seems to hang on the PCI device that LOCKSTEP_PCI_PATH names,
 * because /sys cannot be written. Everything else is answered by the C library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

char *realpath(const char *restrict path, char *restrict resolved)
{
    static const char shown[] = "/sys/class/infiniband/";
    char *(*next)(const char *, char *) = NULL;
    const char *told = getenv("LOCKSTEP_PCI_PATH");
    *(void **)&next = dlsym(RTLD_NEXT, "realpath");
    return next(told && path && strncmp(path, shown, sizeof shown - 1) == 0 ? told : path, resolved);
}
