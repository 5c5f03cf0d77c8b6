/* The collector's side of the control page. */
#define _POSIX_C_SOURCE 200809L

#include "harness.h"

#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>

/* First the fields, then the stamp, as the collector does. */
void write_request(const struct ringfile *file, struct wire_request request)
{
    const uint64_t offset = header_of(file)->requests.offset, level = offsetof(struct wire_request, level);
    const int descriptor = open(file->path, O_RDWR);

    CHECK(descriptor >= 0);
    CHECK(pwrite(descriptor, (const char *)&request + level, sizeof request - level, (off_t)(offset + level)) > 0);
    CHECK(pwrite(descriptor, &request.stamp, sizeof request.stamp, (off_t)offset) == sizeof request.stamp);
    close(descriptor);
}

void request(const struct comm *comm, unsigned level, double share, unsigned budget_ppm, uint64_t *seq)
{
    enum { PATIENCE = 4096 }; /* operations */
    struct ringfile file = read_own_file();
    const uint32_t stamp = status_of(&file)->stamp + 1;

    write_request(&file, (struct wire_request){stamp, level, (uint32_t)(share * 65536), budget_ppm});
    for (int i = 0; i < PATIENCE && status_of(&file)->stamp != stamp; i++)
        run_all_reduce(comm, (*seq)++);
    EQUAL(status_of(&file)->stamp, stamp);
    close_file(&file);
}
