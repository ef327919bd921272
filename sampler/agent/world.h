/*
 * Everything around a target that a test may want to replace: clocks, chance, /proc, samplers, and
 * where fragments go. All functions are called by the targets' threads at the same time.
 */
#ifndef SAMPLER_AGENT_WORLD_H
#define SAMPLER_AGENT_WORLD_H

#include <pthread.h>

#include "proto/base/time.h"
#include "sampler/agent/config.h"
#include "sampler/agent/identity.h"
#include "sampler/agent/options.h"
#include "sampler/agent/usage.h"
#include "sampler/lib/publisher.h"
#include "sampler/sampler.h"

struct ef_world {
    void *arg;
    ef_mono_ns (*mono)(void *arg);
    ef_wall_ns (*wall)(void *arg);
    uint64_t (*random)(void *arg); /* 64 random bits */
    bool (*process_cpu)(void *arg, int pid, int64_t *ret_ns);
    int (*pid_of)(void *arg, const char *host, uint16_t port, int hint_pid);
    bool (*confined)(void *arg, int pid);
    /* Fills at most threads_max entries, gives how many; 0 = not known. */
    size_t (*threads)(void *arg, int pid, struct ef_thread_time *threads, size_t threads_max);
    /* Whether a library with this in its name is mapped. False when it cannot be seen. */
    bool (*maps)(void *arg, int pid, const char *library);
    /* Makes a Node open its inspector; *ret_port is where. */
    ef_rc (*wake)(void *arg, int pid, bool may_signal, uint16_t *ret_port, struct ef_err *err);
    const struct ef_sampler_ops *(*sampler)(void *arg, const char *runtime);
    ef_rc (*add_fragment)(void *arg, const struct ef_fragment *fragment, struct ef_err *err);
    ef_rc (*add_usage)(void *arg, const struct ef_usage *usage, struct ef_err *err);
};

/* What all targets of an agent share. Lives longer than any of them. */
struct ef_shared {
    const struct ef_world *world;
    const struct ef_agent_options *options;
    struct ef_registry *registry;
    pthread_mutex_t lock; /* leaf; guards pause_scale */
    double pause_scale;   /* measured ÷ listed pause on this host, smoothed; starts at 1 */
};

#endif
