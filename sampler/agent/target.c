/*
 * Decides what is due for a process: listing its isolates, the second's reading of its exact CPU,
 * triggers, and whose turn it is. Must not know of other processes. Runs in the target's thread,
 * apart from the functions marked "any thread" in target.h.
 */
#include "sampler/agent/target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/log.h"
#include "sampler/agent/isolate.h"

#define POLL_NS (100 * EF_NS_PER_MS) /* a Node that wants to exit waits at most this long */
#define CONFINED_NS (60 * EF_NS_PER_S)
#define GONE_NS (60 * EF_NS_PER_S)
/* A hot spell is worth a collection when it ended, or after this long; shorter than two seconds it
 * is one odd reading. Chosen. */
#define SPELL_MIN_NS (2 * EF_NS_PER_S)
#define SPELL_LONG_NS (10 * EF_NS_PER_S)
#define TRIGGER_GAP_NS (30 * EF_NS_PER_S)
#define TRIGGERED_ISOLATES_MAX 3

static int64_t
now_of(const struct ef_target *target)
{
    return target->world->mono(target->world->arg).ns;
}

ef_rc
ef_target_open(struct ef_shared *shared, const struct ef_target_options *options,
               struct ef_target **ret_target, struct ef_err *err)
{
    struct ef_target *target = calloc(1, sizeof(*target));
    size_t isolates_max = (size_t)shared->options->isolates_max;
    const struct ef_config *config = options->config;
    int64_t now_ns;

    if (target == NULL)
        return ef_err_set(err, EF_ENOMEM, "target: out of memory");
    pthread_mutex_init(&target->lock, NULL);
    target->shared = shared;
    target->world = shared->world;
    target->options = *options;
    target->isolates_max = isolates_max;
    target->rules = calloc(options->rule_count + 1, sizeof(const struct ef_rule *));
    target->isolates = calloc(isolates_max, sizeof(struct ef_isolate *));
    target->listed = calloc(isolates_max + 1, sizeof(*target->listed));
    target->views = calloc(isolates_max + 1, sizeof(*target->views));
    if (target->rules == NULL || target->isolates == NULL || target->listed == NULL ||
        target->views == NULL) {
        ef_target_free(target);
        return ef_err_set(err, EF_ENOMEM, "target: out of memory");
    }
    for (size_t i = 0; i < options->rule_count; i++)
        target->rules[i] = options->rules[i];
    if (options->port > 0)
        snprintf(target->inspector, sizeof(target->inspector), "%s:%u", options->host,
                 options->port);
    target->pid = options->pid;
    target->cpu_before_ns = -1;
    now_ns = now_of(target);
    target->list_ns = target->tick_ns = target->poll_ns = target->answered_ns = now_ns;
    ef_pause_init(&target->pauses, config->pause_max_ns, config->pause_interval_ns, now_ns);
    *ret_target = target;
    return EF_OK;
}

void
ef_target_free(struct ef_target *target)
{
    if (target == NULL)
        return;
    for (size_t i = 0; target->isolates != NULL && i < target->isolate_count; i++)
        ef_isolate_free(target->isolates[i]);
    pthread_mutex_destroy(&target->lock);
    free(target->rules);
    free(target->isolates);
    free(target->listed);
    free(target->views);
    free(target);
}

/* --- listing --------------------------------------------------------------------------------- */

/* A Node known by its pid alone: its port must be found, or opened. */
static bool
find_address(struct ef_target *target)
{
    struct ef_err err = {0};
    uint16_t port = 0;

    if (target->options.port > 0 && !target->options.sigusr1)
        return true;
    if (target->world->wake(target->world->arg, target->options.pid,
                            target->options.sigusr1 && target->list_failures < 2, &port,
                            &err) != EF_OK) {
        snprintf(target->problem, sizeof(target->problem), "%.255s", err.msg);
        return false;
    }
    if (target->options.port == 0)
        snprintf(target->inspector, sizeof(target->inspector), "127.0.0.1:%u", port);
    return true;
}

static ef_rc
list_with(struct ef_target *target, const char *runtime, size_t *ret_count, struct ef_err *err)
{
    const struct ef_sampler_ops *ops = target->world->sampler(target->world->arg, runtime);
    ef_rc rc;

    if (ops == NULL)
        return ef_err_set(err, EF_EUNSUP, "there is no sampler for '%s'", runtime);
    rc = ops->list(target->inspector, target->listed, target->isolates_max + 1, ret_count, err);
    if (rc == EF_OK)
        target->ops = ops;
    return rc;
}

