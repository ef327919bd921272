/*
 * Whether somebody else is connected to an inspector, seen in the kernel's socket tables, without
 * touching the inspector: a second client would close both connections in workerd.
 */
#ifndef SAMPLER_V8_HOLDER_H
#define SAMPLER_V8_HOLDER_H

#include <stdbool.h>
#include <stdint.h>

enum ef_holder { EF_HOLDER_NONE, EF_HOLDER_OTHER, EF_HOLDER_UNKNOWN };

/*
 * Looks at the established connections to `port` in the network namespace of `pid` (0: ours), and
 * leaves out those of this process. UNKNOWN: the table cannot be read (process gone, no right).
 * A short connection by somebody (a look at the list) is waited for: blocks up to 0.1 s. Any
 * thread.
 */
enum ef_holder ef_holder_look(int pid, uint16_t port);

/*
 * Waits, at most limit_ms, until the other end of a connection that we have closed is closed too.
 * workerd: a SIGTERM between our goodbye and its end of it traps (9 of 30 without this wait).
 */
void ef_holder_await_closed(uint16_t local_port, uint16_t remote_port, unsigned limit_ms);

#endif
