/*
 * Decides how an isolate is found, named and read. Must not know in which order commands are safe.
 * Runs on the session's thread.
 */
#include "sampler/v8/session.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_REPLY_BYTES_MAX 65536
#define INTERVAL_US_MIN 50
#define HEAP_INTERVAL_BYTES_MIN 4096 /* 0 is refused by V8, tiny ones are a stack per object */
#define HEAP_INTERVAL_BYTES_MAX (UINT64_C(1) << 30)

ef_rc
ef_v8_list(const char *runtime, const char *inspector, struct ef_listed *entries,
           size_t entries_max, size_t *ret_count, struct ef_err *err)
{
    ef_rc rc = ef_inspector_list(inspector, runtime, EF_V8_DEADLINE_MS_DEFAULT, entries,
                                 entries_max, ret_count, err);

    if (rc != EF_OK)
        ef_err_prefix(err, "inspector '%s'", inspector);
    return rc;
}

ef_rc
ef_v8_open(const char *runtime, const struct ef_session_options *options,
           struct ef_session **ret_session, struct ef_err *err)
{
    const char *id = options->id != NULL ? options->id : "";
    struct ef_session *session;
    uint16_t port;
    ef_rc rc = ef_inspector_check_address(options->inspector, &port, err);

    if (rc != EF_OK)
        return rc;
    if (strlen(id) >= sizeof(session->id) ||
        strlen(options->inspector) >= sizeof(session->inspector))
        return ef_err_set(err, EF_EINVAL, "inspector '%.100s': the isolate's name is too long",
                          options->inspector);
    session = calloc(1, sizeof(*session));
    if (session == NULL)
        return ef_err_set(err, EF_ENOMEM, "out of memory");
    session->runtime = runtime;
    strcpy(session->inspector, options->inspector);
    strcpy(session->id, id);
    session->port = port;
    session->pid = options->pid;
    session->evaluate_denied = options->evaluate_denied;
    session->deadline_ms =
        options->deadline_ms != 0 ? options->deadline_ms : EF_V8_DEADLINE_MS_DEFAULT;
    *ret_session = session;
    return EF_OK;
}

void
ef_v8_free(struct ef_session *session)
{
    if (session == NULL)
        return;
    EF_ASSERT(session->link == NULL);
    ef_v8_forget_kept(session);
    free(session);
}

ef_rc
ef_v8_blame(const struct ef_session *session, ef_rc rc, struct ef_err *err)
{
    if (rc != EF_OK)
        ef_err_prefix(err, "inspector '%s', isolate '%s'", session->inspector, session->id);
    return rc;
}

/* Our line in the list, or the only one. */
static ef_rc
find_listed(struct ef_session *session, const struct ef_listed *entries, size_t count,
            struct ef_err *err)
{
    for (size_t i = 0; i < count; i++) {
        if (session->id[0] != '\0' ? strcmp(entries[i].id, session->id) == 0 : count == 1) {
            session->listed = entries[i];
            return EF_OK;
        }
    }
    if (session->id[0] == '\0')
        return ef_err_set(err, count == 0 ? EF_ENOTFOUND : EF_EINVAL,
                          "%zu isolates are listed, and none is named", count);
    return ef_err_set(err, EF_ENOTFOUND, "not in the list of %zu isolates", count);
}

static ef_rc
resolve(struct ef_session *session, struct ef_err *err)
{
    struct ef_listed *entries = calloc(EF_V8_LISTED_MAX, sizeof(*entries));
    size_t count = 0;
    ef_rc rc;

    if (entries == NULL)
        return ef_err_set(err, EF_ENOMEM, "out of memory");
    rc = ef_inspector_list(session->inspector, session->runtime, session->deadline_ms, entries,
                           EF_V8_LISTED_MAX, &count, err);
    if (rc == EF_OK)
        rc = find_listed(session, entries, count, err);
    free(entries);
    return rc;
}

