/*
 * Answers collect, flush, status, metrics and healthz. Runs in the threads of the pool.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collector/serve/internal.h"
#include "proto/base/metric.h"

uint64_t
ef_serve_resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "r");
    char text[128] = "", *second;

    if (file == NULL)
        return 0;
    if (fgets(text, sizeof(text), file) == NULL)
        text[0] = '\0';
    fclose(file);
    second = strchr(text, ' '); /* size, resident, … in pages */
    return second != NULL ? strtoull(second, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

#define COUNT_MS_MAX 250     /* of a status answer spent on counting samples; chosen */
#define COUNT_EVERY_MS 60000 /* chosen */

/* Why asking for a collection would reach nobody; NULL when somebody may hear it. */
static const char *
why_nobody(struct ef_aggregate *aggregate, const char *account, const char *worker,
           const char *version, int64_t now_ns)
{
    struct ef_reach reach;

    ef_aggregate_reach(aggregate, account, worker, version, now_ns, &reach);
    if (reach.target || (reach.version && reach.publisher))
        return NULL;
    if (reach.version)
        return "no_agent";
    if (version[0] == '\0')
        return "no_such_worker";
    ef_aggregate_reach(aggregate, account, worker, "", now_ns, &reach);
    return reach.target || reach.version ? "no_such_version" : "no_such_worker";
}

static void
put_collect(const char *reason, const struct ef_selector *selector, struct ef_answer *answer)
{
    struct ef_json json;
    char message[256];

    if (reason == NULL) {
        answer->status = 202;
        ef_buf_append_str(&answer->body, "{\"requested\":true}\n");
        return;
    }
    if (strcmp(reason, "no_agent") == 0)
        snprintf(message, sizeof(message), "no agent is connected that could sample worker '%.80s'",
                 selector->worker);
    else if (strcmp(reason, "no_such_version") == 0)
        snprintf(message, sizeof(message), "nobody samples version '%.64s' of worker '%.80s'",
                 selector->versions[0], selector->worker);
    else
        snprintf(message, sizeof(message), "nobody samples a worker '%.80s'", selector->worker);
    ef_json_init(&json, &answer->body);
    ef_json_object(&json);
    ef_json_kbool(&json, "requested", false);
    ef_json_kstr(&json, "reason", reason);
    ef_json_kstr(&json, "message", message);
    ef_json_object_end(&json);
    ef_buf_append_str(&answer->body, "\n");
}

/* Asks for those versions that somebody may sample; the reason is that of the first nobody does. */
ef_rc
ef_serve_collect(struct ef_request *request, struct ef_answer *answer, struct ef_err *err)
{
    struct ef_aggregate *aggregate = request->serve->parts.aggregate;
    const char *account = ef_request_param(request, "account"), *reason = NULL;
    struct ef_selector selector;
    ef_rc rc = ef_request_selector(request, &selector, answer, err);
    size_t count = rc == EF_OK && selector.version_count > 0 ? selector.version_count : 1;
    bool asked = false;

    if (account == NULL)
        account = "";
    for (size_t i = 0; rc == EF_OK && i < count; i++) {
        const char *version = selector.version_count > 0 ? selector.versions[i] : "";
        const char *why = why_nobody(aggregate, account, selector.worker, version, request->now_ns);
        if (why == NULL)
            rc = ef_aggregate_request_collect(aggregate, account, selector.worker, version,
                                              request->now_ns, err);
        asked |= why == NULL;
        if (reason == NULL)
            reason = why;
    }
    if (rc == EF_OK)
        put_collect(asked ? NULL : reason, &selector, answer);
    return rc;
}

ef_rc
ef_serve_flush(struct ef_request *request, struct ef_answer *answer, struct ef_err *err)
{
    ef_rc rc = ef_aggregate_flush(request->serve->parts.aggregate, request->now_ns, err);

    ef_query_invalidate(request->serve->parts.query);
    if (rc == EF_OK)
        ef_buf_append_str(&answer->body, "{\"flushed\":true}\n");
    return rc;
}

static void
put_imported(struct ef_json *json, struct ef_serve *serve)
{
    ef_json_key(json, "imported");
    ef_json_object(json);
    ef_json_ku64(json, "profiles", atomic_load(&serve->imported_profiles));
    ef_json_ku64(json, "samples", atomic_load(&serve->imported_samples));
    ef_json_object_end(json);
}

static void
put_memory(struct ef_json *json, const struct ef_serve *serve, const struct ef_store_stat *stat)
{
    ef_json_key(json, "memory");
    ef_json_object(json);
    ef_json_ku64(json, "resident_bytes", ef_serve_resident_bytes());
    ef_json_ku64(json, "cap_bytes", serve->options.memory_bytes_max);
    ef_json_ku64(json, "aggregate_bytes", ef_aggregate_bytes(serve->parts.aggregate));
    ef_json_ku64(json, "store_bytes", stat->memory_bytes);
    ef_json_ku64(json, "query_bytes", ef_query_bytes(serve->parts.query));
    ef_json_object_end(json);
}

static void
put_time_or_null(struct ef_json *json, const char *key, bool known, int64_t ns)
{
    if (known) {
        ef_json_time(json, key, ns);
        return;
    }
    ef_json_key(json, key);
    ef_json_null(json);
}

/* Counts the samples of all totals; stops when it takes too long for a status page. */
struct sample_count {
    struct ef_store *store;
    uint64_t samples;
    uint32_t looked;
    ef_mono_ns from;
};

static ef_rc
add_samples(void *arg, int64_t bucket_ns, uint32_t part, const struct ef_store_totals *totals)
{
    struct sample_count *count = arg;

    (void)bucket_ns;
    (void)part;
    count->samples += totals->samples;
    if (++count->looked % 4096 == 0 &&
        ef_mono_since(count->from, ef_mono_now()).ns > COUNT_MS_MAX * EF_NS_PER_MS)
        return EF_ETIMEOUT;
    return EF_OK;
}

struct series_list {
    uint32_t *ids;
    size_t count, room;
};

static ef_rc
add_series(void *arg, const struct ef_store_series *series)
{
    struct series_list *list = arg;

    if (list->count == list->room) {
        size_t room = list->room == 0 ? 256 : list->room * 2;
        uint32_t *grown = reallocarray(list->ids, room, sizeof(*grown));
        if (grown == NULL)
            return EF_ENOMEM;
        list->ids = grown;
        list->room = room;
    }
    list->ids[list->count++] = series->id;
    return EF_OK;
}

/* Any order but that of age: a count that is cut short must not see old versions alone. */
static void
shuffle(struct series_list *list)
{
    uint64_t state = 1;

    for (size_t i = list->count; i > 1; i--) {
        size_t other;
        uint32_t id = list->ids[i - 1];
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407); /* Knuth */
        other = (size_t)(state >> 33) % i;
        list->ids[i - 1] = list->ids[other];
        list->ids[other] = id;
    }
}

