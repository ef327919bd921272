/*
 * Decides the order of commands for workerd. This order is law: Profiler.enable while a profile
 * runs ends the whole process with SIGSEGV, and an inspector socket open at SIGTERM makes it trap.
 * (workerd 1.20261117.1. A later version where both are fixed would let us stay attached.)
 *
 *   1. Look whether somebody else is connected; if so, do not touch it: a second client closes
 *      both.
 *   2. Connect. Profiler.stop, and wait: a profile of an earlier life may run. No answer: close,
 *      and send nothing more.
 *   3. Who is it, how large is its heap, which script.
 *   4. Profiler.enable, setSamplingInterval, start: never enable without a stop before it.
 *   5. Close. The profile runs on without a socket.
 *
 * A heap window keeps its socket; a rotation meanwhile goes over the same one. It does not send
 * Profiler.stop at the beginning, because it sends no Profiler.enable, and the CPU profile is to
 * run on. Runs on the session's thread.
 */
#include "sampler/v8/session.h"

#include <string.h>

#include "sampler/v8/holder.h"

static void
on_event(void *ctx, const char *method, struct ef_json_text params, ef_mono_ns arrived)
{
    (void)arrived;
    if (strcmp(method, "Debugger.scriptParsed") == 0)
        ef_v8_script_parsed(ctx, params);
}

static ef_rc
list(const char *inspector, struct ef_listed *entries, size_t entries_max, size_t *ret_count,
     struct ef_err *err)
{
    return ef_v8_list("workerd", inspector, entries, entries_max, ret_count, err);
}

static ef_rc
open_session(const struct ef_session_options *options, struct ef_session **ret_session,
             struct ef_err *err)
{
    return ef_v8_open("workerd", options, ret_session, err);
}

static ef_rc
check_holder(const struct ef_session *session, struct ef_err *err)
{
    enum ef_holder holder = EF_HOLDER_UNKNOWN;

    if (session->pid > 0)
        holder = ef_holder_look(session->pid, session->port);
    if (holder == EF_HOLDER_UNKNOWN && ef_inspector_is_local(session->inspector))
        holder = ef_holder_look(0, session->port);
    if (holder == EF_HOLDER_OTHER)
        return ef_err_set(err, EF_ECONFLICT,
                          "somebody else is connected (DevTools?); left alone, because a second "
                          "client would close both connections");
    return EF_OK;
}

/* Connects unless a heap window has us connected. */
static ef_rc
attach(struct ef_session *session, struct ef_err *err)
{
    ef_rc rc;

    if (session->link != NULL && ef_inspector_poll(session->link, NULL) == EF_OK)
        return EF_OK;
    ef_v8_disconnect(session);     /* the target may have closed a window meanwhile */
    session->heap_running = false; /* it ends with its socket */
    rc = check_holder(session, err);
    if (rc == EF_OK)
        rc = ef_v8_connect(session, on_event, err);
    return rc;
}

/* Leaves, unless a heap window needs the socket. After a failure nothing is sent any more. */
static void
detach(struct ef_session *session, ef_rc rc)
{
    if (session->link != NULL && session->heap_running && rc == EF_OK)
        return;
    ef_v8_disconnect(session);
    session->heap_running = false;
}

static ef_rc
probe(struct ef_session *session, struct ef_probe *ret_probe, struct ef_err *err)
{
    ef_rc rc = EF_OK;

    if (!session->probed) {
        rc = attach(session, err);
        if (rc == EF_OK)
            rc = ef_v8_identify(session, err);
        detach(session, rc);
    }
    if (rc == EF_OK)
        *ret_probe = session->probe;
    return ef_v8_blame(session, rc, err);
}

/* Step 2. What was running is kept. */
static ef_rc
stop_running(struct ef_session *session, struct ef_err *err)
{
    uint64_t planned_ns = session->cpu_running ? session->interval_ns : 0;
    struct ef_inspector_reply reply;
    struct ef_json_text profile;
    ef_rc rc = ef_v8_call(session, "Profiler.stop", NULL, &reply, err);

    if (rc != EF_OK)
        return rc;
    session->cpu_running = false;
    profile = ef_json_member(reply.result, "profile");
    if (profile.at == NULL)
        return EF_OK; /* nothing was running */
    return ef_v8_keep(session, profile, planned_ns, err);
}

/* Step 4. */
static ef_rc
start_next(struct ef_session *session, uint64_t interval_ns, struct ef_action_cost *cost,
           struct ef_err *err)
{
    struct ef_inspector_reply reply;
    ef_rc rc = ef_v8_call(session, "Profiler.enable", NULL, NULL, err);

