/* One record per callback, for bug reports. */
#ifndef LOCKSTEP_TRACE_H
#define LOCKSTEP_TRACE_H

#include "decode.h"

void trace_start(struct producer *producer, uint64_t now, const struct event *event, uint32_t comm, uint64_t handle);
void trace_stop(struct producer *producer, uint64_t now, uint64_t handle);
void trace_state(struct producer *producer, uint64_t now, uint64_t handle, int state, uint64_t argument);

#endif
