/*
 * What sessions of both runtimes share: connecting, who the isolate is, keeping a profile that was
 * fetched, the heap sampler. The order of commands is not here but in workerd.c and node.c.
 *
 * Invariants: link NULL = not connected. A call that fails below the level of a refused command
 * leaves the session disconnected; a fetched profile stays in `kept` until it is taken, so nothing
 * that fails afterwards loses it. One thread at a time.
 */
#ifndef SAMPLER_V8_SESSION_H
#define SAMPLER_V8_SESSION_H

#include "sampler/sampler.h"
#include "sampler/v8/inspector.h"
#include "sampler/v8/slice.h"

#define EF_V8_DEADLINE_MS_DEFAULT 5000
#define EF_V8_LISTED_MAX 4096 /* targets looked through for ours */

/* The text of a fetched CPU profile, and when it came. */
struct ef_v8_kept {
    char *text; /* NULL = none */
    size_t len;
    struct ef_v8_clock clock;
    uint64_t planned_interval_ns; /* 0 = an orphan */
};

/* The script that names the version, chosen among those V8 announces. */
struct ef_v8_script {
    char url[256];
    char hash[65];
    int64_t id;
    bool found, exact; /* exact: its URL is the target's */
};

struct ef_session {
    const char *runtime;
    char inspector[300];
    char id[256]; /* as asked for; "" = the only one */
    uint16_t port;
    int pid;
    uint64_t deadline_ms;
    bool evaluate_denied;
    struct ef_inspector *link;

    struct ef_listed listed; /* our line of the target list */
    struct ef_probe probe;
    bool probed;
    char hashed_isolate[64]; /* whose script is in probe */
    struct ef_v8_script script;

    bool cpu_running;
    uint64_t interval_ns; /* of the running profile */
    char cpu_isolate[64]; /* in which it was started */
    bool heap_running;
    struct ef_v8_kept kept;
    struct ef_err late; /* why the next profile could not be begun after one was collected */

    /* Node only */
    uint64_t bridge; /* number in the title of the last bridge */
    bool bridged;    /* V8 says it began */
    ef_mono_ns bridged_at;
    bool exiting;
};

ef_rc ef_v8_list(const char *runtime, const char *inspector, struct ef_listed *entries,
                 size_t entries_max, size_t *ret_count, struct ef_err *err);
ef_rc ef_v8_open(const char *runtime, const struct ef_session_options *options,
                 struct ef_session **ret_session, struct ef_err *err);
/* Frees the session; the connection must be closed. */
void ef_v8_free(struct ef_session *session);

/* Finds our line in the target list and connects. EF_ENOTFOUND: not listed. */
ef_rc ef_v8_connect(struct ef_session *session, ef_inspector_event_fn event, struct ef_err *err);
void ef_v8_disconnect(struct ef_session *session);
/* Puts "inspector '…', isolate '…'" before the text; returns rc. */
ef_rc ef_v8_blame(const struct ef_session *session, ef_rc rc, struct ef_err *err);

/* A command on the open link. After a broken connection the session is disconnected. */
ef_rc ef_v8_call(struct ef_session *session, const char *method, const char *params,
                 struct ef_inspector_reply *ret, struct ef_err *err);
/* Isolate id and heap use; once per isolate the main module's URL and hash. Fills session->probe.
 */
ef_rc ef_v8_identify(struct ef_session *session, struct ef_err *err);
/* For the event functions: takes a Debugger.scriptParsed. */
void ef_v8_script_parsed(struct ef_session *session, struct ef_json_text params);

/* Copies a profile into session->kept. EF_ECORRUPT when absent. */
ef_rc ef_v8_keep(struct ef_session *session, struct ef_json_text profile,
                 uint64_t planned_interval_ns, struct ef_err *err);
/* Reads what was kept, cuts it into slices, forgets it. ret->profile NULL when nothing was kept. */
ef_rc ef_v8_take_kept(struct ef_session *session, struct ef_cpu_profile *ret, struct ef_err *err);
void ef_v8_forget_kept(struct ef_session *session);
/*
 * Ends a start or rotation that went as rc and *why say. When a profile was collected and something
 * failed after it, the profile counts, and the failure is told by the next poll.
 */
ef_rc ef_v8_settle(struct ef_session *session, ef_rc rc, const struct ef_err *why,
                   const struct ef_action_cost *cost, struct ef_cpu_profile *ret,
                   struct ef_action_cost *ret_cost, struct ef_err *err);
/* Gives what a rotation collected. EF_ENOTFOUND: nothing was running. */
ef_rc ef_v8_give_rotated(struct ef_session *session, ef_rc rc, const struct ef_cpu_profile *cpu,
                         struct ef_cpu_profile *ret, struct ef_err *err);
/* For poll: the failure that ef_v8_settle kept back, once. */
ef_rc ef_v8_tell_late(struct ef_session *session, struct ef_err *err);

ef_rc ef_v8_set_interval(struct ef_session *session, uint64_t interval_ns, struct ef_err *err);
/* The interval V8 will really be given: whole microseconds, at least 50 (chosen: below, a tick
 * costs more than it tells). */
uint64_t ef_v8_interval_us(uint64_t interval_ns);

ef_rc ef_v8_heap_begin(struct ef_session *session, enum ef_heap_mode mode, uint64_t interval_bytes,
                       struct ef_err *err);
ef_rc ef_v8_heap_fetch(struct ef_session *session, const char *method,
                       struct ef_profile **ret_profile, struct ef_action_cost *ret_cost,
                       struct ef_err *err);
ef_rc ef_v8_check_heap(const struct ef_session *session, enum ef_heap_mode mode,
                       uint64_t interval_bytes, struct ef_err *err);
void ef_v8_add_pause(struct ef_action_cost *cost, ef_span_ns took);

extern const struct ef_sampler_ops ef_v8_workerd_ops;
extern const struct ef_sampler_ops ef_v8_node_ops;

#endif