    if (rc == EF_OK)
        rc = ef_v8_set_interval(session, interval_ns, err);
    if (rc == EF_OK)
        rc = ef_v8_call(session, "Profiler.start", NULL, &reply, err);
    if (rc != EF_OK)
        return rc;
    ef_v8_add_pause(cost, reply.took);
    session->cpu_running = true;
    session->interval_ns = ef_v8_interval_us(interval_ns) * (uint64_t)EF_NS_PER_US;
    strcpy(session->cpu_isolate, session->probe.isolate);
    return EF_OK;
}

/* Steps 1 to 5. When a profile was collected and something failed after it, the profile counts and
 * the failure is told by poll. */
static ef_rc
visit(struct ef_session *session, uint64_t next_interval_ns, struct ef_cpu_profile *ret,
      struct ef_action_cost *ret_cost, struct ef_err *err)
{
    struct ef_action_cost cost = {0};
    struct ef_err why = {0};
    ef_rc rc = attach(session, &why);

    if (rc == EF_OK)
        rc = stop_running(session, &why);
    if (rc == EF_OK && next_interval_ns != 0)
        rc = ef_v8_identify(session, &why);
    if (rc == EF_OK && next_interval_ns != 0 &&
        strcmp(session->cpu_isolate, session->probe.isolate) != 0)
        session->kept.planned_interval_ns = 0; /* not the isolate that we started it in */
    if (rc == EF_OK && next_interval_ns != 0)
        rc = start_next(session, next_interval_ns, &cost, &why);
    detach(session, rc);
    return ef_v8_settle(session, rc, &why, &cost, ret, ret_cost, err);
}

static ef_rc
start_cpu(struct ef_session *session, uint64_t interval_ns, struct ef_cpu_profile *ret,
          struct ef_action_cost *ret_cost, struct ef_err *err)
{
    return ef_v8_blame(session, visit(session, interval_ns, ret, ret_cost, err), err);
}

static ef_rc
rotate_cpu(struct ef_session *session, uint64_t next_interval_ns, struct ef_cpu_profile *ret,
           struct ef_action_cost *ret_cost, struct ef_err *err)
{
    struct ef_cpu_profile cpu = {0};
    ef_rc rc = visit(session, next_interval_ns, &cpu, ret_cost, err);

    return ef_v8_give_rotated(session, rc, &cpu, ret, err);
}

static ef_rc
heap_start(struct ef_session *session, enum ef_heap_mode mode, uint64_t interval_bytes,
           struct ef_err *err)
{
    ef_rc rc = ef_v8_check_heap(session, mode, interval_bytes, err);

    if (rc != EF_OK)
        return ef_v8_blame(session, rc, err);
    rc = attach(session, err);
    if (rc == EF_OK)
        rc = ef_v8_heap_begin(session, mode, interval_bytes, err);
    detach(session, rc);
    return ef_v8_blame(session, rc, err);
}

static ef_rc
heap_collect(struct ef_session *session, bool keep_running, struct ef_profile **ret_profile,
             struct ef_action_cost *ret_cost, struct ef_err *err)
{
    ef_rc rc;

    (void)keep_running; /* a socket open for hours would make each SIGTERM a trap */
    if (session->link == NULL || !session->heap_running) {
        session->heap_running = false;
        rc = ef_err_set(err, EF_ECLOSED, "heap sampling does not run (the target closed it)");
    } else {
        rc = ef_v8_heap_fetch(session, "HeapProfiler.stopSampling", ret_profile, ret_cost, err);
        session->heap_running = false;
        detach(session, rc);
    }
    return ef_v8_blame(session, rc, err);
}

static ef_rc
poll_session(struct ef_session *session, bool *ret_exiting, struct ef_err *err)
{
    ef_rc rc = ef_v8_tell_late(session, err);

    if (rc == EF_OK && session->link != NULL) {
        rc = ef_inspector_poll(session->link, err);
        detach(session, rc);
    }
    if (rc == EF_OK)
        *ret_exiting = false;
    return ef_v8_blame(session, rc, err);
}

static void
stop(struct ef_session *session)
{
    struct ef_err err = {0};

    session->heap_running = false;
    if (session->cpu_running) {
        ef_rc rc = attach(session, &err);
        if (rc == EF_OK)
            EF_IGNORE(stop_running(session, &err), "nobody waits for this profile");
        session->cpu_running = false;
    }
    ef_v8_disconnect(session); /* ends heap sampling without the pause of a fetch */
    ef_v8_forget_kept(session);
    session->late = (struct ef_err){0};
}

static void
close_session(struct ef_session *session)
{
    if (session == NULL)
        return;
    ef_v8_disconnect(session);
    ef_v8_free(session);
}

const struct ef_sampler_ops ef_v8_workerd_ops = {
    .runtime = "workerd",
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
    .stays_attached = false,
    .starved_ratio = 0.4, /* normal 0.5 to 0.65: v8 schedule study, two cores against one */
    .exit_guard = "libeverflame-guard", /* inside/README.md */
};
