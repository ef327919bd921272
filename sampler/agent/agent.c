/*
 * Decides which targets exist, and how much of the budget each isolate gets. Must not know of
 * sessions, profiles or signals. Main thread; each target has a thread of its own here.
 */
#include "sampler/agent/agent.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/log.h"
#include "sampler/agent/discovery.h"
#include "sampler/agent/target.h"

#define STATUS_MAX 1024 /* as ef_publisher_set_targets */
#define VERSIONS_MAX 4096
/* Levels change rarely, so that targets do not flap between them. New targets are told within a
 * second. Chosen. */
#define SHARE_NS (30 * EF_NS_PER_S)
#define RETURN_RATIO 0.9

/* One config, kept as long as a target refers to it. Main thread only. */
struct config_ref {
    struct ef_config *config;
    unsigned refs;
    struct config_ref *next;
};

struct worker {
    struct ef_agent *agent;
    struct ef_target *target;
    struct config_ref *config;
    struct ef_target_options options; /* rules point to rules_at */
    const struct ef_rule **rules;
    pthread_t thread;
    pthread_mutex_t lock; /* guards stopping; leaf */
    pthread_cond_t wake;
    bool stopping;
    bool keep; /* reload: still wanted */
};

struct ef_agent {
    struct ef_shared shared;
    const struct ef_agent_options *options;
    struct config_ref *config;
    pthread_mutex_t lock; /* guards workers and worker_count; rank above a target's lock */
    struct worker **workers;
    size_t worker_count, workers_max;
    int64_t scan_ns, share_ns;
    size_t isolates_shared; /* isolates seen at the last sharing */
    bool limit_told;
    struct ef_target_view *views;
    struct ef_target **view_targets;
    struct ef_plan_candidate *candidates, *tight;
    struct ef_target_status *status;
    size_t views_max;
};

static int64_t
now_of(const struct ef_agent *agent)
{
    return agent->shared.world->mono(agent->shared.world->arg).ns;
}

/* --- a target's thread ----------------------------------------------------------------------- */

static void *
run_worker(void *arg)
{
    struct worker *worker = arg;
    bool stopping = false;

    while (!stopping) {
        ef_mono_ns next = ef_target_step(worker->target);
        struct timespec until = {next.ns / EF_NS_PER_S, next.ns % EF_NS_PER_S};
        pthread_mutex_lock(&worker->lock);
        if (!worker->stopping)
            (void)pthread_cond_timedwait(&worker->wake, &worker->lock, &until);
        stopping = worker->stopping;
        pthread_mutex_unlock(&worker->lock);
    }
    ef_target_finish(worker->target);
    return NULL;
}

static void
free_worker(struct worker *worker)
{
    if (worker == NULL)
        return;
    ef_target_free(worker->target);
    if (worker->config != NULL)
        worker->config->refs--;
    free(worker->rules);
    pthread_cond_destroy(&worker->wake);
    pthread_mutex_destroy(&worker->lock);
    free(worker);
}

static ef_rc
start_worker(struct ef_agent *agent, const struct ef_target_options *options, struct ef_err *err)
{
    struct worker *worker = calloc(1, sizeof(*worker));
    pthread_condattr_t monotonic;
    ef_rc rc;

    if (worker == NULL)
        return ef_err_set(err, EF_ENOMEM, "target: out of memory");
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&worker->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&worker->lock, NULL);
    worker->agent = agent;
    worker->config = agent->config;
    worker->config->refs++;
    worker->options = *options;
    worker->rules = calloc(options->rule_count + 1, sizeof(const struct ef_rule *));
    if (worker->rules == NULL) {
        free_worker(worker);
        return ef_err_set(err, EF_ENOMEM, "target: out of memory");
    }
    for (size_t i = 0; i < options->rule_count; i++)
        worker->rules[i] = options->rules[i];
    worker->options.rules = worker->rules;
    rc = ef_target_open(&agent->shared, &worker->options, &worker->target, err);
    if (rc == EF_OK && pthread_create(&worker->thread, NULL, run_worker, worker) != 0)
        rc = ef_err_set(err, EF_ENOMEM, "target: no thread for it");
    if (rc != EF_OK) {
        free_worker(worker);
        return rc;
    }
    pthread_mutex_lock(&agent->lock);
    agent->workers[agent->worker_count++] = worker;
    pthread_mutex_unlock(&agent->lock);
    return EF_OK;
}

