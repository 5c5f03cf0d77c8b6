/* Keeps the job alive when somebody truncates its ring file: what lies behind the end of a mapped file is a SIGBUS.
 *
 * The handler takes the place of whatever was there and passes on all that is not ours. Where it is ours, the file's
 * memory becomes plain memory of this process, which nobody reads, and the plugin is silent from then on.
 */
#define _GNU_SOURCE

#include "plugin.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>

static char *begin; /* of what is guarded, the newest file's memory */
static uint64_t length;
static struct sigaction before;

/* A fault comes again as soon as we return; what another process sent does not, so it is raised once more. */
static void pass_on(int number, siginfo_t *info, void *context)
{
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(number);
    else {
        sigaction(number, &before, NULL);
        if (info->si_code <= 0)
            raise(number);
    }
}

/* mmap is a plain system call, and may be made here although no standard says so. */
static void hear_bus_error(int number, siginfo_t *info, void *context)
{
    const int error = errno;
    const char *at = info->si_addr;

    if (info->si_code > 0 && at >= begin && at < begin + length
        && mmap(begin, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED)
        __atomic_store_n(&session.state, SESSION_SILENT, __ATOMIC_RELEASE);
    else
        pass_on(number, info, context);
    errno = error;
}

/* Once per session, before anything is written that a thread could fault on. */
void guard_memory(void *start, uint64_t bytes)
{
    struct sigaction now = {.sa_sigaction = hear_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART}, found;

    begin = start;
    length = bytes;
    if (sigaction(SIGBUS, NULL, &found) != 0
        || ((found.sa_flags & SA_SIGINFO) && found.sa_sigaction == hear_bus_error))
        return;
    before = found;
    sigemptyset(&now.sa_mask);
    sigaction(SIGBUS, &now, NULL);
}