static ef_rc
list_any(struct ef_target *target, size_t *ret_count, struct ef_err *err)
{
    const char *runtime = target->ops != NULL ? target->ops->runtime : "";
    ef_rc rc;

    for (size_t i = 0; i < target->options.rule_count && runtime[0] == '\0'; i++)
        runtime = target->rules[i]->runtime;
    if (runtime[0] != '\0')
        return list_with(target, runtime, ret_count, err);
    rc = list_with(target, "workerd", ret_count, err);
    if (rc == EF_EUNSUP)
        rc = list_with(target, "node", ret_count, err);
    return rc;
}

static const struct ef_rule *
rule_for(const struct ef_target *target, const struct ef_listed *listed)
{
    for (size_t i = 0; i < target->options.rule_count; i++) {
        if (ef_rule_matches(target->rules[i], target->ops->runtime, listed))
            return target->rules[i];
    }
    return NULL;
}

static struct ef_isolate *
find_isolate(const struct ef_target *target, const char *id)
{
    for (size_t i = 0; i < target->isolate_count; i++) {
        if (strcmp(target->isolates[i]->listed.id, id) == 0)
            return target->isolates[i];
    }
    return NULL;
}

static void
add_listed(struct ef_target *target, const struct ef_listed *listed)
{
    const struct ef_rule *rule = rule_for(target, listed);
    struct ef_isolate *isolate = find_isolate(target, listed->id);

    if (rule == NULL)
        return;
    if (isolate != NULL) {
        isolate->missing = false;
        return;
    }
    if (target->isolate_count == target->isolates_max) {
        if (target->problem[0] == '\0')
            EF_LOG(LIMIT_REACHED, "%s has more than %zu isolates (isolates_max); others left out",
                   target->inspector, target->isolates_max);
        snprintf(target->problem, sizeof(target->problem),
                 "more than %zu isolates (isolates_max): some are left out", target->isolates_max);
        return;
    }
    isolate = ef_isolate_new(target, listed, rule);
    if (isolate == NULL)
        return;
    pthread_mutex_lock(&target->lock);
    target->isolates[target->isolate_count++] = isolate;
    pthread_mutex_unlock(&target->lock);
}

static void
drop_missing(struct ef_target *target)
{
    for (size_t i = 0; i < target->isolate_count;) {
        struct ef_isolate *isolate = target->isolates[i];
        if (!isolate->missing) {
            i++;
            continue;
        }
        EF_LOG(TARGET_LOST, "'%s' version '%s' at %s is no longer listed", isolate->identity.worker,
               isolate->version, target->inspector);
        pthread_mutex_lock(&target->lock);
        target->isolates[i] = target->isolates[--target->isolate_count];
        pthread_mutex_unlock(&target->lock);
        ef_isolate_free(isolate);
    }
}

static void
reset_all(struct ef_target *target)
{
    for (size_t i = 0; i < target->isolate_count; i++)
        ef_isolate_reset(target->isolates[i]);
    target->cpu_before_ns = -1;
    target->contention.count = 0;
    memset(&target->hot, 0, sizeof(target->hot));
    target->hot_since_ns = 0;
    target->starved_until_ns = 0;
}

/* Before any profile begins: a process that cannot be seen counts as one without the guard. */
static void
look_for_guard(struct ef_target *target)
{
    const char *guard = target->ops->exit_guard;

    if (target->pid == target->guard_pid && target->pid != 0)
        return;
    target->guard_pid = target->pid;
    target->unguarded =
        guard != NULL &&
        (target->pid == 0 || !target->world->maps(target->world->arg, target->pid, guard));
}

/* Another process behind the same port is a restart; workerd's ids stay the same then. */
static void
find_pid(struct ef_target *target)
{
    const char *colon = strrchr(target->inspector, ':');
    char host[EF_AGENT_ADDRESS_BYTES];
    int pid;

    snprintf(host, sizeof(host), "%.*s", (int)(colon - target->inspector), target->inspector);
    pid = target->world->pid_of(target->world->arg, host, (uint16_t)strtoul(colon + 1, NULL, 10),
                                target->pid);
    if (pid == 0)
        pid = target->options.pid; /* another network namespace, or no right to see it */
    if (pid != target->pid && target->pid != 0)
        reset_all(target);
    if (pid != target->pid)
        target->confined_ns = 0;
    target->pid = pid;
    look_for_guard(target);
}

