/*
 * The Node sampler against a scripted inspector: rotation under a bridge, the fallback without one,
 * and leaving a process that wants to exit.
 */
#include "tests/support/ef_test.h"

#include "sampler/sampler.h"

#include "tests/unit/sampler/v8/fake_inspector.h"

#define PROFILE                                                                                    \
    "{\"nodes\":[{\"id\":1,\"callFrame\":{\"functionName\":\"(root)\",\"scriptId\":\"0\","         \
    "\"url\":\"\",\"lineNumber\":-1,\"columnNumber\":-1},\"hitCount\":0,\"children\":[2,3]},"      \
    "{\"id\":2,\"callFrame\":{\"functionName\":\"handle\",\"scriptId\":\"8\",\"url\":"             \
    "\"file:///a.js\",\"lineNumber\":3,\"columnNumber\":1},\"hitCount\":3},"                       \
    "{\"id\":3,\"callFrame\":{\"functionName\":\"(idle)\",\"scriptId\":\"0\",\"url\":\"\","        \
    "\"lineNumber\":-1,\"columnNumber\":-1},\"hitCount\":90}],"                                    \
    "\"startTime\":1000000,\"endTime\":3000000,\"samples\":[2,3,2,2],"                             \
    "\"timeDeltas\":[100000,200000,300000,300000]}"
#define ATTACH "NodeRuntime.notifyWhenWaitingForDisconnect Profiler.enable "
#define WHO "Runtime.getIsolateId Runtime.getHeapUsage "
#define SCRIPT "Debugger.setSkipAllPauses Debugger.enable Debugger.disable "
#define BEGIN "Profiler.setSamplingInterval Profiler.start "
#define BRIDGED "Runtime.evaluate Profiler.stop Profiler.start Runtime.evaluate "
#define WAITING "{\"method\":\"NodeRuntime.waitingForDisconnect\",\"params\":{}}"

struct fixture {
    struct fake *fake;
    const struct ef_sampler_ops *ops;
    struct ef_session *session;
    struct ef_cpu_profile cpu;
    struct ef_action_cost cost;
    struct ef_err err;
    char log[4096];
    char started[256];
};

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    f->fake = fake_open("node.js/v20.20.2");
    f->ops = ef_sampler_find("node");
    fake_rule(f->fake, (struct fake_rule){.method = "Runtime.getIsolateId",
                                          .text = "{\"id\":$,\"result\":{\"id\":\"i1\"}}"});
    fake_rule(f->fake,
              (struct fake_rule){.method = "Profiler.stop",
                                 .text = "{\"id\":$,\"result\":{\"profile\":" PROFILE "}}"});
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    ef_cpu_profile_fini(&f->cpu);
    f->ops->close(f->session);
    fake_free(f->fake);
    free(f);
    return 0;
}

static void
begin(struct fixture *f)
{
    struct ef_session_options options = {.inspector = f->fake->address, .deadline_ms = 60000};

    fake_start(f->fake);
    assert_int_equal(f->ops->open(&options, &f->session, &f->err), EF_OK);
}

/* V8 says that the first bridge began. */
static void
allow_bridge(struct fixture *f)
{
    snprintf(f->started, sizeof(f->started),
             "{\"method\":\"Profiler.consoleProfileStarted\",\"params\":{\"id\":\"2\",\"title\":"
             "\"everflame-%d-1\"}}",
             (int)getpid());
    fake_rule(f->fake,
              (struct fake_rule){.method = "Runtime.evaluate", .before = f->started, .times = 1});
}

static ef_rc
start(struct fixture *f)
{
    ef_cpu_profile_fini(&f->cpu);
    return f->ops->start_cpu(f->session, 19300000, &f->cpu, &f->cost, &f->err);
}

static ef_rc
rotate(struct fixture *f, uint64_t interval_ns)
{
    ef_cpu_profile_fini(&f->cpu);
    return f->ops->rotate_cpu(f->session, interval_ns, &f->cpu, &f->cost, &f->err);
}

static const char *
log_of(struct fixture *f)
{
    fake_take_log(f->fake, f->log, sizeof(f->log));
    return f->log;
}

