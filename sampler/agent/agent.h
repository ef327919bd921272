/*
 * The agent: keeps the set of targets that configuration and scans ask for, one thread each, shares
 * the budget of the host among them, and tells the collector how they stand.
 *
 * Threads: all functions from one thread (main), except ef_agent_request: any thread.
 */
#ifndef SAMPLER_AGENT_AGENT_H
#define SAMPLER_AGENT_AGENT_H

#include "sampler/agent/world.h"

struct ef_agent;
/* Takes the config (freed with the agent), also on failure. Borrows the rest until free. */
EF_MUST_USE ef_rc ef_agent_open(const struct ef_world *world,
                                const struct ef_agent_options *options, struct ef_config *config,
                                struct ef_agent **ret_agent, struct ef_err *err);
/* Once a second: scans, budget, ended targets; fills the status list for the collector. The
 * callback gets at most 1024. */
typedef void (*ef_agent_status_fn)(void *arg, const struct ef_target_status *targets, size_t count);
void ef_agent_tick(struct ef_agent *agent, ef_agent_status_fn status, void *arg);
/* Targets, scans and mappings of another config; what did not change is left running. Takes it. */
void ef_agent_reload(struct ef_agent *agent, struct ef_config *config);
/* Any thread. Asks matching isolates for an early collection; returns how many targets have some.
 */
size_t ef_agent_request(struct ef_agent *agent, const char *account, const char *worker,
                        const char *version);
size_t ef_agent_target_count(const struct ef_agent *agent);
/* Collects and publishes everything, ends all sampling, waits for the threads. */
void ef_agent_stop(struct ef_agent *agent);
void ef_agent_free(struct ef_agent *agent);

#endif
