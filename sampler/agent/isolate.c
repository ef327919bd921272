/*
 * Decides what is done to one isolate now: get acquainted, start, rotate, heap, leave. The numbers
 * come from plan.c; what is found goes to fragment.c. Must not know of other targets. The thread of
 * its target.
 */
#include "sampler/agent/isolate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/log.h"

#define OFF_RETRY_NS (60 * EF_NS_PER_S) /* how often an isolate that is off is looked at again */
#define FIRST_ROTATION_MIN_NS (10 * EF_NS_PER_S)
#define OVERLAP_PAUSE_MAX_NS (50 * EF_NS_PER_MS) /* 44 ms replies were seen without any pause */
#define HEAP_STACKS_MAX (1u << 18)
/* V8's allocation profile keeps every sample, 55 to 80 bytes of reply each: begun anew at about
 * 4 MB (v8-schedule §3). */
#define HEAP_SAMPLES_MAX 50000

static int64_t
now_of(const struct ef_isolate *isolate)
{
    return isolate->target->world->mono(isolate->target->world->arg).ns;
}

static int64_t
wall_of(const struct ef_isolate *isolate)
{
    return isolate->target->world->wall(isolate->target->world->arg).ns;
}

static uint64_t
random_of(const struct ef_isolate *isolate)
{
    return isolate->target->world->random(isolate->target->world->arg);
}

static const struct ef_sampler_ops *
ops_of(const struct ef_isolate *isolate)
{
    return isolate->target->ops;
}

static enum ef_heap_choice
heap_choice(const struct ef_isolate *isolate)
{
    enum ef_heap_choice choice = isolate->rule->sampling.heap;

    /* workerd: a heap window holds the inspector socket open, and a SIGTERM in that time turns into
     * a SIGTRAP (v8-schedule §7); so only where it is asked for. */
    if (choice == EF_HEAP_CHOICE_AUTO)
        choice = ops_of(isolate)->stays_attached ? EF_HEAP_CHOICE_BOTH : EF_HEAP_CHOICE_OFF;
    return choice;
}

static bool
overlaps(const struct ef_isolate *isolate)
{
    return ops_of(isolate)->stays_attached && isolate->rule->sampling.evaluate &&
           isolate->slow_overlaps < 2;
}

struct ef_isolate *
ef_isolate_new(struct ef_target *target, const struct ef_listed *listed, const struct ef_rule *rule)
{
    struct ef_isolate *isolate = calloc(1, sizeof(*isolate));

    if (isolate == NULL)
        return NULL;
    isolate->target = target;
    isolate->number = target->next_number++;
    isolate->listed = *listed;
    isolate->rule = rule;
    isolate->price =
        strcmp(target->ops->runtime, "node") == 0 ? &ef_plan_price_node : &ef_plan_price_workerd;
    isolate->cores = isolate->hit_cores = -1;
    isolate->found_ns = now_of(isolate);
    isolate->plan.reason = "";
    ef_heap_diff_init(&isolate->heap.diff, HEAP_STACKS_MAX);
    return isolate;
}

void
ef_isolate_free(struct ef_isolate *isolate)
{
    if (isolate == NULL)
        return;
    if (isolate->session != NULL)
        ops_of(isolate)->close(isolate->session);
    ef_heap_diff_fini(&isolate->heap.diff);
    free(isolate);
}

struct ef_source
ef_isolate_source(const struct ef_isolate *isolate)
{
    return (struct ef_source){
        .account = isolate->identity.account,
        .worker = isolate->identity.worker,
        .version = isolate->version,
        .instance = isolate->instance,
        .host = isolate->target->options.config->host,
        .region = isolate->identity.region,
        .runtime = ops_of(isolate)->runtime,
    };
}

/* --- states and failures --------------------------------------------------------------------- */

static void
set_state(struct ef_isolate *isolate, enum ef_isolate_state state, const char *message)
{
    isolate->state = state;
    snprintf(isolate->message, sizeof(isolate->message), "%s", message);
}

/* The profile of a Node is gone with its connection; that of a workerd runs on. */
static void
connection_lost(struct ef_isolate *isolate)
{
    isolate->heap.running = false;
    isolate->heap.due_ns = 0;
    ef_heap_diff_reset(&isolate->heap.diff);
    isolate->attached = false;
    if (ops_of(isolate)->stays_attached) {
        isolate->running = false;
        isolate->probed = false;
    }
    isolate->target->list_ns = now_of(isolate);
}

static void
leave(struct ef_isolate *isolate)
{
    if (isolate->session != NULL)
        ops_of(isolate)->stop(isolate->session);
    isolate->running = false;
    isolate->attached = false;
    isolate->heap.running = false;
    isolate->heap.due_ns = 0;
    ef_heap_diff_reset(&isolate->heap.diff);
}

static void
failed(struct ef_isolate *isolate, const char *doing, ef_rc rc, const struct ef_err *err)
{
    struct {
        enum ef_isolate_state state;
        int64_t base_ns, max_ns;
    } way = {EF_ISOLATE_PROBLEM, 10 * EF_NS_PER_S, 600 * EF_NS_PER_S};
    bool first = isolate->failures++ == 0;
    char text[sizeof(isolate->message)];

    if (rc == EF_ECONFLICT) {
        way.state = EF_ISOLATE_HELD; /* A developer is there; never retry in a tight loop. */
        way.base_ns = 30 * EF_NS_PER_S;
    } else if (rc == EF_EUNREACH || rc == EF_ECLOSED || rc == EF_ENOTFOUND) {
        way.state = EF_ISOLATE_UNREACHABLE;
        way.base_ns = EF_NS_PER_S;
        way.max_ns = 60 * EF_NS_PER_S;
        connection_lost(isolate);
    } else if (rc == EF_ETIMEOUT) {
        way.state = EF_ISOLATE_BUSY;
        way.base_ns = 2 * EF_NS_PER_S;
        way.max_ns = 120 * EF_NS_PER_S;
    }
    isolate->retry_ns = now_of(isolate) + ef_plan_backoff(isolate->failures, way.base_ns,
                                                          way.max_ns, random_of(isolate));
    snprintf(text, sizeof(text), "%s: %.200s", doing, err->msg);
    set_state(isolate, way.state, text);
    if (!first || rc == EF_EUNREACH) /* nobody listens: told once for the whole process */
        return;
    if (rc == EF_ECONFLICT)
        EF_LOG(TARGET_HELD, "'%s' at %s: %s; retrying with growing pauses", isolate->listed.id,
               isolate->target->inspector, text);
    else
        EF_LOG(TARGET_PROBLEM, "'%s' at %s: %s; retrying with growing pauses", isolate->listed.id,
               isolate->target->inspector, text);
}

