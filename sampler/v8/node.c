/*
 * Decides the order of commands for Node.js. Sampling ends with our connection, so we stay.
 *
 * Profiler.start walks the heap (a pause) unless V8's profiler is alive already. So a rotation
 * holds it alive by a second, short profile, the bridge: console.profile, Profiler.stop,
 * Profiler.start (0.2 ms), console.profileEnd. The profile that runs is always the one of
 * Profiler.start, because that one can be had by Profiler.stop, without running JavaScript, when
 * the process is about to exit, and because an application's own console.profileEnd() cannot end
 * it.
 *
 * Runtime.evaluate is used for the bridge only, and never with includeCommandLineAPI: a Node that
 * has come to its natural end while we are attached dies of it (SIGSEGV, Node 20.20.2); without it
 * the same moment gives a harmless exception. An application may have replaced its console; only a
 * native function is called, and only V8's event Profiler.consoleProfileStarted counts. Without a
 * bridge a rotation costs the pause.
 *
 * Node waits for us when it exits. NodeRuntime.waitingForDisconnect tells; poll passes it on, and
 * the connection is closed LEAVE_GRACE_MS later even when nobody polls: a target's exit never hangs
 * on us for longer. Runs on the session's thread.
 */
#include "sampler/v8/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WAITING_EVENT "NodeRuntime.waitingForDisconnect"
/* Two agent ticks of 1 s: time to fetch the last profile; init systems wait 10 s and more. */
#define LEAVE_GRACE_MS 2000
#define INTERVAL_CHANGE_MIN 0.25 /* smaller changes are not worth a pause */

/* Our titles: "everflame-<pid>-<number>", so that two agents do not take each other's. */
static void
title_of(uint64_t number, char *title, size_t len)
{
    snprintf(title, len, "everflame-%d-%" PRIu64, (int)getpid(), number);
}

static bool
is_bridge(const struct ef_session *session, struct ef_json_text params)
{
    char title[64], ours[64];

    title_of(session->bridge, ours, sizeof(ours));
    return ef_json_text_str(ef_json_member(params, "title"), title, sizeof(title)) &&
           strcmp(title, ours) == 0;
}

static void
on_event(void *ctx, const char *method, struct ef_json_text params, ef_mono_ns arrived)
{
    struct ef_session *session = ctx;

    if (strcmp(method, "Debugger.scriptParsed") == 0)
        ef_v8_script_parsed(session, params);
    else if (strcmp(method, WAITING_EVENT) == 0)
        session->exiting = true;
    else if (strcmp(method, "Profiler.consoleProfileStarted") == 0 && is_bridge(session, params)) {
        session->bridged = true;
        session->bridged_at = arrived;
    }
}

static ef_rc
list(const char *inspector, struct ef_listed *entries, size_t entries_max, size_t *ret_count,
     struct ef_err *err)
{
    return ef_v8_list("node", inspector, entries, entries_max, ret_count, err);
}

static ef_rc
open_session(const struct ef_session_options *options, struct ef_session **ret_session,
             struct ef_err *err)
{
    return ef_v8_open("node", options, ret_session, err);
}

static void
disconnect(struct ef_session *session)
{
    ef_v8_disconnect(session);
    session->cpu_running = false; /* V8 ends a session's profiles with the session */
    session->heap_running = false;
    session->exiting = false;
}

/* A command; when the connection broke on it, so did all sampling. */
static ef_rc
call(struct ef_session *session, const char *method, const char *params,
     struct ef_inspector_reply *ret, struct ef_err *err)
{
    ef_rc rc = ef_v8_call(session, method, params, ret, err);

    if (session->link == NULL)
        disconnect(session);
    return rc;
}

static ef_rc
attach(struct ef_session *session, struct ef_err *err)
{
    ef_rc rc;

    if (session->link != NULL)
        return EF_OK;
    disconnect(session);
    rc = ef_v8_connect(session, on_event, err);
    if (rc != EF_OK)
        return rc;
    ef_inspector_leave_after(session->link, "\"" WAITING_EVENT "\"", LEAVE_GRACE_MS);
    rc = call(session, "NodeRuntime.notifyWhenWaitingForDisconnect", "{\"enabled\":true}", NULL,
              err);
    if (rc == EF_OK)
        rc = call(session, "Profiler.enable", NULL, NULL, err);
    if (rc != EF_OK)
        disconnect(session);
    return rc;
}

static ef_rc
probe(struct ef_session *session, struct ef_probe *ret_probe, struct ef_err *err)
{
    ef_rc rc = attach(session, err);

    if (rc == EF_OK)
        rc = ef_v8_identify(session, err);
    if (session->link == NULL)
        disconnect(session);
    if (rc == EF_OK)
        *ret_probe = session->probe;
    return ef_v8_blame(session, rc, err);
}

