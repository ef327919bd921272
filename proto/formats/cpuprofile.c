/*
 * Decides what V8's CPU profile means. Any thread.
 *
 * A node's weight is hitCount × the measured interval, never its timeDeltas: a sampler that sleeps
 * while the isolate is quiet puts the whole gap on the next sample, which read 28 times the true
 * CPU on a Worker with 20 requests a second (measured). The deltas give the times of the samples
 * and the interval, nothing else. So a negative delta moves a sample, it changes no sum; and idle
 * time cannot end up on the next busy sample.
 */
#include "proto/formats/v8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/limit.h"
#include "proto/base/time.h"

/* V8's own default, for profiles without times (Profiler.setSamplingInterval, 1000 µs). */
#define INTERVAL_DEFAULT_NS EF_NS_PER_MS
#define TIME_US_MAX (INT64_MAX / 4000) /* year 2043 as Unix µs; nanoseconds and sums fit */
/* Not V8's: the exact time of a node, so that our own files lose nothing. Viewers ignore it. */
#define SELF_NANOSECONDS "selfNanoseconds"

enum { TYPE_SAMPLES, TYPE_CPU };

struct reader {
    const json_t *json;
    const struct ef_profile_limits *limits;
    bool for_ticks; /* hits alone, and (idle) stays; else for people */
    struct ef_profile *profile;
    struct ef_v8_tree tree;
    int64_t *hits; /* per node of the tree */
    const json_t *samples;
    int64_t start_us, end_us;
    int64_t *times_us; /* per sample, in file order; NULL when the file has none */
    struct ef_err *err;
};

static void
reader_fini(struct reader *reader)
{
    ef_v8_tree_fini(&reader->tree);
    free(reader->hits);
    free(reader->times_us);
    ef_profile_free(reader->profile);
}

static ef_rc
read_list(const struct reader *reader, const char *key, const json_t **ret)
{
    const json_t *list = json_object_get(reader->json, key);

    if (list != NULL && !json_is_array(list) && !json_is_null(list))
        return ef_err_set(reader->err, EF_ECORRUPT, "'%s' is not a list", key);
    *ret = json_is_array(list) ? list : NULL;
    return EF_OK;
}

static ef_rc
read_tree(struct reader *reader)
{
    const json_t *nodes, *head = json_object_get(reader->json, "head");
    ef_rc rc = read_list(reader, "nodes", &nodes);

    if (rc != EF_OK)
        return rc;
    if (nodes != NULL)
        return ef_v8_tree_read_flat(nodes, reader->limits, &reader->tree, reader->err);
    if (head != NULL)
        return ef_v8_tree_read_nested(head, reader->limits, &reader->tree, reader->err);
    return ef_err_set(reader->err, EF_ECORRUPT, "there are neither 'nodes' nor a 'head'");
}

static ef_rc
sample_node(const struct reader *reader, size_t index, uint32_t *ret_node)
{
    const struct ef_v8_node *node;
    int64_t id;
    ef_rc rc = ef_jsonin_value_i64(json_array_get(reader->samples, index), "sample", 0, INT64_MAX,
                                   &id, reader->err);

    if (rc != EF_OK)
        return rc;
    node = ef_v8_tree_find(&reader->tree, id);
    if (node == NULL)
        return ef_err_set(reader->err, EF_ECORRUPT,
                          "sample %zu is of node %" PRId64 ", which is not there", index, id);
    *ret_node = (uint32_t)(node - reader->tree.nodes);
    return EF_OK;
}