static void
add_guard_message(struct ef_isolate *isolate)
{
    struct ef_target *target = isolate->target;
    const char *guard = ops_of(isolate)->exit_guard;
    char given_up[128];

    snprintf(given_up, sizeof(given_up), "%.125s%s", isolate->message,
             isolate->message[0] != '\0' ? "; " : "");
    snprintf(isolate->message, sizeof(isolate->message),
             "%sslow ticks because no exit guard is seen in it; preload %s.so for the normal rate",
             given_up, guard);
    if (target->told_unguarded)
        return;
    target->told_unguarded = true;
    EF_LOG(
        TARGET_UNGUARDED,
        "%s: no exit guard is seen in its process (%d, 0 = not found), so a SIGTERM might end it "
        "with another exit status; sampled with slow ticks; start it with LD_PRELOAD=%s.so for "
        "the normal rate",
        target->inspector, target->pid, guard);
}

static void
succeeded(struct ef_isolate *isolate)
{
    isolate->failures = 0;
    isolate->retry_ns = 0;
    set_state(isolate, EF_ISOLATE_SAMPLING, isolate->plan.reason);
    if (isolate->plan.guard_missing)
        add_guard_message(isolate);
}

/* --- the account ----------------------------------------------------------------------------- */

/* What a pause taught about this host: measured against the list. */
static void
learn_scale(struct ef_isolate *isolate, int64_t pause_ns, int64_t base_ns, int64_t ns_per_mib)
{
    struct ef_shared *shared = isolate->target->shared;
    double listed_ns =
        (double)base_ns + (double)ns_per_mib * (double)isolate->probe.heap_used_bytes / 1048576.0;
    double scale = (double)pause_ns / listed_ns;

    scale = scale < 0.1 ? 0.1 : scale > 4 ? 4 : scale;
    pthread_mutex_lock(&shared->lock);
    shared->pause_scale = 0.7 * shared->pause_scale + 0.3 * scale;
    pthread_mutex_unlock(&shared->lock);
}

static void
book_pause(struct ef_isolate *isolate, const struct ef_action_cost *cost, bool reserve)
{
    isolate->spent_ns += (double)cost->paused_ns;
    isolate->paused_ns += cost->paused_ns;
    if (cost->pause_ns > isolate->pause_max_ns)
        isolate->pause_max_ns = cost->pause_ns;
    ef_pause_spend(&isolate->target->pauses, now_of(isolate), cost->paused_ns, reserve);
}

static void
book_start(struct ef_isolate *isolate, const struct ef_action_cost *cost, bool reserve)
{
    book_pause(isolate, cost, reserve);
    if (cost->pause_ns <= 0)
        return;
    if (isolate->starts.count == 0)
        learn_scale(isolate, cost->pause_ns, isolate->price->start_base_ns,
                    isolate->price->start_ns_per_mib);
    ef_plan_add_pause(&isolate->starts, cost->pause_ns);
}

static double
process_cores(const struct ef_isolate *isolate, int64_t from_ns, int64_t to_ns)
{
    int64_t seen_ns = 0;
    int64_t cpu_ns = ef_usage_cpu(&isolate->target->usage, from_ns, to_ns, &seen_ns);

    return seen_ns > 0 ? (double)cpu_ns / (double)seen_ns : -1;
}

/* Ticks of a span. They are part of the process's own CPU, so they cannot have cost more. */
static double
tick_cost_ns(const struct ef_isolate *isolate, int64_t span_ns, uint64_t interval_ns, double cores)
{
    double cost_ns;

    if (interval_ns == 0 || span_ns <= 0)
        return 0;
    cost_ns =
        (double)span_ns / (double)interval_ns * (double)ef_plan_tick_price(isolate->price, cores);
    if (cores >= 0 && cost_ns > cores * (double)span_ns)
        cost_ns = cores * (double)span_ns;
    return cost_ns;
}

/* --- facts and plan -------------------------------------------------------------------------- */

static double
isolate_cores(const struct ef_isolate *isolate)
{
    int64_t wall_ns = wall_of(isolate);
    double process = process_cores(isolate, wall_ns - 60 * EF_NS_PER_S, wall_ns);

    /* Its own is as old as its last profile, up to an hour; it never uses more than its process. */
    if (isolate->target->isolate_count > 1 && (process < 0 || isolate->cores < process))
        return isolate->cores;
    return process;
}

