/*
 * One isolate of a target, and the inside of a target that its isolates see. Only target.c and
 * isolate.c include this. Everything belongs to the target's thread, except what is marked.
 */
#ifndef SAMPLER_AGENT_ISOLATE_H
#define SAMPLER_AGENT_ISOLATE_H

#include <pthread.h>

#include "sampler/agent/fragment.h"
#include "sampler/agent/target.h"

#define EF_NEVER_NS INT64_MAX

enum ef_isolate_state {
    EF_ISOLATE_NEW,
    EF_ISOLATE_SAMPLING,
    EF_ISOLATE_WAITING, /* for its burst, or for the pause budget */
    EF_ISOLATE_HELD,
    EF_ISOLATE_UNREACHABLE,
    EF_ISOLATE_BUSY,
    EF_ISOLATE_STARVED,
    EF_ISOLATE_OVER_BUDGET,
    EF_ISOLATE_EXITING,
    EF_ISOLATE_PROBLEM
};

enum ef_wanted { EF_WANTED_NOT, EF_WANTED_TRIGGER, EF_WANTED_REQUEST };

struct ef_heap_run {
    bool running;
    enum ef_heap_mode mode;
    int64_t due_ns;       /* next start, fetch, or end of the window */
    int64_t turn_ns;      /* attached, both: when the other mode has its turn */
    uint64_t slot_ns;     /* windows: length of the present slot */
    int64_t slot_end_ns;  /* windows: end of the present slot; 0 = none yet */
    int64_t from_wall_ns; /* what the next fragment begins at */
    unsigned failures;
    struct ef_heap_diff diff;
};

struct ef_isolate {
    struct ef_target *target;
    uint64_t number;
    struct ef_listed listed;
    const struct ef_rule *rule;
    const struct ef_plan_price *price;
    bool missing; /* not in the last listing */

    struct ef_session *session;
    bool attached; /* Node: must be polled */
    bool probed;
    struct ef_probe probe;
    struct ef_identity identity;
    char version[EF_AGENT_NAME_BYTES], instance[EF_AGENT_NAME_BYTES];

    enum ef_isolate_state state;
    char message[256];
    unsigned failures;
    int64_t retry_ns; /* nothing is done before */

    struct ef_plan plan;
    struct ef_plan_pauses starts, fetches;
    unsigned slow_overlaps; /* rotations in a row that paused although they should not */
    bool running;           /* a CPU profile is running, as far as we know */
    bool ever_started;
    bool publish_failed; /* told already */
    uint64_t interval_now_ns;
    int64_t since_ns;     /* monotonic: begin of the running profile */
    int64_t rotate_ns;    /* monotonic */
    int64_t slot_ns;      /* bursts: begin of the present slot; 0 = none yet */
    int64_t slot_span_ns; /* bursts: its length */
    uint64_t burst_weight_milli;
    enum ef_wanted wanted;
    double cores;     /* from hits of the last profile; negative = unknown */
    double hit_cores; /* hits × interval ÷ span of the last profile; negative = none yet */
    struct ef_heap_run heap;

    /* The account: what sampling cost. */
    int64_t found_ns;
    double spent_ns; /* without the running profile's ticks */
    int64_t paused_ns, pause_max_ns;
    uint64_t samples, samples_starved;
    int64_t sampled_until_ns;

    enum ef_plan_level level; /* as last obeyed */
    /* Under the target's lock: */
    enum ef_plan_level level_given;
    bool requested;
};

struct ef_target {
    struct ef_shared *shared;
    const struct ef_world *world;
    struct ef_target_options options;
    const struct ef_rule **rules;
    const struct ef_sampler_ops *ops; /* NULL = not known yet */
    char inspector[EF_AGENT_ADDRESS_BYTES + 8];
    int pid;
    int guard_pid;  /* the process the two below are about; 0 = none looked at yet */
    bool unguarded; /* needs an exit guard, and none is seen */
    bool told_unguarded;
    bool confined;

    struct ef_isolate **isolates;
    size_t isolate_count, isolates_max;
    uint64_t next_number;
    struct ef_listed *listed; /* scratch of isolates_max + 1 */

    int64_t list_ns, tick_ns, poll_ns, confined_ns; /* monotonic: next time */
    unsigned list_failures;
    int64_t answered_ns; /* last listing that worked and gave something wanted */
    char problem[256];   /* of the target as a whole; "" = none */

    int64_t cpu_before_ns, cpu_at_ns; /* last reading: CPU, monotonic; -1 = none */
    double cores;                     /* of the last reading */
    struct ef_contention contention;
    struct ef_hot hot;
    int64_t hot_since_ns, triggered_ns; /* 0 = not */
    bool spell_triggered;
    struct ef_usage_ring usage;
    uint64_t usage_published; /* ring number of the next bucket to publish */
    struct ef_pause_budget pauses;
    int64_t starved_until_ns;

    pthread_mutex_t lock; /* leaf; guards the rest, and the marked fields of isolates */
    struct ef_target_view *views;
    size_t view_count;
    bool gone;
};

/* NULL when out of memory. */
struct ef_isolate *ef_isolate_new(struct ef_target *target, const struct ef_listed *listed,
                                  const struct ef_rule *rule);
void ef_isolate_free(struct ef_isolate *isolate); /* closes the session */
/* Does what is due, at most one visit of each kind; gives the monotonic time of the next. */
int64_t ef_isolate_step(struct ef_isolate *isolate);
/* Listens to an attached target; obeys its wish to exit. */
void ef_isolate_poll(struct ef_isolate *isolate);
void ef_isolate_finish(struct ef_isolate *isolate);
/* The process behind it is another one: begins from the start. */
void ef_isolate_reset(struct ef_isolate *isolate);
struct ef_source ef_isolate_source(const struct ef_isolate *isolate);
void ef_isolate_view(const struct ef_isolate *isolate, struct ef_target_view *ret_view);

#endif
