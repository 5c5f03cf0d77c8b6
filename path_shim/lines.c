/* Reads a file that ends with the number of its entries, line by line through a small buffer on the stack: a mapped file
 * would end the process with a signal when somebody shortens it, and a kept copy would need a lock, which fork and
 * threads do not go well with. */
#include "lines.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { END_FIELDS = 2 };

int lockstep_open_plan(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    off_t bytes = fd < 0 ? -1 : lseek(fd, 0, SEEK_END); /* not fstat, whose symbol is new in glibc 2.33 */
    if (fd >= 0 && (bytes < 0 || bytes > LOCKSTEP_FILE_BYTES)) {
        close(fd);
        return -1;
    }
    return fd;
}

bool lockstep_begin_lines(struct lockstep_lines *lines, int fd)
{
    lines->fd = fd;
    lines->at = lines->filled = 0;
    lines->left = LOCKSTEP_FILE_BYTES + 1;
    return lseek(fd, 0, SEEK_SET) == 0;
}

static bool fill(struct lockstep_lines *lines)
{
    size_t wanted = lines->left < LOCKSTEP_BUFFER_BYTES ? lines->left : LOCKSTEP_BUFFER_BYTES;
    ssize_t got = wanted ? read(lines->fd, lines->buffer, wanted) : 0;
    if (got <= 0)
        return false;
    lines->at = 0;
    lines->filled = (size_t)got;
    lines->left -= (size_t)got;
    return true;
}

/* Reads a line that ends as a line does; a zero byte in it is as wrong as an end of the file. */
bool lockstep_next_line(struct lockstep_lines *lines, char line[LOCKSTEP_LINE_BYTES])
{
    for (size_t length = 0; length < LOCKSTEP_LINE_BYTES; length++) {
        if (lines->at == lines->filled && !fill(lines))
            return false;
        char byte = lines->buffer[lines->at++];
        line[length] = byte == '\n' ? '\0' : byte;
        if (byte == '\n')
            return true;
        if (byte == '\0')
            return false;
    }
    return false;
}

bool lockstep_is_at_end(struct lockstep_lines *lines)
{
    return lines->at == lines->filled && !fill(lines) && lines->left > 0;
}

/* Cuts a line at its spaces; returns whether it has just so many fields, none of them empty. */
bool lockstep_split(char *line, char **fields, size_t wanted)
{
    for (size_t count = 0; count < wanted; count++) {
        char *space = strchr(line, ' ');
        fields[count] = line;
        if (space)
            *space = '\0';
        if (line[0] == '\0' || (space == NULL) != (count + 1 == wanted))
            return false;
        line = space ? space + 1 : line;
    }
    return true;
}

bool lockstep_read_end(char *line, uint64_t entries)
{
    char *fields[END_FIELDS];
    uint64_t told = 0;
    return lockstep_split(line, fields, END_FIELDS) && lockstep_read_number(fields[1], UINT64_MAX, &told) && told == entries;
}