/* hitCount of each node; where no node has one, the samples are counted. */
static ef_rc
read_hits(struct reader *reader)
{
    bool counted = false;
    ef_rc rc = EF_OK;

    reader->hits = calloc(reader->tree.count, sizeof(*reader->hits));
    if (reader->hits == NULL)
        return ef_err_set(reader->err, EF_ENOMEM, "out of memory for hits");
    for (uint32_t i = 0; i < reader->tree.count && rc == EF_OK; i++) {
        counted |= json_object_get(reader->tree.nodes[i].json, "hitCount") != NULL;
        rc = ef_jsonin_i64(reader->tree.nodes[i].json, "hitCount", 0, 0, INT64_MAX,
                           &reader->hits[i], reader->err);
    }
    for (size_t i = 0; rc == EF_OK && i < json_array_size(reader->samples); i++) {
        uint32_t node;
        rc = sample_node(reader, i, &node); /* Also when not needed: it checks the ids. */
        if (rc == EF_OK && !counted)
            reader->hits[node]++;
    }
    return rc;
}

/* `timestamps` are µs since the same zero as startTime; older V8 wrote them instead of deltas. */
static ef_rc
read_times(struct reader *reader)
{
    const json_t *deltas, *stamps, *list;
    int64_t now_us = reader->start_us;
    size_t count = json_array_size(reader->samples);
    ef_rc rc = read_list(reader, "timeDeltas", &deltas);

    if (rc == EF_OK)
        rc = read_list(reader, "timestamps", &stamps);
    if (rc != EF_OK)
        return rc;
    list = deltas != NULL ? deltas : stamps;
    if (list == NULL || count == 0)
        return EF_OK;
    if (json_array_size(list) != count)
        return ef_err_set(reader->err, EF_ECORRUPT, "%zu samples, but %zu times", count,
                          json_array_size(list));
    reader->times_us = calloc(count, sizeof(*reader->times_us));
    if (reader->times_us == NULL)
        return ef_err_set(reader->err, EF_ENOMEM, "out of memory for times");
    for (size_t i = 0; i < count; i++) {
        int64_t number;
        rc = ef_jsonin_value_i64(json_array_get(list, i), "time of a sample", -TIME_US_MAX,
                                 TIME_US_MAX, &number, reader->err);
        if (rc != EF_OK)
            return rc;
        now_us = list == deltas ? now_us + number : number;
        if (now_us < -TIME_US_MAX || now_us > TIME_US_MAX)
            return ef_err_set(reader->err, EF_ECORRUPT, "time of sample %zu is out of range", i);
        reader->times_us[i] = now_us;
    }
    return EF_OK;
}

/* The nested form of old Chrome gives seconds with a fraction, the flat one microseconds. */
static ef_rc
read_end(const struct reader *reader, const char *key, int64_t *ret_us)
{
    const json_t *value = json_object_get(reader->json, key);

    if (json_is_real(value) && json_object_get(reader->json, "head") != NULL) {
        double seconds = json_real_value(value);
        if (!(seconds >= 0 && seconds <= 2e9))
            return ef_err_set(reader->err, EF_ECORRUPT, "'%s' is out of range", key);
        *ret_us = (int64_t)(seconds * 1e6);
        return EF_OK;
    }
    return ef_jsonin_i64(reader->json, key, 0, -TIME_US_MAX, TIME_US_MAX, ret_us, reader->err);
}

static ef_rc
read_json(struct reader *reader)
{
    ef_rc rc = read_tree(reader);

    if (rc == EF_OK)
        rc = read_end(reader, "startTime", &reader->start_us);
    if (rc == EF_OK)
        rc = read_end(reader, "endTime", &reader->end_us);
    if (rc == EF_OK)
        rc = read_list(reader, "samples", &reader->samples);
    if (rc == EF_OK)
        rc = read_hits(reader);
    if (rc == EF_OK)
        rc = read_times(reader);
    return rc;
}

static int
compare_i64(const void *left, const void *right)
{
    int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;

    return (a > b) - (a < b);
}

/* Median of sorted numbers, doubled, so that it stays whole. */
static int64_t
median_doubled(const int64_t *sorted, size_t count)
{
    return sorted[(count - 1) / 2] + sorted[count / 2];
}

