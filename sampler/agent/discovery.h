/*
 * What /proc tells about targets: who listens on an inspector port, whether a process is Node, on
 * which CPUs it may run, and its exact CPU time. And the one signal we ever send.
 *
 * Read-only apart from ef_discovery_wake_node. Every function takes a root folder ("" in
 * production), so that tests can build a /proc of their own. Any thread; blocks on /proc only.
 */
#ifndef SAMPLER_AGENT_DISCOVERY_H
#define SAMPLER_AGENT_DISCOVERY_H

#include "proto/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sampler/agent/usage.h"

/* The process that listens on host:port here; 0 = nobody, not here, or not visible to us. The hint
 * (0 = none) is looked at first, which saves the walk over all processes. */
int ef_discovery_pid_of(const char *root, const char *host, uint16_t port, int hint_pid);
/* Whether anybody listens there. A host that is no loopback address cannot be known: true. */
bool ef_discovery_listens(const char *root, const char *host, uint16_t port);
/* The inspector port a Node would open: --inspect-port, --inspect in its command line or
 * NODE_OPTIONS; else 9229. */
uint16_t ef_discovery_inspect_port(const char *root, int pid);
/* Whether /proc/<pid>/exe is a node binary. */
bool ef_discovery_is_node(const char *root, int pid);
/*
 * Makes a running Node open its inspector by SIGUSR1. Sends nothing, and EF_EUNSUP, to a process
 * that is not node or does not catch the signal (it would die of it); EF_ECONFLICT when the port is
 * taken by another process; EF_ENOTFOUND when the process is gone. When its inspector is open
 * already, nothing is sent. *ret_port is where it will listen.
 */
typedef int (*ef_discovery_signal_fn)(void *arg, int pid, int number);
EF_MUST_USE ef_rc ef_discovery_wake_node(const char *root, int pid, ef_discovery_signal_fn send,
                                         void *arg, uint16_t *ret_port, struct ef_err *err);
/* The signal function of production: through a pidfd, so that a reused pid is never hit: the
 * process is checked again between opening and sending. */
int ef_discovery_send_signal(void *arg, int pid, int number);
/* Whether the process may use at most one CPU: affinity, cpuset, or cpu.max of its cgroups (v2). */
bool ef_discovery_confined(const char *root, int pid);
/* Whether a mapped file of the process has this in its name. False when it may not be seen. */
bool ef_discovery_maps(const char *root, int pid, const char *library);
/* Run and wait times of its threads; at most threads_max, gives how many. 0: it is gone, or the
 * kernel does not tell. */
size_t ef_discovery_threads(const char *root, int pid, struct ef_thread_time *threads,
                            size_t threads_max);
/* CPU time of the process, ended threads included. By its CPU clock (ns), else by /proc/<pid>/stat
 * (ticks). False when it is gone. */
bool ef_discovery_cpu(const char *root, int pid, int64_t *ret_ns);

#endif