static void
rotation_goes_under_a_bridge_and_stays_attached(void **state)
{
    struct fixture *f = *state;

    allow_bridge(f);
    begin(f);
    assert_int_equal(start(f), EF_OK);
    assert_null(f->cpu.profile);
    assert_string_equal(log_of(f), ATTACH WHO SCRIPT BEGIN);
    assert_int_equal(rotate(f, 21000000), EF_OK);
    assert_false(fake_saw(f->fake, "includeCommandLineAPI")); /* kills an ending Node */
    assert_true(fake_saw(f->fake, "console.profile("));
    assert_true(fake_saw(f->fake, "console.profileEnd("));
    assert_string_equal(log_of(f), BRIDGED);
    assert_int_equal(f->cpu.hits, 3); /* without (idle) */
    assert_int_equal(f->cpu.profile->node_count, 2);
    assert_int_equal(f->cpu.interval_ns, 19300000);
    assert_int_equal(fake_sockets_open(f->fake), 1);
    assert_int_equal(fake_sockets_ever(f->fake), 1);
}

static void
hidden_console_costs_the_pause_and_nothing_else(void **state)
{
    struct fixture *f = *state;

    begin(f);
    assert_int_equal(start(f), EF_OK);
    log_of(f);
    assert_int_equal(rotate(f, 19300000), EF_OK);
    assert_string_equal(log_of(f), "Runtime.evaluate Profiler.stop Profiler.start ");
    assert_int_equal(f->cpu.hits, 3);
}

static void
small_change_of_interval_is_not_made_and_a_large_one_is(void **state)
{
    struct fixture *f = *state;

    begin(f);
    assert_int_equal(start(f), EF_OK);
    log_of(f);
    assert_int_equal(rotate(f, 24000000), EF_OK); /* + 24 % */
    assert_false(fake_saw(f->fake, "setSamplingInterval"));
    log_of(f);
    assert_int_equal(rotate(f, 50000000), EF_OK);
    assert_int_equal(f->cpu.interval_ns, 19300000); /* that of the profile which ended */
    assert_true(fake_saw(f->fake, "Profiler.setSamplingInterval {\"interval\":50000}"));
    assert_string_equal(log_of(f), "Profiler.stop " WHO BEGIN);
    assert_int_equal(rotate(f, 0), EF_OK);
    assert_int_equal(f->cpu.interval_ns, 50000000);
    assert_string_equal(log_of(f), "Profiler.stop ");
    assert_int_equal(rotate(f, 20000000), EF_ENOTFOUND); /* nothing ran; begun all the same */
    assert_string_equal(log_of(f), WHO BEGIN);
}

/* Goal: an exiting process runs no JavaScript for us, gives its last profile and is left at once.
 */
static void
exiting_process_gives_its_last_profile_and_is_left(void **state)
{
    struct fixture *f = *state;
    bool exiting = false;

    fake_rule(f->fake, (struct fake_rule){.method = "Profiler.start", .before = WAITING});
    begin(f);
    assert_int_equal(start(f), EF_OK);
    log_of(f);
    assert_int_equal(f->ops->poll(f->session, &exiting, &f->err), EF_OK);
    assert_true(exiting);
    assert_int_equal(rotate(f, 20000000), EF_OK);
    assert_int_equal(f->cpu.hits, 3);
    fake_await_quiet(f->fake);
    assert_string_equal(log_of(f), "Profiler.stop ");
    assert_int_equal(f->ops->poll(f->session, &exiting, &f->err), EF_ECLOSED);
    assert_non_null(strstr(f->err.msg, "exiting"));
}

/* Goal: nobody polls, and yet the process can go. */
static void
exiting_process_is_left_even_when_nobody_polls(void **state)
{
    struct fixture *f = *state;
    ef_mono_ns begun = ef_mono_now();
    bool exiting;
    ef_rc rc;

    fake_rule(f->fake, (struct fake_rule){.method = "Profiler.start", .before = WAITING});
    begin(f);
    assert_int_equal(start(f), EF_OK);
    assert_int_equal(fake_sockets_open(f->fake), 1);
    fake_await_quiet(f->fake);
    assert_true(ef_mono_since(begun, ef_mono_now()).ns > EF_NS_PER_S);
    assert_true(ef_mono_since(begun, ef_mono_now()).ns < 60 * EF_NS_PER_S);
    do /* the close frame may be out before our own end is told */
        rc = f->ops->poll(f->session, &exiting, &f->err);
    while (rc == EF_OK);
    assert_int_equal(rc, EF_ECLOSED);
}