int64_t
ef_cpuprofile_densest(const int64_t *gaps, size_t count)
{
    size_t best = 0, best_from = 0, from = 0;

    for (size_t to = 0; to < count; to++) {
        while (gaps[to] - gaps[from] > gaps[from] / 20)
            from++;
        if (to - from + 1 > best) {
            best = to - from + 1;
            best_from = from;
        }
    }
    return gaps[best_from + best / 2];
}

/*
 * The median gap between neighbouring samples. Where most gaps are pauses of the sampler (workerd
 * takes no samples while it is quiet) the median would be a pause; then the commonest of the short
 * gaps is taken, those up to 8 times the tenth percentile. Median / tenth percentile was 1.0 to 1.7
 * in undisturbed captures, 4.2 in one full of deoptimisations, 17 and 50 in quiet ones (measured).
 * `gaps` is sorted.
 */
static int64_t
typical_gap_ns(const int64_t *gaps, size_t count)
{
    int64_t bound = 8 * gaps[count / 10];
    size_t used = count;

    if (bound == 0 || gaps[count / 2] <= bound)
        return median_doubled(gaps, count) * (EF_NS_PER_US / 2);
    while (gaps[used - 1] > bound)
        used--;
    return ef_cpuprofile_densest(gaps, used) * EF_NS_PER_US;
}

static ef_rc
measure_interval(const struct reader *reader, int64_t *ret_ns)
{
    size_t count = json_array_size(reader->samples);
    int64_t *gaps;

    *ret_ns = INTERVAL_DEFAULT_NS;
    if (reader->times_us == NULL || count < 2)
        return EF_OK;
    gaps = malloc(count * sizeof(*gaps));
    if (gaps == NULL)
        return ef_err_set(reader->err, EF_ENOMEM, "out of memory for times");
    memcpy(gaps, reader->times_us, count * sizeof(*gaps));
    qsort(gaps, count, sizeof(*gaps), compare_i64);
    for (size_t i = 0; i + 1 < count; i++)
        gaps[i] = gaps[i + 1] - gaps[i];
    qsort(gaps, count - 1, sizeof(*gaps), compare_i64);
    if (typical_gap_ns(gaps, count - 1) > 0)
        *ret_ns = typical_gap_ns(gaps, count - 1);
    free(gaps);
    return EF_OK;
}

static ef_rc
add_types(struct reader *reader)
{
    struct ef_profile *profile = reader->profile;
    struct ef_profile_type *period = &profile->period_type;
    ef_rc rc = ef_profile_add_type(profile, "samples", "count", reader->err);

    if (rc == EF_OK && !reader->for_ticks)
        rc = ef_profile_add_type(profile, "cpu", "nanoseconds", reader->err);
    if (rc == EF_OK)
        rc = ef_profile_add_string(profile, "cpu", 3, &period->type, reader->err);
    if (rc == EF_OK)
        rc = ef_profile_add_string(profile, "nanoseconds", 11, &period->unit, reader->err);
    return rc;
}

static ef_rc
add_values(struct reader *reader, uint32_t index, int64_t interval_ns)
{
    const struct ef_v8_node *node = &reader->tree.nodes[index];
    struct ef_profile *profile = reader->profile;
    int64_t cpu_ns, hits = reader->hits[index];
    ef_rc rc;

    if (node->idle)
        return EF_OK;
    if (!ef_mul_i64(hits, interval_ns, &cpu_ns))
        return ef_err_set(reader->err, EF_ECORRUPT, "'hitCount' is out of range: %" PRId64, hits);
    rc = ef_jsonin_i64(node->json, SELF_NANOSECONDS, cpu_ns, 0, INT64_MAX, &cpu_ns, reader->err);
    if (rc == EF_OK)
        rc = ef_profile_add_value(profile, node->model, TYPE_SAMPLES, hits, reader->err);
    if (rc == EF_OK)
        rc = ef_profile_add_value(profile, node->model, TYPE_CPU, cpu_ns, reader->err);
    return rc;
}

