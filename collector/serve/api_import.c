/*
 * Answers import: decides what a profile file's values mean and when it was taken. All or nothing:
 * it answers when the profile is on disk. Runs in the threads of the pool, one import at a time.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collector/serve/internal.h"
#include "proto/base/limit.h"
#include "proto/formats/formats.h"
#include "proto/pprof/pprof.h"

#define NOTES_MAX 8
#define IMPORT_LEFT_MIN (UINT64_C(8) << 20) /* for a tree of some 25,000 nodes; chosen */

struct importing {
    struct ef_import import;
    struct ef_profile *profile;
    char notes[NOTES_MAX][256];
    size_t note_count;
};

static void EF_PRINTF(2, 3) add_note(struct importing *importing, const char *fmt, ...)
{
    va_list args;

    if (importing->note_count == NOTES_MAX)
        return;
    va_start(args, fmt);
    vsnprintf(importing->notes[importing->note_count++], sizeof(importing->notes[0]), fmt, args);
    va_end(args);
}

static int
find_type(const struct ef_profile *profile, const char *type, const char *unit)
{
    for (uint32_t i = 0; i < profile->type_count; i++) {
        if (strcmp(ef_profile_string(profile, profile->types[i].type), type) == 0 &&
            strcmp(ef_profile_string(profile, profile->types[i].unit), unit) == 0)
            return (int)i;
    }
    return -1;
}

/* What may be in a file, in the order of preference. */
static const struct known {
    uint8_t profile_type;
    const char *value, *unit, *count;
    int64_t factor; /* to our unit */
} known_types[] = {
    {EF_TYPE_CPU, "cpu", "nanoseconds", "samples", 1},
    {EF_TYPE_CPU, "cpu", "microseconds", "samples", 1000},
    {EF_TYPE_CPU, "cpu", "milliseconds", "samples", 1000000},
    {EF_TYPE_ALLOC, "alloc_space", "bytes", "alloc_objects", 1},
    {EF_TYPE_INUSE, "inuse_space", "bytes", "inuse_objects", 1},
    {EF_TYPE_WALL, "wall", "nanoseconds", "samples", 1},
    {EF_TYPE_WALL, "wall", "microseconds", "samples", 1000},
    {EF_TYPE_WALL, "time", "nanoseconds", "samples", 1},
    {EF_TYPE_CPU, "time", "nanoseconds", "samples", 1}, /* speedscope: only when asked for */
    {EF_TYPE_ALLOC, "space", "bytes", "objects", 1},
    {EF_TYPE_CPU, NULL, NULL, "samples", 1}, /* only counted */
};

static const struct known *
choose_type(struct importing *importing, uint8_t wanted)
{
    const struct ef_profile *profile = importing->profile;

    for (size_t i = 0; i < EF_COUNT_OF(known_types); i++) {
        const struct known *known = &known_types[i];
        int value, count = find_type(profile, known->count, "count");
        /* A file that is only counted may be of any type that somebody names. */
        if (wanted != 0 && wanted != known->profile_type && known->value != NULL)
            continue;
        value = known->value != NULL ? find_type(profile, known->value, known->unit) : -1;
        if (value < 0 && (known->value != NULL || count < 0))
            continue;
        importing->import.type_value = value;
        importing->import.type_count = count;
        importing->import.profile_type = wanted != 0 ? wanted : known->profile_type;
        return known;
    }
    return NULL;
}

static ef_rc
refuse_types(const struct importing *importing, struct ef_answer *answer, struct ef_err *err)
{
    const struct ef_profile *profile = importing->profile;
    char types[300] = "none";

    for (uint32_t i = 0, at = 0; i < profile->type_count && at < sizeof(types); i++)
        at += (uint32_t)snprintf(types + at, sizeof(types) - at, "%s%s/%s", i > 0 ? ", " : "",
                                 ef_profile_string(profile, profile->types[i].type),
                                 ef_profile_string(profile, profile->types[i].unit));
    ef_answer_hint(answer, "known are cpu/nanoseconds, samples/count, alloc_space/bytes, "
                           "inuse_space/bytes, wall/nanoseconds; ?type= chooses among them");
    return ef_err_set(err, EF_EUNSUP, "no sample type of this file can be stored as asked: %s",
                      types);
}

