/*
 * One target: a process behind one inspector address, with its isolates. Finds them, samples them
 * in turn, reads the exact counters each second, reacts, and keeps account of what it cost.
 *
 * Threads: ef_target_step and ef_target_finish belong to one thread, the target's own (they block
 * on the target). The functions below "any thread" take the target's lock for a moment and never
 * block on the target.
 */
#ifndef SAMPLER_AGENT_TARGET_H
#define SAMPLER_AGENT_TARGET_H

#include "sampler/agent/plan.h"
#include "sampler/agent/world.h"

struct ef_target;

struct ef_target_options {
    char host[EF_AGENT_ADDRESS_BYTES]; /* "" = by pid */
    uint16_t port;
    int pid; /* 0 = find it */
    bool sigusr1;
    bool configured; /* stays when unreachable; a scanned one ends (ef_target_gone) */
    const struct ef_config *config;     /* borrowed until free */
    const struct ef_rule *const *rules; /* copied array of borrowed rules, in order of preference */
    size_t rule_count;
};
EF_MUST_USE ef_rc ef_target_open(struct ef_shared *shared, const struct ef_target_options *options,
                                 struct ef_target **ret_target, struct ef_err *err);
/* Closes the sessions as they are. Call ef_target_finish before, to leave nothing behind. */
void ef_target_free(struct ef_target *target);

/* Does what is due; gives the monotonic time of the next step. */
ef_mono_ns ef_target_step(struct ef_target *target);
/* Collects the running profiles, publishes them, ends all sampling and disconnects. */
void ef_target_finish(struct ef_target *target);

/* Any thread: asks the matching isolates for an early collection. "" = any. True if some match. */
bool ef_target_request(struct ef_target *target, const char *account, const char *worker,
                       const char *version);
/* Any thread: a scanned target that has not answered for a minute, or listed nothing we want. */
bool ef_target_gone(struct ef_target *target);

/* Any thread: how it stands. Texts are inside, so that the copy outlives the target. */
struct ef_target_view {
    uint64_t isolate; /* number inside the target, never reused */
    struct ef_plan_candidate candidate;
    char account[EF_AGENT_NAME_BYTES], worker[EF_AGENT_NAME_BYTES], version[EF_AGENT_NAME_BYTES];
    char instance[EF_AGENT_NAME_BYTES], region[EF_AGENT_NAME_BYTES], runtime[16];
    char inspector[EF_AGENT_ADDRESS_BYTES + 8];
    char state[16], message[256];
    int pid;
    double cpu_ratio, pause_ms_max, pause_ratio, process_cores;
    uint64_t samples, samples_starved;
    int64_t sampled_until_ns;
};
/* Copies at most views_max views; returns how many. A target without isolates gives one. */
size_t ef_target_views(struct ef_target *target, struct ef_target_view *views, size_t views_max);
/* Any thread: what the budget leaves to this isolate; obeyed at its next step. */
void ef_target_set_level(struct ef_target *target, uint64_t isolate, enum ef_plan_level level);

#endif