static struct ef_plan_facts
facts_of(const struct ef_isolate *isolate)
{
    const struct ef_target *target = isolate->target;
    const struct ef_agent_options *options = target->shared->options;
    const struct ef_sampling *sampling = &isolate->rule->sampling;
    struct ef_plan_facts facts = {
        .price = isolate->price,
        .cpu_wanted = sampling->cpu,
        .heap_wanted = heap_choice(isolate) != EF_HEAP_CHOICE_OFF,
        .overlap = overlaps(isolate),
        .heap_attached = target->ops->stays_attached,
        .devtools = sampling->devtools,
        .unguarded = target->unguarded,
        .interval_fixed_ns = sampling->interval_ns,
        .rotation_fixed_ns = sampling->rotation_ns,
        .starts = isolate->starts,
        .fetches = isolate->fetches,
        .heap_used_bytes = isolate->probe.heap_used_bytes,
        .pause_max_ns =
            sampling->pause_max_ns > 0 ? sampling->pause_max_ns : target->pauses.pause_max_ns,
        .cores = isolate_cores(isolate),
        .isolates = (unsigned)target->isolate_count,
        .interval_now_ns = isolate->running ? isolate->interval_now_ns : 0,
        .over_limit_ns = options->over_limit_collect_ms * (uint64_t)EF_NS_PER_MS,
        .heap_slot_ns = options->heap_slot_ms * (uint64_t)EF_NS_PER_MS,
        .heap_window_ns = options->heap_window_ms * (uint64_t)EF_NS_PER_MS,
        .heap_fetch_ns = options->heap_fetch_ms * (uint64_t)EF_NS_PER_MS,
        .burst_ns = options->burst_ms * (uint64_t)EF_NS_PER_MS,
        .burst_slot_ns = options->burst_slot_ms * (uint64_t)EF_NS_PER_MS,
        .level = isolate->level,
        .random = random_of(isolate),
    };

    pthread_mutex_lock(&target->shared->lock);
    facts.pause_scale = target->shared->pause_scale;
    pthread_mutex_unlock(&target->shared->lock);
    return facts;
}

static void
replan(struct ef_isolate *isolate)
{
    struct ef_plan_facts facts = facts_of(isolate);

    ef_plan_make(&facts, &isolate->plan);
}

/* --- acquaintance ---------------------------------------------------------------------------- */

static bool
open_session(struct ef_isolate *isolate)
{
    struct ef_target *target = isolate->target;
    struct ef_session_options options = {
        .inspector = target->inspector,
        .id = isolate->listed.id,
        .pid = target->pid,
        .deadline_ms = target->shared->options->deadline_ms,
        .evaluate_denied = !isolate->rule->sampling.evaluate,
    };
    struct ef_err err = {0};
    ef_rc rc;

    if (isolate->session != NULL)
        return true;
    rc = target->ops->open(&options, &isolate->session, &err);
    if (rc != EF_OK)
        failed(isolate, "cannot make a session", rc, &err);
    return rc == EF_OK;
}

static void
name_isolate(struct ef_isolate *isolate)
{
    struct ef_target *target = isolate->target;
    const struct ef_config *config = target->options.config;
    bool differs;

    ef_identity_find(config, isolate->rule, target->ops->runtime, &isolate->listed,
                     &isolate->identity);
    differs = ef_registry_version(target->shared->registry, &isolate->identity,
                                  isolate->rule->sampling.sha256, isolate->probe.script_hash,
                                  isolate->version);
    snprintf(isolate->instance, sizeof(isolate->instance), "%.90s:%d:%.12s", config->host,
             target->pid, isolate->probe.isolate);
    if (differs)
        EF_LOG(TARGET_VERSION_CHANGED, "'%s' of '%s' at %s runs other code; published as '%s'",
               isolate->identity.version, isolate->identity.worker, target->inspector,
               isolate->version);
}

/* Reads isolate, hash and heap. False: nothing is known. */
static bool
look(struct ef_isolate *isolate, const char *doing)
{
    struct ef_probe probe = {{0}, {0}, {0}, 0, 0};
    struct ef_err err = {0};
    bool known = isolate->probed, other;
    ef_rc rc = ops_of(isolate)->probe(isolate->session, &probe, &err);

    if (rc != EF_OK) {
        failed(isolate, doing, rc, &err);
        return false;
    }
    other = known && strcmp(probe.isolate, isolate->probe.isolate) != 0;
    if (other)
        EF_LOG(TARGET_RELOADED, "'%s' of '%s' at %s is a new isolate", isolate->version,
               isolate->identity.worker, isolate->target->inspector);
    isolate->attached = ops_of(isolate)->stays_attached;
    other = other || !known || strcmp(probe.script_hash, isolate->probe.script_hash) != 0;
    isolate->probe = probe;
    isolate->probed = true;
    if (other)
        name_isolate(isolate);
    return true;
}

static bool
acquaint(struct ef_isolate *isolate)
{
    if (!open_session(isolate) || !look(isolate, "cannot look at it"))
        return false;
    EF_LOG(TARGET_FOUND, "'%s' version '%s' at %s, pid %d (%s)", isolate->identity.worker,
           isolate->version, isolate->target->inspector, isolate->target->pid,
           isolate->target->ops->runtime);
    return true;
}

void
ef_isolate_reset(struct ef_isolate *isolate)
{
    if (isolate->session != NULL)
        ops_of(isolate)->close(isolate->session);
    isolate->session = NULL;
    isolate->probed = isolate->running = isolate->attached = false;
    isolate->heap.running = false;
    isolate->heap.due_ns = isolate->heap.slot_end_ns = 0;
    ef_heap_diff_reset(&isolate->heap.diff);
    memset(&isolate->starts, 0, sizeof(isolate->starts));
    memset(&isolate->fetches, 0, sizeof(isolate->fetches));
    isolate->cores = isolate->hit_cores = -1;
    isolate->failures = 0;
    isolate->retry_ns = 0;
    isolate->slot_ns = 0;
    set_state(isolate, EF_ISOLATE_NEW, "");
}

/* --- CPU: what a profile brings ----------------------------------------------------------------
 */

/* Hits of all isolates of the process against its exact CPU: one alone says nothing. */
static bool
is_starved(const struct ef_isolate *isolate, const struct ef_cpu_profile *cpu)
{
    const struct ef_target *target = isolate->target;
    int64_t seen_ns = 0, cpu_ns;
    double hit_cores = 0;

    if (!target->confined)
        return false;
    for (size_t i = 0; i < target->isolate_count; i++) {
        if (target->isolates[i]->hit_cores < 0)
            return false;
        hit_cores += target->isolates[i]->hit_cores;
    }
    cpu_ns = ef_usage_cpu(&target->usage, cpu->start_ns, cpu->end_ns, &seen_ns);
    if (cpu->interval_ns == 0)
        return false;
    return ef_plan_starved((uint64_t)(hit_cores * (double)seen_ns / (double)cpu->interval_ns),
                           cpu->interval_ns, (uint64_t)cpu_ns, target->ops->starved_ratio);
}