ef_rc
ef_v8_connect(struct ef_session *session, ef_inspector_event_fn event, struct ef_err *err)
{
    ef_rc rc = resolve(session, err);

    if (rc == EF_OK)
        rc = ef_inspector_open(session->inspector, session->listed.id, session->deadline_ms, event,
                               session, &session->link, err);
    return rc;
}

void
ef_v8_disconnect(struct ef_session *session)
{
    ef_inspector_free(session->link);
    session->link = NULL;
}

ef_rc
ef_v8_call(struct ef_session *session, const char *method, const char *params,
           struct ef_inspector_reply *ret, struct ef_err *err)
{
    struct ef_inspector_reply ignored;
    ef_rc rc = ef_inspector_call(session->link, method, params, ret != NULL ? ret : &ignored, err);

    if (rc != EF_OK && rc != EF_EINVAL && rc != EF_EUNSUP)
        ef_v8_disconnect(session);
    return rc;
}

static bool
is_hex_hash(const char *hash)
{
    return strlen(hash) == 64 && hash[strspn(hash, "0123456789abcdef")] == '\0';
}

/* Scripts of the runtime itself, of wasm (its hash is that of nothing), and code made by eval. */
static bool
is_foreign_url(const char *url)
{
    static const char *const prefixes[] = {"node:",     "wasm:",       "internal/",
                                           "workerd:",  "cloudflare-", "cloudflare:",
                                           "electron/", "evalmachine"};

    for (size_t i = 0; i < EF_COUNT_OF(prefixes); i++)
        if (strncmp(url, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return url[0] == '\0';
}

/*
 * The main module is the one whose URL the target list shows (Node), otherwise the one compiled
 * first: workerd compiles the configuration's first module before those that it imports.
 */
void
ef_v8_script_parsed(struct ef_session *session, struct ef_json_text params)
{
    struct ef_v8_script seen = {0}, *best = &session->script;
    char id[32];

    ef_json_text_str(ef_json_member(params, "url"), seen.url, sizeof(seen.url));
    ef_json_text_str(ef_json_member(params, "hash"), seen.hash, sizeof(seen.hash));
    ef_json_text_str(ef_json_member(params, "scriptId"), id, sizeof(id));
    seen.id = strtoll(id, NULL, 10);
    if (is_foreign_url(seen.url) || !is_hex_hash(seen.hash))
        return;
    seen.found = true;
    seen.exact = strcmp(seen.url, session->listed.url) == 0;
    if (!best->found || (seen.exact && !best->exact) ||
        (seen.exact == best->exact && seen.id < best->id))
        *best = seen;
}

/* Asks V8 for its scripts: skip all pauses first, or a "debugger" statement would stop the isolate
 * while we look. */
static ef_rc
read_script(struct ef_session *session, struct ef_err *err)
{
    ef_rc rc;

    session->script = (struct ef_v8_script){0};
    rc = ef_v8_call(session, "Debugger.setSkipAllPauses", "{\"skip\":true}", NULL, err);
    if (rc == EF_OK)
        rc = ef_v8_call(session, "Debugger.enable", NULL, NULL, err);
    if (rc == EF_OK)
        rc = ef_v8_call(session, "Debugger.disable", NULL, NULL, err);
    if (rc != EF_OK)
        return rc;
    strcpy(session->probe.script_hash, session->script.hash);
    strcpy(session->probe.script_url, session->script.url);
    strcpy(session->hashed_isolate, session->probe.isolate);
    return EF_OK;
}

static uint64_t
byte_count(struct ef_json_text object, const char *name)
{
    json_t *value = ef_json_text_load(ef_json_member(object, name), 64);
    double number = json_is_number(value) ? json_number_value(value) : 0;

    json_decref(value);
    return number > 0 && number < 1e18 ? (uint64_t)number : 0;
}

ef_rc
ef_v8_identify(struct ef_session *session, struct ef_err *err)
{
    struct ef_inspector_reply reply;
    ef_rc rc = ef_v8_call(session, "Runtime.getIsolateId", NULL, &reply, err);

    if (rc != EF_OK)
        return rc;
    ef_json_text_str(ef_json_member(reply.result, "id"), session->probe.isolate,
                     sizeof(session->probe.isolate));
    rc = ef_v8_call(session, "Runtime.getHeapUsage", NULL, &reply, err);
    if (rc != EF_OK)
        return rc;
    session->probe.heap_used_bytes = byte_count(reply.result, "usedSize");
    if (strcmp(session->hashed_isolate, session->probe.isolate) != 0 ||
        session->hashed_isolate[0] == '\0')
        rc = read_script(session, err);
    if (rc == EF_OK)
        session->probed = true;
    return rc;
}

ef_rc
ef_v8_keep(struct ef_session *session, struct ef_json_text profile, uint64_t planned_interval_ns,
           struct ef_err *err)
{
    struct ef_v8_kept kept = {.len = profile.len, .planned_interval_ns = planned_interval_ns};

    if (profile.at == NULL || profile.at[0] != '{')
        return ef_err_set(err, EF_ECORRUPT, "the reply holds no profile");
    kept.text = malloc(profile.len);
    if (kept.text == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a profile of %zu bytes", profile.len);
    memcpy(kept.text, profile.at, profile.len);
    kept.clock = (struct ef_v8_clock){ef_wall_now(), ef_mono_now()};
    ef_v8_forget_kept(session);
    session->kept = kept;
    return EF_OK;
}

void
ef_v8_forget_kept(struct ef_session *session)
{
    free(session->kept.text);
    session->kept = (struct ef_v8_kept){0};
}

ef_rc
ef_v8_take_kept(struct ef_session *session, struct ef_cpu_profile *ret, struct ef_err *err)
{
    struct ef_v8_kept *kept = &session->kept;
    struct ef_cpuprofile cpuprofile;
    ef_rc rc;

    if (kept->text == NULL) {
        *ret = (struct ef_cpu_profile){0};
        return EF_OK;
    }
    rc = ef_cpuprofile_read_ticks((const uint8_t *)kept->text, kept->len,
                                  &ef_profile_limits_default, &cpuprofile, err);
    if (rc == EF_OK) {
        rc = ef_v8_slice(&cpuprofile, &kept->clock, kept->planned_interval_ns, ret, err);
        ef_cpuprofile_fini(&cpuprofile);
    }
    ef_v8_forget_kept(session);
    return rc;
}

ef_rc
ef_v8_settle(struct ef_session *session, ef_rc rc, const struct ef_err *why,
             const struct ef_action_cost *cost, struct ef_cpu_profile *ret,
             struct ef_action_cost *ret_cost, struct ef_err *err)
{
    if (rc != EF_OK && session->kept.text == NULL)
        return ef_err_set(err, rc, "%s", why->msg);
    session->late = rc != EF_OK ? *why : (struct ef_err){0};
    rc = ef_v8_take_kept(session, ret, err);
    if (rc == EF_OK)
        *ret_cost = *cost;
    return rc;
}

ef_rc
ef_v8_give_rotated(struct ef_session *session, ef_rc rc, const struct ef_cpu_profile *cpu,
                   struct ef_cpu_profile *ret, struct ef_err *err)
{
    if (rc == EF_ENOTFOUND) /* here this word means "nothing was running" */
        rc = EF_ECLOSED;
    else if (rc == EF_OK && cpu->profile == NULL)
        rc = ef_err_set(err, EF_ENOTFOUND, "no profile was running (a restarted isolate has none)");
    else if (rc == EF_OK)
        *ret = *cpu;
    return ef_v8_blame(session, rc, err);
}

ef_rc
ef_v8_tell_late(struct ef_session *session, struct ef_err *err)
{
    ef_rc rc = EF_OK;

    if (session->late.rc != EF_OK)
        rc = ef_err_set(err, session->late.rc, "the next profile was not begun: %s",
                        session->late.msg);
    session->late = (struct ef_err){0};
    return rc;
}

uint64_t
ef_v8_interval_us(uint64_t interval_ns)
{
    uint64_t us = interval_ns / (uint64_t)EF_NS_PER_US;

    if (us > INT32_MAX)
        us = INT32_MAX; /* the protocol's integer */
    return us < INTERVAL_US_MIN ? INTERVAL_US_MIN : us;
}

ef_rc
ef_v8_set_interval(struct ef_session *session, uint64_t interval_ns, struct ef_err *err)
{
    char params[64];

    snprintf(params, sizeof(params), "{\"interval\":%" PRIu64 "}", ef_v8_interval_us(interval_ns));
    return ef_v8_call(session, "Profiler.setSamplingInterval", params, NULL, err);
}

void
ef_v8_add_pause(struct ef_action_cost *cost, ef_span_ns took)
{
    if (took.ns > cost->pause_ns)
        cost->pause_ns = took.ns;
    cost->paused_ns += took.ns;
}

ef_rc
ef_v8_check_heap(const struct ef_session *session, enum ef_heap_mode mode, uint64_t interval_bytes,
                 struct ef_err *err)
{
    if (interval_bytes < HEAP_INTERVAL_BYTES_MIN || interval_bytes > HEAP_INTERVAL_BYTES_MAX)
        return ef_err_set(err, EF_EINVAL,
                          "a heap sampling interval of %" PRIu64 " bytes is not between %d and "
                          "%" PRIu64,
                          interval_bytes, HEAP_INTERVAL_BYTES_MIN, HEAP_INTERVAL_BYTES_MAX);
    if (mode != EF_HEAP_ALLOC && mode != EF_HEAP_INUSE)
        return ef_err_set(err, EF_EINVAL, "heap mode %d is neither alloc nor inuse", (int)mode);
    if (session->heap_running)
        return ef_err_set(err, EF_EEXIST, "heap sampling runs already");
    return EF_OK;
}

ef_rc
ef_v8_heap_begin(struct ef_session *session, enum ef_heap_mode mode, uint64_t interval_bytes,
                 struct ef_err *err)
{
    const char *dead = mode == EF_HEAP_ALLOC ? "true" : "false";
    char params[256];
    ef_rc rc = ef_v8_call(session, "HeapProfiler.enable", NULL, NULL, err);

    if (rc != EF_OK)
        return rc;
    snprintf(params, sizeof(params),
             "{\"samplingInterval\":%" PRIu64 ",\"includeObjectsCollectedByMajorGC\":%s,"
             "\"includeObjectsCollectedByMinorGC\":%s}",
             interval_bytes, dead, dead);
    rc = ef_v8_call(session, "HeapProfiler.startSampling", params, NULL, err);
    if (rc == EF_OK)
        session->heap_running = true;
    return rc;
}

ef_rc
ef_v8_heap_fetch(struct ef_session *session, const char *method, struct ef_profile **ret_profile,
                 struct ef_action_cost *ret_cost, struct ef_err *err)
{
    const struct ef_format_ops *format = ef_format_find("heapprofile");
    struct ef_action_cost cost = {0};
    struct ef_inspector_reply reply;
    struct ef_json_text profile;
    ef_rc rc = ef_v8_call(session, method, NULL, &reply, err);

    if (rc != EF_OK)
        return rc;
    ef_v8_add_pause(&cost, reply.took);
    profile = ef_json_member(reply.result, "profile");
    if (profile.at == NULL)
        return ef_err_set(err, EF_ECORRUPT, "%s gave no profile", method);
    rc = format->read((const uint8_t *)profile.at, profile.len, &ef_profile_limits_default,
                      ret_profile, err);
    if (rc == EF_OK)
        *ret_cost = cost;
    return rc;
}