static void
closed_target_is_told_by_poll_and_connected_again(void **state)
{
    struct fixture *f = *state;

    fake_rule(f->fake,
              (struct fake_rule){.method = "Runtime.evaluate", .act = FAKE_HANG_UP, .times = 1});
    begin(f);
    assert_int_equal(start(f), EF_OK);
    log_of(f);
    assert_int_equal(rotate(f, 20000000), EF_ECLOSED);
    assert_int_equal(rotate(f, 20000000), EF_ENOTFOUND);
    assert_string_equal(log_of(f), "Runtime.evaluate " ATTACH WHO BEGIN);
    assert_int_equal(fake_sockets_ever(f->fake), 2);
}

static void
nothing_to_stop_is_no_error(void **state)
{
    struct fixture *f = *state;

    f->fake->rules[1].text = "{\"error\":{\"code\":-32000,\"message\":\"No recording profiles "
                             "found\"},\"id\":$}";
    begin(f);
    assert_int_equal(start(f), EF_OK);
    log_of(f);
    assert_int_equal(rotate(f, 20000000), EF_ENOTFOUND);
    assert_string_equal(log_of(f), "Runtime.evaluate Profiler.stop Profiler.start ");
}

static void
heap_sampling_may_go_on_after_a_fetch(void **state)
{
    struct fixture *f = *state;
    struct ef_profile *heap = NULL;
    static const char reply[] =
        "{\"id\":$,\"result\":{\"profile\":{\"head\":{\"callFrame\":{\"functionName\":\"(root)\","
        "\"scriptId\":\"0\",\"url\":\"\",\"lineNumber\":-1,\"columnNumber\":-1},\"selfSize\":0,"
        "\"id\":1,\"children\":[]},\"samples\":[]}}}";

    fake_rule(f->fake,
              (struct fake_rule){.method = "HeapProfiler.getSamplingProfile", .text = reply});
    fake_rule(f->fake, (struct fake_rule){.method = "HeapProfiler.stopSampling", .text = reply});
    begin(f);
    assert_int_equal(f->ops->heap_start(f->session, EF_HEAP_INUSE, 524288, &f->err), EF_OK);
    assert_true(fake_saw(f->fake, "\"includeObjectsCollectedByMajorGC\":false"));
    assert_int_equal(f->ops->heap_collect(f->session, true, &heap, &f->cost, &f->err), EF_OK);
    ef_profile_free(heap);
    assert_int_equal(f->ops->heap_collect(f->session, false, &heap, &f->cost, &f->err), EF_OK);
    ef_profile_free(heap);
    heap = NULL;
    assert_int_equal(f->ops->heap_collect(f->session, false, &heap, &f->cost, &f->err), EF_ECLOSED);
    assert_string_equal(log_of(f), ATTACH "HeapProfiler.enable HeapProfiler.startSampling "
                                          "HeapProfiler.getSamplingProfile "
                                          "HeapProfiler.stopSampling ");
}

static void
main_script_is_the_one_of_the_target_list(void **state)
{
    struct fixture *f = *state;
    struct ef_probe probe;
    char events[2048] = "";
    static const char *const urls[] = {"node:internal/x", "file:///preload.js", "file:///a.js",
                                       "file:///b.js", "wasm://wasm/1234"};

    for (size_t i = 0; i < EF_COUNT_OF(urls); i++)
        snprintf(events + strlen(events), sizeof(events) - strlen(events),
                 "{\"method\":\"Debugger.scriptParsed\",\"params\":{\"scriptId\":\"%zu\",\"url\":"
                 "\"%s\",\"hash\":\"%064zx\"}}",
                 10 + i, urls[i], i);
    fake_rule(f->fake, (struct fake_rule){.method = "Debugger.enable", .before = events});
    begin(f);
    assert_int_equal(f->ops->probe(f->session, &probe, &f->err), EF_OK);
    assert_string_equal(probe.script_url, "file:///a.js");
    assert_int_equal(probe.script_hash[63], '2');
}

int
main(void)
{
#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(rotation_goes_under_a_bridge_and_stays_attached),
        T(hidden_console_costs_the_pause_and_nothing_else),
        T(small_change_of_interval_is_not_made_and_a_large_one_is),
        T(exiting_process_gives_its_last_profile_and_is_left),
        T(exiting_process_is_left_even_when_nobody_polls),
        T(closed_target_is_told_by_poll_and_connected_again),
        T(nothing_to_stop_is_no_error),
        T(heap_sampling_may_go_on_after_a_fetch),
        T(main_script_is_the_one_of_the_target_list),
    };
    return cmocka_run_group_tests_name("sampler/v8/node", tests, NULL, NULL);
}
