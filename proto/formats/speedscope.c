/*
 * Decides how profiles map to speedscope's file (schema speedscope.app/file-format-schema.json):
 * one speedscope profile for each sample type, all on one list of frames. Aggregates have no order
 * of time; the file's name says so. Any thread.
 */
#include "proto/formats/v8.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/limit.h"

#define AGGREGATED " (summed up, not in order of time)"
#define EXPORTER "everflame@" EF_VERSION
/* Not speedscope's: the unit as the sample type has it, so that our own files lose nothing. Viewers
 * ignore it. */
#define SAMPLE_UNIT "sampleUnit"

/* Frames of the same function are one frame here; speedscope groups by frame. */
struct writer {
    const struct ef_profile *profile;
    struct ef_buf *out;
    struct ef_json json;
    uint32_t *index; /* per frame: number in the file */
    uint32_t *path;  /* of the stack being written, leaf first */
};

static uint64_t
frame_key(const struct ef_profile *profile, uint32_t frame_id)
{
    const struct ef_profile_frame *frame = &profile->frames[frame_id];

    if (frame->function == 0)
        return (uint64_t)frame_id << 32; /* an address is a frame of its own */
    return (uint64_t)frame->column << 32 | frame->function | UINT64_C(1) << 63;
}

static void
write_frame(struct writer *writer, uint32_t frame_id)
{
    const struct ef_profile_frame *frame = &writer->profile->frames[frame_id];
    const struct ef_profile_function *function = &writer->profile->functions[frame->function];
    const char *file = ef_profile_string(writer->profile, function->file);
    char buf[80];

    ef_json_object(&writer->json);
    ef_json_kstr(&writer->json, "name",
                 ef_profile_frame_name(writer->profile, frame_id, buf, sizeof(buf)));
    if (file[0] != '\0')
        ef_json_kstr(&writer->json, "file", file);
    if (function->start_line != 0)
        ef_json_ku64(&writer->json, "line", function->start_line);
    if (frame->column != 0)
        ef_json_ku64(&writer->json, "col", frame->column);
    ef_json_object_end(&writer->json);
}

static ef_rc
write_frames(struct writer *writer, struct ef_err *err)
{
    struct ef_map seen;
    uint32_t count = 0;
    ef_rc rc = EF_OK;

    ef_map_init(&seen, SIZE_MAX);
    ef_json_key(&writer->json, "frames");
    ef_json_array(&writer->json);
    for (uint32_t i = 1; i < writer->profile->frame_count; i++) {
        bool is_new;
        uint64_t *index = ef_map_upsert(&seen, frame_key(writer->profile, i), &is_new);
        if (index == NULL) {
            rc = ef_err_set(err, EF_ENOMEM, "out of memory while writing speedscope");
            break;
        }
        if (is_new) {
            *index = count++;
            write_frame(writer, i);
        }
        writer->index[i] = (uint32_t)*index;
    }
    ef_json_array_end(&writer->json);
    ef_map_fini(&seen);
    return rc;
}

static int64_t
value_of(const struct writer *writer, uint32_t node, uint32_t type)
{
    return writer->profile->values[(size_t)node * writer->profile->type_count + type];
}

static void
write_stacks(struct writer *writer, uint32_t type)
{
    const struct ef_profile *profile = writer->profile;

    ef_json_key(&writer->json, "samples");
    ef_json_array(&writer->json);
    for (uint32_t i = 0; i < profile->node_count && !writer->out->failed; i++) {
        uint32_t depth = 0;
        if (value_of(writer, i, type) == 0)
            continue;
        for (uint32_t at = i; at != 0; at = profile->nodes[at].parent)
            writer->path[depth++] = writer->index[profile->nodes[at].frame];
        ef_json_array(&writer->json);
        while (depth > 0)
            ef_json_u64(&writer->json, writer->path[--depth]);
        ef_json_array_end(&writer->json);
    }
    ef_json_array_end(&writer->json);
    ef_json_key(&writer->json, "weights");
    ef_json_array(&writer->json);
    for (uint32_t i = 0; i < profile->node_count; i++) {
        if (value_of(writer, i, type) != 0)
            ef_json_i64(&writer->json, value_of(writer, i, type));
    }
    ef_json_array_end(&writer->json);
}