/* Asks all marked workers to stop, then waits: they end at the same time. */
static void
stop_workers(struct ef_agent *agent, bool all)
{
    size_t count = agent->worker_count, kept = 0;

    for (size_t i = 0; i < count; i++) {
        struct worker *worker = agent->workers[i];
        if (!all && worker->keep)
            continue;
        pthread_mutex_lock(&worker->lock);
        worker->stopping = true;
        pthread_cond_signal(&worker->wake);
        pthread_mutex_unlock(&worker->lock);
    }
    for (size_t i = 0; i < count; i++) {
        struct worker *worker = agent->workers[i];
        if (!all && worker->keep)
            continue;
        pthread_join(worker->thread, NULL);
    }
    pthread_mutex_lock(&agent->lock);
    for (size_t i = 0; i < count; i++) {
        struct worker *worker = agent->workers[i];
        if (!all && worker->keep)
            agent->workers[kept++] = worker;
        else
            free_worker(worker);
    }
    agent->worker_count = kept;
    pthread_mutex_unlock(&agent->lock);
}

/* --- the target set -------------------------------------------------------------------------- */

static bool
same_place(const struct ef_target_options *a, const struct ef_target_options *b)
{
    if (a->port == 0 || b->port == 0)
        return a->port == b->port && a->pid == b->pid;
    return a->port == b->port && strcmp(a->host, b->host) == 0;
}

static bool
same_sampling(const struct ef_sampling *a, const struct ef_sampling *b)
{
    return a->cpu == b->cpu && a->heap == b->heap &&
           a->heap_interval_bytes == b->heap_interval_bytes && a->interval_ns == b->interval_ns &&
           a->rotation_ns == b->rotation_ns && a->devtools == b->devtools &&
           a->evaluate == b->evaluate && strcmp(a->sha256, b->sha256) == 0 &&
           a->pause_max_ns == b->pause_max_ns;
}

/* Whether two rules ask for the same, wherever they stand in the file. */
static bool
same_rule(const struct ef_rule *a, const struct ef_rule *b)
{
    return a->scan == b->scan && strcmp(a->runtime, b->runtime) == 0 &&
           strcmp(a->host, b->host) == 0 && a->port_first == b->port_first &&
           a->port_last == b->port_last && a->pid == b->pid && a->sigusr1 == b->sigusr1 &&
           strcmp(a->service, b->service) == 0 && strcmp(a->account, b->account) == 0 &&
           strcmp(a->worker, b->worker) == 0 && strcmp(a->version, b->version) == 0 &&
           strcmp(a->region, b->region) == 0 && same_sampling(&a->sampling, &b->sampling);
}

static bool
same_target(const struct ef_target_options *a, const struct ef_target_options *b)
{
    if (!same_place(a, b) || a->rule_count != b->rule_count || a->pid != b->pid ||
        a->sigusr1 != b->sigusr1)
        return false;
    for (size_t i = 0; i < a->rule_count; i++) {
        if (!same_rule(a->rules[i], b->rules[i]))
            return false;
    }
    return true;
}

static bool
same_names(const struct ef_config *a, const struct ef_config *b)
{
    return a->mapping_count == b->mapping_count && strcmp(a->host, b->host) == 0 &&
           strcmp(a->region, b->region) == 0 && a->pause_max_ns == b->pause_max_ns &&
           a->pause_interval_ns == b->pause_interval_ns &&
           memcmp(a->mappings, b->mappings, a->mapping_count * sizeof(*a->mappings)) == 0;
}

