/*
 * Decides how a profile becomes a pprof: which elements are written, their numbers, the mapping.
 * Must not know where the profile came from. Any thread.
 */
#include "proto/pprof/pprof.h"

#include <stdlib.h>
#include <string.h>

#include "proto/pprof/fields.h"

struct writer {
    const struct ef_profile *profile;
    struct ef_buf out;      /* the message before compression */
    struct ef_buf message;  /* one message inside it */
    struct ef_buf inner;    /* one inside that */
    uint32_t *locations;    /* per frame: its number in the file, 0 = not written */
    uint32_t *frames;       /* per number minus 1: the frame */
    uint32_t *functions;    /* likewise */
    uint32_t *function_ids; /* likewise */
    uint32_t *strings;      /* per string of the profile: its index in the file */
    uint32_t *string_ids;   /* per index */
    bool *unsymbolised;     /* per mapping: has a frame without a function */
    uint32_t location_count, function_count, string_count;
    bool own_mapping; /* the profile has none, we write one */
};

static void
put_number(struct ef_buf *buf, uint32_t field, uint64_t value)
{
    if (value == 0)
        return; /* proto3 leaves out what is 0 */
    ef_buf_put_varint(buf, (uint64_t)field << 3 | EF_PB_VARINT);
    ef_buf_put_varint(buf, value);
}

static void
put_bytes(struct ef_buf *buf, uint32_t field, const void *bytes, size_t len)
{
    ef_buf_put_varint(buf, (uint64_t)field << 3 | EF_PB_BYTES);
    ef_buf_put_varint(buf, len);
    ef_buf_append(buf, bytes, len);
}

static void
put_message(struct writer *writer, uint32_t field)
{
    put_bytes(&writer->out, field, writer->message.data, writer->message.len);
    writer->out.failed |= writer->message.failed || writer->inner.failed;
    ef_buf_clear(&writer->message);
}

/* Index in the file's table; strings get theirs when first used. */
static uint64_t
string_index(struct writer *writer, uint32_t id)
{
    if (id == 0)
        return 0;
    if (writer->strings[id] == 0) {
        writer->string_ids[writer->string_count] = id;
        writer->strings[id] = writer->string_count++;
    }
    return writer->strings[id];
}

static void
put_value_type(struct writer *writer, uint32_t field, struct ef_profile_type type)
{
    put_number(&writer->message, VALUE_TYPE_TYPE, string_index(writer, type.type));
    put_number(&writer->message, VALUE_TYPE_UNIT, string_index(writer, type.unit));
    put_message(writer, field);
}

static uint32_t
location_of(struct writer *writer, uint32_t frame_id)
{
    const struct ef_profile_frame *frame = &writer->profile->frames[frame_id];

    if (writer->locations[frame_id] == 0) {
        writer->frames[writer->location_count++] = frame_id;
        writer->locations[frame_id] = writer->location_count;
        if (frame->function == 0)
            writer->unsymbolised[frame->mapping] = true;
    }
    return writer->locations[frame_id];
}

static bool
has_value(const struct ef_profile *profile, uint32_t node)
{
    for (uint32_t type = 0; type < profile->type_count; type++) {
        if (profile->values[(size_t)node * profile->type_count + type] != 0)
            return true;
    }
    return false;
}

static void
put_sample(struct writer *writer, uint32_t node)
{
    const struct ef_profile *profile = writer->profile;

    ef_buf_clear(&writer->inner);
    for (uint32_t at = node; at != 0; at = profile->nodes[at].parent)
        ef_buf_put_varint(&writer->inner, location_of(writer, profile->nodes[at].frame));
    if (writer->inner.len > 0)
        put_bytes(&writer->message, SAMPLE_LOCATION, writer->inner.data, writer->inner.len);
    writer->out.failed |= writer->inner.failed;
    ef_buf_clear(&writer->inner);
    for (uint32_t type = 0; type < profile->type_count; type++)
        ef_buf_put_varint(&writer->inner,
                          (uint64_t)profile->values[(size_t)node * profile->type_count + type]);
    put_bytes(&writer->message, SAMPLE_VALUE, writer->inner.data, writer->inner.len);
    put_message(writer, PPROF_SAMPLE);
}