/* Calls console.profile or console.profileEnd with the bridge's title, if it is V8's own. */
static ef_rc
call_console(struct ef_session *session, const char *function, struct ef_err *err)
{
    char title[64], params[512];

    title_of(session->bridge, title, sizeof(title));
    snprintf(params, sizeof(params),
             "{\"silent\":true,\"returnByValue\":true,"
             "\"expression\":\"typeof console.%s==='function'&&"
             "/\\\\[native code\\\\]/.test(Function.prototype.toString.call(console.%s))&&"
             "(console.%s('%s'),true)\"}",
             function, function, function, title);
    return call(session, "Runtime.evaluate", params, NULL, err);
}

/*
 * Begins the bridge; session->bridged says whether V8 did. The pause ends with the event, which V8
 * sends when it has started: the reply comes as a second small packet, which the kernel holds back
 * for our delayed acknowledgement (40 ms, measured).
 */
static ef_rc
begin_bridge(struct ef_session *session, struct ef_action_cost *cost, struct ef_err *err)
{
    ef_mono_ns begun = ef_mono_now();
    ef_rc rc;

    session->bridge++;
    session->bridged = false;
    if (session->evaluate_denied)
        return EF_OK; /* the operator's wish: a rotation pauses then */
    rc = call_console(session, "profile", err);
    if (rc == EF_OK && session->bridged)
        ef_v8_add_pause(cost, ef_mono_since(begun, session->bridged_at));
    return rc == EF_EINVAL || rc == EF_EUNSUP ? EF_OK : rc;
}

static ef_rc
start_profile(struct ef_session *session, struct ef_action_cost *cost, struct ef_err *err)
{
    struct ef_inspector_reply reply;
    ef_rc rc = call(session, "Profiler.start", NULL, &reply, err);

    if (rc != EF_OK)
        return rc;
    ef_v8_add_pause(cost, reply.took);
    session->cpu_running = true;
    return EF_OK;
}

/* Keeps what ran. Node refuses to stop when nothing runs. */
static ef_rc
stop_profile(struct ef_session *session, struct ef_err *err)
{
    struct ef_inspector_reply reply;
    ef_rc rc = call(session, "Profiler.stop", NULL, &reply, err);

    session->cpu_running = false;
    if (rc == EF_EINVAL)
        return EF_OK; /* "No recording profiles found" */
    if (rc != EF_OK)
        return rc;
    return ef_v8_keep(session, ef_json_member(reply.result, "profile"), session->interval_ns, err);
}

/* Begins sampling when nothing runs. */
static ef_rc
begin(struct ef_session *session, uint64_t interval_ns, struct ef_action_cost *cost,
      struct ef_err *err)
{
    ef_rc rc = ef_v8_identify(session, err);

    if (rc == EF_OK)
        rc = ef_v8_set_interval(session, interval_ns, err);
    if (rc == EF_OK) {
        session->interval_ns = ef_v8_interval_us(interval_ns) * (uint64_t)EF_NS_PER_US;
        rc = start_profile(session, cost, err);
    }
    if (session->link == NULL)
        disconnect(session);
    return rc;
}

/* Stop and start under a bridge: about a millisecond is not covered. */
static ef_rc
rotate_bridged(struct ef_session *session, struct ef_action_cost *cost, struct ef_err *err)
{
    ef_rc rc = begin_bridge(session, cost, err);

    if (rc == EF_OK)
        rc = stop_profile(session, err);
    if (rc == EF_OK)
        rc = start_profile(session, cost, err);
    if (rc == EF_OK && session->bridged)
        rc = call_console(session, "profileEnd", err);
    return rc;
}

/* V8 refuses another interval while it profiles, so a change costs a pause; see the header. */
static bool
wants_other_interval(const struct ef_session *session, uint64_t next_interval_ns)
{
    double now = (double)session->interval_ns, next = (double)next_interval_ns;

    return next < now * (1 - INTERVAL_CHANGE_MIN) || next > now * (1 + INTERVAL_CHANGE_MIN);
}

/* Perhaps it went away meanwhile, or waits for us to go. */
static ef_rc
catch_up(struct ef_session *session, struct ef_err *err)
{
    ef_rc rc = attach(session, err);

    if (rc != EF_OK)
        return rc;
    rc = ef_inspector_poll(session->link, err);
    if (rc == EF_OK)
        return EF_OK;
    disconnect(session);
    return attach(session, err);
}

/* The process waits for us: take what there is and go. */
static ef_rc
say_goodbye(struct ef_session *session, struct ef_err *err)
{
    ef_rc rc = session->cpu_running ? stop_profile(session, err) : EF_OK;

    disconnect(session);
    return rc == EF_OK ? ef_err_set(err, EF_ECLOSED, "the process is exiting") : rc;
}