static void
set_about(struct reader *reader)
{
    struct ef_profile *profile = reader->profile;

    profile->samples = json_array_size(reader->samples);
    for (uint32_t i = 0; reader->samples == NULL && i < reader->tree.count; i++)
        profile->samples = ef_sat_add_u64(profile->samples, (uint64_t)reader->hits[i]);
    /* startTime is V8's monotonic clock, so time_ns, which is wall time, stays unknown. */
    if (reader->end_us > reader->start_us)
        profile->duration_ns = (reader->end_us - reader->start_us) * EF_NS_PER_US;
}

/* Opens the profile in the reader and makes its nodes; `json` outlives the reader. */
static ef_rc
read_profile(struct reader *reader)
{
    ef_rc rc = read_json(reader);

    if (rc == EF_OK)
        rc = ef_profile_open(reader->limits, &reader->profile, reader->err);
    if (rc == EF_OK)
        rc = add_types(reader);
    if (rc == EF_OK)
        rc = ef_v8_tree_build(&reader->tree, reader->profile, !reader->for_ticks, reader->err);
    if (rc == EF_OK)
        set_about(reader);
    return rc;
}

ef_rc
ef_format_cpuprofile_read(const uint8_t *data, size_t len, const struct ef_profile_limits *limits,
                          struct ef_profile **ret_profile, struct ef_err *err)
{
    struct reader reader = {.limits = limits, .err = err};
    int64_t interval_ns = 0;
    json_t *json = NULL;
    ef_rc rc = ef_jsonin_parse(data, len, "cpuprofile", &json, err);

    if (rc != EF_OK)
        return rc;
    reader.json = ef_v8_unwrap(json);
    rc = read_profile(&reader);
    if (rc == EF_OK)
        rc = measure_interval(&reader, &interval_ns);
    for (uint32_t i = 0; i < reader.tree.count && rc == EF_OK; i++)
        rc = add_values(&reader, i, interval_ns);
    if (rc == EF_OK) {
        reader.profile->period = interval_ns;
        *ret_profile = reader.profile;
        reader.profile = NULL; /* moved to the caller */
    } else {
        ef_err_prefix(err, "cpuprofile");
    }
    reader_fini(&reader);
    json_decref(json);
    return rc;
}

bool
ef_format_cpuprofile_sniff(const uint8_t *data, size_t len)
{
    return ef_format_is_object(data, len) && ef_format_has_key(data, len, "functionName") &&
           (ef_format_has_key(data, len, "nodes") || ef_format_has_key(data, len, "head"));
}

/* A tick that remembers its place, because qsort may change the order of equal times. */
struct placed_tick {
    struct ef_cpuprofile_tick tick;
    size_t place;
};

static int
compare_ticks(const void *left, const void *right)
{
    const struct placed_tick *a = left, *b = right;

    if (a->tick.time_us != b->tick.time_us)
        return a->tick.time_us < b->tick.time_us ? -1 : 1;
    return (a->place > b->place) - (a->place < b->place);
}

static ef_rc
make_ticks(const struct reader *reader, struct ef_cpuprofile *ret)
{
    size_t count = reader->times_us != NULL ? json_array_size(reader->samples) : 0;
    struct placed_tick *placed = calloc(count + 1, sizeof(*placed));
    struct ef_cpuprofile_tick *ticks = calloc(count + 1, sizeof(*ticks));
    ef_rc rc = EF_OK;

    if (placed == NULL || ticks == NULL)
        rc = ef_err_set(reader->err, EF_ENOMEM, "out of memory for ticks");
    for (size_t i = 0; i < count && rc == EF_OK; i++) {
        uint32_t node = 0;
        rc = sample_node(reader, i, &node);
        placed[i].tick.time_us = reader->times_us[i];
        placed[i].tick.node = reader->tree.nodes[node].model;
        placed[i].place = i;
    }
    if (rc == EF_OK) {
        qsort(placed, count, sizeof(*placed), compare_ticks);
        for (size_t i = 0; i < count; i++)
            ticks[i] = placed[i].tick;
        ret->ticks = ticks;
        ret->tick_count = count;
        ticks = NULL; /* moved to the caller */
    }
    free(placed);
    free(ticks);
    return rc;
}

