/* Reads the plan, line by line through a small buffer on the stack: a mapped file would end the process with a signal
 * when somebody shortens it, and a kept copy would need a lock, which fork and threads do not go well with. */
#include "shim.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER_BYTES = 4096, HEADER_FIELDS = 4, ENTRY_FIELDS = 4, END_FIELDS = 2 };
static const uint64_t MOST = UINT64_MAX;

struct lines {
    int fd;
    size_t at, filled, left; /* left: how much may still be read */
    char buffer[BUFFER_BYTES];
};

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

static bool fill(struct lines *lines)
{
    size_t wanted = lines->left < BUFFER_BYTES ? lines->left : BUFFER_BYTES;
    ssize_t got = wanted ? read(lines->fd, lines->buffer, wanted) : 0;
    if (got <= 0)
        return false;
    lines->at = 0;
    lines->filled = (size_t)got;
    lines->left -= (size_t)got;
    return true;
}

/* Reads a line that ends as a line does; a zero byte in it is as wrong as an end of the file. */
static bool next_line(struct lines *lines, char line[LOCKSTEP_LINE_BYTES])
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

static bool is_at_end(struct lines *lines)
{
    return lines->at == lines->filled && !fill(lines) && lines->left > 0;
}

/* Cuts a line at its spaces; returns whether it has just so many fields, none of them empty. */
static bool split(char *line, char **fields, size_t wanted)
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

static bool read_header(char *line, struct lockstep_header *header)
{
    char *fields[HEADER_FIELDS];
    return split(line, fields, HEADER_FIELDS) && strcmp(fields[0], "lockstep-paths") == 0 &&
           strcmp(fields[1], "1") == 0 &&
           lockstep_read_number(fields[2], MOST, &header->generation) &&
           lockstep_read_number(fields[3], MOST, &header->lease_end_s);
}

static bool read_dport(const char *text, uint16_t *dport)
{
    uint64_t value = 0;
    if (strcmp(text, "*") != 0 && (!lockstep_read_number(text, UINT16_MAX, &value) || value == 0))
        return false;
    *dport = (uint16_t)value;
    return true;
}

static bool read_entry(char *line, struct lockstep_entry *entry)
{
    char *fields[ENTRY_FIELDS];
    if (!split(line, fields, ENTRY_FIELDS))
        return false;
    entry->source_text = fields[0];
    entry->destination_text = fields[1];
    entry->has_source = strcmp(fields[0], "*") != 0;
    entry->is_asked = strcmp(fields[3], "?") == 0;
    entry->n_ports = entry->is_asked ? 0 : lockstep_read_ports(fields[3], entry->ports);
    return (!entry->has_source || lockstep_read_address(fields[0], &entry->source)) &&
           lockstep_read_address(fields[1], &entry->destination) && read_dport(fields[2], &entry->dport) &&
           (entry->is_asked || entry->n_ports > 0);
}

static bool read_end(char *line, uint64_t entries)
{
    char *fields[END_FIELDS];
    uint64_t told = 0;
    return split(line, fields, END_FIELDS) && lockstep_read_number(fields[1], MOST, &told) && told == entries;
}

bool lockstep_scan_plan(int fd, struct lockstep_header *header, lockstep_visit_fn *visit, void *context)
{
    struct lines lines = {.fd = fd, .left = LOCKSTEP_FILE_BYTES + 1};
    struct lockstep_entry entry;
    char line[LOCKSTEP_LINE_BYTES];
    if (lseek(fd, 0, SEEK_SET) != 0 || !next_line(&lines, line) || !read_header(line, header))
        return false;
    for (uint64_t entries = 0; next_line(&lines, line); entries++) {
        if (strncmp(line, "end ", 4) == 0)
            return read_end(line, entries) && is_at_end(&lines);
        if (!read_entry(line, &entry))
            return false;
        if (visit(context, &entry))
            return true;
    }
    return false;
}