/* All rules that speak of this address; `rules` has room for all of the config. */
static void
gather_rules(const struct ef_config *config, struct ef_target_options *options,
             const struct ef_rule **rules)
{
    options->rules = rules;
    options->rule_count = 0;
    for (size_t i = 0; i < config->rule_count; i++) {
        const struct ef_rule *rule = &config->rules[i];
        bool here = options->port == 0
                        ? rule->port_first == 0 && rule->pid == options->pid
                        : rule->port_first <= options->port && options->port <= rule->port_last &&
                              strcmp(rule->host, options->host) == 0;
        if (!here)
            continue;
        rules[options->rule_count++] = rule;
        if (rule->scan)
            continue;
        options->configured = true;
        if (rule->pid != 0)
            options->pid = rule->pid;
        options->sigusr1 |= rule->sigusr1;
    }
}

static struct worker *
find_worker(const struct ef_agent *agent, const struct ef_target_options *options)
{
    for (size_t i = 0; i < agent->worker_count; i++) {
        if (same_place(&agent->workers[i]->options, options))
            return agent->workers[i];
    }
    return NULL;
}

static void
ensure_target(struct ef_agent *agent, struct ef_target_options *options,
              const struct ef_rule **rules)
{
    struct worker *worker = find_worker(agent, options);
    struct ef_err err = {0};

    gather_rules(agent->config->config, options, rules);
    if (worker != NULL) {
        worker->keep = true;
        return;
    }
    if (agent->worker_count == agent->workers_max) {
        if (!agent->limit_told)
            EF_LOG(LIMIT_REACHED, "more than %zu processes (processes_max); others left out",
                   agent->workers_max);
        agent->limit_told = true;
        return;
    }
    if (start_worker(agent, options, &err) != EF_OK)
        EF_LOG(TARGET_PROBLEM, "%s:%u: %s; retrying", options->host, options->port, err.msg);
    else
        agent->workers[agent->worker_count - 1]->keep = true;
}

/* Ports of scans get a thread only when somebody listens there. */
static void
ensure_rule(struct ef_agent *agent, const struct ef_rule *rule, const struct ef_rule **rules)
{
    for (unsigned port = rule->port_first; port <= rule->port_last; port++) {
        struct ef_target_options options = {
            .port = (uint16_t)port, .pid = rule->pid, .config = agent->config->config};
        memcpy(options.host, rule->host, sizeof(options.host));
        if (rule->scan && find_worker(agent, &options) == NULL &&
            !ef_discovery_listens("", options.host, options.port))
            continue;
        ensure_target(agent, &options, rules);
    }
}

static void
scan(struct ef_agent *agent)
{
    const struct ef_config *config = agent->config->config;
    const struct ef_rule **rules = calloc(config->rule_count + 1, sizeof(const struct ef_rule *));

    for (size_t i = 0; i < config->rule_count && rules != NULL; i++)
        ensure_rule(agent, &config->rules[i], rules);
    free(rules);
    agent->scan_ns = now_of(agent) + (int64_t)agent->options->scan_interval_ms * EF_NS_PER_MS;
}

static void
end_gone(struct ef_agent *agent)
{
    bool some = false;

    for (size_t i = 0; i < agent->worker_count; i++) {
        agent->workers[i]->keep = !ef_target_gone(agent->workers[i]->target);
        some |= !agent->workers[i]->keep;
    }
    if (some)
        stop_workers(agent, false);
}

/* --- budget and status ----------------------------------------------------------------------- */

static size_t
gather_views(struct ef_agent *agent)
{
    size_t count = 0;

    for (size_t i = 0; i < agent->worker_count; i++) {
        struct ef_target *target = agent->workers[i]->target;
        size_t more = ef_target_views(target, agent->views + count, agent->views_max - count);
        for (size_t v = 0; v < more; v++)
            agent->view_targets[count + v] = target;
        count += more;
    }
    return count;
}

/* What is off comes back only where a tenth of the budget would be left over, so that isolates at
 * the border are not switched on and off for ever. */