static void
write_profile(struct writer *writer, uint32_t type)
{
    struct ef_json *json = &writer->json;
    const char *unit = ef_profile_string(writer->profile, writer->profile->types[type].unit);

    ef_json_object(json);
    ef_json_kstr(json, "type", "sampled");
    ef_json_kstr(json, "name",
                 ef_profile_string(writer->profile, writer->profile->types[type].type));
    ef_json_kstr(json, "unit",
                 ef_format_unit_ns(unit) != 0 || strcmp(unit, "bytes") == 0 ? unit : "none");
    ef_json_kstr(json, SAMPLE_UNIT, unit);
    ef_json_ki64(json, "startValue", 0);
    ef_json_ki64(json, "endValue", ef_profile_total(writer->profile, type));
    write_stacks(writer, type);
    ef_json_object_end(json);
}

static ef_rc
write_file(struct writer *writer, const struct ef_format_about *about, struct ef_err *err)
{
    struct ef_json *json = &writer->json;
    char name[256];
    ef_rc rc;

    snprintf(name, sizeof(name), "%.200s" AGGREGATED,
             about->name != NULL ? about->name : "profile");
    ef_json_object(json);
    ef_json_kstr(json, "$schema", "https://www.speedscope.app/file-format-schema.json");
    ef_json_kstr(json, "name", name);
    ef_json_kstr(json, "exporter", EXPORTER);
    ef_json_ku64(json, "activeProfileIndex", writer->profile->type_count - 1);
    ef_json_key(json, "shared");
    ef_json_object(json);
    rc = write_frames(writer, err);
    ef_json_object_end(json);
    ef_json_key(json, "profiles");
    ef_json_array(json);
    for (uint32_t i = 0; i < writer->profile->type_count && rc == EF_OK; i++)
        write_profile(writer, i);
    ef_json_array_end(json);
    ef_json_object_end(json);
    ef_buf_put_u8(writer->out, '\n');
    return rc == EF_OK ? ef_buf_check(writer->out, "the speedscope profile", err) : rc;
}

ef_rc
ef_format_speedscope_write(const struct ef_profile *profile, const struct ef_format_about *about,
                           struct ef_buf *out, struct ef_err *err)
{
    struct writer writer = {.profile = profile, .out = out};
    size_t len = out->len;
    ef_rc rc = EF_OK;

    if (profile->type_count == 0)
        return ef_err_set(err, EF_EINVAL, "a profile without sample types cannot be written");
    for (uint32_t i = 0; i < profile->type_count && rc == EF_OK; i++)
        rc = ef_format_refuse_negative(profile, i, "speedscope file", err);
    if (rc != EF_OK)
        return rc;
    writer.index = calloc(profile->frame_count, sizeof(*writer.index));
    writer.path = calloc(profile->node_count, sizeof(*writer.path));
    ef_json_init(&writer.json, out);
    if (writer.index == NULL || writer.path == NULL)
        rc = ef_err_set(err, EF_ENOMEM, "out of memory while writing speedscope");
    else
        rc = write_file(&writer, about, err);
    if (rc != EF_OK)
        out->len = len;
    free(writer.index);
    free(writer.path);
    return rc;
}

struct reader {
    struct ef_profile *profile;
    uint32_t *frames; /* the file's frame number -> frame of the profile */
    size_t frame_count;
    bool ours; /* written by Everflame: names of profiles are sample types */
    struct ef_err *err;
};

static ef_rc
read_frame(struct reader *reader, const json_t *json, uint32_t *ret_frame)
{
    const char *name, *file;
    size_t name_len, file_len;
    int64_t line, column;
    ef_rc rc;

    if (!json_is_object(json))
        return ef_err_set(reader->err, EF_ECORRUPT, "a frame is not an object");
    rc = ef_jsonin_text(json, "name", &name, &name_len, reader->err);
    if (rc == EF_OK)
        rc = ef_jsonin_text(json, "file", &file, &file_len, reader->err);
    if (rc == EF_OK)
        rc = ef_jsonin_i64(json, "line", 0, INT32_MIN, INT32_MAX, &line, reader->err);
    if (rc == EF_OK)
        rc = ef_jsonin_i64(json, "col", 0, INT32_MIN, INT32_MAX, &column, reader->err);
    if (rc != EF_OK)
        return rc;
    return ef_format_add_frame(reader->profile, name, name_len, file, file_len,
                               line > 0 ? (uint32_t)line : 0, column > 0 ? (uint32_t)column : 0,
                               ret_frame, reader->err);
}