static void
starve(struct ef_isolate *isolate)
{
    struct ef_target *target = isolate->target;

    target->starved_until_ns =
        now_of(isolate) + (int64_t)target->shared->options->starved_retry_ms * EF_NS_PER_MS;
    EF_LOG(TARGET_STARVED,
           "'%s' at %s is confined to one CPU and its sampler does not get it; shares would be "
           "wrong and are not reported; sampling is off, retrying",
           isolate->identity.worker, target->inspector);
}

static void
publish(struct ef_isolate *isolate, const struct ef_cpu_profile *cpu, uint64_t weight_milli,
        int64_t pause_ns)
{
    struct ef_source source = ef_isolate_source(isolate);
    struct ef_fragment_gauges gauges = {isolate->probe.heap_used_bytes,
                                        isolate->probe.heap_limit_bytes, pause_ns};
    struct ef_err err = {0};
    ef_rc rc = ef_fragment_cpu(isolate->target->world, &source, cpu, weight_milli,
                               &isolate->target->usage, &gauges, &err);

    isolate->samples += cpu->hits;
    if (cpu->end_ns > isolate->sampled_until_ns)
        isolate->sampled_until_ns = cpu->end_ns;
    if (rc != EF_OK && !isolate->publish_failed)
        EF_LOG(TARGET_PROBLEM, "'%s' at %s: a profile of %" PRIu64 " samples is dropped: %s",
               isolate->identity.worker, isolate->target->inspector, cpu->hits, err.msg);
    isolate->publish_failed = rc != EF_OK;
}

/* Books and publishes a finished profile. */
static void
take_profile(struct ef_isolate *isolate, const struct ef_cpu_profile *cpu, uint64_t weight_milli,
             int64_t pause_ns)
{
    int64_t span_ns = cpu->end_ns - cpu->start_ns;

    if (cpu->profile == NULL)
        return;
    if (!cpu->orphan && span_ns > 0) {
        isolate->hit_cores = isolate->cores =
            (double)cpu->hits * (double)cpu->interval_ns / (double)span_ns;
        isolate->spent_ns += tick_cost_ns(isolate, span_ns, cpu->interval_ns,
                                          isolate->target->isolate_count > 1
                                              ? isolate->cores
                                              : process_cores(isolate, cpu->start_ns, cpu->end_ns));
        if (is_starved(isolate, cpu)) {
            isolate->samples_starved += cpu->hits;
            starve(isolate);
            return;
        }
    }
    publish(isolate, cpu, weight_milli, pause_ns);
}

/* A profile was collected, but the next one may not have been begun: only poll tells. */
static void
check_begun(struct ef_isolate *isolate)
{
    struct ef_err err = {0};
    bool exiting = false;
    ef_rc rc = ops_of(isolate)->poll(isolate->session, &exiting, &err);

    if (rc == EF_OK)
        return; /* Exiting is seen again by the next poll. */
    failed(isolate, "cannot go on sampling", rc, &err);
    isolate->running = false;
}

/* --- CPU: start and rotate ------------------------------------------------------------------- */

static void
begin_profile(struct ef_isolate *isolate, uint64_t interval_ns)
{
    isolate->running = interval_ns > 0;
    isolate->interval_now_ns = interval_ns;
    isolate->since_ns = now_of(isolate);
}

static int64_t
after(int64_t from_ns, uint64_t span_ns)
{
    return span_ns == 0 || span_ns > (uint64_t)(EF_NEVER_NS - from_ns) ? EF_NEVER_NS
                                                                       : from_ns + (int64_t)span_ns;
}

static void
set_first_rotation(struct ef_isolate *isolate)
{
    uint64_t period_ns = isolate->plan.rotation_ns;
    int64_t phase_ns;

    if (isolate->plan.mode == EF_MODE_BURST) {
        isolate->rotate_ns = after(isolate->since_ns, isolate->plan.burst_ns);
        return;
    }
    /* A random phase, so that isolates started together do not pause together for ever. */
    phase_ns = ef_plan_phase(period_ns, random_of(isolate));
    if (phase_ns < FIRST_ROTATION_MIN_NS)
        phase_ns = FIRST_ROTATION_MIN_NS;
    isolate->rotate_ns =
        period_ns == 0 ? EF_NEVER_NS : after(isolate->since_ns, (uint64_t)phase_ns);
}

static bool
start(struct ef_isolate *isolate, bool reserve)
{
    struct ef_cpu_profile cpu = {.profile = NULL};
    struct ef_action_cost cost = {0, 0};
    struct ef_err err = {0};
    ef_rc rc =
        ops_of(isolate)->start_cpu(isolate->session, isolate->plan.interval_ns, &cpu, &cost, &err);

    book_start(isolate, &cost, reserve);
    if (rc != EF_OK) {
        failed(isolate, "cannot start sampling", rc, &err);
        return false;
    }
    isolate->ever_started = true;
    begin_profile(isolate, isolate->plan.interval_ns);
    succeeded(isolate);
    take_profile(isolate, &cpu, 1000, cost.pause_ns);
    ef_cpu_profile_fini(&cpu);
    set_first_rotation(isolate);
    if (look(isolate, "cannot look at it"))
        check_begun(isolate);
    return isolate->running;
}

/* Nothing was running: the isolate is a new one, or is no longer there at all. */
static void
rotated_nothing(struct ef_isolate *isolate, uint64_t next_interval_ns)
{
    isolate->heap.running = false;
    isolate->hit_cores = -1;
    if (next_interval_ns == 0) {
        begin_profile(isolate, 0);
        return;
    }
    if (look(isolate, "the isolate restarted")) {
        begin_profile(isolate, next_interval_ns);
        succeeded(isolate);
    } else {
        isolate->running = false;
        isolate->probed = false;
    }
}

