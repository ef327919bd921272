/*
 * The life of a target with a fake runtime, a fake clock and a fake publisher: schedule, triggers,
 * requests, held, starved, reload, restart, bursts, heap, exit and stop; and a simulated day that
 * keeps the budget. Time passes only when the target waits.
 */
#include "tests/support/ef_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sampler/agent/target.h"
#include "sampler/agent/usage.h"

#define MS EF_NS_PER_MS
#define S EF_NS_PER_S
#define FRAGMENTS_MAX 20000

struct seen_fragment {
    int type, stratum;
    int64_t start_ns;
    uint64_t span_ns, count, interval, weight_milli;
    char version[EF_AGENT_NAME_BYTES];
};

struct fake_isolate {
    const char *id;
    char isolate[32], hash[65];
    bool running, heap_running, mute;
    uint64_t interval_ns;
    int64_t since_wall_ns;
    int64_t heap_since_ns;
    uint64_t heap_bytes; /* cumulative since heap_start */
};

/* One fake process. The operations table has no context pointer, so the sessions find it through
 * `the_fake`, set by setup. */
struct fake {
    int64_t mono_ns, wall_ns;
    uint64_t seed;
    int pid;
    bool alive, confined, attached_runtime, exiting, guarded;
    double wait_ratio; /* time waited for a CPU, of the time run */
    double cores, hit_ratio, spent_ns;
    int64_t cpu_ns, pause_ns;
    struct fake_isolate isolates[4];
    size_t isolate_count;
    ef_rc fail; /* what start and rotate answer; EF_OK = they work */
    int starts, rotations, finals, stops, closes, fetches, heap_starts, probes, polls;
    int64_t last_rotation_ns, last_try_ns, gap_min_ns, exit_seen_ns, left_ns;
    struct seen_fragment fragments[FRAGMENTS_MAX];
    size_t fragment_count;
    int64_t usage_split_ns, usage_cpu_ns, usage_span_ns, usage_hot_ns;
    uint32_t usage_isolates;
    /* what the agent is made of */
    struct ef_world world;
    struct ef_shared shared;
    struct ef_agent_options options;
    struct ef_config *config;
    struct ef_target *target;
};

static struct fake *the_fake;

struct ef_session {
    struct fake *fake;
    struct fake_isolate *isolate;
};