static void
list_failed(struct ef_target *target, const struct ef_err *err)
{
    if (err->msg[0] != '\0')
        snprintf(target->problem, sizeof(target->problem), "%.255s", err->msg);
    if (target->list_failures++ == 0)
        EF_LOG(TARGET_PROBLEM, "%s: %s; retrying with growing pauses",
               target->inspector[0] != '\0' ? target->inspector : target->rules[0]->where,
               target->problem);
    target->list_ns =
        now_of(target) + ef_plan_backoff(target->list_failures, EF_NS_PER_S, 60 * EF_NS_PER_S,
                                         target->world->random(target->world->arg));
    target->tick_ns = target->tick_ns < target->list_ns ? target->tick_ns : target->list_ns;
}

static void
list(struct ef_target *target)
{
    struct ef_err err = {0};
    size_t count = 0, wanted = 0;
    bool was_away = target->list_failures > 0;

    if (!find_address(target) || list_any(target, &count, &err) != EF_OK) {
        list_failed(target, &err);
        return;
    }
    target->list_failures = 0;
    target->problem[0] = '\0';
    find_pid(target);
    if (was_away && target->pid == 0)
        reset_all(target);
    for (size_t i = 0; i < target->isolate_count; i++)
        target->isolates[i]->missing = true;
    for (size_t i = 0; i < count && i <= target->isolates_max; i++) {
        add_listed(target, &target->listed[i]);
        wanted += rule_for(target, &target->listed[i]) != NULL;
    }
    drop_missing(target);
    if (wanted > 0)
        target->answered_ns = now_of(target);
    else
        snprintf(target->problem, sizeof(target->problem),
                 "lists %zu isolates, none matches the service pattern", count);
    target->list_ns =
        now_of(target) + (int64_t)target->shared->options->scan_interval_ms * EF_NS_PER_MS;
}

/* --- exact counters and triggers ------------------------------------------------------------- */

static void
trigger(struct ef_target *target, int64_t now_ns)
{
    size_t left = TRIGGERED_ISOLATES_MAX;

    if (target->triggered_ns != 0 && now_ns - target->triggered_ns < TRIGGER_GAP_NS)
        return;
    target->triggered_ns = now_ns;
    /* /proc cannot say which isolate was hot: those that used most CPU before come first. */
    while (left-- > 0) {
        struct ef_isolate *best = NULL;
        for (size_t i = 0; i < target->isolate_count; i++) {
            struct ef_isolate *isolate = target->isolates[i];
            if (isolate->probed && isolate->wanted == EF_WANTED_NOT &&
                (best == NULL || isolate->cores > best->cores))
                best = isolate;
        }
        if (best == NULL)
            return;
        best->wanted = EF_WANTED_TRIGGER;
    }
}

static void
follow_spell(struct ef_target *target, bool hot, int64_t now_ns)
{
    int64_t spell_ns = target->hot_since_ns != 0 ? now_ns - target->hot_since_ns : 0;

    if (hot && target->hot_since_ns == 0) {
        target->hot_since_ns = now_ns;
        target->spell_triggered = false;
        return;
    }
    if (!target->spell_triggered && (hot ? spell_ns >= SPELL_LONG_NS : spell_ns >= SPELL_MIN_NS)) {
        target->spell_triggered = true;
        trigger(target, now_ns);
    }
    if (!hot)
        target->hot_since_ns = 0;
}

/* Those that a bucket's CPU can be booked on: it is split among them, so nothing gets lost. */
static uint32_t
count_named(const struct ef_target *target)
{
    uint32_t count = 0;

    for (size_t i = 0; i < target->isolate_count; i++)
        count += target->isolates[i]->instance[0] != '\0';
    return count;
}

static void
publish_bucket(struct ef_target *target, const struct ef_usage_bucket *bucket)
{
    bool hot = ef_usage_is_hot(bucket);
    struct ef_err err = {0};
    ef_rc rc = EF_OK;

    for (size_t i = 0; i < target->isolate_count; i++) {
        struct ef_isolate *isolate = target->isolates[i];
        struct ef_usage usage = {
            .start_ns = bucket->from_ns,
            .span_ns = (uint64_t)bucket->span_ns,
            .cpu_ns = (uint64_t)bucket->cpu_ns,
            .hot_span_ns = hot ? (uint64_t)bucket->span_ns : 0,
            .hot_cpu_ns = hot ? (uint64_t)bucket->cpu_ns : 0,
            .isolates = count_named(target),
        };
        if (isolate->instance[0] == '\0')
            continue; /* not acquainted yet: nobody to book it on */
        usage.source = ef_isolate_source(isolate);
        rc = target->world->add_usage(target->world->arg, &usage, &err);
    }
    if (rc != EF_OK && target->problem[0] == '\0') {
        snprintf(target->problem, sizeof(target->problem), "exact CPU not published: %.200s",
                 err.msg);
        EF_LOG(TARGET_PROBLEM, "%s: %s", target->inspector, target->problem);
    }
}