static void
note_rotation_pause(struct ef_isolate *isolate, const struct ef_action_cost *cost,
                    uint64_t next_interval_ns, bool reserve)
{
    if (next_interval_ns == 0 || overlaps(isolate)) {
        book_pause(isolate, cost, reserve);
        if (next_interval_ns > 0 && next_interval_ns == isolate->interval_now_ns)
            isolate->slow_overlaps =
                cost->pause_ns > OVERLAP_PAUSE_MAX_NS ? isolate->slow_overlaps + 1 : 0;
    } else {
        book_start(isolate, cost, reserve);
    }
}

/* Ends the running profile, publishes it, begins the next (0 = none). False: it failed. */
static bool
rotate(struct ef_isolate *isolate, uint64_t next_interval_ns, uint64_t weight_milli, bool reserve)
{
    struct ef_cpu_profile cpu = {.profile = NULL};
    struct ef_action_cost cost = {0, 0};
    struct ef_err err = {0};
    ef_rc rc = ops_of(isolate)->rotate_cpu(isolate->session, next_interval_ns, &cpu, &cost, &err);

    note_rotation_pause(isolate, &cost, next_interval_ns, reserve);
    if (rc == EF_ENOTFOUND) {
        rotated_nothing(isolate, next_interval_ns);
        return true;
    }
    if (rc != EF_OK) {
        failed(isolate, "cannot collect", rc, &err);
        return false;
    }
    succeeded(isolate);
    begin_profile(isolate, next_interval_ns);
    take_profile(isolate, &cpu, weight_milli, cost.pause_ns);
    ef_cpu_profile_fini(&cpu);
    if (next_interval_ns > 0 && look(isolate, "cannot look at it"))
        check_begun(isolate);
    return next_interval_ns == 0 || isolate->running;
}

/* --- CPU: what is due ------------------------------------------------------------------------ */

static int64_t
switch_off(struct ef_isolate *isolate)
{
    int64_t now_ns = now_of(isolate);

    if (isolate->running)
        (void)rotate(isolate, 0, 1000, false);
    leave(isolate);
    if (isolate->state != EF_ISOLATE_OVER_BUDGET && isolate->plan.reason[0] != '\0')
        EF_LOG(TARGET_OVER_BUDGET, "'%s' at %s is not sampled: %s (expected pause %.0f ms)",
               isolate->identity.worker, isolate->target->inspector, isolate->plan.reason,
               (double)isolate->plan.pause_ns / (double)EF_NS_PER_MS);
    set_state(isolate, EF_ISOLATE_OVER_BUDGET, isolate->plan.reason);
    isolate->retry_ns = now_ns + OFF_RETRY_NS;
    /* Heap sizes change; a workerd that runs is looked at only in visits, this one does not run. */
    isolate->probed = false;
    return isolate->retry_ns;
}

/* A burst's slot: the next one begins where the last ended, whatever bursts were wanted between. */
static int64_t
plan_burst(struct ef_isolate *isolate, int64_t now_ns)
{
    uint64_t slot_ns = isolate->plan.rotation_ns, burst_ns = isolate->plan.burst_ns;

    if (isolate->slot_ns == 0) {
        isolate->slot_ns = now_ns;
        if (slot_ns > 6 * burst_ns)
            slot_ns = 6 * burst_ns; /* The first slot is short: something is seen soon. */
    } else {
        isolate->slot_ns += isolate->slot_span_ns;
    }
    if (isolate->slot_ns + (int64_t)slot_ns < now_ns)
        isolate->slot_ns = now_ns; /* we were away for long */
    isolate->slot_span_ns = (int64_t)slot_ns;
    return isolate->slot_ns +
           ef_plan_phase(slot_ns > burst_ns ? slot_ns - burst_ns : 0, random_of(isolate));
}

static int64_t
step_idle(struct ef_isolate *isolate, int64_t now_ns)
{
    bool burst = isolate->plan.mode == EF_MODE_BURST;
    bool reserve = isolate->wanted != EF_WANTED_NOT && burst;
    int64_t wait_ns;

    if (burst && !reserve && isolate->slot_ns == 0)
        isolate->rotate_ns = plan_burst(isolate, now_ns);
    if (burst && !reserve && now_ns < isolate->rotate_ns) {
        if (isolate->attached)
            leave(isolate);
        set_state(isolate, EF_ISOLATE_WAITING, "for its next burst");
        return isolate->rotate_ns;
    }
    wait_ns = ef_pause_wait(&isolate->target->pauses, now_ns, isolate->plan.pause_ns, reserve);
    if (wait_ns > 0) {
        set_state(isolate, EF_ISOLATE_WAITING, "for the pause budget of its process");
        return now_ns + wait_ns;
    }
    /* A burst of the slot stands for the slot; one on demand only for itself. */
    isolate->burst_weight_milli =
        burst && !reserve ? (uint64_t)isolate->slot_span_ns * 1000 / isolate->plan.burst_ns : 1000;
    isolate->wanted = EF_WANTED_NOT;
    return start(isolate, reserve) ? isolate->rotate_ns : isolate->retry_ns;
}

static int64_t
end_burst(struct ef_isolate *isolate, int64_t now_ns)
{
    if (!rotate(isolate, 0, isolate->burst_weight_milli, false))
        return isolate->retry_ns;
    leave(isolate);
    replan(isolate);
    if (isolate->burst_weight_milli > 1000 || isolate->rotate_ns <= now_ns)
        isolate->rotate_ns = plan_burst(isolate, now_ns);
    set_state(isolate, EF_ISOLATE_WAITING, "for its next burst");
    return isolate->rotate_ns;
}

/* Whether to rotate now; otherwise *ret_next_ns is when to look again. */
static bool
rotation_due(struct ef_isolate *isolate, int64_t now_ns, bool *ret_reserve, int64_t *ret_next_ns)
{
    struct ef_pause_budget *pauses = &isolate->target->pauses;
    int64_t wait_ns = 0;
    bool planned = now_ns >= isolate->rotate_ns;

    *ret_reserve = !planned;
    *ret_next_ns = isolate->rotate_ns;
    if (!planned && isolate->wanted == EF_WANTED_NOT)
        return false;
    if (!overlaps(isolate))
        wait_ns = ef_pause_wait(pauses, now_ns, isolate->plan.pause_ns, *ret_reserve);
    if (wait_ns == 0)
        return true;
    if (isolate->wanted == EF_WANTED_TRIGGER)
        isolate->wanted =
            EF_WANTED_NOT; /* The reserve is empty; the profile goes on all the same. */
    if (planned || isolate->wanted == EF_WANTED_REQUEST)
        *ret_next_ns = now_ns + wait_ns;
    return false;
}