static double
unit(struct fake *fake)
{
    uint64_t z = (fake->seed += UINT64_C(0x9e3779b97f4a7c15));

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static void
pass(struct fake *fake, int64_t span_ns)
{
    fake->mono_ns += span_ns;
    fake->wall_ns += span_ns;
    fake->cpu_ns += (int64_t)(fake->cores * (double)span_ns);
    for (size_t i = 0; i < fake->isolate_count; i++) {
        const struct fake_isolate *at = &fake->isolates[i];
        double busy = fake->cores > 0.2 ? 1 : fake->cores / 0.2;
        double price = busy * 64000 + (1 - busy) * 170000; /* as measured */
        if (at->running)
            fake->spent_ns += (double)span_ns / (double)at->interval_ns * price;
    }
}

/* --- the fake runtime ------------------------------------------------------------------------ */

static ef_rc
fake_list(const char *inspector, struct ef_listed *entries, size_t entries_max, size_t *ret_count,
          struct ef_err *err)
{
    struct fake *fake = the_fake;

    if (!fake->alive)
        return ef_err_set(err, EF_EUNREACH, "%s: nobody listens", inspector);
    for (size_t i = 0; i < fake->isolate_count && i < entries_max; i++) {
        memset(&entries[i], 0, sizeof(entries[i]));
        snprintf(entries[i].id, sizeof(entries[i].id), "%s", fake->isolates[i].id);
        snprintf(entries[i].title, sizeof(entries[i].title), "server.js");
    }
    *ret_count = fake->isolate_count;
    return EF_OK;
}

static ef_rc
fake_open(const struct ef_session_options *options, struct ef_session **ret_session,
          struct ef_err *err)
{
    struct ef_session *session = calloc(1, sizeof(*session));

    (void)err;
    session->fake = the_fake;
    for (size_t i = 0; i < the_fake->isolate_count; i++) {
        if (strcmp(the_fake->isolates[i].id, options->id) == 0)
            session->isolate = &the_fake->isolates[i];
    }
    *ret_session = session;
    return EF_OK;
}

static ef_rc
answer(struct ef_session *session, struct ef_err *err)
{
    struct fake *fake = session->fake;

    if (fake->last_try_ns != 0 && fake->mono_ns - fake->last_try_ns < fake->gap_min_ns)
        fake->gap_min_ns = fake->mono_ns - fake->last_try_ns;
    fake->last_try_ns = fake->mono_ns;
    if (!fake->alive)
        return ef_err_set(err, EF_EUNREACH, "nobody listens");
    if (fake->fail != EF_OK)
        return ef_err_set(err, fake->fail, "as the test says");
    return EF_OK;
}

static ef_rc
fake_probe(struct ef_session *session, struct ef_probe *ret_probe, struct ef_err *err)
{
    if (!session->fake->alive)
        return ef_err_set(err, EF_EUNREACH, "nobody listens");
    if (session->isolate->mute)
        return ef_err_set(err, EF_ETIMEOUT, "no answer");
    session->fake->probes++;
    memset(ret_probe, 0, sizeof(*ret_probe));
    snprintf(ret_probe->isolate, sizeof(ret_probe->isolate), "%s", session->isolate->isolate);
    snprintf(ret_probe->script_hash, sizeof(ret_probe->script_hash), "%s", session->isolate->hash);
    ret_probe->heap_used_bytes = 4 << 20;
    return EF_OK;
}

static struct ef_profile *
small_profile(const char *type, const char *unit, const char *other_type, const char *other_unit)
{
    struct ef_profile *profile = NULL;
    struct ef_profile_function function = {.start_line = 1};
    struct ef_profile_frame frame = {.line = 2};
    uint32_t frame_id, node;

    assert_int_equal(ef_profile_open(&ef_profile_limits_default, &profile, NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(profile, type, unit, NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(profile, other_type, other_unit, NULL), EF_OK);
    assert_int_equal(ef_profile_add_string(profile, "work", 4, &function.name, NULL), EF_OK);
    assert_int_equal(ef_profile_add_function(profile, &function, &frame.function, NULL), EF_OK);
    assert_int_equal(ef_profile_add_frame(profile, &frame, &frame_id, NULL), EF_OK);
    assert_int_equal(ef_profile_add_node(profile, 0, frame_id, &node, NULL), EF_OK);
    return profile;
}

static void
fill_slice(struct fake *fake, const struct fake_isolate *isolate, int64_t from_ns, int64_t to_ns,
           struct ef_cpu_profile *ret)
{
    struct ef_slice *slice = &ret->slices[ret->slice_count++];
    uint64_t hits = (uint64_t)(fake->cores * fake->hit_ratio * (double)(to_ns - from_ns) /
                               (double)isolate->interval_ns);

    memset(slice, 0, sizeof(*slice));
    slice->start_ns = from_ns;
    slice->span_ns = (uint64_t)(to_ns - from_ns);
    if (hits == 0)
        return;
    slice->nodes = calloc(1, sizeof(*slice->nodes));
    slice->hits = calloc(1, sizeof(*slice->hits));
    slice->nodes[0] = 1;
    slice->hits[0] = hits;
    slice->node_count = 1;
    ret->hits += hits;
}

static void
give_profile(struct fake *fake, struct fake_isolate *isolate, struct ef_cpu_profile *ret)
{
    size_t slices_max = (size_t)((fake->wall_ns - isolate->since_wall_ns) / EF_USAGE_BUCKET_NS) + 2;

    memset(ret, 0, sizeof(*ret));
    ret->profile = small_profile("samples", "count", "cpu", "nanoseconds");
    ret->slices = calloc(slices_max, sizeof(*ret->slices));
    ret->start_ns = isolate->since_wall_ns;
    ret->end_ns = fake->wall_ns;
    ret->interval_ns = isolate->interval_ns;
    for (int64_t at = ret->start_ns; at < ret->end_ns;) {
        int64_t stop = ef_bucket_start(at, EF_USAGE_BUCKET_NS) + EF_USAGE_BUCKET_NS;
        stop = stop < ret->end_ns ? stop : ret->end_ns;
        fill_slice(fake, isolate, at, stop, ret);
        at = stop;
    }
}

static void
begin(struct fake *fake, struct fake_isolate *isolate, uint64_t interval_ns,
      struct ef_action_cost *ret_cost)
{
    int64_t pause_ns = (int64_t)((double)fake->pause_ns * (0.7 + 0.6 * unit(fake)));

    isolate->running = true;
    isolate->interval_ns = interval_ns;
    isolate->since_wall_ns = fake->wall_ns;
    if (ret_cost == NULL)
        return;
    ret_cost->pause_ns = ret_cost->paused_ns = pause_ns;
    fake->spent_ns += (double)pause_ns;
}

static ef_rc
fake_start(struct ef_session *session, uint64_t interval_ns, struct ef_cpu_profile *ret,
           struct ef_action_cost *ret_cost, struct ef_err *err)
{
    struct fake_isolate *isolate = session->isolate;
    ef_rc rc = answer(session, err);

    if (rc != EF_OK)
        return rc;
    session->fake->starts++;
    memset(ret, 0, sizeof(*ret));
    if (isolate->running) {
        give_profile(session->fake, isolate, ret);
        ret->orphan = true;
    }
    begin(session->fake, isolate, interval_ns, ret_cost);
    return EF_OK;
}

static ef_rc
fake_rotate(struct ef_session *session, uint64_t next_interval_ns, struct ef_cpu_profile *ret,
            struct ef_action_cost *ret_cost, struct ef_err *err)
{
    struct fake *fake = session->fake;
    struct fake_isolate *isolate = session->isolate;
    bool was_running = isolate->running;
    ef_rc rc = answer(session, err);

    if (rc != EF_OK)
        return rc;
    fake->rotations += next_interval_ns > 0;
    fake->finals += next_interval_ns == 0;
    fake->last_rotation_ns = fake->mono_ns;
    if (was_running)
        give_profile(fake, isolate, ret);
    isolate->running = false;
    if (next_interval_ns > 0)
        begin(fake, isolate, next_interval_ns, fake->attached_runtime ? NULL : ret_cost);
    return was_running ? EF_OK : ef_err_set(err, EF_ENOTFOUND, "nothing was running");
}

static ef_rc
fake_heap_start(struct ef_session *session, enum ef_heap_mode mode, uint64_t interval_bytes,
                struct ef_err *err)
{
    (void)mode;
    (void)interval_bytes;
    if (session->isolate->heap_running)
        return ef_err_set(err, EF_EEXIST, "runs already");
    session->fake->heap_starts++;
    session->isolate->heap_running = true;
    session->isolate->heap_since_ns = session->fake->mono_ns;
    return EF_OK;
}

/* A kilobyte a second. */
static ef_rc
fake_heap_collect(struct ef_session *session, bool keep_running, struct ef_profile **ret_profile,
                  struct ef_action_cost *ret_cost, struct ef_err *err)
{
    struct fake_isolate *isolate = session->isolate;
    int64_t bytes = (session->fake->mono_ns - isolate->heap_since_ns) / 1000000;
    struct ef_profile *profile;

    if (!isolate->heap_running)
        return ef_err_set(err, EF_ECLOSED, "does not run");
    session->fake->fetches++;
    isolate->heap_running = keep_running;
    profile = small_profile("objects", "count", "space", "bytes");
    assert_int_equal(ef_profile_add_value(profile, 1, 0, bytes / 100, NULL), EF_OK);
    assert_int_equal(ef_profile_add_value(profile, 1, 1, bytes, NULL), EF_OK);
    ret_cost->pause_ns = ret_cost->paused_ns = 6 * MS;
    session->fake->spent_ns += 6e6;
    *ret_profile = profile;
    return EF_OK;
}

static ef_rc
fake_poll(struct ef_session *session, bool *ret_exiting, struct ef_err *err)
{
    session->fake->polls++;
    if (!session->fake->alive && session->fake->attached_runtime)
        return ef_err_set(err, EF_ECLOSED, "it went away");
    *ret_exiting = session->fake->exiting;
    if (session->fake->exiting && session->fake->exit_seen_ns == 0)
        session->fake->exit_seen_ns = session->fake->mono_ns;
    return EF_OK;
}

static void
fake_stop(struct ef_session *session)
{
    session->fake->stops++;
    session->isolate->running = session->isolate->heap_running = false;
    session->fake->left_ns = session->fake->mono_ns;
}

static void
fake_close(struct ef_session *session)
{
    if (session == NULL)
        return;
    session->fake->closes++;
    session->isolate->heap_running = false;
    free(session);
}

#define FAKE_OPS(name, attached, ratio, guard)                                                     \
    {                                                                                              \
        .runtime = name, .list = fake_list, .open = fake_open, .probe = fake_probe,                \
        .start_cpu = fake_start, .rotate_cpu = fake_rotate, .heap_start = fake_heap_start,         \
        .heap_collect = fake_heap_collect, .poll = fake_poll, .stop = fake_stop,                   \
        .close = fake_close, .stays_attached = attached, .starved_ratio = ratio,                   \
        .exit_guard = guard                                                                        \
    }
static const struct ef_sampler_ops fake_workerd = FAKE_OPS("workerd", false, 0.4, "libfake-guard");
static const struct ef_sampler_ops fake_node = FAKE_OPS("node", true, 0.6, NULL);

/* --- the fake world -------------------------------------------------------------------------- */

static ef_mono_ns
world_mono(void *arg)
{
    return (ef_mono_ns){((struct fake *)arg)->mono_ns};
}

static ef_wall_ns
world_wall(void *arg)
{
    return (ef_wall_ns){((struct fake *)arg)->wall_ns};
}

static uint64_t
world_random(void *arg)
{
    return (uint64_t)(unit(arg) * 18446744073709549568.0);
}

static bool
world_cpu(void *arg, int pid, int64_t *ret_ns)
{
    struct fake *fake = arg;

    if (!fake->alive || pid != fake->pid)
        return false;
    *ret_ns = fake->cpu_ns;
    return true;
}

static int
world_pid_of(void *arg, const char *host, uint16_t port, int hint_pid)
{
    (void)host;
    (void)port;
    (void)hint_pid;
    return ((struct fake *)arg)->pid;
}

static bool
world_confined(void *arg, int pid)
{
    (void)pid;
    return ((struct fake *)arg)->confined;
}

/* One thread does all the work. */
static size_t
world_threads(void *arg, int pid, struct ef_thread_time *threads, size_t threads_max)
{
    const struct fake *fake = arg;

    assert_true(threads_max > 0);
    if (fake->wait_ratio < 0)
        return 0;
    threads[0] = (struct ef_thread_time){pid, fake->cpu_ns,
                                         (int64_t)((double)fake->cpu_ns * fake->wait_ratio)};
    return 1;
}

static bool
world_maps(void *arg, int pid, const char *library)
{
    const struct fake *fake = arg;

    assert_string_equal(library, "libfake-guard");
    return fake->guarded && pid == fake->pid;
}

static const struct ef_sampler_ops *
world_sampler(void *arg, const char *runtime)
{
    const struct ef_sampler_ops *ops =
        ((struct fake *)arg)->attached_runtime ? &fake_node : &fake_workerd;

    return strcmp(ops->runtime, runtime) == 0 ? ops : NULL;
}

static ef_rc
world_fragment(void *arg, const struct ef_fragment *fragment, struct ef_err *err)
{
    struct fake *fake = arg;
    struct seen_fragment *seen = &fake->fragments[fake->fragment_count];

    if (fake->fragment_count == FRAGMENTS_MAX)
        return ef_err_set(err, EF_ELIMIT, "the test keeps no more");
    fake->fragment_count++;
    *seen = (struct seen_fragment){.type = fragment->profile_type,
                                   .stratum = fragment->stratum,
                                   .start_ns = fragment->start_ns,
                                   .span_ns = fragment->span_ns,
                                   .interval = fragment->interval,
                                   .weight_milli = fragment->weight_milli};
    snprintf(seen->version, sizeof(seen->version), "%s", fragment->source.version);
    for (size_t i = 0; i < fragment->sample_count; i++)
        seen->count += fragment->profile_type == 1 ? fragment->samples[i].count
                                                   : (uint64_t)fragment->samples[i].value;
    return EF_OK;
}

static ef_rc
world_usage(void *arg, const struct ef_usage *usage, struct ef_err *err)
{
    struct fake *fake = arg;

    (void)err;
    fake->usage_cpu_ns += (int64_t)usage->cpu_ns;
    fake->usage_span_ns += (int64_t)usage->span_ns;
    fake->usage_hot_ns += (int64_t)usage->hot_span_ns;
    fake->usage_isolates = usage->isolates;
    /* As the collector does. */
    fake->usage_split_ns += (int64_t)(usage->cpu_ns / usage->isolates);
    return EF_OK;
}

/* --- building and driving -------------------------------------------------------------------- */

static void
add_isolate(struct fake *fake, const char *id)
{
    struct fake_isolate *isolate = &fake->isolates[fake->isolate_count++];

    isolate->id = id;
    snprintf(isolate->isolate, sizeof(isolate->isolate), "isolate-%zu", fake->isolate_count);
    memset(isolate->hash, 'a' + (int)fake->isolate_count, 64);
}

static int
setup(void **state)
{
    struct fake *fake = calloc(1, sizeof(*fake));

    fake->seed = ef_test_seed();
    fake->mono_ns = 1000 * S;
    fake->wall_ns = INT64_C(1700000003) * S;
    fake->pid = 42;
    fake->alive = true;
    fake->guarded = true;
    fake->cores = 0.05;
    fake->hit_ratio = 0.6;
    fake->pause_ns = 35 * MS;
    fake->gap_min_ns = INT64_MAX;
    fake->world = (struct ef_world){.arg = fake,
                                    .mono = world_mono,
                                    .wall = world_wall,
                                    .random = world_random,
                                    .process_cpu = world_cpu,
                                    .pid_of = world_pid_of,
                                    .confined = world_confined,
                                    .threads = world_threads,
                                    .maps = world_maps,
                                    .sampler = world_sampler,
                                    .add_fragment = world_fragment,
                                    .add_usage = world_usage};
    ef_option_defaults(ef_agent_option_table, ef_agent_option_count, &fake->options);
    fake->shared =
        (struct ef_shared){.world = &fake->world, .options = &fake->options, .pause_scale = 1};
    pthread_mutex_init(&fake->shared.lock, NULL);
    assert_int_equal(ef_registry_open(16, &fake->shared.registry, NULL), EF_OK);
    the_fake = fake;
    *state = fake;
    return 0;
}

static int
teardown(void **state)
{
    struct fake *fake = *state;

    ef_target_free(fake->target);
    ef_registry_free(fake->shared.registry);
    ef_config_free(fake->config);
    pthread_mutex_destroy(&fake->shared.lock);
    free(fake);
    return 0;
}

/* Makes the target of a configuration with one entry. */
static void
open_target(struct fake *fake, const char *runtime, const char *more)
{
    struct ef_target_options options = {.host = "127.0.0.1", .port = 9229, .configured = true};
    const struct ef_rule *rule;
    struct ef_err err = {0};
    char text[512];

    snprintf(text, sizeof(text),
             "host: h\ntargets: [{runtime: %s, inspector: '127.0.0.1:9229', account: acct, "
             "version: v1%s}]\n",
             runtime, more);
    if (ef_config_parse("test", text, strlen(text), &fake->config, &err) != EF_OK)
        fail_msg("%s", err.msg);
    fake->attached_runtime = strcmp(runtime, "node") == 0;
    rule = &fake->config->rules[0];
    options.config = fake->config;
    options.rules = &rule;
    options.rule_count = 1;
    assert_int_equal(ef_target_open(&fake->shared, &options, &fake->target, &err), EF_OK);
}

static void
run_for(struct fake *fake, int64_t span_ns)
{
    int64_t end_ns = fake->mono_ns + span_ns;

    while (fake->mono_ns < end_ns) {
        int64_t next_ns = ef_target_step(fake->target).ns;
        int64_t step_ns = next_ns > fake->mono_ns ? next_ns - fake->mono_ns : MS;
        pass(fake, step_ns < end_ns - fake->mono_ns ? step_ns : end_ns - fake->mono_ns);
    }
    (void)ef_target_step(fake->target);
}

/* Its phase is random; from there on the next one is a whole period away. */
static void
run_to_first_rotation(struct fake *fake)
{
    for (int i = 0; i < 400 && fake->rotations == 0; i++)
        run_for(fake, 10 * S);
    assert_int_equal(fake->rotations, 1);
    run_for(fake, 120 * S); /* a minute of quiet readings, whatever the phase was */
}

static struct ef_target_view
view_of(struct fake *fake)
{
    struct ef_target_view views[8];

    assert_true(ef_target_views(fake->target, views, 8) >= 1);
    return views[0];
}

static int64_t
covered_ns(const struct fake *fake, int type)
{
    int64_t sum = 0;

    for (size_t i = 0; i < fake->fragment_count; i++) {
        if (fake->fragments[i].type == type)
            sum += (int64_t)fake->fragments[i].span_ns;
    }
    return sum;
}

/* --- tests ----------------------------------------------------------------------------------- */

/* Goal: an hour of workerd is covered without a hole, with one rotation per 70 to 90 s and no
 * socket. */
static void
steady_sampling_covers_the_whole_time(void **state)
{
    struct fake *fake = *state;

    add_isolate(fake, "acct:shop:v1");
    open_target(fake, "workerd", ", worker: shop");
    run_for(fake, 3600 * S);
    assert_string_equal(view_of(fake).state, "sampling");
    assert_int_equal(fake->starts, 1);
    assert_in_range(fake->rotations, 20, 61);
    ef_target_finish(fake->target);
    assert_int_equal(fake->finals, 1);
    assert_in_range(covered_ns(fake, 1), 3598 * S, 3601 * S);
    assert_in_range(fake->usage_span_ns, 3590 * S, 3601 * S);
    assert_in_range(fake->usage_cpu_ns, 178 * S, 181 * S);
    assert_int_equal(fake->heap_starts, 0); /* workerd's heap is off unless asked for */
    assert_true(view_of(fake).samples > 500);
}

static void
stop_collects_then_leaves_nothing_running(void **state)
{
    struct fake *fake = *state;

    add_isolate(fake, "acct:shop:v1");
    open_target(fake, "workerd", ", worker: shop");
    run_for(fake, 20 * S);
    assert_true(fake->isolates[0].running);
    ef_target_finish(fake->target);
    assert_false(fake->isolates[0].running);
    assert_int_equal(fake->finals, 1);
    assert_true(fake->stops >= 1);
    assert_in_range(covered_ns(fake, 1), 18 * S, 20 * S);
}

/* Goal: three seconds of load after a quiet minute are collected at once, and marked hot. */
static void
hot_spell_is_collected_early(void **state)
{
    struct fake *fake = *state;
    int before;
    bool hot = false;

    add_isolate(fake, "acct:shop:v1");
    open_target(fake, "workerd", ", worker: shop, rotation: 3600s");
    run_to_first_rotation(fake);
    before = fake->rotations;
    fake->cores = 0.95;
    run_for(fake, 8 * S);
    assert_int_equal(fake->rotations, before);
    fake->cores = 0.05;
    run_for(fake, 3 * S);
    assert_int_equal(fake->rotations, before + 1);
    for (size_t i = 0; i < fake->fragment_count; i++)
        hot |= fake->fragments[i].stratum == 1;
    assert_true(hot);
    run_for(fake, 20 * S);
    assert_true(fake->usage_hot_ns > 0 && fake->usage_hot_ns % EF_USAGE_BUCKET_NS == 0);
}

static void
request_collects_the_matching_isolates_only(void **state)
{
    struct fake *fake = *state;
    int before;

    add_isolate(fake, "acct:shop:v1");
    open_target(fake, "workerd", ", worker: shop, rotation: 3600s");
    run_to_first_rotation(fake);
    before = fake->rotations;
    assert_false(ef_target_request(fake->target, "", "other", ""));
    assert_false(ef_target_request(fake->target, "acct", "shop", "v2"));
    run_for(fake, S);
    assert_int_equal(fake->rotations, before);
    assert_true(ef_target_request(fake->target, "acct", "shop", ""));
    run_for(fake, S);
    assert_int_equal(fake->rotations, before + 1);
}

/* Goal: however often somebody asks, the reserve of pauses is kept: 100 ms, then 10 ms a minute. */
static void
endless_requests_do_not_break_the_pause_budget(void **state)
{
    struct fake *fake = *state;
    int before;

    add_isolate(fake, "acct:shop:v1");
    open_target(fake, "workerd", ", worker: shop, rotation: 3600s");
    run_to_first_rotation(fake);
    before = fake->rotations;
    for (int i = 0; i < 600; i++) {
        assert_true(ef_target_request(fake->target, "", "", ""));
        run_for(fake, S);
    }
    assert_in_range(fake->rotations - before, 2, 8);
}

static void
held_inspector_is_left_alone_for_longer_and_longer(void **state)
{
    struct fake *fake = *state;

    add_isolate(fake, "acct:shop:v1");
    open_target(fake, "workerd", ", worker: shop");
    fake->fail = EF_ECONFLICT;
    run_for(fake, 600 * S);
    assert_string_equal(view_of(fake).state, "held");
    assert_true(fake->gap_min_ns >= 20 * S);
    assert_int_equal(fake->starts, 0);
    fake->fail = EF_OK;
    run_for(fake, 800 * S);
    assert_string_equal(view_of(fake).state, "sampling");
    assert_int_equal(fake->starts, 1);
}

static void
busy_isolate_keeps_its_profile(void **state)
{
    struct fake *fake = *state;

    add_isolate(fake, "acct:shop:v1");
    open_target(fake, "workerd", ", worker: shop");
    run_for(fake, 30 * S);
    fake->fail = EF_ETIMEOUT;
    run_for(fake, 300 * S);
    assert_string_equal(view_of(fake).state, "busy");
    fake->fail = EF_OK;
    run_for(fake, 200 * S);
    ef_target_finish(fake->target);
    assert_int_equal(fake->starts, 1);
    assert_in_range(covered_ns(fake, 1), 528 * S, 531 * S);
}

/* Goal: one hit per 67 ms of CPU at 10 ms is reported as starved, not as truth. */
static void
starved_target_is_not_reported_and_tried_again(void **state)
{
    struct fake *fake = *state;
    size_t published;

    add_isolate(fake, "acct:shop:v1");
    fake->confined = true;
    fake->cores = 0.9;
    fake->hit_ratio = 0.15;
    open_target(fake, "workerd", ", worker: shop");
    run_for(fake, 200 * S);
    assert_string_equal(view_of(fake).state, "starved");
    assert_true(view_of(fake).samples_starved > 0);
    assert_int_equal(view_of(fake).samples, 0);
    assert_int_equal(covered_ns(fake, 1), 0);
    assert_false(fake->isolates[0].running);
    published = fake->fragment_count;
    fake->hit_ratio = 0.6; /* it got a second CPU's worth of room */
    run_for(fake, 900 * S);
    assert_string_equal(view_of(fake).state, "sampling");
    assert_true(fake->fragment_count > published);
}

static void
same_ratio_on_two_cpus_is_not_called_starved(void **state)
{
    struct fake *fake = *state;

    add_isolate(fake, "acct:shop:v1");
    fake->cores = 0.9;
    fake->hit_ratio = 0.15;
    open_target(fake, "workerd", ", worker: shop");
    run_for(fake, 200 * S);
    assert_string_equal(view_of(fake).state, "sampling");
    assert_int_equal(view_of(fake).samples_starved, 0);
}

/* Goal: without the exit guard ticks are slow and the status says why; a restart with it ends that.
 */
static void
missing_guard_slows_ticks_down_and_is_said(void **state)
{
    struct fake *fake = *state;

    add_isolate(fake, "acct:shop:v1");
    fake->guarded = false;
    open_target(fake, "workerd", ", worker: shop");
    run_for(fake, 200 * S);
    assert_in_range(fake->isolates[0].interval_ns, 480 * MS, 530 * MS);
    assert_string_equal(view_of(fake).state, "sampling");
    assert_non_null(strstr(view_of(fake).message, "preload libfake-guard.so"));
    fake->pid = 43;
    fake->guarded = true;
    fake->isolates[0].running = false;
    strcpy(fake->isolates[0].isolate, "isolate-new");
    run_for(fake, 200 * S);
    assert_in_range(fake->isolates[0].interval_ns, 40 * MS, 60 * MS);
    assert_null(strstr(view_of(fake).message, "guard"));
}

static void
process_that_cannot_be_found_counts_as_unguarded(void **state)
{
    struct fake *fake = *state;

    add_isolate(fake, "acct:shop:v1");
    fake->pid = 0;
    open_target(fake, "workerd", ", worker: shop");
    run_for(fake, 100 * S);
    assert_in_range(fake->isolates[0].interval_ns, 480 * MS, 530 * MS);
    assert_non_null(strstr(view_of(fake).message, "guard"));
}

static void
given_interval_is_obeyed_without_a_guard(void **state)
{
    struct fake *fake = *state;

    add_isolate(fake, "acct:shop:v1");
    fake->guarded = false;
    open_target(fake, "workerd", ", worker: shop, interval: 19ms");
    run_for(fake, 100 * S);
    assert_int_equal(fake->isolates[0].interval_ns, 19 * MS);
    assert_null(strstr(view_of(fake).message, "guard"));
}

/* Goal: a thread that runs a third of its runnable time is sampled at three times its CPU; the
 * weights bring that back. Before the change the process is alone: weight 1. */
static void
samples_weigh_less_where_the_thread_waited_for_a_cpu(void **state)
{
    struct fake *fake = *state;
    int64_t changed_ns;
    size_t changed = 0;

    add_isolate(fake, "acct:shop:v1");
    open_target(fake, "workerd", ", worker: shop");
    run_for(fake, 197 * S); /* to a bucket's border */
    changed_ns = fake->wall_ns;
    fake->wait_ratio = 2;
    fake->cpu_ns = 0; /* counters begin anew, so that the waits do not leap */
    run_for(fake, 200 * S);
    ef_target_finish(fake->target);
    for (size_t i = 0; i < fake->fragment_count; i++) {
        const struct seen_fragment *seen = &fake->fragments[i];
        if (seen->start_ns < changed_ns)
            assert_int_equal(seen->weight_milli, 1000);
        else if (seen->start_ns >= changed_ns + EF_USAGE_BUCKET_NS) {
            assert_int_equal(seen->weight_milli, 313);
            changed++;
        }
    }
    assert_true(changed >= 15);
}

static void
unknown_waiting_leaves_the_weight_alone(void **state)
{
    struct fake *fake = *state;

    add_isolate(fake, "acct:shop:v1");
    fake->wait_ratio = -1;
    open_target(fake, "workerd", ", worker: shop");
    run_for(fake, 100 * S);
    ef_target_finish(fake->target);
    assert_true(fake->fragment_count > 5);
    for (size_t i = 0; i < fake->fragment_count; i++)
        assert_int_equal(fake->fragments[i].weight_milli, 1000);
}

/* Goal: what the collector books on the isolates of a process sums up to its CPU, also while one of
 * them cannot be made acquaintance with. */
static void
cpu_of_a_process_is_shared_without_loss(void **state)
{
    struct fake *fake = *state;

    add_isolate(fake, "acct:shop:v1");
    add_isolate(fake, "acct:cart:v1");
    fake->isolates[1].mute = true;
    open_target(fake, "workerd", "");
    run_for(fake, 100 * S);
    assert_int_equal(fake->usage_isolates, 1);
    fake->isolates[1].mute = false;
    run_for(fake, 300 * S);
    ef_target_finish(fake->target);
    assert_int_equal(fake->usage_isolates, 2);
    assert_in_range(fake->usage_split_ns, 398 * S / 20, 400 * S / 20);
}

/* Goal: after a reload under the same name the new code is kept apart. */
static void
reload_is_noticed_and_other_code_kept_apart(void **state)
{
    struct fake *fake = *state;
    bool apart = false;

    add_isolate(fake, "acct:shop:v1");
    open_target(fake, "workerd", ", worker: shop");
    run_for(fake, 300 * S);
    fake->isolates[0].running = false;
    strcpy(fake->isolates[0].isolate, "isolate-new");
    memset(fake->isolates[0].hash, 'f', 64);
    run_for(fake, 400 * S);
    ef_target_finish(fake->target);
    for (size_t i = 0; i < fake->fragment_count; i++)
        apart |= strcmp(fake->fragments[i].version, "v1+ffffffff") == 0;
    assert_true(apart);
    assert_string_equal(view_of(fake).version, "v1+ffffffff");
    assert_non_null(strstr(view_of(fake).instance, "isolate-new"));
}

static void
restarted_process_is_sampled_again(void **state)
{
    struct fake *fake = *state;

    add_isolate(fake, "acct:shop:v1");
    open_target(fake, "workerd", ", worker: shop");
    run_for(fake, 100 * S);
    fake->alive = false;
    fake->isolates[0].running = false;
    run_for(fake, 100 * S);
    assert_string_equal(view_of(fake).state, "unreachable");
    fake->alive = true;
    fake->pid = 43;
    fake->cpu_ns = 0;
    run_for(fake, 100 * S);
    assert_string_equal(view_of(fake).state, "sampling");
    assert_int_equal(view_of(fake).pid, 43);
    assert_int_equal(fake->starts, 2);
    assert_true(fake->isolates[0].running);
}

static void
isolates_that_come_and_go_are_followed(void **state)
{
    struct fake *fake = *state;
    struct ef_target_view views[8];

    add_isolate(fake, "acct:shop:v1");
    open_target(fake, "workerd", ", service: 'acct:{worker}:*'");
    run_for(fake, 30 * S);
    add_isolate(fake, "acct:cart:v1");
    add_isolate(fake, "else:where");
    run_for(fake, 90 * S);
    assert_int_equal(ef_target_views(fake->target, views, 8), 2);
    assert_string_equal(views[1].worker, "cart");
    assert_int_equal(fake->usage_isolates, 2);
    fake->isolate_count = 1;
    run_for(fake, 60 * S);
    assert_int_equal(ef_target_views(fake->target, views, 8), 1);
    assert_string_equal(views[0].worker, "shop");
}

/* Goal: bursts of 10 s with nothing running in between; spans × weights stand for the whole time.
 */
static void
devtools_mode_samples_in_weighted_bursts(void **state)
{
    struct fake *fake = *state;
    double stood_for_ns = 0;
    int64_t busy = 0;

    add_isolate(fake, "acct:shop:v1");
    open_target(fake, "workerd", ", worker: shop, devtools: true");
    for (int i = 0; i < 24 * 3600 / 5; i++) {
        run_for(fake, 5 * S);
        busy += fake->isolates[0].running;
    }
    for (size_t i = 0; i < fake->fragment_count; i++)
        stood_for_ns +=
            (double)fake->fragments[i].span_ns * (double)fake->fragments[i].weight_milli / 1000;
    assert_in_range(fake->starts, 100, 150);
    assert_in_range(busy, 150, 600); /* of 17,280 looks */
    assert_true(stood_for_ns > 0.95 * 86400e9 && stood_for_ns < 1.05 * 86400e9);
    assert_true(covered_ns(fake, 1) < 86400 * S / 40);
}

static void
node_rotates_each_half_minute_without_counting_pauses(void **state)
{
    struct fake *fake = *state;

    add_isolate(fake, "uuid");
    open_target(fake, "node", ", worker: api, heap: off");
    run_for(fake, 600 * S);
    assert_in_range(fake->rotations, 15, 25);
    assert_int_equal(fake->starts, 1);
    assert_true(view_of(fake).pause_ms_max < 60);
}

/* Goal: a Node that waits for us is left within 200 ms, and its last profile is not lost. */
static void
exiting_node_is_left_at_once(void **state)
{
    struct fake *fake = *state;
    int64_t asked_ns;

    add_isolate(fake, "uuid");
    open_target(fake, "node", ", worker: api, heap: off, rotation: 3600s");
    run_for(fake, 25 * S);
    fake->exiting = true;
    asked_ns = fake->mono_ns;
    fake->left_ns = 0;
    run_for(fake, S);
    assert_in_range(fake->left_ns - asked_ns, 0, 200 * MS);
    assert_int_equal(fake->finals, 1);
    assert_in_range(covered_ns(fake, 1), 23 * S, 26 * S);
}

/* Goal: allocations by growth and live objects take turns in Node; what is handed out as allocated
 * is what was allocated in the turns, and the turns stand for the whole time. */
static void
node_heap_takes_turns_and_counts_nothing_twice(void **state)
{
    struct fake *fake = *state;
    uint64_t allocated = 0, snapshots = 0;
    int64_t span_ns = 0;

    add_isolate(fake, "uuid");
    open_target(fake, "node", ", worker: api");
    run_for(fake, 2 * 3600 * S);
    for (size_t i = 0; i < fake->fragment_count; i++) {
        const struct seen_fragment *at = &fake->fragments[i];
        snapshots += at->type == 3;
        if (at->type != 2)
            continue;
        allocated += at->count;
        span_ns += (int64_t)at->span_ns;
        assert_int_equal(at->weight_milli, 2000);
    }
    assert_true(snapshots > 30);
    assert_in_range(span_ns, 3300 * S, 4300 * S);
    assert_in_range(allocated, (uint64_t)(span_ns / MS) - 100, (uint64_t)(span_ns / MS) + 100);
}

static void
workerd_heap_runs_in_windows_only(void **state)
{
    struct fake *fake = *state;
    double stood_for_ns = 0;
    int64_t open = 0;

    add_isolate(fake, "acct:shop:v1");
    open_target(fake, "workerd", ", worker: shop, heap: alloc");
    for (int i = 0; i < 6 * 720; i++) {
        run_for(fake, 5 * S);
        open += fake->isolates[0].heap_running;
    }
    for (size_t i = 0; i < fake->fragment_count; i++) {
        if (fake->fragments[i].type == 2)
            stood_for_ns +=
                (double)fake->fragments[i].span_ns * (double)fake->fragments[i].weight_milli / 1000;
    }
    assert_in_range(fake->fetches, 30, 40);
    assert_in_range(open, 150, 300); /* 30 s of 600 s: of 4,320 looks */
    assert_true(stood_for_ns > 0.9 * 6 * 3600e9 && stood_for_ns < 1.05 * 6 * 3600e9);
}

static void
over_budget_is_switched_off_and_said(void **state)
{
    struct fake *fake = *state;

    add_isolate(fake, "acct:shop:v1");
    open_target(fake, "workerd", ", worker: shop");
    run_for(fake, 30 * S);
    ef_target_set_level(fake->target, view_of(fake).isolate, EF_LEVEL_OFF);
    run_for(fake, 5 * S);
    assert_string_equal(view_of(fake).state, "over budget");
    assert_string_not_equal(view_of(fake).message, "");
    assert_false(fake->isolates[0].running);
    assert_true(covered_ns(fake, 1) > 25 * S); /* what was seen until then is kept */
    ef_target_set_level(fake->target, view_of(fake).isolate, EF_LEVEL_FULL);
    run_for(fake, 5 * S);
    assert_string_equal(view_of(fake).state, "sampling");
}

static void
pause_above_the_limit_is_paid_once_then_hourly(void **state)
{
    struct fake *fake = *state;

    add_isolate(fake, "acct:shop:v1");
    fake->pause_ns = 300 * MS;
    open_target(fake, "workerd", ", worker: shop");
    run_for(fake, 4 * 3600 * S);
    assert_in_range(fake->starts + fake->rotations, 3, 6);
    ef_target_finish(fake->target);
    assert_true(covered_ns(fake, 1) > 4 * 3600 * S - 10 * S);
}

/* The agent's sharing, once a minute as it does each half minute. */
static void
share(struct fake *fake, double budget)
{
    struct ef_plan_candidate candidates[8];
    struct ef_target_view views[8];
    size_t count = ef_target_views(fake->target, views, 8);

    for (size_t i = 0; i < count; i++)
        candidates[i] = views[i].candidate;
    ef_plan_share(candidates, count, budget);
    for (size_t i = 0; i < count; i++)
        ef_target_set_level(fake->target, views[i].isolate, candidates[i].level);
}

/*
 * Goal: over a simulated day with changing load and pauses, what sampling really cost (by the
 * fake's own account) stays within the budget, whatever the budget. Method: random load each ten
 * minutes; the first start of each isolate, which nobody can predict, is allowed on top.
 */
static void
simulated_day_keeps_the_budget(void **state)
{
    struct fake *fake = *state;
    double budget = 0.001 + 0.012 * unit(fake), spent;
    int64_t begun_ns = fake->mono_ns;

    add_isolate(fake, "a:one:v1");
    add_isolate(fake, "a:two:v1");
    add_isolate(fake, "a:three:v1");
    fake->pause_ns = (int64_t)(10 + 80 * unit(fake)) * MS;
    open_target(fake, "workerd", ", service: 'a:{worker}:v1', heap: alloc");
    for (int minute = 0; minute < 24 * 60; minute++) {
        if (minute % 10 == 0)
            fake->cores = unit(fake) < 0.5 ? unit(fake) * 0.05 : unit(fake);
        run_for(fake, 60 * S);
        share(fake, budget);
    }
    spent = fake->spent_ns / (double)(fake->mono_ns - begun_ns);
    printf("budget %.4f, spent %.4f of a core, %d rotations\n", budget, spent, fake->rotations);
    assert_true(spent <= budget * 1.1 + 3 * 120e6 / 86400e9);
}

int
main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(steady_sampling_covers_the_whole_time),
        TEST(stop_collects_then_leaves_nothing_running),
        TEST(hot_spell_is_collected_early),
        TEST(request_collects_the_matching_isolates_only),
        TEST(endless_requests_do_not_break_the_pause_budget),
        TEST(held_inspector_is_left_alone_for_longer_and_longer),
        TEST(busy_isolate_keeps_its_profile),
        TEST(starved_target_is_not_reported_and_tried_again),
        TEST(same_ratio_on_two_cpus_is_not_called_starved),
        TEST(missing_guard_slows_ticks_down_and_is_said),
        TEST(process_that_cannot_be_found_counts_as_unguarded),
        TEST(given_interval_is_obeyed_without_a_guard),
        TEST(samples_weigh_less_where_the_thread_waited_for_a_cpu),
        TEST(unknown_waiting_leaves_the_weight_alone),
        TEST(cpu_of_a_process_is_shared_without_loss),
        TEST(reload_is_noticed_and_other_code_kept_apart),
        TEST(restarted_process_is_sampled_again),
        TEST(isolates_that_come_and_go_are_followed),
        TEST(devtools_mode_samples_in_weighted_bursts),
        TEST(node_rotates_each_half_minute_without_counting_pauses),
        TEST(exiting_node_is_left_at_once),
        TEST(node_heap_takes_turns_and_counts_nothing_twice),
        TEST(workerd_heap_runs_in_windows_only),
        TEST(over_budget_is_switched_off_and_said),
        TEST(pause_above_the_limit_is_paid_once_then_hourly),
        TEST(simulated_day_keeps_the_budget),
    };

    return cmocka_run_group_tests_name("sampler.agent.target", tests, NULL, NULL);
}
