/* The lines of a file of plans, whichever it is; as shim.h says of everything here, any thread may call this. */
#ifndef LOCKSTEP_LINES_H
#define LOCKSTEP_LINES_H

#include "shim.h"

enum { LOCKSTEP_BUFFER_BYTES = 4096 };

struct lockstep_lines {
    int fd;
    size_t at, filled, left; /* left: how much may still be read */
    char buffer[LOCKSTEP_BUFFER_BYTES];
};

bool lockstep_begin_lines(struct lockstep_lines *lines, int fd);
/* Reads a line that ends as a line does; a zero byte in it is as wrong as an end of the file. */
bool lockstep_next_line(struct lockstep_lines *lines, char line[LOCKSTEP_LINE_BYTES]);
bool lockstep_is_at_end(struct lockstep_lines *lines);
/* Cuts a line at its spaces; returns whether it has just so many fields, none of them empty. */
bool lockstep_split(char *line, char **fields, size_t wanted);
/* Whether a line says `end` and this number. */
bool lockstep_read_end(char *line, uint64_t entries);

#endif
