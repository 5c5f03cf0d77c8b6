/* One line per planned connection in a file of the process: the pid is asked for each time, because processes fork. */
#include "shim.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

enum { NAME_BYTES = 512, TEXT_BYTES = 256, MODE = 0644 };

static int open_report(const char *directory, uint64_t pid)
{
    char path[NAME_BYTES + 1];
    size_t at = lockstep_put(path, NAME_BYTES, 0, directory);
    at = lockstep_put(path, NAME_BYTES, at, "/");
    at = lockstep_put_number(path, NAME_BYTES, at, pid);
    path[at] = '\0';
    if (at == NAME_BYTES)
        return -1;
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, MODE);
}

static size_t put_field(char *line, size_t at, uint64_t number)
{
    at = lockstep_put_number(line, TEXT_BYTES, at, number);
    return lockstep_put(line, TEXT_BYTES, at, " ");
}

static size_t put_end(char *line, size_t at, const struct lockstep_end *end)
{
    at = lockstep_put_address(line, TEXT_BYTES, at, &end->address);
    at = lockstep_put(line, TEXT_BYTES, at, " ");
    return put_field(line, at, end->port);
}

void lockstep_report(const char *directory, const struct lockstep_end *local, const struct lockstep_end *remote,
                     uint64_t generation, const char *outcome)
{
    char line[TEXT_BYTES];
    struct timespec now;
    uint64_t pid = (uint64_t)getpid();
    int fd = directory[0] ? open_report(directory, pid) : -1;
    if (fd < 0)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    size_t at = put_field(line, 0, (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec);
    at = put_field(line, at, pid);
    at = put_end(line, at, local);
    at = put_end(line, at, remote);
    at = put_field(line, at, generation);
    at = lockstep_put(line, TEXT_BYTES, at, outcome);
    at = lockstep_put(line, TEXT_BYTES, at, "\n");
    if (lseek(fd, 0, SEEK_END) < LOCKSTEP_REPORT_BYTES && write(fd, line, at) < 0) {
        /* a full disk loses the line, not the connection */
    }
    close(fd);
}