/* The flags keep pprof from asking symbol servers about what has its names already. */
static void
put_mapping(struct writer *writer, uint32_t id, const struct ef_profile_mapping *mapping,
            uint64_t file, uint64_t build_id)
{
    struct ef_buf *message = &writer->message;
    bool symbolised = !writer->unsymbolised[id];

    put_number(message, MAPPING_ID, id);
    put_number(message, MAPPING_START, mapping->start);
    put_number(message, MAPPING_LIMIT, mapping->limit);
    put_number(message, MAPPING_OFFSET, mapping->offset);
    put_number(message, MAPPING_FILE, file);
    put_number(message, MAPPING_BUILD_ID, build_id);
    put_number(message, MAPPING_HAS_FUNCTIONS, symbolised);
    put_number(message, MAPPING_HAS_FILES, symbolised);
    put_number(message, MAPPING_HAS_LINES, symbolised);
    put_message(writer, PPROF_MAPPING);
}

/* Indexes of the texts that are not the profile's come after all of its own. */
struct extra {
    const char *texts[4]; /* anonymous, program, build, comment */
    uint32_t count;
};

static uint64_t
extra_index(const struct writer *writer, struct extra *extra, const char *text)
{
    if (text == NULL || text[0] == '\0')
        return 0;
    extra->texts[extra->count] = text;
    return writer->string_count + extra->count++;
}

static void
put_mappings(struct writer *writer)
{
    const struct ef_profile *profile = writer->profile;

    for (uint32_t i = 1; i < profile->mapping_count; i++)
        put_mapping(writer, i, &profile->mappings[i],
                    string_index(writer, profile->mappings[i].file),
                    string_index(writer, profile->mappings[i].build_id));
}

static uint32_t
function_of(struct writer *writer, uint32_t id)
{
    if (writer->functions[id] == 0) {
        writer->function_ids[writer->function_count++] = id;
        writer->functions[id] = writer->function_count;
    }
    return writer->functions[id];
}

static void
put_location(struct writer *writer, uint32_t number)
{
    const struct ef_profile_frame *frame = &writer->profile->frames[writer->frames[number - 1]];
    struct ef_buf *message = &writer->message;
    uint32_t mapping = frame->mapping;

    /* Readers exist that fail on a location without mapping, so names go to the program. */
    if (mapping == 0 && frame->address == 0 &&
        (writer->own_mapping || writer->profile->mapping_count > 1))
        mapping = 1;
    put_number(message, LOCATION_ID, number);
    put_number(message, LOCATION_MAPPING, mapping);
    put_number(message, LOCATION_ADDRESS, frame->address);
    if (frame->function != 0) {
        ef_buf_clear(&writer->inner);
        put_number(&writer->inner, LINE_FUNCTION, function_of(writer, frame->function));
        put_number(&writer->inner, LINE_LINE, frame->line);
        put_number(&writer->inner, LINE_COLUMN, frame->column);
        put_bytes(message, LOCATION_LINE, writer->inner.data, writer->inner.len);
    }
    put_message(writer, PPROF_LOCATION);
}

static void
put_function(struct writer *writer, uint32_t number, uint64_t anonymous)
{
    const struct ef_profile_function *function =
        &writer->profile->functions[writer->function_ids[number - 1]];
    struct ef_buf *message = &writer->message;
    uint64_t name = string_index(writer, function->name);
    uint64_t system_name = string_index(writer, function->system_name);

    if (name == 0)
        name = system_name != 0 ? system_name : anonymous;
    put_number(message, FUNCTION_ID, number);
    put_number(message, FUNCTION_NAME, name);
    put_number(message, FUNCTION_SYSTEM_NAME, system_name != 0 ? system_name : name);
    put_number(message, FUNCTION_FILE, string_index(writer, function->file));
    put_number(message, FUNCTION_START_LINE, function->start_line);
    put_message(writer, PPROF_FUNCTION);
}

/* All strings that functions will use, so that the extra ones can be numbered after them. */
static bool
number_function_strings(struct writer *writer)
{
    bool anonymous = false;

    for (uint32_t i = 0; i < writer->function_count; i++) {
        const struct ef_profile_function *function =
            &writer->profile->functions[writer->function_ids[i]];
        string_index(writer, function->name);
        string_index(writer, function->system_name);
        string_index(writer, function->file);
        anonymous |= function->name == 0 && function->system_name == 0;
    }
    return anonymous;
}

static void
put_strings(struct writer *writer, const struct extra *extra)
{
    for (uint32_t i = 0; i < writer->string_count; i++) {
        const char *text = ef_profile_string(writer->profile, writer->string_ids[i]);
        put_bytes(&writer->out, PPROF_STRING, text, strlen(text));
    }
    for (uint32_t i = 0; i < extra->count; i++)
        put_bytes(&writer->out, PPROF_STRING, extra->texts[i], strlen(extra->texts[i]));
}