static void
share_steadily(struct ef_plan_candidate *candidates, struct ef_plan_candidate *tight, size_t count,
               double ratio)
{
    bool *was_off = calloc(count + 1, sizeof(*was_off));

    for (size_t i = 0; i < count && was_off != NULL; i++)
        was_off[i] = candidates[i].level == EF_LEVEL_OFF;
    memcpy(tight, candidates, count * sizeof(*tight));
    (void)ef_plan_share(candidates, count, ratio);
    (void)ef_plan_share(tight, count, RETURN_RATIO * ratio);
    for (size_t i = 0; i < count && was_off != NULL; i++) {
        if (was_off[i])
            candidates[i].level = tight[i].level;
    }
    free(was_off);
}

static void
share_budget(struct ef_agent *agent, size_t view_count)
{
    double ratio = agent->options->cpu_ratio > 0 ? agent->options->cpu_ratio
                                                 : agent->config->config->cpu_ratio;
    size_t count = 0;

    for (size_t i = 0; i < view_count; i++) {
        if (agent->views[i].isolate != UINT64_MAX)
            agent->candidates[count++] = agent->views[i].candidate;
    }
    if (count == agent->isolates_shared && now_of(agent) < agent->share_ns)
        return;
    agent->isolates_shared = count;
    agent->share_ns = now_of(agent) + SHARE_NS;
    share_steadily(agent->candidates, agent->tight, count, ratio);
    count = 0;
    for (size_t i = 0; i < view_count; i++) {
        if (agent->views[i].isolate != UINT64_MAX)
            ef_target_set_level(agent->view_targets[i], agent->views[i].isolate,
                                agent->candidates[count++].level);
    }
}

static void
fill_status(const struct ef_agent *agent, const struct ef_target_view *view,
            struct ef_target_status *status)
{
    *status = (struct ef_target_status){
        .source = {.account = view->account,
                   .worker = view->worker,
                   .version = view->version,
                   .instance = view->instance,
                   .host = agent->config->config->host,
                   .region = view->region,
                   .runtime = view->runtime},
        .inspector = view->inspector,
        .state = view->state,
        .message = view->message,
        .pid = (uint32_t)view->pid,
        .cpu_ratio = view->cpu_ratio,
        .pause_ms_max = view->pause_ms_max,
        .pause_ratio = view->pause_ratio,
        .process_cpu_ratio = view->process_cores,
        .samples = view->samples,
        .samples_starved = view->samples_starved,
        .sampled_until_ns = view->sampled_until_ns,
    };
}

void
ef_agent_tick(struct ef_agent *agent, ef_agent_status_fn status, void *arg)
{
    size_t count;

    if (now_of(agent) >= agent->scan_ns) {
        end_gone(agent);
        scan(agent);
    }
    count = gather_views(agent);
    share_budget(agent, count);
    if (count > STATUS_MAX)
        count = STATUS_MAX;
    for (size_t i = 0; i < count; i++)
        fill_status(agent, &agent->views[i], &agent->status[i]);
    status(arg, agent->status, count);
}

size_t
ef_agent_request(struct ef_agent *agent, const char *account, const char *worker,
                 const char *version)
{
    size_t count = 0;

    pthread_mutex_lock(&agent->lock);
    for (size_t i = 0; i < agent->worker_count; i++) {
        struct worker *at = agent->workers[i];
        if (!ef_target_request(at->target, account, worker, version))
            continue;
        count++;
        pthread_mutex_lock(&at->lock);
        pthread_cond_signal(&at->wake);
        pthread_mutex_unlock(&at->lock);
    }
    pthread_mutex_unlock(&agent->lock);
    return count;
}

size_t
ef_agent_target_count(const struct ef_agent *agent)
{
    return agent->worker_count;
}

/* --- life ------------------------------------------------------------------------------------ */

static void
drop_unused_configs(struct ef_agent *agent)
{
    struct config_ref **at = &agent->config->next;

    while (*at != NULL) {
        struct config_ref *ref = *at;
        if (ref->refs > 0) {
            at = &ref->next;
            continue;
        }
        *at = ref->next;
        ef_config_free(ref->config);
        free(ref);
    }
}