/* The next interval. V8 refuses to change it while it profiles, so where rotations overlap a real
 * change costs the pause of a start: only when the budget of pauses allows, and never above the
 * limit. */
static uint64_t
next_interval(struct ef_isolate *isolate, int64_t now_ns)
{
    uint64_t now = isolate->interval_now_ns, next = isolate->plan.interval_ns;
    bool same_class = next * 4 > now * 3 && next * 4 < now * 5;

    if (!overlaps(isolate))
        return next;
    if (same_class || isolate->plan.pause_ns > isolate->target->pauses.pause_max_ns ||
        ef_pause_wait(&isolate->target->pauses, now_ns, isolate->plan.pause_ns, false) > 0)
        return now;
    return next;
}

static int64_t
step_running(struct ef_isolate *isolate, int64_t now_ns)
{
    int64_t next_ns = EF_NEVER_NS;
    bool reserve;

    if (isolate->plan.mode == EF_MODE_BURST)
        return now_ns >= isolate->rotate_ns ? end_burst(isolate, now_ns) : isolate->rotate_ns;

    if (!rotation_due(isolate, now_ns, &reserve, &next_ns))
        return next_ns;
    replan(isolate);
    if (isolate->plan.mode != EF_MODE_STEADY && isolate->plan.mode != EF_MODE_ONCE)
        return now_ns;
    if (!rotate(isolate, next_interval(isolate, now_ns), 1000, reserve))
        return isolate->retry_ns;
    isolate->wanted = EF_WANTED_NOT;
    replan(isolate); /* with the pause just seen */
    isolate->rotate_ns = after(now_of(isolate), isolate->plan.rotation_ns);
    return isolate->rotate_ns;
}

/* --- heap ------------------------------------------------------------------------------------ */

static enum ef_heap_mode
first_mode(const struct ef_isolate *isolate)
{
    return heap_choice(isolate) == EF_HEAP_CHOICE_INUSE ? EF_HEAP_INUSE : EF_HEAP_ALLOC;
}

static void
heap_failed(struct ef_isolate *isolate, const char *doing, ef_rc rc, const struct ef_err *err)
{
    isolate->heap.running = false;
    isolate->heap.failures++;
    ef_heap_diff_reset(&isolate->heap.diff);
    isolate->heap.due_ns =
        now_of(isolate) + ef_plan_backoff(isolate->heap.failures, 60 * EF_NS_PER_S,
                                          3600 * EF_NS_PER_S, random_of(isolate));
    if (isolate->heap.failures == 1)
        EF_LOG(TARGET_PROBLEM, "'%s' at %s: %s: %s; retrying", isolate->identity.worker,
               isolate->target->inspector, doing, err->msg);
    if (rc == EF_ECLOSED || rc == EF_EUNREACH || rc == EF_ECONFLICT)
        failed(isolate, doing, rc, err);
}

static bool
heap_start(struct ef_isolate *isolate)
{
    struct ef_err err = {0};
    ef_rc rc;

    if (isolate->heap.mode == 0)
        isolate->heap.mode = first_mode(isolate);
    rc = ops_of(isolate)->heap_start(isolate->session, isolate->heap.mode,
                                     isolate->rule->sampling.heap_interval_bytes, &err);
    if (rc != EF_OK) {
        heap_failed(isolate, "cannot start heap sampling", rc, &err);
        return false;
    }
    isolate->heap.running = true;
    isolate->heap.from_wall_ns = wall_of(isolate);
    ef_heap_diff_reset(&isolate->heap.diff);
    return true;
}

static void
heap_publish(struct ef_isolate *isolate, const struct ef_profile *profile, int64_t pause_ns)
{
    struct ef_heap_run *heap = &isolate->heap;
    struct ef_source source = ef_isolate_source(isolate);
    struct ef_fragment_gauges gauges = {isolate->probe.heap_used_bytes,
                                        isolate->probe.heap_limit_bytes, pause_ns};
    int64_t wall_ns = wall_of(isolate);
    bool window = !ops_of(isolate)->stays_attached, restarted = false;
    uint64_t turns = heap_choice(isolate) == EF_HEAP_CHOICE_BOTH ? 2 : 1;
    struct ef_fragment_heap what = {
        .mode = heap->mode,
        .start_ns = heap->from_wall_ns,
        .span_ns = wall_ns > heap->from_wall_ns ? (uint64_t)(wall_ns - heap->from_wall_ns) : 0,
        .interval_bytes = isolate->rule->sampling.heap_interval_bytes,
        .weight_milli = 1000 * turns,
        .diff = window || heap->mode == EF_HEAP_INUSE ? NULL : &heap->diff,
    };
    struct ef_err err = {0};
    ef_rc rc;

    if (window && what.span_ns > 0)
        what.weight_milli =
            turns * (uint64_t)(1000.0 * (double)isolate->heap.slot_ns / (double)what.span_ns);
    if (heap->mode == EF_HEAP_INUSE) {
        what.start_ns = wall_ns; /* a state, true at this moment */
        what.span_ns = 0;
        what.weight_milli = 1000;
    }
    rc = ef_fragment_heap_add(isolate->target->world, &source, profile, &what,
                              &isolate->target->usage, &gauges, &restarted, &err);
    if (rc != EF_OK) {
        ef_heap_diff_reset(&heap->diff);
        EF_LOG(TARGET_PROBLEM, "'%s' at %s: a heap profile is dropped: %s",
               isolate->identity.worker, isolate->target->inspector, err.msg);
    }
    heap->from_wall_ns = wall_ns;
}

