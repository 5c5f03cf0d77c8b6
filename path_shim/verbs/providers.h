/* Whose drivers derive the source port of a reliable connection from its flow label. */
#ifndef LOCKSTEP_PROVIDERS_H
#define LOCKSTEP_PROVIDERS_H

#include "shim.h"

/* Whether this device's driver does; says once for all that it does not, with the name that it has. */
bool lockstep_takes_labels(const char *device);

#endif