static ef_rc
take_config(struct ef_agent *agent, struct ef_config *config, struct ef_err *err)
{
    struct config_ref *ref = calloc(1, sizeof(*ref));

    if (ref == NULL) {
        ef_config_free(config);
        return ef_err_set(err, EF_ENOMEM, "agent: out of memory");
    }
    ref->config = config;
    ref->next = agent->config;
    agent->config = ref;
    return EF_OK;
}

void
ef_agent_reload(struct ef_agent *agent, struct ef_config *config)
{
    const struct ef_rule **rules;
    bool names_same = same_names(agent->config->config, config);
    struct ef_err err = {0};

    if (take_config(agent, config, &err) != EF_OK) {
        EF_LOG(CONFIG_PROBLEM, "reload: %s; the old configuration stays", err.msg);
        return;
    }
    rules = calloc(config->rule_count + 1, sizeof(const struct ef_rule *));
    for (size_t i = 0; i < agent->worker_count; i++) {
        struct worker *worker = agent->workers[i];
        struct ef_target_options options = worker->options;
        options.configured = options.sigusr1 = false;
        options.pid = worker->options.port == 0 ? worker->options.pid : 0;
        if (rules != NULL)
            gather_rules(config, &options, rules);
        worker->keep = rules != NULL && names_same && same_target(&worker->options, &options);
    }
    free(rules);
    stop_workers(agent, false);
    drop_unused_configs(agent);
    agent->limit_told = false;
    agent->scan_ns = 0;
}

static bool
make_room(struct ef_agent *agent)
{
    agent->workers = calloc(agent->workers_max, sizeof(struct worker *));
    agent->views = calloc(agent->views_max, sizeof(*agent->views));
    agent->view_targets = calloc(agent->views_max, sizeof(struct ef_target *));
    agent->candidates = calloc(agent->views_max, sizeof(*agent->candidates));
    agent->tight = calloc(agent->views_max, sizeof(*agent->tight));
    agent->status = calloc(STATUS_MAX, sizeof(*agent->status));
    return agent->workers != NULL && agent->views != NULL && agent->view_targets != NULL &&
           agent->candidates != NULL && agent->tight != NULL && agent->status != NULL;
}

ef_rc
ef_agent_open(const struct ef_world *world, const struct ef_agent_options *options,
              struct ef_config *config, struct ef_agent **ret_agent, struct ef_err *err)
{
    struct ef_agent *agent = calloc(1, sizeof(*agent));
    ef_rc rc;

    if (agent == NULL) {
        ef_config_free(config);
        return ef_err_set(err, EF_ENOMEM, "agent: out of memory");
    }
    pthread_mutex_init(&agent->lock, NULL);
    pthread_mutex_init(&agent->shared.lock, NULL);
    agent->shared.world = world;
    agent->shared.options = agent->options = options;
    agent->shared.pause_scale = 1;
    agent->workers_max = (size_t)options->processes_max;
    /* The budget must know every isolate, but a host with more than 8,192 of them is a mistake. */
    agent->views_max = 8192;
    rc = take_config(agent, config, err);
    if (rc == EF_OK)
        rc = ef_registry_open(VERSIONS_MAX, &agent->shared.registry, err);
    if (rc == EF_OK && !make_room(agent))
        rc = ef_err_set(err, EF_ENOMEM, "agent: out of memory");
    if (rc != EF_OK) {
        ef_agent_free(agent);
        return rc;
    }
    *ret_agent = agent;
    return EF_OK;
}

void
ef_agent_stop(struct ef_agent *agent)
{
    stop_workers(agent, true);
}

void
ef_agent_free(struct ef_agent *agent)
{
    if (agent == NULL)
        return;
    while (agent->config != NULL) {
        struct config_ref *ref = agent->config;
        agent->config = ref->next;
        ef_config_free(ref->config);
        free(ref);
    }
    ef_registry_free(agent->shared.registry);
    pthread_mutex_destroy(&agent->shared.lock);
    pthread_mutex_destroy(&agent->lock);
    free(agent->workers);
    free(agent->views);
    free(agent->view_targets);
    free(agent->candidates);
    free(agent->tight);
    free(agent->status);
    free(agent);
}