static void
publish_usage(struct ef_target *target, bool all)
{
    struct ef_usage_ring *ring = &target->usage;
    int64_t wall_ns = target->world->wall(target->world->arg).ns;

    if (target->usage_published < ring->first)
        target->usage_published = ring->first;
    for (; target->usage_published < ring->end; target->usage_published++) {
        const struct ef_usage_bucket *bucket =
            &ring->buckets[target->usage_published % EF_USAGE_BUCKETS];
        if (!all && wall_ns < bucket->start_ns + EF_USAGE_BUCKET_NS &&
            target->usage_published + 1 == ring->end)
            break;
        publish_bucket(target, bucket);
    }
}

static void
read_threads(struct ef_target *target, struct ef_usage_reading *reading)
{
    struct ef_thread_time threads[EF_THREADS_MAX];
    size_t count = target->world->threads(target->world->arg, target->pid, threads, EF_THREADS_MAX);

    ef_contention_add(&target->contention, threads, count, &reading->run_ns, &reading->wait_ns);
}

static void
read_cpu(struct ef_target *target, int64_t now_ns)
{
    int64_t cpu_ns, wall_ns = target->world->wall(target->world->arg).ns, span_ns, used_ns;
    struct ef_usage_reading reading = {0};

    if (target->pid == 0)
        return;
    if (!target->world->process_cpu(target->world->arg, target->pid, &cpu_ns)) {
        if (target->cpu_before_ns >= 0)
            target->list_ns = now_ns; /* It is gone; see what is there now. */
        target->cpu_before_ns = -1;
        return;
    }
    read_threads(target, &reading);
    span_ns = now_ns - target->cpu_at_ns;
    used_ns = cpu_ns - target->cpu_before_ns;
    if (target->cpu_before_ns >= 0 && used_ns >= 0 && span_ns > 0) {
        target->cores = (double)used_ns / (double)span_ns;
        reading.from_ns = wall_ns - span_ns;
        reading.to_ns = wall_ns;
        reading.cpu_ns = used_ns;
        reading.hot = ef_hot_add(&target->hot, target->cores);
        ef_usage_book(&target->usage, &reading);
        follow_spell(target, reading.hot, now_ns);
    }
    target->cpu_before_ns = cpu_ns;
    target->cpu_at_ns = now_ns;
}

static void
tick(struct ef_target *target)
{
    int64_t now_ns = now_of(target), wall_ns;

    read_cpu(target, now_ns);
    if (target->pid != 0 && now_ns >= target->confined_ns) {
        target->confined = target->world->confined(target->world->arg, target->pid);
        target->confined_ns = now_ns + CONFINED_NS;
    }
    publish_usage(target, false);
    /* On the whole second, so that buckets begin at readings. */
    wall_ns = target->world->wall(target->world->arg).ns;
    target->tick_ns = now_ns + EF_NS_PER_S - wall_ns % EF_NS_PER_S;
    if (target->tick_ns - now_ns < EF_NS_PER_S / 5)
        target->tick_ns += EF_NS_PER_S;
}

/* --- views ----------------------------------------------------------------------------------- */

static void
view_of_target(const struct ef_target *target, struct ef_target_view *view)
{
    const struct ef_rule *rule = target->rules[0];

    memset(view, 0, sizeof(*view));
    view->isolate = UINT64_MAX;
    memcpy(view->account, rule->account, sizeof(view->account));
    memcpy(view->worker, rule->worker, sizeof(view->worker));
    memcpy(view->version, rule->version, sizeof(view->version));
    memcpy(view->runtime, rule->runtime, sizeof(view->runtime));
    memcpy(view->inspector, target->inspector, sizeof(view->inspector));
    memcpy(view->message, target->problem, sizeof(view->message));
    snprintf(view->state, sizeof(view->state), "%s",
             target->list_failures > 0 ? "unreachable" : "waiting");
    view->pid = target->pid;
}