/* Microseconds become nanoseconds. */
static ef_rc
scale_values(struct importing *importing, int64_t factor, struct ef_err *err)
{
    struct ef_profile *profile = importing->profile;
    uint32_t type = (uint32_t)importing->import.type_value;

    for (uint32_t node = 0; node < profile->node_count && factor > 1; node++) {
        int64_t value = profile->values[(size_t)node * profile->type_count + type], more;
        ef_rc rc = EF_OK;
        if (!ef_mul_i64(value, factor - 1, &more))
            return ef_err_set(err, EF_ELIMIT, "a value of the file is too large");
        if (more != 0)
            rc = ef_profile_add_value(profile, node, type, more, err);
        if (rc != EF_OK)
            return rc;
    }
    return EF_OK;
}

static void
set_interval(struct importing *importing, const struct known *known)
{
    const struct ef_profile *profile = importing->profile;
    const char *unit = ef_profile_string(profile, profile->period_type.unit);
    int64_t period = profile->period;

    if (strcmp(unit, "microseconds") == 0 && !ef_mul_i64(period, 1000, &period))
        period = 0;
    importing->import.interval = period > 0 ? (uint64_t)period : 0;
    if (known->value == NULL && period <= 0)
        add_note(importing,
                 "the file counts samples and does not say what one stands for: each "
                 "is booked as 1 %s",
                 importing->import.profile_type == EF_TYPE_CPU ? "ns" : "unit");
}

static ef_rc
set_types(struct importing *importing, const char *wanted, struct ef_answer *answer,
          struct ef_err *err)
{
    uint8_t type = wanted != NULL ? ef_type_find(wanted) : 0;
    const struct known *known;

    if (wanted != NULL && type == 0) {
        ef_answer_hint(answer, "types are cpu, alloc (also heap), inuse, wall");
        return ef_err_set(err, EF_EINVAL, "there is no profile type '%.64s'", wanted);
    }
    known = choose_type(importing, type);
    if (known == NULL)
        return refuse_types(importing, answer, err);
    if (importing->profile->type_count > 2)
        add_note(importing, "of the file's %u sample types, '%s' was stored; ?type= chooses",
                 importing->profile->type_count, ef_type_name(importing->import.profile_type));
    set_interval(importing, known);
    return scale_values(importing, known->factor, err);
}

static ef_rc
set_time(struct importing *importing, const struct ef_request *request, struct ef_err *err)
{
    const char *duration = ef_request_param(request, "duration");
    struct ef_import *import = &importing->import;
    ef_span_ns span = {importing->profile->duration_ns};
    ef_rc rc = EF_OK;

    if (duration != NULL)
        rc = ef_span_parse(duration, &span, err);
    if (rc != EF_OK) {
        ef_err_prefix(err, "parameter 'duration'");
        return rc;
    }
    import->duration_ns = span.ns > 0 ? span.ns : 0;
    if (ef_request_param(request, "at") != NULL)
        return ef_request_time(request, "at", "now", &import->start_ns, err);
    import->start_ns = importing->profile->time_ns;
    if (import->start_ns <= 0) {
        /* It ended when it was sent, as far as anybody knows. */
        import->start_ns = request->now_ns - import->duration_ns;
        add_note(importing, "the file does not say when it was taken: booked as of now; ?at= says");
    }
    return EF_OK;
}

/*
 * What jansson 2.14 needs for a text, from what it holds. Measured with glibc 2.36: a number takes
 * 32 bytes and its place in an array 8 to 24; a text or key 48 and more; an array 130, an object
 * 270. Real files need 12 to 23 bytes a byte, so a factor would refuse too much or too little.
 */
static uint64_t
json_memory(const uint8_t *data, size_t len)
{
    uint64_t commas = 0, quotes = 0, arrays = 0, objects = 0;

    for (size_t i = 0; i < len; i++) {
        commas += data[i] == ',';
        quotes += data[i] == '"';
        arrays += data[i] == '[';
        objects += data[i] == '{';
    }
    return len + commas * 52 + quotes / 2 * 72 + arrays * 130 + objects * 270;
}

/*
 * Bounds the profile by the memory that is left. Measured: reading and booking takes 80 bytes a
 * node at most, with its values and table; a function with frame and hashes up to 200 without its
 * names.
 */
#define NODE_BYTES 100
#define FUNCTION_BYTES 200

static ef_rc
limits_for(const struct ef_request *request, const struct ef_buf *data,
           struct ef_profile_limits *limits, struct ef_err *err)
{
    uint64_t cap = request->serve->options.memory_bytes_max;
    uint64_t resident = ef_serve_resident_bytes();
    bool json = data->len > 0 && data->data[0] == '{';
    uint64_t parsed = json ? json_memory(data->data, data->len) : 0;
    uint64_t left = cap > resident + parsed ? cap - resident - parsed : 0;

