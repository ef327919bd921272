/*
 * What the agent asks of a runtime's sampler (outside the process). One table per runtime, listed
 * in samplers.def.
 *
 * Threads: a session is used by one thread at a time, the target's own; different sessions run in
 * parallel. All calls may block, but never longer than the session's deadline_ms per command. A
 * call that fails leaves the session usable: the next one connects again. Nothing here knows the
 * schedule, the budget or the publisher.
 *
 * Errors that mean something to the agent: EF_EUNREACH (no listener), EF_ENOTFOUND (the isolate is
 * not listed), EF_ECONFLICT (somebody else holds the inspector: leave it alone), EF_ECLOSED (the
 * target closed the connection: reload, exit, or another client), EF_ETIMEOUT (the isolate is busy;
 * a start may still take effect later and is stopped at the next attach).
 */
#ifndef SAMPLER_SAMPLER_H
#define SAMPLER_SAMPLER_H

#include "proto/base/err.h"
#include "proto/base/time.h"
#include "proto/model/profile.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One line of a process's target list. */
struct ef_listed {
    char id[256]; /* workerd: service name; node: random UUID of the process */
    char title[256];
    char url[512]; /* of the script: node "file:///app/server.js" */
};

struct ef_session_options {
    const char *inspector; /* "127.0.0.1:9229"; numeric address or host name, and port */
    const char *id;        /* of ef_listed; "" = the only one there */
    int pid;               /* 0 = unknown; used to see other inspector clients before attaching */
    uint64_t deadline_ms;  /* per command; 0 = 5000 */
    bool evaluate_denied;  /* Node: never evaluate console.profile; rotate by stop and start */
};

/* What an action did to its target. Added up by the agent's cost model. */
struct ef_action_cost {
    int64_t pause_ns; /* longest time the isolate was stopped: reply time of start, heap fetch … */
    int64_t paused_ns; /* sum of such times */
};

struct ef_probe {
    char isolate[64];     /* changes when the isolate restarts */
    char script_hash[65]; /* SHA-256 hex of the main module as V8 gives it; "" = unknown (wasm, not
                             asked) */
    char script_url[256];
    uint64_t heap_used_bytes, heap_limit_bytes; /* limit 0 = unknown */
};

enum ef_heap_mode { EF_HEAP_ALLOC = 2, EF_HEAP_INUSE = 3 }; /* as profile types on the wire */

/* Samples of one aligned 10 s slice of a CPU profile, per node: hits, never time deltas (research:
 * 28 × wrong). */
struct ef_slice {
    int64_t start_ns; /* wall clock: the bucket's start, or the profile's when that is later */
    uint64_t span_ns; /* part of the bucket that the profile covers */
    uint32_t *nodes;  /* of the profile, ascending */
    uint64_t *hits;
    size_t node_count;
    uint32_t *tick_ms; /* time of each single hit after start_ns, in the order of nodes × hits; node
                          by node ascending in time */
    size_t tick_count; /* = Σ hits */
};

struct ef_cpu_profile {
    struct ef_profile *profile; /* tree without (root) and (idle) */
    struct ef_slice
        *slices; /* ascending; slices without hits are there too: covered, but no CPU used */
    size_t slice_count;
    uint64_t hits;                 /* all slices, without (idle) */
    int64_t start_ns, end_ns;      /* wall clock */
    uint64_t interval_ns;          /* planned */
    uint64_t interval_measured_ns; /* median of deltas; 0 = too few */
    bool orphan; /* left by an earlier life: its planned interval is not known; interval_ns is the
                    measured one */
};
void ef_cpu_profile_fini(struct ef_cpu_profile *cpu);

struct ef_session;

struct ef_sampler_ops {
    const char *runtime; /* "workerd", "node" */
    /* Lists what can be sampled behind an inspector address. At most entries_max; *ret_count says
     * how many. Also tells the runtime: EF_EUNSUP when the listener is another runtime's. */
    ef_rc (*list)(const char *inspector, struct ef_listed *entries, size_t entries_max,
                  size_t *ret_count, struct ef_err *err);
    /* Makes a session; does not connect. Copies the options. */
    ef_rc (*open)(const struct ef_session_options *options, struct ef_session **ret_session,
                  struct ef_err *err);
    /*
     * Connects if needed and reads isolate, script hash and heap use. Must not disturb a running
     * profile. In workerd this is only done while attached for start or rotate: there probe is
     * served from that visit, and connects by itself only before the first start.
     */
    ef_rc (*probe)(struct ef_session *session, struct ef_probe *ret_probe, struct ef_err *err);
    /*
     * Starts steady CPU sampling. A profile left by an earlier life is returned (ret->profile NULL
     * when there was none). workerd: connect, stop, start, close. Node: stays attached.
     */
    ef_rc (*start_cpu)(struct ef_session *session, uint64_t interval_ns, struct ef_cpu_profile *ret,
                       struct ef_action_cost *ret_cost, struct ef_err *err);
    /*
     * Ends the running profile and gives it; begins the next at once with next_interval_ns, 0 = do
     * not. Node: overlapping console.profile, no pause. EF_ENOTFOUND: nothing was running (the
     * isolate restarted); the next one is begun all the same.
     */
    ef_rc (*rotate_cpu)(struct ef_session *session, uint64_t next_interval_ns,
                        struct ef_cpu_profile *ret, struct ef_action_cost *ret_cost,
                        struct ef_err *err);
    /* Begins heap sampling; interval_bytes 4096 to 1 GiB. workerd: the socket stays open until
     * heap_collect. */
    ef_rc (*heap_start)(struct ef_session *session, enum ef_heap_mode mode, uint64_t interval_bytes,
                        struct ef_err *err);
    /*
     * Fetches (a full GC: a pause by heap size) types objects/count and space/bytes. keep_running:
     * Node only, cumulative since start; otherwise sampling ends, in workerd the socket is closed.
     */
    ef_rc (*heap_collect)(struct ef_session *session, bool keep_running,
                          struct ef_profile **ret_profile, struct ef_action_cost *ret_cost,
                          struct ef_err *err);
    /* Looks at what the target said meanwhile, without blocking. *ret_exiting: Node waits for us to
     * leave before it exits: rotate_cpu(0), then stop, at once. EF_ECLOSED: it went away. */
    ef_rc (*poll)(struct ef_session *session, bool *ret_exiting, struct ef_err *err);
    /* Ends all sampling and disconnects; the target is as if we had never been there. Idempotent.
     */
    void (*stop)(struct ef_session *session);
    /* Disconnects without ending a workerd CPU profile (it can be recovered); frees. NULL is fine.
     */
    void (*close)(struct ef_session *session);
    bool stays_attached; /* true: sampling ends when the connection does */
    /* hits × interval ÷ process CPU below which a target confined to one CPU is starved. */
    double starved_ratio;
    /* What the name of the mapped library holds that lets a process exit well while it is sampled;
     * without it the agent samples slowly. NULL: not needed. */
    const char *exit_guard;
};

/* By runtime name; NULL when unknown. */
const struct ef_sampler_ops *ef_sampler_find(const char *runtime);

#endif