static void
refresh_views(struct ef_target *target)
{
    struct ef_target_view view;
    size_t count = 0;

    for (size_t i = 0; i < target->isolate_count; i++) {
        ef_isolate_view(target->isolates[i], &view);
        view.process_cores = target->cores;
        if (target->list_failures > 0) {
            snprintf(view.message, sizeof(view.message), "%.255s", target->problem);
            snprintf(view.state, sizeof(view.state), "unreachable");
        }
        pthread_mutex_lock(&target->lock);
        target->views[count++] = view;
        pthread_mutex_unlock(&target->lock);
    }
    if (count == 0)
        view_of_target(target, &view);
    pthread_mutex_lock(&target->lock);
    if (count == 0)
        target->views[count++] = view;
    target->view_count = count;
    target->gone = !target->options.configured && now_of(target) - target->answered_ns > GONE_NS;
    pthread_mutex_unlock(&target->lock);
}

size_t
ef_target_views(struct ef_target *target, struct ef_target_view *views, size_t views_max)
{
    size_t count;

    pthread_mutex_lock(&target->lock);
    count = target->view_count < views_max ? target->view_count : views_max;
    memcpy(views, target->views, count * sizeof(*views));
    pthread_mutex_unlock(&target->lock);
    return count;
}

bool
ef_target_gone(struct ef_target *target)
{
    bool gone;

    pthread_mutex_lock(&target->lock);
    gone = target->gone;
    pthread_mutex_unlock(&target->lock);
    return gone;
}

void
ef_target_set_level(struct ef_target *target, uint64_t isolate, enum ef_plan_level level)
{
    pthread_mutex_lock(&target->lock);
    for (size_t i = 0; i < target->isolate_count; i++) {
        if (target->isolates[i]->number == isolate)
            target->isolates[i]->level_given = level;
    }
    pthread_mutex_unlock(&target->lock);
}

static bool
wanted_name(const char *wanted, const char *name)
{
    return wanted[0] == '\0' || strcmp(wanted, name) == 0;
}

bool
ef_target_request(struct ef_target *target, const char *account, const char *worker,
                  const char *version)
{
    bool some = false;

    pthread_mutex_lock(&target->lock);
    for (size_t v = 0; v < target->view_count; v++) {
        const struct ef_target_view *view = &target->views[v];
        if (view->isolate == UINT64_MAX || !wanted_name(account, view->account) ||
            !wanted_name(worker, view->worker) || !wanted_name(version, view->version))
            continue;
        for (size_t i = 0; i < target->isolate_count; i++) {
            if (target->isolates[i]->number == view->isolate)
                some = target->isolates[i]->requested = true;
        }
    }
    pthread_mutex_unlock(&target->lock);
    return some;
}

/* --- the whole ------------------------------------------------------------------------------- */

static void
poll_all(struct ef_target *target)
{
    for (size_t i = 0; i < target->isolate_count; i++)
        ef_isolate_poll(target->isolates[i]);
    target->poll_ns = now_of(target) + POLL_NS;
}

static bool
needs_poll(const struct ef_target *target)
{
    for (size_t i = 0; i < target->isolate_count; i++) {
        if (target->isolates[i]->attached || target->isolates[i]->heap.running)
            return true;
    }
    return false;
}

ef_mono_ns
ef_target_step(struct ef_target *target)
{
    int64_t next_ns;

    if (now_of(target) >= target->list_ns)
        list(target);
    if (now_of(target) >= target->tick_ns)
        tick(target);
    if (now_of(target) >= target->poll_ns)
        poll_all(target);
    next_ns = target->list_ns < target->tick_ns ? target->list_ns : target->tick_ns;
    for (size_t i = 0; i < target->isolate_count; i++) {
        int64_t due_ns = ef_isolate_step(target->isolates[i]);
        if (due_ns < next_ns)
            next_ns = due_ns;
        /* A visit may have blocked for long, or found that the process is another one. */
        if (now_of(target) >= target->tick_ns)
            tick(target);
    }
    if (target->list_ns < next_ns)
        next_ns = target->list_ns;
    if (needs_poll(target) && target->poll_ns < next_ns)
        next_ns = target->poll_ns;
    refresh_views(target);
    return (ef_mono_ns){next_ns};
}

void
ef_target_finish(struct ef_target *target)
{
    read_cpu(target, now_of(target));
    for (size_t i = 0; i < target->isolate_count; i++)
        ef_isolate_finish(target->isolates[i]);
    publish_usage(target, true);
    refresh_views(target);
}
