/*
 * Answers workers, versions, top, timeline and query: parameters to a selector, results to JSON or
 * a file. Decides nothing about profiles. Runs in the threads of the pool.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collector/serve/internal.h"
#include "proto/base/metric.h"
#include "proto/base/text.h"
#include "proto/formats/formats.h"

#define TOP_LIMIT_DEFAULT 1000u /* functions; the rest is in `other` */
#define TOP_LIMIT_MAX 100000u
#define TURN_WAIT_MS 250 /* the waiting thread answers nobody else meanwhile; chosen */

/* Waits a moment: a dashboard asks several things at once, and a query takes milliseconds. */
static bool
take_turn(struct ef_serve *serve)
{
    struct timespec until;
    bool taken;
    int code = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += TURN_WAIT_MS * EF_NS_PER_MS;
    until.tv_sec += until.tv_nsec / EF_NS_PER_S;
    until.tv_nsec %= EF_NS_PER_S;
    pthread_mutex_lock(&serve->query_lock);
    while (code == 0 && serve->queries >= serve->options.queries_max)
        code = pthread_cond_timedwait(&serve->query_ended, &serve->query_lock, &until);
    taken = serve->queries < serve->options.queries_max;
    serve->queries += taken;
    pthread_mutex_unlock(&serve->query_lock);
    return taken;
}

/* Queries need memory of their own, so only a few run at a time. */
static ef_rc
begin_query(struct ef_request *request, struct ef_answer *answer, struct ef_err *err)
{
    struct ef_serve *serve = request->serve;

    if (serve->parts.is_scarce != NULL && serve->parts.is_scarce(serve->parts.arg)) {
        ef_metric_add(EF_METRIC_query_refused_total, 1);
        return ef_err_set(err, EF_EBUSY, "memory is scarce: queries wait until it is not");
    }
    if (!take_turn(serve)) {
        ef_metric_add(EF_METRIC_query_refused_total, 1);
        ef_answer_hint(answer, "try again in a second, or raise queries_max");
        return ef_err_set(err, EF_EBUSY, "%u queries run already",
                          (unsigned)serve->options.queries_max);
    }
    return EF_OK;
}

static ef_rc
end_query(struct ef_request *request, ef_rc rc)
{
    pthread_mutex_lock(&request->serve->query_lock);
    request->serve->queries--;
    pthread_cond_signal(&request->serve->query_ended);
    pthread_mutex_unlock(&request->serve->query_lock);
    ef_metric_add(rc == EF_OK ? EF_METRIC_query_requests_total : EF_METRIC_query_refused_total, 1);
    return rc;
}

static void
put_types(struct ef_json *json, uint32_t types)
{
    ef_json_key(json, "profile_types");
    ef_json_array(json);
    for (uint8_t type = 1; type < 32; type++) {
        if (types & 1u << type)
            ef_json_str(json, ef_type_name(type));
    }
    ef_json_array_end(json);
}

static ef_rc
put_entry(void *arg, const struct ef_query_entry *entry)
{
    struct ef_json *json = arg;

    ef_json_object(json);
    ef_json_kstr(json, "name", entry->version != NULL ? entry->version : entry->worker);
    ef_json_kstr(json, "account", entry->account);
    ef_json_kstr(json, "worker", entry->worker);
    if (entry->version != NULL)
        ef_json_kstr(json, "version", entry->version);
    ef_json_time(json, "first_seen", entry->first_seen_ns);
    ef_json_time(json, "last_seen", entry->last_seen_ns);
    if (entry->version == NULL)
        ef_json_ku64(json, "versions", entry->version_count);
    put_types(json, entry->types);
    ef_json_object_end(json);
    return EF_OK;
}

ef_rc
ef_serve_workers(struct ef_request *request, struct ef_answer *answer, struct ef_err *err)
{
    struct ef_json json;
    ef_rc rc;

    ef_json_init(&json, &answer->body);
    ef_json_array(&json);
    rc = ef_query_workers(request->serve->parts.query, request->now_ns, put_entry, &json, err);
    ef_json_array_end(&json);
    ef_buf_append_str(&answer->body, "\n");
    return rc;
}

ef_rc
ef_serve_versions(struct ef_request *request, struct ef_answer *answer, struct ef_err *err)
{
    const char *worker;
    struct ef_json json;
    ef_rc rc = ef_request_name(request, "worker", &worker, answer, err);

    if (rc != EF_OK)
        return rc;
    ef_json_init(&json, &answer->body);
    ef_json_array(&json);
    rc =
        ef_query_versions(request->serve->parts.query, worker, ef_request_param(request, "account"),
                          request->now_ns, put_entry, &json, err);
    ef_json_array_end(&json);
    ef_buf_append_str(&answer->body, "\n");
    return rc;
}

/*
 * A share with so many digits: the shortest text that reads back the same is found by trying, and
 * 17 digits of an interval's end would say nothing (20 ms for 500 functions, measured; now 3).
 */