    *limits = ef_profile_limits_default;
    if (cap == 0 || resident == 0)
        return EF_OK;
    if (left < IMPORT_LEFT_MIN)
        return ef_err_set(err, EF_ELIMIT,
                          "reading this file may need %llu MiB, and %llu of %llu MiB are in use: "
                          "raise memory_max, or import smaller files",
                          (unsigned long long)((parsed + IMPORT_LEFT_MIN) >> 20),
                          (unsigned long long)(resident >> 20), (unsigned long long)(cap >> 20));
    if (left / 2 / NODE_BYTES < limits->nodes_max)
        limits->nodes_max = (uint32_t)(left / 2 / NODE_BYTES);
    if (left / 4 / FUNCTION_BYTES < limits->functions_max)
        limits->functions_max = (uint32_t)(left / 4 / FUNCTION_BYTES);
    if (left / 4 < limits->string_bytes_max)
        limits->string_bytes_max = left / 4;
    return EF_OK;
}

static ef_rc
read_profile(struct ef_request *request, struct importing *importing, struct ef_answer *answer,
             struct ef_err *err)
{
    const char *name = ef_request_param(request, "format");
    const struct ef_format_ops *format = name != NULL ? ef_format_find(name) : NULL;
    struct ef_buf plain, *data = &request->body;
    struct ef_profile_limits limits;
    bool gzipped = data->len > 2 && data->data[0] == 0x1f && data->data[1] == 0x8b;
    ef_rc rc = EF_OK;

    if (name != NULL && format == NULL) {
        ef_answer_hint(answer, "leave 'format' out: the content tells");
        return ef_err_set(err, EF_EINVAL, "there is no format '%.64s'", name);
    }
    if (data->len == 0)
        return ef_err_set(err, EF_EINVAL, "the body is empty: send a profile file");
    ef_buf_init(&plain, request->serve->options.import_bytes_max);
    if (gzipped) {
        rc = ef_gzip_inflate(data->data, data->len, &plain, err);
        data = &plain;
    }
    if (rc == EF_OK)
        rc = limits_for(request, data, &limits, err);
    if (rc == EF_OK)
        rc = ef_format_read(format, NULL, data->data, data->len, &limits, &importing->profile, err);
    if (rc == EF_ELIMIT)
        ef_answer_hint(answer, "the collector's memory_max bounds what an import may hold");
    ef_buf_fini(&plain);
    return rc;
}

static uint64_t
count_stacks(const struct ef_profile *profile)
{
    uint64_t stacks = 0;

    for (uint32_t node = 1; node < profile->node_count; node++) {
        bool any = false;
        for (uint32_t type = 0; type < profile->type_count; type++)
            any |= profile->values[(size_t)node * profile->type_count + type] != 0;
        stacks += any;
    }
    return stacks;
}

static void
put_result(const struct importing *importing, uint64_t samples, uint64_t stacks,
           struct ef_answer *answer)
{
    const struct ef_import *import = &importing->import;
    int64_t to_ns = import->start_ns + import->duration_ns;
    struct ef_json json;

    ef_json_init(&json, &answer->body);
    ef_json_object(&json);
    ef_json_ku64(&json, "samples", samples);
    ef_json_ku64(&json, "stacks", stacks);
    ef_json_kstr(&json, "profile_type", ef_type_name(import->profile_type));
    /* Whole buckets: a query of this range gets all of it. */
    ef_json_time(&json, "from", ef_bucket_start(import->start_ns, EF_BUCKET_NS));
    ef_json_time(&json, "to",
                 ef_bucket_start(import->duration_ns > 0 ? to_ns - 1 : to_ns, EF_BUCKET_NS) +
                     EF_BUCKET_NS);
    ef_json_key(&json, "notes");
    ef_json_array(&json);
    for (size_t i = 0; i < importing->note_count; i++)
        ef_json_str(&json, importing->notes[i]);
    ef_json_array_end(&json);
    ef_json_object_end(&json);
    ef_buf_append_str(&answer->body, "\n");
}

#define IMPORTED_META "imported" /* in the store: profiles, samples; le64 each */