/* Samples in the store; estimated from as many series as time allows. 0: none, or a failure. */
static double
count_samples(struct ef_store *store, ef_mono_ns from)
{
    struct sample_count count = {.store = store, .from = from};
    struct series_list list = {0};
    ef_rc rc = ef_store_each_series(store, add_series, &list, NULL);
    size_t looked = 0;

    shuffle(&list);
    while (rc == EF_OK && looked < list.count)
        rc = ef_store_fold_totals(store, EF_TIER_10S, list.ids[looked++], INT64_MIN, INT64_MAX,
                                  add_samples, &count, NULL);
    free(list.ids);
    if (rc == EF_ETIMEOUT)
        return (double)count.samples * (double)list.count / (double)looked;
    return rc == EF_OK ? (double)count.samples : 0;
}

/*
 * 0 = not known. The store counts only what was put since it was opened, so all totals are read,
 * at most once in COUNT_EVERY_MS.
 */
static double
bytes_per_sample(struct ef_serve *serve, uint64_t block_bytes)
{
    ef_mono_ns now = ef_mono_now();
    double ret, samples;

    pthread_mutex_lock(&serve->density_lock);
    ret = serve->bytes_per_sample;
    if (serve->density_at.ns != 0 &&
        ef_mono_since(serve->density_at, now).ns < COUNT_EVERY_MS * EF_NS_PER_MS) {
        pthread_mutex_unlock(&serve->density_lock);
        return ret;
    }
    serve->density_at = now;
    pthread_mutex_unlock(&serve->density_lock);
    samples = count_samples(serve->parts.store, now);
    ret = samples > 0 ? (double)block_bytes / samples : 0;
    pthread_mutex_lock(&serve->density_lock);
    serve->bytes_per_sample = ret;
    pthread_mutex_unlock(&serve->density_lock);
    return ret;
}