ef_rc
ef_cpuprofile_read_ticks(const uint8_t *data, size_t len, const struct ef_profile_limits *limits,
                         struct ef_cpuprofile *ret, struct ef_err *err)
{
    struct reader reader = {.limits = limits, .for_ticks = true, .err = err};
    json_t *json = NULL;
    ef_rc rc = ef_jsonin_parse(data, len, "cpuprofile", &json, err);

    if (rc != EF_OK)
        return rc;
    reader.json = ef_v8_unwrap(json);
    rc = read_profile(&reader);
    if (rc == EF_OK)
        rc = measure_interval(&reader, &reader.profile->period);
    for (uint32_t i = 0; i < reader.tree.count && rc == EF_OK; i++)
        rc = ef_profile_add_value(reader.profile, reader.tree.nodes[i].model, TYPE_SAMPLES,
                                  reader.hits[i], err);
    if (rc == EF_OK)
        rc = make_ticks(&reader, ret);
    if (rc == EF_OK) {
        ret->start_us = reader.start_us;
        ret->end_us = reader.end_us;
        ret->profile = reader.profile;
        reader.profile = NULL; /* moved to the caller */
    } else {
        ef_err_prefix(err, "cpuprofile");
    }
    reader_fini(&reader);
    json_decref(json);
    return rc;
}

void
ef_cpuprofile_fini(struct ef_cpuprofile *cpuprofile)
{
    ef_profile_free(cpuprofile->profile);
    free(cpuprofile->ticks);
    *cpuprofile = (struct ef_cpuprofile){0};
}

struct writer {
    const struct ef_profile *profile;
    struct ef_buf *out;
    uint32_t time_type;
    uint32_t hits_type; /* EF_PROFILE_TYPES_MAX = none */
    int64_t unit_ns;
};

static int64_t
time_of(const struct writer *writer, uint32_t node)
{
    return writer->profile->values[(size_t)node * writer->profile->type_count + writer->time_type];
}

/* The last type that is a time, and the first that counts. */
static ef_rc
choose_types(struct writer *writer, struct ef_err *err)
{
    const struct ef_profile *profile = writer->profile;
    ef_rc rc;

    for (uint32_t i = 0; i < profile->type_count; i++) {
        int64_t unit_ns = ef_format_unit_ns(ef_profile_string(profile, profile->types[i].unit));
        if (unit_ns == 0)
            continue;
        writer->time_type = i;
        writer->unit_ns = unit_ns;
    }
    if (writer->unit_ns == 0)
        return ef_err_set(err, EF_EUNSUP,
                          "a cpuprofile holds time, and this profile has no type of time");
    writer->hits_type = ef_format_type_with_unit(profile, "count");
    rc = ef_format_refuse_negative(profile, writer->time_type, "cpuprofile", err);
    if (rc == EF_OK && writer->hits_type != EF_PROFILE_TYPES_MAX)
        rc = ef_format_refuse_negative(profile, writer->hits_type, "cpuprofile", err);
    for (uint32_t i = 0; i < profile->node_count && rc == EF_OK; i++) {
        if (time_of(writer, i) > INT64_MAX / writer->unit_ns)
            rc = ef_err_set(err, EF_ELIMIT, "a time is too long for a cpuprofile");
    }
    return rc;
}

