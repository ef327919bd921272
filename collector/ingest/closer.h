/*
 * Closes listeners without waiting for ever. Measured, nng 1.5.2: nng_close of a REP socket with a
 * reply on its way hangs (1 of 20 under load), and of a SUB socket with messages arriving (1 of
 * 15), because nng's reap thread waits for an operation that never ends. A pause without replies
 * cures the first (0 of 300); nothing we can do cures the second, since publishers do not stop.
 * What hangs is left behind: the process is about to end. With nng 1.6 this can go, when it holds.
 */
#ifndef COLLECTOR_INGEST_CLOSER_H
#define COLLECTOR_INGEST_CLOSER_H

#include "collector/ingest/listener.h"

/* Closes all of them in another thread. False: that has not ended within wait_ms; it may still, so
 * the listeners must stay. */
bool ef_close_listeners(struct ef_listener *const *listeners, size_t count, unsigned wait_ms);

#endif