static void
put_disk(struct ef_json *json, struct ef_serve *serve, const struct ef_store_stat *stat)
{
    double density;
    uint64_t block_bytes = 0;
    bool data = stat->oldest_bucket_ns <= stat->newest_bucket_ns;

    for (int tier = 0; tier < EF_TIER_COUNT; tier++)
        block_bytes += stat->block_bytes[tier];
    ef_json_key(json, "disk");
    ef_json_object(json);
    ef_json_ku64(json, "bytes", stat->disk_bytes);
    ef_json_ku64(json, "block_bytes", block_bytes);
    ef_json_ku64(json, "definition_bytes", stat->definition_bytes);
    ef_json_ku64(json, "totals_bytes", stat->totals_bytes);
    density = block_bytes > 0 ? bytes_per_sample(serve, block_bytes) : 0;
    if (density > 0) {
        ef_json_kf64(json, "bytes_per_sample", density);
    } else { /* no samples */
        ef_json_key(json, "bytes_per_sample");
        ef_json_null(json);
    }
    put_time_or_null(json, "oldest", data, stat->oldest_bucket_ns);
    put_time_or_null(json, "newest", data, data ? stat->newest_bucket_ns + EF_BUCKET_NS : 0);
    ef_json_object_end(json);
}

/* Limits that were reached since the start. */
static void
put_limits(struct ef_json *json)
{
    static const struct {
        enum ef_metric metric;
        const char *name, *message;
    } limits[] = {
        {EF_METRIC_limit_stacks_total, "stacks_per_version_max",
         "samples were booked on (limit reached): a version has too many stacks"},
        {EF_METRIC_limit_series_total, "series_max",
         "fragments were refused: too many workers, versions or series"},
        {EF_METRIC_ingest_refused_limit_total, "batch limits",
         "batches or fragments were refused: outside a limit of names, ranges or counts"},
        {EF_METRIC_ingest_refused_busy_total, "memory_max",
         "batches were not taken for lack of memory; publishers send them again"},
        {EF_METRIC_ingest_unknown_stacks_total, "parked_wait",
         "samples were booked on (unknown stack): their definitions never came"},
    };

    ef_json_key(json, "limits");
    ef_json_array(json);
    for (size_t i = 0; i < EF_COUNT_OF(limits); i++) {
        uint64_t count = ef_metric_get(limits[i].metric);
        if (count == 0)
            continue;
        ef_json_object(json);
        ef_json_kstr(json, "name", limits[i].name);
        ef_json_ku64(json, "count", count);
        ef_json_kstr(json, "message", limits[i].message);
        ef_json_object_end(json);
    }
    ef_json_array_end(json);
}

ef_rc
ef_serve_status(struct ef_request *request, struct ef_answer *answer, struct ef_err *err)
{
    const struct ef_serve *serve = request->serve;
    struct ef_store_stat stat;
    struct ef_json json;

    (void)err;
    ef_store_get_stat(serve->parts.store, &stat);
    ef_json_init(&json, &answer->body);
    ef_json_object(&json);
    ef_json_kstr(&json, "version", EF_VERSION);
    ef_json_time(&json, "started", serve->started_ns);
    ef_json_time(&json, "now", request->now_ns);
    ef_aggregate_status(serve->parts.aggregate, request->now_ns, &json);
    put_imported(&json, request->serve);
    put_memory(&json, serve, &stat);
    put_disk(&json, request->serve, &stat);
    put_limits(&json);
    ef_json_object_end(&json);
    ef_buf_append_str(&answer->body, "\n");
    return EF_OK;
}

ef_rc
ef_serve_metrics(struct ef_request *request, struct ef_answer *answer, struct ef_err *err)
{
    (void)request;
    (void)err;
    answer->content_type = "text/plain; version=0.0.4; charset=utf-8";
    ef_metric_expose(&answer->body);
    return EF_OK;
}

ef_rc
ef_serve_healthz(struct ef_request *request, struct ef_answer *answer, struct ef_err *err)
{
    (void)request;
    (void)err;
    answer->content_type = "text/plain; charset=utf-8";
    ef_buf_append_str(&answer->body, "ok\n");
    return EF_OK;
}