/* Ends what runs and begins the next; the finished profile is kept. */
static ef_rc
turn(struct ef_session *session, uint64_t next_interval_ns, struct ef_action_cost *cost,
     struct ef_err *err)
{
    ef_rc rc = catch_up(session, err);

    if (rc != EF_OK)
        return rc;
    if (session->exiting)
        return say_goodbye(session, err);
    if (session->cpu_running && next_interval_ns != 0 &&
        !wants_other_interval(session, next_interval_ns))
        return rotate_bridged(session, cost, err);
    if (session->cpu_running)
        rc = stop_profile(session, err);
    if (rc == EF_OK && next_interval_ns != 0)
        rc = begin(session, next_interval_ns, cost, err);
    return rc;
}

/* As in workerd: a profile that was collected is given, and a failure after it told by poll. */
static ef_rc
turn_and_take(struct ef_session *session, uint64_t next_interval_ns, struct ef_cpu_profile *ret,
              struct ef_action_cost *ret_cost, struct ef_err *err)
{
    struct ef_action_cost cost = {0};
    struct ef_err why = {0};
    ef_rc rc = turn(session, next_interval_ns, &cost, &why);

    return ef_v8_settle(session, rc, &why, &cost, ret, ret_cost, err);
}

static ef_rc
start_cpu(struct ef_session *session, uint64_t interval_ns, struct ef_cpu_profile *ret,
          struct ef_action_cost *ret_cost, struct ef_err *err)
{
    return ef_v8_blame(session, turn_and_take(session, interval_ns, ret, ret_cost, err), err);
}

static ef_rc
rotate_cpu(struct ef_session *session, uint64_t next_interval_ns, struct ef_cpu_profile *ret,
           struct ef_action_cost *ret_cost, struct ef_err *err)
{
    struct ef_cpu_profile cpu = {0};
    ef_rc rc = turn_and_take(session, next_interval_ns, &cpu, ret_cost, err);

    return ef_v8_give_rotated(session, rc, &cpu, ret, err);
}

static ef_rc
heap_start(struct ef_session *session, enum ef_heap_mode mode, uint64_t interval_bytes,
           struct ef_err *err)
{
    ef_rc rc = ef_v8_check_heap(session, mode, interval_bytes, err);

    if (rc == EF_OK)
        rc = attach(session, err);
    if (rc == EF_OK)
        rc = ef_v8_heap_begin(session, mode, interval_bytes, err);
    if (session->link == NULL)
        disconnect(session);
    return ef_v8_blame(session, rc, err);
}

static ef_rc
heap_collect(struct ef_session *session, bool keep_running, struct ef_profile **ret_profile,
             struct ef_action_cost *ret_cost, struct ef_err *err)
{
    ef_rc rc;

    if (session->link == NULL || !session->heap_running)
        rc = ef_err_set(err, EF_ECLOSED, "heap sampling does not run (the target closed it)");
    else {
        rc = ef_v8_heap_fetch(
            session, keep_running ? "HeapProfiler.getSamplingProfile" : "HeapProfiler.stopSampling",
            ret_profile, ret_cost, err);
        session->heap_running = session->heap_running && keep_running;
        if (session->link == NULL)
            disconnect(session);
    }
    return ef_v8_blame(session, rc, err);
}

static ef_rc
poll_session(struct ef_session *session, bool *ret_exiting, struct ef_err *err)
{
    ef_rc rc = ef_v8_tell_late(session, err);

    if (rc == EF_OK && session->link != NULL) {
        rc = ef_inspector_poll(session->link, err);
        if (rc != EF_OK)
            disconnect(session);
    }
    if (rc == EF_OK)
        *ret_exiting = session->exiting;
    return ef_v8_blame(session, rc, err);
}

static void
stop(struct ef_session *session)
{
    disconnect(session); /* Node ends a session's profiles with it */
    ef_v8_forget_kept(session);
    session->late = (struct ef_err){0};
}

static void
close_session(struct ef_session *session)
{
    if (session == NULL)
        return;
    disconnect(session);
    ef_v8_free(session);
}

const struct ef_sampler_ops ef_v8_node_ops = {
    .runtime = "node",
    .list = list,
    .open = open_session,
    .probe = probe,
    .start_cpu = start_cpu,
    .rotate_cpu = rotate_cpu,
    .heap_start = heap_start,
    .heap_collect = heap_collect,
    .poll = poll_session,
    .stop = stop,
    .close = close_session,
    .stays_attached = true,
    .starved_ratio = 0.6, /* normal 0.75 to 1: v8 schedule study */
};
