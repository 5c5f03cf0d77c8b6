/* Reads the plan of connections: what lockstep/host_paths.py describes, and nothing else. */
#include "lines.h"

#include <string.h>

enum { HEADER_FIELDS = 4, ENTRY_FIELDS = 4 };
static const uint64_t MOST = UINT64_MAX;

static bool read_header(char *line, struct lockstep_header *header)
{
    char *fields[HEADER_FIELDS];
    return lockstep_split(line, fields, HEADER_FIELDS) && strcmp(fields[0], "lockstep-paths") == 0 &&
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
    if (!lockstep_split(line, fields, ENTRY_FIELDS))
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

bool lockstep_scan_plan(int fd, struct lockstep_header *header, lockstep_visit_fn *visit, void *context)
{
    struct lockstep_lines lines;
    struct lockstep_entry entry;
    char line[LOCKSTEP_LINE_BYTES];
    if (!lockstep_begin_lines(&lines, fd) || !lockstep_next_line(&lines, line) || !read_header(line, header))
        return false;
    for (uint64_t entries = 0; lockstep_next_line(&lines, line); entries++) {
        if (strncmp(line, "end ", 4) == 0)
            return lockstep_read_end(line, entries) && lockstep_is_at_end(&lines);
        if (!read_entry(line, &entry))
            return false;
        if (visit(context, &entry))
            return true;
    }
    return false;
}