static void
put_profile(struct writer *writer, const struct ef_pprof_about *about)
{
    const struct ef_profile *profile = writer->profile;
    struct extra names = {{0}, 0};
    bool has_anonymous;
    uint64_t anonymous = 0, file, build_id, comment;

    for (uint32_t i = 0; i < profile->type_count; i++)
        put_value_type(writer, PPROF_SAMPLE_TYPE, profile->types[i]);
    for (uint32_t i = 0; i < profile->node_count; i++) {
        if (has_value(profile, i))
            put_sample(writer, i);
    }
    put_mappings(writer);
    for (uint32_t i = 1; i <= writer->location_count; i++)
        put_location(writer, i);
    has_anonymous = number_function_strings(writer);
    if (profile->period_type.type != 0)
        put_value_type(writer, PPROF_PERIOD_TYPE, profile->period_type);
    /* From here on the profile's strings are all numbered. */
    if (has_anonymous)
        anonymous = extra_index(writer, &names, EF_PROFILE_ANONYMOUS);
    file = writer->own_mapping ? extra_index(writer, &names, about->program) : 0;
    build_id = writer->own_mapping ? extra_index(writer, &names, about->build) : 0;
    if (writer->own_mapping)
        put_mapping(writer, 1, &(struct ef_profile_mapping){0}, file, build_id);
    comment = extra_index(writer, &names, about->comment);
    for (uint32_t i = 1; i <= writer->function_count; i++)
        put_function(writer, i, anonymous);
    put_strings(writer, &names);
    put_number(&writer->out, PPROF_TIME, (uint64_t)profile->time_ns);
    put_number(&writer->out, PPROF_DURATION, (uint64_t)profile->duration_ns);
    put_number(&writer->out, PPROF_PERIOD, (uint64_t)profile->period);
    put_number(&writer->out, PPROF_COMMENT, comment);
}

/* Strings are numbered without gaps and only string 0 is empty. */
static uint32_t
strings_of(const struct ef_profile *profile)
{
    uint32_t count = 1;

    while (ef_profile_string(profile, count)[0] != '\0')
        count++;
    return count;
}

static bool
alloc_writer(struct writer *writer)
{
    const struct ef_profile *profile = writer->profile;
    uint32_t strings = strings_of(profile);

    writer->locations = calloc(profile->frame_count, sizeof(uint32_t));
    writer->frames = calloc(profile->frame_count, sizeof(uint32_t));
    writer->functions = calloc(profile->function_count, sizeof(uint32_t));
    writer->function_ids = calloc(profile->function_count, sizeof(uint32_t));
    writer->strings = calloc(strings, sizeof(uint32_t));
    writer->string_ids = calloc(strings, sizeof(uint32_t));
    writer->unsymbolised = calloc(profile->mapping_count + 1, sizeof(bool));
    writer->string_count = 1; /* index 0 is "" */
    return writer->locations != NULL && writer->frames != NULL && writer->functions != NULL &&
           writer->function_ids != NULL && writer->strings != NULL && writer->string_ids != NULL &&
           writer->unsymbolised != NULL;
}

static void
free_writer(struct writer *writer)
{
    ef_buf_fini(&writer->out);
    ef_buf_fini(&writer->message);
    ef_buf_fini(&writer->inner);
    free(writer->locations);
    free(writer->frames);
    free(writer->functions);
    free(writer->function_ids);
    free(writer->strings);
    free(writer->string_ids);
    free(writer->unsymbolised);
}

ef_rc
ef_pprof_write(const struct ef_profile *profile, const struct ef_pprof_about *about,
               size_t bytes_max, struct ef_buf *out, struct ef_err *err)
{
    struct writer writer = {.profile = profile};
    bool named = (about->program != NULL && about->program[0] != '\0') ||
                 (about->build != NULL && about->build[0] != '\0');
    ef_rc rc;

    ef_buf_init(&writer.out, bytes_max);
    ef_buf_init(&writer.message, bytes_max);
    ef_buf_init(&writer.inner, bytes_max);
    writer.own_mapping = profile->mapping_count == 1 && named;
    if (profile->type_count == 0) {
        rc = ef_err_set(err, EF_EINVAL, "a profile without sample types cannot be written");
        goto out;
    }
    if (!alloc_writer(&writer)) {
        rc = ef_err_set(err, EF_ENOMEM, "out of memory while writing a pprof");
        goto out;
    }
    put_profile(&writer, about);
    rc = ef_buf_check(&writer.out, "the pprof before compression", err);
    if (rc == EF_OK)
        rc = ef_gzip_deflate(writer.out.data, writer.out.len, out, err);
out:
    free_writer(&writer);
    return rc;
}