static ef_rc
read_frames(struct reader *reader, const json_t *json)
{
    const json_t *frames = json_object_get(json_object_get(json, "shared"), "frames");
    ef_rc rc = EF_OK;

    if (!json_is_array(frames))
        return ef_err_set(reader->err, EF_ECORRUPT, "there is no list of frames");
    reader->frame_count = json_array_size(frames);
    reader->frames = calloc(reader->frame_count + 1, sizeof(*reader->frames));
    if (reader->frames == NULL)
        return ef_err_set(reader->err, EF_ENOMEM, "out of memory for frames");
    for (size_t i = 0; i < reader->frame_count && rc == EF_OK; i++) {
        rc = read_frame(reader, json_array_get(frames, i), &reader->frames[i]);
        if (rc != EF_OK)
            ef_err_prefix(reader->err, "frame %zu", i);
    }
    return rc;
}

/* What one profile of the file counts: its type of ours and the factor to our unit. */
struct measure {
    const char *type, *unit;
    int64_t factor;
    uint32_t index; /* of the profile's types */
};

/* Times become nanoseconds, "none" a count; a unit we do not know is kept under its own name. */
static ef_rc
measure_of(const struct reader *reader, const json_t *json, struct measure *ret)
{
    const char *name, *unit, *exact;
    size_t name_len, unit_len, exact_len;
    ef_rc rc = ef_jsonin_text(json, "unit", &unit, &unit_len, reader->err);

    if (rc == EF_OK)
        rc = ef_jsonin_text(json, SAMPLE_UNIT, &exact, &exact_len, reader->err);

    if (rc == EF_OK)
        rc = ef_jsonin_text(json, "name", &name, &name_len, reader->err);
    if (rc != EF_OK)
        return rc;
    *ret = (struct measure){.type = "weight", .unit = unit, .factor = 1};
    if (ef_format_unit_ns(unit) != 0)
        *ret = (struct measure){"time", "nanoseconds", ef_format_unit_ns(unit), 0};
    else if (strcmp(unit, "bytes") == 0)
        ret->type = "space";
    else if (strcmp(unit, "none") == 0 || unit[0] == '\0')
        *ret = (struct measure){"samples", "count", 1, 0};
    if (reader->ours && name[0] != '\0')
        *ret = (struct measure){name, exact, 1, 0};
    return EF_OK;
}

static bool
same_text(const struct ef_profile *profile, uint32_t string, const char *text)
{
    return strcmp(ef_profile_string(profile, string), text) == 0;
}

/* Profiles of the same measure are parts of one whole (threads, say) and add up. */
static ef_rc
find_type(struct reader *reader, struct measure *measure)
{
    const struct ef_profile *profile = reader->profile;

    for (measure->index = 0; measure->index < profile->type_count; measure->index++) {
        const struct ef_profile_type *type = &profile->types[measure->index];
        if (same_text(profile, type->type, measure->type) &&
            same_text(profile, type->unit, measure->unit))
            return EF_OK;
    }
    return ef_profile_add_type(reader->profile, measure->type, measure->unit, reader->err);
}

/* A weight in our unit, whole; "0.25" seconds are 250000000 ns. */
static ef_rc
scaled(const struct reader *reader, const json_t *value, int64_t factor, int64_t *ret)
{
    if (json_is_integer(value)) {
        if (ef_mul_i64(json_integer_value(value), factor, ret))
            return EF_OK;
    } else if (json_is_real(value)) {
        double number = json_real_value(value) * (double)factor;
        if (fabs(number) < 9.2e18) { /* a little under 2^63 */
            *ret = llround(number);
            return EF_OK;
        }
    } else {
        return ef_err_set(reader->err, EF_ECORRUPT, "a weight or time is not a number");
    }
    return ef_err_set(reader->err, EF_ECORRUPT, "a weight or time is out of range");
}