/* Without counts, one hit for each started millisecond: viewers weigh nodes by their hits. */
static int64_t
hits_of(const struct writer *writer, uint32_t node)
{
    int64_t self_ns = time_of(writer, node) * writer->unit_ns;

    if (writer->hits_type == EF_PROFILE_TYPES_MAX)
        return self_ns / EF_NS_PER_MS + (self_ns % EF_NS_PER_MS != 0);
    return writer->profile->values[(size_t)node * writer->profile->type_count + writer->hits_type];
}

static void
write_node(const struct writer *writer, const struct ef_format_links *links, uint32_t node)
{
    struct ef_buf *out = writer->out;

    ef_buf_printf(out, "%s{\"id\":%" PRIu32 ",", node > 0 ? "," : "", node + 1);
    ef_v8_put_call_frame(out, writer->profile, writer->profile->nodes[node].frame);
    ef_buf_printf(out, ",\"hitCount\":%" PRId64, hits_of(writer, node));
    if (time_of(writer, node) != 0)
        ef_buf_printf(out, ",\"" SELF_NANOSECONDS "\":%" PRId64,
                      time_of(writer, node) * writer->unit_ns);
    if (links->first_child[node] != 0) {
        ef_buf_append_str(out, ",\"children\":");
        for (uint32_t child = links->first_child[node]; child != 0;
             child = links->next_sibling[child])
            ef_buf_printf(out, "%c%" PRIu32, child == links->first_child[node] ? '[' : ',',
                          child + 1);
        ef_buf_put_u8(out, ']');
    }
    ef_buf_put_u8(out, '}');
}

/* One sample for each stack with time, and one of the root that ends the last. */
static void
write_samples(const struct writer *writer)
{
    ef_buf_append_str(writer->out, ",\"samples\":[");
    for (uint32_t i = 0; i < writer->profile->node_count; i++) {
        if (time_of(writer, i) != 0)
            ef_buf_printf(writer->out, "%" PRIu32 ",", i + 1);
    }
    ef_buf_append_str(writer->out, "1]");
}

/*
 * A delta is the gap before its sample, so a stack's weight stands in the slot after it. Fractions
 * of microseconds are carried on: the sum is right to the microsecond. Gives the sum.
 */
static int64_t
write_deltas(const struct writer *writer)
{
    int64_t sum_ns = 0, sum_us = 0;

    ef_buf_append_str(writer->out, ",\"timeDeltas\":[0");
    for (uint32_t i = 0; i < writer->profile->node_count; i++) {
        int64_t self_ns = time_of(writer, i) * writer->unit_ns;
        if (self_ns == 0)
            continue;
        if (!ef_add_i64(sum_ns, self_ns, &sum_ns))
            sum_ns = INT64_MAX;
        ef_buf_printf(writer->out, ",%" PRId64, sum_ns / EF_NS_PER_US - sum_us);
        sum_us = sum_ns / EF_NS_PER_US;
    }
    ef_buf_put_u8(writer->out, ']');
    return sum_us;
}

ef_rc
ef_format_cpuprofile_write(const struct ef_profile *profile, const struct ef_format_about *about,
                           struct ef_buf *out, struct ef_err *err)
{
    struct writer writer = {.profile = profile, .out = out};
    struct ef_format_links links = {0};
    int64_t sum_us;
    size_t len = out->len;
    ef_rc rc = choose_types(&writer, err);

    (void)about;
    if (rc == EF_OK)
        rc = ef_format_links_init(&links, profile, err);
    if (rc != EF_OK)
        return rc;
    ef_buf_append_str(out, "{\"nodes\":[");
    for (uint32_t i = 0; i < profile->node_count && !out->failed; i++)
        write_node(&writer, &links, i);
    ef_buf_put_u8(out, ']');
    write_samples(&writer);
    sum_us = write_deltas(&writer);
    ef_buf_printf(out, ",\"startTime\":0,\"endTime\":%" PRId64 "}\n", sum_us);
    rc = ef_buf_check(out, "the cpuprofile", err);
    if (rc != EF_OK)
        out->len = len;
    ef_format_links_fini(&links);
    return rc;
}