static bool
heap_fetch(struct ef_isolate *isolate, bool keep_running, bool reserve)
{
    struct ef_profile *profile = NULL;
    struct ef_action_cost cost = {0, 0};
    struct ef_err err = {0};
    ef_rc rc = ops_of(isolate)->heap_collect(isolate->session, keep_running, &profile, &cost, &err);

    book_pause(isolate, &cost, reserve);
    if (cost.pause_ns > 0)
        ef_plan_add_pause(&isolate->fetches, cost.pause_ns);
    if (rc != EF_OK) {
        heap_failed(isolate, "cannot fetch the heap profile", rc, &err);
        return false;
    }
    isolate->heap.failures = 0;
    heap_publish(isolate, profile, cost.pause_ns);
    ef_profile_free(profile);
    isolate->heap.running = keep_running;
    return true;
}

static void
next_turn(struct ef_isolate *isolate)
{
    if (heap_choice(isolate) == EF_HEAP_CHOICE_BOTH)
        isolate->heap.mode = isolate->heap.mode == EF_HEAP_ALLOC ? EF_HEAP_INUSE : EF_HEAP_ALLOC;
}

/* Node: stays on, fetched now and then; with `both` the two modes take turns of a slot each. */
static int64_t
step_heap_attached(struct ef_isolate *isolate, int64_t now_ns)
{
    struct ef_heap_run *heap = &isolate->heap;
    uint64_t slot_ns = isolate->target->shared->options->heap_slot_ms * (uint64_t)EF_NS_PER_MS;
    bool turn, large;

    if (!heap->running) {
        if (!heap_start(isolate))
            return heap->due_ns;
        heap->turn_ns = after(now_ns, slot_ns);
        heap->due_ns = after(now_ns, isolate->plan.heap_period_ns);
        return heap->due_ns;
    }
    turn = heap_choice(isolate) == EF_HEAP_CHOICE_BOTH && now_ns >= heap->turn_ns;
    large = heap->diff.total_bytes / (int64_t)isolate->rule->sampling.heap_interval_bytes >
            HEAP_SAMPLES_MAX;
    if (!heap_fetch(isolate, !turn && !large, false))
        return heap->due_ns;
    if (turn)
        next_turn(isolate);
    replan(isolate);
    heap->due_ns = heap->running ? after(now_ns, isolate->plan.heap_period_ns) : now_ns;
    return heap->due_ns;
}

/* workerd: one window in each slot, at a random place. */
static int64_t
step_heap_window(struct ef_isolate *isolate, int64_t now_ns)
{
    struct ef_heap_run *heap = &isolate->heap;
    uint64_t window_ns = isolate->plan.heap_window_ns;

    if (heap->running) {
        if (heap_fetch(isolate, false, false))
            heap->due_ns = 0;
        next_turn(isolate);
    }
    if (heap->due_ns == 0) {
        int64_t begin_ns = heap->slot_end_ns > now_ns ? heap->slot_end_ns : now_ns;
        /* The first slot is short, so that something is seen soon; its weight is smaller too. */
        heap->slot_ns = isolate->plan.heap_period_ns;
        if (heap->slot_end_ns == 0 && heap->slot_ns > 2 * window_ns)
            heap->slot_ns = 2 * window_ns;
        heap->slot_end_ns = after(begin_ns, heap->slot_ns);
        heap->due_ns = after(
            begin_ns, 1 + (uint64_t)ef_plan_phase(heap->slot_ns - window_ns, random_of(isolate)));
        return heap->due_ns;
    }
    if (now_ns < heap->due_ns)
        return heap->due_ns;
    if (heap_start(isolate))
        heap->due_ns = after(now_ns, window_ns);
    return heap->due_ns;
}

static int64_t
step_heap(struct ef_isolate *isolate, int64_t now_ns)
{
    bool attached = ops_of(isolate)->stays_attached;
    int64_t wait_ns = 0;

    if (!isolate->plan.heap) {
        if (isolate->heap.running)
            (void)heap_fetch(isolate, false, false);
        return EF_NEVER_NS;
    }
    if (now_ns < isolate->heap.due_ns)
        return isolate->heap.due_ns;
    /* The pause is at the fetch. A window that is open must end, so it pays when it begins. */
    if (attached ? isolate->heap.running : (!isolate->heap.running && isolate->heap.due_ns > 0))
        wait_ns =
            ef_pause_wait(&isolate->target->pauses, now_ns, isolate->plan.heap_pause_ns, false);
    if (wait_ns > 0)
        return now_ns + wait_ns;
    return attached ? step_heap_attached(isolate, now_ns) : step_heap_window(isolate, now_ns);
}

/* --- the whole ------------------------------------------------------------------------------- */

static void
follow_level(struct ef_isolate *isolate)
{
    struct ef_plan_facts facts = facts_of(isolate);
    int64_t now_ns = now_of(isolate);
    uint64_t interval_ns = isolate->plan.interval_ns;

    ef_plan_make(&facts, &isolate->plan);
    if (isolate->rotate_ns > now_ns &&
        ef_plan_ends_early(&facts, &isolate->plan, isolate->rotate_ns - now_ns))
        isolate->rotate_ns = now_ns;
    isolate->plan.interval_ns = interval_ns;
}

static void
take_orders(struct ef_isolate *isolate)
{
    enum ef_plan_level level;
    bool requested;

    pthread_mutex_lock(&isolate->target->lock);
    level = isolate->level_given;
    requested = isolate->requested;
    isolate->requested = false;
    pthread_mutex_unlock(&isolate->target->lock);
    if (requested)
        isolate->wanted = EF_WANTED_REQUEST;
    if (level == isolate->level)
        return;
    if (isolate->level == EF_LEVEL_OFF)
        isolate->retry_ns = 0;
    isolate->level = level;
    /* The interval changes at a rotation; off, and heap, at once. */
    if (isolate->probed && isolate->running && isolate->plan.mode != EF_MODE_BURST)
        follow_level(isolate);
}