static ef_rc
frame_at(const struct reader *reader, const json_t *value, uint32_t *ret_frame)
{
    int64_t index;
    ef_rc rc = ef_jsonin_value_i64(value, "frame", 0, (int64_t)reader->frame_count - 1, &index,
                                   reader->err);

    if (rc == EF_OK)
        *ret_frame = reader->frames[index];
    return rc;
}

static ef_rc
read_stack(struct reader *reader, const json_t *stack, uint32_t *ret_node)
{
    uint32_t node = 0;
    ef_rc rc = EF_OK;

    if (!json_is_array(stack))
        return ef_err_set(reader->err, EF_ECORRUPT, "a sample is not a list of frames");
    if (json_array_size(stack) > EF_PROFILE_DEPTH_MAX)
        return ef_err_set(reader->err, EF_ELIMIT, "a sample is deeper than %d frames",
                          EF_PROFILE_DEPTH_MAX);
    for (size_t i = 0; i < json_array_size(stack) && rc == EF_OK; i++) {
        uint32_t frame = 0;
        rc = frame_at(reader, json_array_get(stack, i), &frame);
        if (rc == EF_OK)
            rc = ef_profile_add_node(reader->profile, node, frame, &node, reader->err);
    }
    if (rc == EF_OK)
        *ret_node = node;
    return rc;
}

static ef_rc
read_sampled(struct reader *reader, const json_t *json, const struct measure *measure)
{
    const json_t *samples = json_object_get(json, "samples");
    const json_t *weights = json_object_get(json, "weights");
    size_t count = json_array_size(samples);
    ef_rc rc = EF_OK;

    if (!json_is_array(samples) || !json_is_array(weights) || json_array_size(weights) != count)
        return ef_err_set(reader->err, EF_ECORRUPT, "samples and weights are not equally many");
    for (size_t i = 0; i < count && rc == EF_OK; i++) {
        uint32_t node = 0;
        int64_t value = 0;
        rc = read_stack(reader, json_array_get(samples, i), &node);
        if (rc == EF_OK)
            rc = scaled(reader, json_array_get(weights, i), measure->factor, &value);
        if (rc == EF_OK)
            rc = ef_profile_add_value(reader->profile, node, measure->index, value, reader->err);
    }
    reader->profile->samples += count;
    return rc;
}

/* The state between two events: the open stack and since when. */
struct events {
    uint32_t nodes[EF_PROFILE_DEPTH_MAX + 1]; /* nodes[0] is the root */
    uint32_t frames[EF_PROFILE_DEPTH_MAX + 1];
    uint32_t depth;
    int64_t at;
};

static ef_rc
apply_event(struct reader *reader, struct events *events, const json_t *json)
{
    const char *type;
    size_t type_len;
    uint32_t frame = 0;
    ef_rc rc = ef_jsonin_text(json, "type", &type, &type_len, reader->err);

    if (rc == EF_OK)
        rc = frame_at(reader, json_object_get(json, "frame"), &frame);
    if (rc != EF_OK)
        return rc;
    if (strcmp(type, "O") == 0) {
        if (events->depth == EF_PROFILE_DEPTH_MAX)
            return ef_err_set(reader->err, EF_ELIMIT, "a stack is deeper than %d frames",
                              EF_PROFILE_DEPTH_MAX);
        rc = ef_profile_add_node(reader->profile, events->nodes[events->depth], frame,
                                 &events->nodes[events->depth + 1], reader->err);
        events->frames[++events->depth] = frame;
        return rc;
    }
    if (strcmp(type, "C") != 0 || events->depth == 0 || events->frames[events->depth] != frame)
        return ef_err_set(reader->err, EF_ECORRUPT, "an event closes a frame that is not open");
    events->depth--;
    return EF_OK;
}