static void
put_share(struct ef_json *json, const char *key, double share, int digits)
{
    char text[32];

    snprintf(text, sizeof(text), "%.*g", digits, share);
    ef_json_kf64(json, key, strtod(text, NULL));
}

static void
put_head(struct ef_json *json, const struct ef_query_head *head)
{
    ef_json_kstr(json, "worker", head->worker);
    ef_json_key(json, "versions");
    ef_json_array(json);
    for (size_t i = 0; i < head->version_count; i++)
        ef_json_str(json, head->versions[i]);
    ef_json_array_end(json);
    ef_json_kstr(json, "profile_type", ef_type_name(head->profile_type));
    ef_json_time(json, "from", head->from_ns);
    ef_json_time(json, "to", head->to_ns);
    ef_json_ku64(json, "samples", head->samples);
    put_share(json, "coverage", head->coverage, 6);
    ef_json_ku64(json, "process_cpu_ns", head->process_cpu_ns);
    ef_json_key(json, "notes");
    ef_json_array(json);
    for (size_t i = 0; i < head->note_count; i++)
        ef_json_str(json, head->notes[i]);
    ef_json_array_end(json);
    if (head->empty == EF_EMPTY_NOT)
        return;
    ef_json_key(json, "empty");
    ef_json_object(json);
    ef_json_kstr(json, "reason", ef_empty_name(head->empty));
    ef_json_kstr(json, "message", head->empty_message);
    ef_json_object_end(json);
}

static void
put_cell(struct ef_json *json, const char *key, const struct ef_top_cell *cell)
{
    ef_json_key(json, key);
    ef_json_object(json);
    ef_json_ku64(json, "samples", cell->samples);
    put_share(json, "share", cell->share.share, 9);
    put_share(json, "low", cell->share.low, 6);
    put_share(json, "high", cell->share.high, 6);
    ef_json_object_end(json);
}

static void
put_function(struct ef_json *json, const struct ef_top_function *function)
{
    ef_json_object(json);
    ef_json_kstr(json, "name", function->name);
    ef_json_kstr(json, "file", function->file);
    ef_json_ku64(json, "line", function->line);
    put_cell(json, "self", &function->self);
    put_cell(json, "total", &function->total);
    ef_json_object_end(json);
}

static void
put_top(struct ef_buf *body, const struct ef_top *top)
{
    struct ef_json json;

    ef_json_init(&json, body);
    ef_json_object(&json);
    put_head(&json, &top->head);
    ef_json_key(&json, "total");
    ef_json_object(&json);
    ef_json_ki64(&json, "value", top->value);
    ef_json_kstr(&json, "unit", ef_type_unit(top->head.profile_type));
    ef_json_ki64(&json, "low", top->low);
    ef_json_ki64(&json, "high", top->high);
    ef_json_ki64(&json, "sampled_value", top->sampled_value);
    ef_json_object_end(&json);
    ef_json_key(&json, "functions");
    ef_json_array(&json);
    for (size_t i = 0; i < top->function_count; i++)
        put_function(&json, &top->functions[i]);
    ef_json_array_end(&json);
    if (top->cut) {
        ef_json_key(&json, "other");
        put_function(&json, &top->other);
    }
    ef_json_object_end(&json);
    ef_buf_append_str(body, "\n");
}

static ef_rc
read_limit(const struct ef_request *request, size_t *ret_limit, struct ef_err *err)
{
    const char *text = ef_request_param(request, "limit"), *end = text;
    uint64_t limit;

    if (text == NULL) {
        *ret_limit = TOP_LIMIT_DEFAULT;
        return EF_OK;
    }
    if (!ef_u64_read(&end, 10, &limit) || *end != '\0' || limit < 1 || limit > TOP_LIMIT_MAX)
        return ef_err_set(err, EF_EINVAL, "parameter 'limit': '%.32s' is not a number from 1 to %u",
                          text, TOP_LIMIT_MAX);
    *ret_limit = limit;
    return EF_OK;
}

ef_rc
ef_serve_top(struct ef_request *request, struct ef_answer *answer, struct ef_err *err)
{
    struct ef_selector selector;
    struct ef_top top;
    size_t limit = 0;
    ef_rc rc = ef_request_selector(request, &selector, answer, err);

    if (rc == EF_OK)
        rc = read_limit(request, &limit, err);
    if (rc == EF_OK)
        rc = begin_query(request, answer, err);
    if (rc != EF_OK)
        return rc;
    rc = ef_query_top(request->serve->parts.query, &selector, limit, &top, err);
    if (rc == EF_OK) {
        put_top(&answer->body, &top);
        ef_top_fini(&top);
    }
    return end_query(request, rc);
}