int64_t
ef_isolate_step(struct ef_isolate *isolate)
{
    int64_t now_ns = now_of(isolate), cpu_ns = EF_NEVER_NS, heap_ns;

    take_orders(isolate);
    if (now_ns < isolate->retry_ns)
        return isolate->retry_ns;
    if (now_ns < isolate->target->starved_until_ns) {
        if (isolate->running || isolate->attached)
            leave(isolate);
        set_state(isolate, EF_ISOLATE_STARVED,
                  "confined to one CPU: the sampler does not run, shares would be wrong");
        return isolate->target->starved_until_ns;
    }
    if (!isolate->probed && !acquaint(isolate))
        return isolate->retry_ns;
    if (!isolate->running)
        replan(isolate);
    if (isolate->plan.mode == EF_MODE_OFF && !isolate->plan.heap)
        return switch_off(isolate);
    if (isolate->plan.mode != EF_MODE_OFF)
        cpu_ns = isolate->running ? step_running(isolate, now_ns) : step_idle(isolate, now_ns);
    else if (isolate->running)
        (void)rotate(isolate, 0, 1000, false);
    else
        set_state(isolate, EF_ISOLATE_SAMPLING, "heap only");
    if (isolate->retry_ns > now_ns)
        return isolate->retry_ns;
    if (!isolate->probed || isolate->plan.mode == EF_MODE_BURST)
        return cpu_ns;
    heap_ns = step_heap(isolate, now_of(isolate));
    return heap_ns < cpu_ns ? heap_ns : cpu_ns;
}

void
ef_isolate_poll(struct ef_isolate *isolate)
{
    struct ef_err err = {0};
    bool exiting = false;
    ef_rc rc;

    if (isolate->session == NULL || (!isolate->attached && !isolate->heap.running))
        return;
    rc = ops_of(isolate)->poll(isolate->session, &exiting, &err);
    if (rc != EF_OK) {
        failed(isolate, "the connection ended", rc, &err);
        return;
    }
    if (!exiting)
        return;
    /* It waits for us. The heap is left out: its fetch would be a full GC on the way out. */
    if (isolate->running)
        (void)rotate(isolate, 0, 1000, true);
    leave(isolate);
    isolate->probed = false;
    isolate->retry_ns = now_of(isolate) + 5 * EF_NS_PER_S;
    set_state(isolate, EF_ISOLATE_EXITING, "the process ends");
}

void
ef_isolate_finish(struct ef_isolate *isolate)
{
    if (isolate->session == NULL)
        return;
    if (isolate->heap.running)
        (void)heap_fetch(isolate, false, true);
    if (isolate->running)
        (void)rotate(isolate, 0,
                     isolate->plan.mode == EF_MODE_BURST ? isolate->burst_weight_milli : 1000,
                     true);
    leave(isolate);
}

static const char *
state_name(enum ef_isolate_state state)
{
    static const char *const names[] = {
        [EF_ISOLATE_NEW] = "new",
        [EF_ISOLATE_SAMPLING] = "sampling",
        [EF_ISOLATE_WAITING] = "waiting",
        [EF_ISOLATE_HELD] = "held",
        [EF_ISOLATE_UNREACHABLE] = "unreachable",
        [EF_ISOLATE_BUSY] = "busy",
        [EF_ISOLATE_STARVED] = "starved",
        [EF_ISOLATE_OVER_BUDGET] = "over budget",
        [EF_ISOLATE_EXITING] = "exiting",
        [EF_ISOLATE_PROBLEM] = "problem",
    };

    return names[state];
}

static void
price_levels(const struct ef_isolate *isolate, struct ef_plan_candidate *candidate)
{
    struct ef_plan_facts facts = facts_of(isolate);
    struct ef_plan plan;

    for (int level = EF_LEVEL_FULL; level < EF_LEVEL_COUNT; level++) {
        facts.level = (enum ef_plan_level)level;
        ef_plan_make(&facts, &plan);
        candidate->cost[level] = ef_plan_cost(&facts, &plan);
        /* Each step down must not cost more, whatever the measured figures say. */
        if (level > 0 && candidate->cost[level] > candidate->cost[level - 1])
            candidate->cost[level] = candidate->cost[level - 1];
    }
    /* Unknown ones have a floor of 1 % of a core: a new version must get the chance to be seen. */
    candidate->worth = facts.cores < 0.01 ? (facts.cores < 0 ? 0.01 : facts.cores) : facts.cores;
    candidate->level = isolate->level;
}

void
ef_isolate_view(const struct ef_isolate *isolate, struct ef_target_view *view)
{
    int64_t now_ns = now_of(isolate), age_ns = now_ns - isolate->found_ns;
    double spent_ns = isolate->spent_ns;

    memset(view, 0, sizeof(*view));
    view->isolate = isolate->number;
    price_levels(isolate, &view->candidate);
    if (isolate->running)
        spent_ns += tick_cost_ns(isolate, now_ns - isolate->since_ns, isolate->interval_now_ns,
                                 isolate_cores(isolate));
    memcpy(view->account, isolate->identity.account, sizeof(view->account));
    memcpy(view->worker, isolate->identity.worker, sizeof(view->worker));
    memcpy(view->version, isolate->version, sizeof(view->version));
    memcpy(view->region, isolate->identity.region, sizeof(view->region));
    memcpy(view->instance, isolate->instance, sizeof(view->instance));
    snprintf(view->runtime, sizeof(view->runtime), "%s", ops_of(isolate)->runtime);
    snprintf(view->inspector, sizeof(view->inspector), "%s", isolate->target->inspector);
    snprintf(view->state, sizeof(view->state), "%s", state_name(isolate->state));
    memcpy(view->message, isolate->message, sizeof(view->message));
    view->pid = isolate->target->pid;
    view->cpu_ratio = age_ns > 0 ? spent_ns / (double)age_ns : 0;
    view->pause_ratio = age_ns > 0 ? (double)isolate->paused_ns / (double)age_ns : 0;
    view->pause_ms_max = (double)isolate->pause_max_ns / (double)EF_NS_PER_MS;
    view->samples = isolate->samples;
    view->samples_starved = isolate->samples_starved;
    view->sampled_until_ns = isolate->sampled_until_ns;
}