static ef_rc
read_evented(struct reader *reader, const json_t *json, const struct measure *measure)
{
    const json_t *list = json_object_get(json, "events");
    struct events *events = calloc(1, sizeof(*events)); /* 16 kB: too much for a small stack */
    ef_rc rc = EF_OK;

    if (events == NULL)
        return ef_err_set(reader->err, EF_ENOMEM, "out of memory for events");
    if (!json_is_array(list))
        rc = ef_err_set(reader->err, EF_ECORRUPT, "there is no list of events");
    for (size_t i = 0; rc == EF_OK && i < json_array_size(list); i++) {
        const json_t *event = json_array_get(list, i);
        int64_t at = 0, span = 0;
        rc = scaled(reader, json_object_get(event, "at"), measure->factor, &at);
        if (rc == EF_OK && i > 0 && (__builtin_sub_overflow(at, events->at, &span) || span < 0))
            rc = ef_err_set(reader->err, EF_ECORRUPT, "event %zu is before the one before it", i);
        if (rc == EF_OK)
            rc = ef_profile_add_value(reader->profile, events->nodes[events->depth], measure->index,
                                      events->depth > 0 ? span : 0, reader->err);
        if (rc == EF_OK)
            rc = apply_event(reader, events, event);
        events->at = at;
    }
    if (rc == EF_OK && events->depth > 0)
        rc = ef_err_set(reader->err, EF_ECORRUPT, "frames are still open at the end");
    reader->profile->samples += json_array_size(list);
    free(events);
    return rc;
}

static ef_rc
read_one(struct reader *reader, const json_t *json)
{
    const char *type;
    size_t type_len;
    struct measure measure;
    ef_rc rc = measure_of(reader, json, &measure);

    if (rc == EF_OK)
        rc = find_type(reader, &measure);
    if (rc == EF_OK)
        rc = ef_jsonin_text(json, "type", &type, &type_len, reader->err);
    if (rc != EF_OK)
        return rc;
    if (strcmp(type, "sampled") == 0)
        return read_sampled(reader, json, &measure);
    if (strcmp(type, "evented") == 0)
        return read_evented(reader, json, &measure);
    return ef_err_set(reader->err, EF_ECORRUPT, "type '%.32s' is neither sampled nor evented",
                      type);
}

/* All types first: the model wants them before the first stack. */
static ef_rc
read_types(struct reader *reader, const json_t *profiles)
{
    ef_rc rc = EF_OK;

    for (size_t i = 0; i < json_array_size(profiles) && rc == EF_OK; i++) {
        struct measure measure;
        rc = measure_of(reader, json_array_get(profiles, i), &measure);
        if (rc == EF_OK)
            rc = find_type(reader, &measure);
    }
    return rc;
}

static ef_rc
read_file(struct reader *reader, const json_t *json)
{
    const json_t *profiles = json_object_get(json, "profiles");
    const char *exporter;
    size_t exporter_len;
    ef_rc rc = ef_jsonin_text(json, "exporter", &exporter, &exporter_len, reader->err);

    if (rc != EF_OK)
        return rc;
    if (!json_is_array(profiles) || json_array_size(profiles) == 0)
        return ef_err_set(reader->err, EF_ECORRUPT, "there are no profiles");
    reader->ours = strncmp(exporter, "everflame@", 10) == 0;
    rc = read_types(reader, profiles);
    if (rc == EF_OK)
        rc = read_frames(reader, json);
    for (size_t i = 0; i < json_array_size(profiles) && rc == EF_OK; i++) {
        rc = read_one(reader, json_array_get(profiles, i));
        if (rc != EF_OK)
            ef_err_prefix(reader->err, "profile %zu", i);
    }
    return rc;
}

ef_rc
ef_format_speedscope_read(const uint8_t *data, size_t len, const struct ef_profile_limits *limits,
                          struct ef_profile **ret_profile, struct ef_err *err)
{
    struct reader reader = {.err = err};
    json_t *json = NULL;
    ef_rc rc = ef_jsonin_parse(data, len, "speedscope", &json, err);

    if (rc != EF_OK)
        return rc;
    rc = ef_profile_open(limits, &reader.profile, err);
    if (rc == EF_OK)
        rc = read_file(&reader, json);
    if (rc == EF_OK) {
        *ret_profile = reader.profile;
        reader.profile = NULL; /* moved to the caller */
    } else {
        ef_err_prefix(err, "speedscope");
    }
    ef_profile_free(reader.profile);
    free(reader.frames);
    json_decref(json);
    return rc;
}

bool
ef_format_speedscope_sniff(const uint8_t *data, size_t len)
{
    return ef_format_is_object(data, len) && ef_format_has_key(data, len, "shared") &&
           ef_format_has_key(data, len, "profiles");
}