static void
put_timeline(struct ef_buf *body, const struct ef_timeline *timeline)
{
    struct ef_json json;

    ef_json_init(&json, body);
    ef_json_object(&json);
    put_head(&json, &timeline->head);
    ef_json_kstr(&json, "unit", ef_type_unit(timeline->head.profile_type));
    ef_json_key(&json, "points");
    ef_json_array(&json);
    for (size_t i = 0; i < timeline->point_count; i++) {
        const struct ef_timeline_point *point = &timeline->points[i];
        ef_json_object(&json);
        ef_json_time(&json, "from", point->from_ns);
        ef_json_time(&json, "to", point->to_ns);
        ef_json_ku64(&json, "samples", point->samples);
        ef_json_ki64(&json, "value", point->value);
        put_share(&json, "coverage", point->coverage, 6);
        ef_json_ku64(&json, "process_cpu_ns", point->process_cpu_ns);
        ef_json_object_end(&json);
    }
    ef_json_array_end(&json);
    ef_json_object_end(&json);
    ef_buf_append_str(body, "\n");
}

ef_rc
ef_serve_timeline(struct ef_request *request, struct ef_answer *answer, struct ef_err *err)
{
    const char *step = ef_request_param(request, "step");
    ef_span_ns step_ns = {EF_BUCKET_NS};
    struct ef_selector selector;
    struct ef_timeline timeline;
    ef_rc rc = ef_request_selector(request, &selector, answer, err);

    if (rc == EF_OK && step != NULL) {
        rc = ef_span_parse(step, &step_ns, err);
        if (rc == EF_OK && (step_ns.ns < EF_BUCKET_NS || step_ns.ns % EF_BUCKET_NS != 0))
            rc = ef_err_set(err, EF_EINVAL, "'%.32s' is not a multiple of 10s", step);
        if (rc != EF_OK)
            ef_err_prefix(err, "parameter 'step'");
    }
    if (rc == EF_OK)
        rc = begin_query(request, answer, err);
    if (rc != EF_OK)
        return rc;
    rc = ef_query_timeline(request->serve->parts.query, &selector, step_ns.ns, &timeline, err);
    if (rc == EF_OK) {
        put_timeline(&answer->body, &timeline);
        ef_timeline_fini(&timeline);
    }
    return end_query(request, rc);
}

static ef_rc
read_format(const struct ef_request *request, const struct ef_format_ops **ret_format,
            struct ef_answer *answer, struct ef_err *err)
{
    const char *name = ef_request_param(request, "format");
    const struct ef_format_ops *format = ef_format_find(name != NULL ? name : "pprof");
    size_t at = 0;

    if (format != NULL && format->write != NULL) {
        *ret_format = format;
        return EF_OK;
    }
    at += (size_t)snprintf(answer->hint, sizeof(answer->hint), "formats are");
    for (size_t i = 0; ef_format_at(i) != NULL && at < sizeof(answer->hint); i++) {
        if (ef_format_at(i)->write != NULL)
            at += (size_t)snprintf(answer->hint + at, sizeof(answer->hint) - at, " %s",
                                   ef_format_at(i)->name);
    }
    return ef_err_set(err, EF_EINVAL, "cannot write the format '%.64s'", name);
}

static ef_rc
write_export(const struct ef_export *export, const struct ef_format_ops *format,
             struct ef_answer *answer, struct ef_err *err)
{
    char name[400], versions[200] = "";
    struct ef_format_about about = {.name = name, .program = export->head.worker};

    for (size_t i = 0; i < export->head.version_count; i++) {
        size_t at = strlen(versions);
        snprintf(versions + at, sizeof(versions) - at, "%s%s", i > 0 ? " " : "",
                 export->head.versions[i]);
    }
    about.build = versions;
    snprintf(name, sizeof(name), "%s %s %s", export->head.worker, versions,
             ef_type_name(export->head.profile_type));
    answer->content_type = format->content_type;
    answer->has_samples = true;
    answer->samples = export->head.samples;
    return format->write(export->profile, &about, &answer->body, err);
}

ef_rc
ef_serve_query(struct ef_request *request, struct ef_answer *answer, struct ef_err *err)
{
    const struct ef_format_ops *format = NULL;
    struct ef_selector selector;
    struct ef_export export;
    ef_rc rc = ef_request_selector(request, &selector, answer, err);

    if (rc == EF_OK)
        rc = read_format(request, &format, answer, err);
    if (rc == EF_OK)
        rc = begin_query(request, answer, err);
    if (rc != EF_OK)
        return rc;
    rc = ef_query_export(request->serve->parts.query, &selector, &export, err);
    if (rc == EF_OK) {
        if (export.profile != NULL && format != NULL) {
            rc = write_export(&export, format, answer, err);
        } else {
            answer->reason = ef_empty_name(export.head.empty);
            ef_answer_hint(answer,
                           "look at /api/v1/workers and /api/v1/timeline for what there is");
            rc = ef_err_set(err, EF_ENOTFOUND, "%s", export.head.empty_message);
        }
        ef_export_fini(&export);
    }
    return end_query(request, rc);
}