void
ef_serve_load_imported(struct ef_serve *serve)
{
    struct ef_buf value;
    struct ef_cursor cursor;

    ef_buf_init(&value, 64);
    EF_IGNORE(ef_store_get_meta(serve->parts.store, IMPORTED_META, &value, NULL),
              "a figure for people: nothing depends on it");
    cursor = ef_cursor_of(value.data, value.len);
    serve->imported_profiles = ef_cursor_le64(&cursor);
    serve->imported_samples = ef_cursor_le64(&cursor);
    ef_buf_fini(&value);
}

/* The samples are on disk already: a crash right now makes the figure one import too small. */
static void
count_imported(struct ef_serve *serve, uint64_t samples)
{
    struct ef_store_batch *batch = NULL;
    struct ef_buf value;
    ef_rc rc;

    serve->imported_profiles += 1;
    serve->imported_samples = ef_sat_add_u64(serve->imported_samples, samples);
    ef_buf_init(&value, 64);
    ef_buf_put_le64(&value, serve->imported_profiles);
    ef_buf_put_le64(&value, serve->imported_samples);
    rc = value.failed ? EF_ENOMEM : ef_store_batch_open(serve->parts.store, &batch, NULL);
    if (rc == EF_OK)
        rc = ef_store_put_meta(batch, IMPORTED_META, value.data, value.len, NULL);
    if (rc == EF_OK)
        EF_IGNORE(ef_store_commit(serve->parts.store, batch, NULL), "written with the next import");
    ef_store_batch_free(batch);
    ef_buf_fini(&value);
}

static ef_rc
book(struct ef_request *request, struct importing *importing, struct ef_answer *answer,
     struct ef_err *err)
{
    struct ef_aggregate *aggregate = request->serve->parts.aggregate;
    const struct ef_profile *profile = importing->profile;
    int type_count = importing->import.type_count;
    uint64_t stacks = count_stacks(profile);
    int64_t samples;
    ef_rc rc;

    if (stacks == 0)
        return ef_err_set(err, EF_EINVAL, "the profile has no samples");
    samples = ef_profile_total(
        profile, (uint32_t)(type_count >= 0 ? type_count : importing->import.type_value));
    if (profile->labels_dropped > 0)
        add_note(importing, "%llu labels of samples are not kept",
                 (unsigned long long)profile->labels_dropped);
    rc = ef_aggregate_import(aggregate, profile, &importing->import, request->now_ns, err);
    if (rc != EF_OK)
        return rc;
    rc = ef_aggregate_flush(aggregate, request->now_ns, err);
    ef_query_invalidate(request->serve->parts.query);
    if (rc != EF_OK) {
        ef_answer_hint(answer, "do not send it again: it is kept in memory and written as soon as "
                               "the store can");
        ef_err_prefix(err, "taken, but not yet on disk");
        return rc;
    }
    if (type_count < 0 || samples <= 0)
        samples = (int64_t)profile->samples;
    count_imported(request->serve, (uint64_t)samples);
    put_result(importing, (uint64_t)samples, stacks, answer);
    return EF_OK;
}

ef_rc
ef_serve_import(struct ef_request *request, struct ef_answer *answer, struct ef_err *err)
{
    struct importing importing = {.import = {.account = ef_request_param(request, "account"),
                                             .region = ef_request_param(request, "region")}};
    ef_rc rc = ef_request_name(request, "worker", &importing.import.worker, answer, err);

    if (rc == EF_OK)
        rc = ef_request_name(request, "version", &importing.import.version, answer, err);
    if (rc == EF_OK && importing.import.account != NULL)
        rc = ef_request_name(request, "account", &importing.import.account, answer, err);
    if (importing.import.account == NULL)
        importing.import.account = "default";
    if (importing.import.region == NULL)
        importing.import.region = "";
    else if (rc == EF_OK && importing.import.region[0] != '\0')
        rc = ef_request_name(request, "region", &importing.import.region, answer, err);
    if (rc == EF_OK && request->serve->parts.is_scarce != NULL &&
        request->serve->parts.is_scarce(request->serve->parts.arg))
        rc = ef_err_set(err, EF_EBUSY, "memory is scarce: imports wait until it is not");
    if (rc != EF_OK)
        return rc;
    pthread_mutex_lock(&request->serve->import_lock);
    rc = read_profile(request, &importing, answer, err);
    if (rc == EF_OK)
        rc = set_types(&importing, ef_request_param(request, "type"), answer, err);
    if (rc == EF_OK)
        rc = set_time(&importing, request, err);
    if (rc == EF_OK)
        rc = book(request, &importing, answer, err);
    ef_profile_free(importing.profile);
    pthread_mutex_unlock(&request->serve->import_lock);
    return rc;
}
