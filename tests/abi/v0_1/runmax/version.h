/* The one home of the version: CMake, pkg-config and the library read it from here. */
#ifndef RUNMAX_VERSION_H
#define RUNMAX_VERSION_H

#define RUNMAX_VERSION_MAJOR 0
#define RUNMAX_VERSION_MINOR 1
#define RUNMAX_VERSION_PATCH 0

/* Changes only when a binary built against an older runmax.h would break; it is the SOVERSION. */
#define RUNMAX_ABI_MAJOR 1

#endif /* RUNMAX_VERSION_H */
